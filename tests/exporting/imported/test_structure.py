"""Norms, attentions and blocks are found by what nodes do, in graphs of several writers, whatever their names."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from foreign_onnx import write_vit

from edgevit.exporting.imported.importing import simplified
from edgevit.exporting.imported.structure import Structure, find_structure, name_nodes
from edgevit.records.export import ExportRecord

NORMS = ("blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.1.norm2", "head.norm1")


def found_in(file: Path) -> tuple[Structure, ir.Graph]:
    model = onnx.load(file)
    shape = [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    graph = simplified(file, model, shape, "logits").graph
    structure = find_structure(graph)
    name_nodes(graph, structure)
    return structure, graph


def test_a_graph_of_torch_s_exporter_is_recognised_without_its_names(
    exported: tuple[Path, ExportRecord], tmp_path: Path
) -> None:
    model = onnx.load(exported[0] / "export" / "model.fp32.onnx")
    for i, node in enumerate(model.graph.node):
        node.name = f"n{i}"
    onnx.save(model, tmp_path / "m.onnx")
    structure, graph = found_in(tmp_path / "m.onnx")
    assert structure.norms == NORMS
    assert [block.name for block in structure.blocks] == ["blocks.0", "blocks.1"]
    assert [block.fusable for block in structure.blocks] == [False, False], "QK of 24 and VO of 16"
    nodes: dict[str, list[str]] = {}
    for node in graph:
        nodes.setdefault((node.name or "").partition("/")[0], []).append(node.op_type)
    assert all(nodes[name] == ["LayerNormalization"] for name in NORMS), nodes
    for i in (0, 1):
        assert nodes[f"blocks.{i}"] == ["Add", "Add"], "the two residual additions"
        assert nodes[f"blocks.{i}.attn"].count("Softmax") == 1 and nodes[f"blocks.{i}.attn"].count("MatMul") > 3
        assert nodes[f"blocks.{i}.mlp"].count("MatMul") == 2 and "Softmax" not in nodes[f"blocks.{i}.mlp"]
    assert "Conv" in nodes["patch_embed"] and {"Gather", "Gemm"} & set(nodes["head"])


def test_shapes_that_are_computed_from_anywhere_do_not_hide_the_blocks(tmp_path: Path) -> None:
    structure, graph = found_in(write_vit(tmp_path / "m.onnx", depth=3))
    assert len(structure.blocks) == 3 and all(block.fusable for block in structure.blocks)
    assert len(structure.norms) == 7
    assert all(len([n for n in graph if n.name.startswith(f"{name}/")]) == 9 for name in structure.norms)
    assert {n.name for n in graph if n.op_type == "Sqrt"} == {f"{name}/Sqrt" for name in structure.norms}


@pytest.mark.parametrize("depth", [0, 1])
def test_of_one_block_and_of_none_there_is_what_there_is(tmp_path: Path, depth: int) -> None:
    structure, _ = found_in(write_vit(tmp_path / "m.onnx", depth=depth))
    assert len(structure.blocks) == depth
    assert structure.norms == ((*NORMS[:2], NORMS[-1]) if depth else ("model.norm1",))


def test_a_head_that_reads_several_depths_does_not_hide_the_blocks(tmp_path: Path) -> None:
    structure, graph = found_in(write_vit(tmp_path / "m.onnx", depth=3, output="map"))
    assert [block.name for block in structure.blocks] == ["blocks.0", "blocks.1", "blocks.2"]
    kinds = ("Resize", "Softmax", "Erf")
    parts = {node.name.partition("/")[0]: node.op_type for node in graph if node.op_type in kinds}
    assert parts == {
        **{f"blocks.{i}.attn": "Softmax" for i in range(3)}, **{f"blocks.{i}.mlp": "Erf" for i in range(3)},
        "head": "Resize",
    }  # fmt: skip
    assert structure.norms[-1] == "head.norm1"


def test_layer_scale_and_a_norm_before_the_blocks_change_nothing(tmp_path: Path) -> None:
    structure, _ = found_in(write_vit(tmp_path / "m.onnx", extras=True))
    assert structure.norms == ("patch_embed.norm1", *NORMS) and len(structure.blocks) == 2


def test_names_are_the_same_every_time_and_each_is_there_once(tmp_path: Path) -> None:
    file = write_vit(tmp_path / "m.onnx")
    first, again = ([node.name for node in found_in(file)[1]] for _ in range(2))
    assert first == again and len(set(first)) == len(first)
