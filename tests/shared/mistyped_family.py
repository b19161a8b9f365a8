"""All functions of a family but one, which gives something else. For `mistyped_families`."""

from __future__ import annotations

from torch import nn

from edgevit.network.families.vit import adopted as adopted
from edgevit.network.families.vit import answers as answers
from edgevit.network.families.vit import arguments as arguments
from edgevit.network.families.vit import attention_inputs as attention_inputs
from edgevit.network.families.vit import attention_outputs as attention_outputs
from edgevit.network.families.vit import branches as branches
from edgevit.network.families.vit import build as build
from edgevit.network.families.vit import check as check
from edgevit.network.families.vit import classifiers as classifiers
from edgevit.network.families.vit import ffn_outputs as ffn_outputs
from edgevit.network.families.vit import final_tokens as final_tokens
from edgevit.network.families.vit import first_tokens as first_tokens
from edgevit.network.families.vit import fitted as fitted
from edgevit.network.families.vit import geometry as geometry
from edgevit.network.families.vit import has_classifier as has_classifier
from edgevit.network.families.vit import keep_blocks as keep_blocks
from edgevit.network.families.vit import keep_classes as keep_classes
from edgevit.network.families.vit import layers as layers
from edgevit.network.families.vit import make_classifiers as make_classifiers
from edgevit.network.families.vit import matches as matches
from edgevit.network.families.vit import named as named
from edgevit.network.families.vit import of_one_size as of_one_size
from edgevit.network.families.vit import pack as pack
from edgevit.network.families.vit import plain_loader as plain_loader
from edgevit.network.families.vit import projections as projections
from edgevit.network.families.vit import read as read
from edgevit.network.families.vit import reads_mean as reads_mean
from edgevit.network.families.vit import residual_scales as residual_scales
from edgevit.network.families.vit import resize as resize
from edgevit.network.families.vit import sites as sites
from edgevit.network.families.vit import token_norms as token_norms
from edgevit.network.families.vit import token_scores as token_scores
from edgevit.network.families.vit import unpack as unpack
from edgevit.network.families.vit import weighing as weighing
from edgevit.network.families.vit import with_embedding as with_embedding


def input_size(model: nn.Module) -> int:
    return 32
