"""Layers in the blocks and modules that they belong to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_layers import MS, PROFILE, layer

from edgevit.reporting.layers import PARTS, LayerPlace, break_down, place_of, place_of_layer


@pytest.mark.parametrize(
    ("node", "block", "part"),
    [
        ("blocks.11.attn.qkv/MatMul", 11, "attention"),
        ("blocks.0.attn.q_norm/LayerNormalization", 0, "attention"),
        ("blocks.3.norm1/LayerNormalization", 3, "norms"),
        ("blocks.3.mlp.fc1/MatMul", 3, "FFN"),
        ("blocks.3/Add_1", 3, "residuals"),
        ("blocks.3.ls1/Mul", 3, "residuals"),
        ("patch_embed.proj/Conv", None, "embedding"),
        ("model/Concat_1", None, "embedding"),
        ("norm/LayerNormalization", None, "norms"),
        ("fc_norm/LayerNormalization", None, "norms"),
        ("head/Gemm", None, "head"),
        ("/blocks/blocks.2/attn/qkv/MatMul", 2, "attention"),  # torch's older exporter
        ("/vit/encoder/layer.4/attention/attention/query/MatMul", 4, "attention"),  # Hugging Face's ViT
        ("/vit/encoder/layer.4/layernorm_before/ReduceMean", 4, "norms"),
        ("/vit/encoder/layer.4/intermediate/dense/MatMul", 4, "FFN"),
        ("/vit/embeddings/patch_embeddings/projection/Conv", None, "embedding"),
        ("/classifier/Gemm", None, "head"),
    ],
)
def test_a_node_belongs_to_the_module_that_its_name_says(node: str, block: int | None, part: str) -> None:
    assert place_of(node) == LayerPlace(block, part)  # type: ignore[arg-type]


@given(st.text(st.sampled_from("abc./_0123 blocksattnnorm"), max_size=40))
def test_every_name_has_a_place_or_none(node: str) -> None:
    place = place_of(node)
    assert place is None or place.part in PARTS


def test_a_kernel_of_several_modules_belongs_to_the_one_of_its_largest_operation() -> None:
    nodes = ("blocks.0.attn.proj/MatMul_1", "blocks.0/Add", "blocks.0.norm2/LayerNormalization")
    assert place_of_layer(layer("k", 1, *nodes)) == LayerPlace(0, "attention")
    assert place_of_layer(layer("k", 1, *nodes[1:])) == LayerPlace(0, "norms")
    assert place_of_layer(layer("k", 1, "x", "y")) == LayerPlace(None, "no known name")
    within, across = ("blocks.0.mlp.fc1/MatMul", "blocks.0.mlp.fc2/Add"), ("patch_embed.proj/Conv", "head/Gemm")
    assert place_of_layer(layer("{ForeignNode[a...b]}", 1, *within)) == LayerPlace(0, "FFN")
    assert place_of_layer(layer("{ForeignNode[a...b]}", 1, *across)) == LayerPlace(None, "not shown")


def test_parts_and_what_is_between_them_are_the_inference_and_interruptions_are_apart() -> None:
    found = break_down(PROFILE)
    assert found.ms("attention", block=1) == pytest.approx(3.5) and found.ms("FFN", block=1) == pytest.approx(3)
    assert found.ms("norms", block=1) == pytest.approx(0.5) and found.blocks == [1]
    assert (found.ms("embedding"), found.ms("head")) == (1, 0.75)
    assert (found.unknown, found.fused) == (("Reformatting 7",), 1)
    # 9 ms in layers; the median of what is between them is 2 of 1, 2 and 21.
    assert (found.between_ms, found.inference_ms) == (pytest.approx(2), pytest.approx(11))
    assert found.share(found.ms(anywhere=True)) == pytest.approx(9 / 11)
    assert (found.profiled_ms, found.plain_ms, found.interrupted_ms) == (11, 8.5, pytest.approx(0))
    assert found.slowest[0] == ("__myl_3", 3.0)


def test_what_only_interrupts_is_in_no_module() -> None:
    """Of five inferences each was interrupted in another layer: no layer's median has it, and the whole's has."""
    layers = tuple(
        replace(one, times_ns=tuple(MS * (1 + 9 * (i == place)) for i in range(5)))
        for place, one in enumerate(PROFILE.layers[:5])
    )
    found = break_down(replace(PROFILE, layers=layers, inferences_ns=(15 * MS,) * 5))
    assert found.ms(anywhere=True) == pytest.approx(5)
    assert (found.inference_ms, found.interrupted_ms) == (pytest.approx(6), pytest.approx(9))
