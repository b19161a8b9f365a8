"""All functions of a family but one, which gives something else. For `mistyped_families`."""

from __future__ import annotations

from torch import nn

from edgevit.models.families.vit import adopted as adopted
from edgevit.models.families.vit import answers as answers
from edgevit.models.families.vit import arguments as arguments
from edgevit.models.families.vit import attention_inputs as attention_inputs
from edgevit.models.families.vit import attention_outputs as attention_outputs
from edgevit.models.families.vit import branches as branches
from edgevit.models.families.vit import build as build
from edgevit.models.families.vit import check as check
from edgevit.models.families.vit import classifiers as classifiers
from edgevit.models.families.vit import ffn_outputs as ffn_outputs
from edgevit.models.families.vit import final_tokens as final_tokens
from edgevit.models.families.vit import first_tokens as first_tokens
from edgevit.models.families.vit import fitted as fitted
from edgevit.models.families.vit import geometry as geometry
from edgevit.models.families.vit import has_classifier as has_classifier
from edgevit.models.families.vit import keep_blocks as keep_blocks
from edgevit.models.families.vit import keep_classes as keep_classes
from edgevit.models.families.vit import layers as layers
from edgevit.models.families.vit import make_classifiers as make_classifiers
from edgevit.models.families.vit import matches as matches
from edgevit.models.families.vit import named as named
from edgevit.models.families.vit import of_one_size as of_one_size
from edgevit.models.families.vit import pack as pack
from edgevit.models.families.vit import plain_loader as plain_loader
from edgevit.models.families.vit import projections as projections
from edgevit.models.families.vit import read as read
from edgevit.models.families.vit import reads_mean as reads_mean
from edgevit.models.families.vit import residual_scales as residual_scales
from edgevit.models.families.vit import resize as resize
from edgevit.models.families.vit import sites as sites
from edgevit.models.families.vit import token_norms as token_norms
from edgevit.models.families.vit import token_scores as token_scores
from edgevit.models.families.vit import unpack as unpack
from edgevit.models.families.vit import weighing as weighing
from edgevit.models.families.vit import with_embedding as with_embedding


def input_size(model: nn.Module) -> int:
    return 32
