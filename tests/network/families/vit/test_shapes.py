"""What the shapes of a ViT's weights say; tests/network/test_families_protocol.py sweeps every kind of network."""

from __future__ import annotations

from typing import Any

import pytest
import timm
from small_models import ARGS

from edgevit.errors import CheckpointError
from edgevit.network.copies import without_values
from edgevit.network.families.vit.shapes import guessed_arguments, guessed_name, shape_arguments


def made(name: str, **args: Any) -> Any:
    with without_values():
        return timm.create_model(name, **args)


@pytest.mark.parametrize(
    "name",
    ["vit_tiny_patch16_224", "vit_small_patch32_224", "vit_huge_patch14_224", "deit_small_distilled_patch16_224",
     "vit_small_patch14_reg4_dinov2", "vit_base_patch14_dinov2"],
)  # fmt: skip
def test_a_usual_network_is_called_by_its_name(name: str) -> None:
    assert guessed_name(made(name).state_dict()) == name


def test_weights_of_no_transformer_have_no_name() -> None:
    assert guessed_name(made("resnet10t").state_dict()) is None


def test_rows_of_an_ffn_are_as_many_as_timm_makes_of_the_ratio() -> None:
    state = made(
        "vit_tiny_patch16_224", **{**ARGS, "embed_dim": 192, "num_heads": 3, "mlp_ratio": 413.5 / 192}
    ).state_dict()
    again = made("vit_tiny_patch16_224", **{**ARGS, **shape_arguments(state), "num_heads": 3})
    assert len(again.blocks[0].mlp.fc1.weight) == len(state["blocks.0.mlp.fc1.weight"]) == 413


def test_heads_are_of_the_usual_width_which_is_said() -> None:
    usual, wide = made("vit_tiny_patch16_224"), made("vit_base_patch16_224", **{**ARGS, "embed_dim": 128})
    guessed, note = guessed_arguments(wide.state_dict(), usual, usual.state_dict(), ())
    assert guessed["num_heads"] == 2 and "assumed as 64 channels each; --model-arg num_heads=N" in (note or "")
    odd = made("vit_base_patch16_224", **{**ARGS, "embed_dim": 96})
    with pytest.raises(CheckpointError, match="no multiple of 64; give --model-arg num_heads=N"):
        guessed_arguments(odd.state_dict(), usual, usual.state_dict(), ())
    assert "num_heads" not in guessed_arguments(odd.state_dict(), usual, usual.state_dict(), {"num_heads"})[0]
