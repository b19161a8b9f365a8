from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from family_examples import SWIN
from foreign_onnx import write_vit
from small_models import random_base, with_embedding, with_fewer_tokens

from edgevit.errors import ExportError
from edgevit.exporting.fusion import Fusion, count_fused, fusion_remark
from edgevit.exporting.graph import write_onnx
from edgevit.exporting.source import pad_heads

pytest.importorskip("tensorrt_rtx")


def fused_blocks(network: torch.nn.Module, path: Path) -> Fusion:
    write_onnx(network, path, input_size=(3, 32, 32), batch=1, opset=20, metadata={}, precision="fp16")
    blocks = list(network.dims)
    return count_fused(path, blocks=len(blocks), expected=sum(b.fusable for b in blocks))


def with_widths(network: torch.nn.Module, *widths: tuple[int, int]) -> torch.nn.Module:
    """A copy whose blocks have the first so many of their heads' QK and VO widths."""
    blocks = zip(network.read(), widths, strict=True)
    return network.build([replace(block, attention=block.attention.first(*w)) for block, w in blocks]).eval()


def test_equal_widths_fuse_in_every_block(tmp_path: Path) -> None:
    widths = (16, 20, 32, 64)  # a block of each
    network = with_widths(random_base(embed_dim=128, depth=len(widths)), *((w, w) for w in widths))
    fusion = fused_blocks(network, tmp_path / "model.onnx")
    assert (fusion.fused, fusion.expected, fusion.blocks) == (4, 4, 4)
    assert fusion_remark(fusion) is None


@pytest.mark.slow
def test_a_narrower_embedding_costs_no_fused_attention(tmp_path: Path) -> None:
    network = with_embedding(random_base(embed_dim=128), 80)
    fusion = fused_blocks(network, tmp_path / "model.onnx")
    assert network.geometry.embed == 80
    assert (fusion.fused, fusion.expected, fusion.blocks) == (2, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("args", [{}, {"class_token": False, "global_pool": "avg"}], ids=["class token", "none"])
def test_ranking_tokens_costs_no_fused_attention(args: Any, tmp_path: Path) -> None:
    network = with_fewer_tokens(random_base(embed_dim=128, **args), 12, 0, merged=True)
    fusion = fused_blocks(network, tmp_path / "model.onnx")
    assert (fusion.fused, fusion.expected, fusion.blocks) == (2, 2, 2)


@pytest.mark.slow
def test_unequal_and_tiny_widths_fuse_only_when_padded(tmp_path: Path) -> None:
    network = with_widths(random_base(depth=3), (24, 16), (16, 32), (8, 8))
    padded = pad_heads(network)
    fusion = fused_blocks(network, tmp_path / "model.onnx")
    assert (fusion.fused, fusion.expected, fusion.blocks) == (0, 0, 3)
    assert "--pad-heads" in str(fusion_remark(fusion))
    assert fused_blocks(padded, tmp_path / "padded.onnx").fused == 3


def test_of_an_imported_file_nothing_is_advised_that_is_refused_and_more_than_its_blocks_may_fuse() -> None:
    some = Fusion(fused=3, blocks=4, expected=0, compiler="TensorRT-RTX", version="1", target="SM 8.6", note="")
    told = "TensorRT-RTX 1 fuses 3 of 4 attention blocks; the rest may be slow on the board"
    assert fusion_remark(some, imported=True) == told and str(fusion_remark(some)).startswith(f"{told}: derive with")
    assert fusion_remark(replace(some, blocks=0), imported=True) is None


def test_a_file_that_the_parser_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no protobuf")
    with pytest.raises(ExportError, match=r"TensorRT-RTX .* cannot build model\.onnx: ") as error:
        count_fused(tmp_path / "model.onnx", blocks=1, expected=1)
    assert "\n" not in str(error.value) and str(error.value).endswith(
        "try --opset 20, or leave fp16 out with --no-fp16"
    )
    with pytest.raises(ExportError, match="export the original model with another opset, or leave fp16 out"):
        count_fused(tmp_path / "model.onnx", blocks=1, expected=1, imported=True)


def test_an_operator_that_the_parser_lacks_is_named(tmp_path: Path) -> None:
    file = write_vit(tmp_path / "model.onnx", depth=1)
    model = onnx.load(file)
    next(node for node in model.graph.node if node.op_type == "Softmax").op_type = "Det"
    onnx.save(model, file)
    with pytest.raises(
        ExportError, match=r"cannot read model\.onnx: it does not support Det \(op_\d+\); export the model"
    ):
        count_fused(file, blocks=1, expected=1)


@pytest.mark.slow
def test_rotated_queries_and_keys_cost_no_fused_attention(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit("vit_small_patch16_dinov3", embed_dim=128)
    assert network.read()[0].dims.qk == 64
    assert fused_blocks(network, tmp_path / "model.onnx").fused == 2


@pytest.mark.slow
def test_the_biases_of_shifted_and_padded_windows_cost_no_fused_attention(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit(SWIN, depths=[2, 1], window_size=3)
    assert [block.shifted for block in network.dims] == [False, True, False]
    fusion = fused_blocks(network, tmp_path / "model.onnx")
    assert (fusion.fused, fusion.expected, fusion.blocks) == (3, 3, 3)
