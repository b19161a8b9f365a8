"""All functions of a family but one, which returns something else. For `mistyped_families`."""

from __future__ import annotations

from torch import nn

from edgevit.network.families.vit import answers as answers
from edgevit.network.families.vit import blocks as blocks
from edgevit.network.families.vit import build as build
from edgevit.network.families.vit import check as check
from edgevit.network.families.vit import ends as ends
from edgevit.network.families.vit import first_tokens as first_tokens
from edgevit.network.families.vit import interchange as interchange
from edgevit.network.families.vit import keep_blocks as keep_blocks
from edgevit.network.families.vit import keep_classes as keep_classes
from edgevit.network.families.vit import make_classifiers as make_classifiers
from edgevit.network.families.vit import matches as matches
from edgevit.network.families.vit import of_one_size as of_one_size
from edgevit.network.families.vit import resize as resize
from edgevit.network.families.vit import with_embedding as with_embedding


def geometry(model: nn.Module) -> int:
    return 32
