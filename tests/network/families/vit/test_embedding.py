"""Models whose tokens cannot be given another basis say why, each by its own reason."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
from torch import nn

from edgevit.network.families.vit.embedding import reason_against

FREE = {
    "plain": {},
    "LayerScale": {"init_values": 0.1},
    "pooled, then normalised": {"global_pool": "avg"},
    "normalised, then pooled": {"global_pool": "avg", "fc_norm": False},
    "registers": {"reg_tokens": 2, "no_embed_class": True},
}
FROZEN = {
    "a norm before the first block": {"pre_norm": True},
    "a norm of the patches": {"embed_norm_layer": "layernorm"},
    "pooling by 'max'": {"global_pool": "max"},
    "no norm subtracts their mean": {"final_norm": False},
    "a RmsNorm does not subtract their mean": {"norm_layer": timm.layers.RmsNorm},
}


@pytest.mark.parametrize("args", FREE.values(), ids=FREE)
def test_a_change_of_basis_passes_through(small_vit: Callable[..., nn.Module], args: dict[str, Any]) -> None:
    network = small_vit("vit_tiny_patch16_224", **args)
    assert reason_against(network.module) is None and network.geometry.fixed_embed is None


@pytest.mark.parametrize(("reason", "args"), FROZEN.items(), ids=FROZEN)
def test_what_it_does_not_pass_through_is_named(
    small_vit: Callable[..., nn.Module], reason: str, args: dict[str, Any]
) -> None:
    network = small_vit("vit_tiny_patch16_224", **args)
    assert (reason_against(network.module) or "").startswith(reason)
    assert network.geometry.fixed_embed == reason_against(network.module)


def test_a_norm_after_the_sum_has_a_reason_of_its_own(small_vit: Callable[..., nn.Module]) -> None:
    reason = small_vit("vit_base_patch16_rpn_224").geometry.fixed_embed
    assert reason is not None and "norm after each site" in reason
