"""Files beside the two of every export: older operator sets, modules in fp32, and nodes named by module."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch

from edgevit.engines.run import export
from edgevit.errors import ExportError
from edgevit.exporting.current import current_export
from edgevit.exporting.fusion import compiler_installed, count_fused
from edgevit.exporting.gates import Tolerances, check_graph
from edgevit.exporting.onnx import open_model_source
from edgevit.exporting.request import FilesRequest
from edgevit.exporting.session import OnnxModel
from edgevit.exporting.variants import Exported, Variant
from edgevit.records.export import ExportRecord
from edgevit.records.model_folder import ExportFolder, ModelFolder

Derive = Callable[..., Path]


def reopened(folder: Path) -> Exported:
    return Exported(ModelFolder(folder).export.record(), open_model_source(folder), None, Tolerances())


@pytest.fixture(scope="module")
def copied(exported: tuple[Path, ExportRecord], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with an export, to be looked at and not changed."""
    return Path(shutil.copytree(exported[0], tmp_path_factory.mktemp("variants") / "derived"))


def types_of(path: Path) -> dict[str, int]:
    """For each node, the element type of its first output."""
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    known = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output, *graph.input)}
    return {node.name: known[node.output[0]] for node in graph.node if node.output[0] in known}


FLOAT, HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


def test_norms_in_fp32_stand_between_casts_and_attention_stays_in_fp16(copied: Path, tmp_path: Path) -> None:
    exported = reopened(copied)
    assert exported.written_of.norms == ("blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.1.norm2", "norm")
    written = exported.write(Variant("fp16.norms32", "fp16", 20, exported.written_of.norms), tmp_path)
    assert written.nodes["Cast"] == 10 and written.parity.error < 5e-3
    types = types_of(written.path)
    assert {types[f"{name}/LayerNormalization"] for name in exported.written_of.norms} == {FLOAT}
    assert {kind for name, kind in types.items() if ".attn" in name or ".mlp" in name or name.startswith("head")} == {
        HALF
    }
    assert OnnxModel(written.path).metadata["fp32_modules"].split() == list(exported.written_of.norms)


def test_a_block_in_fp32_is_so_from_end_to_end_and_its_neighbours_are_not(copied: Path, tmp_path: Path) -> None:
    exported = reopened(copied)
    assert exported.written_of.blocks == ("blocks.0", "blocks.1")
    types = types_of(exported.write(Variant("fp16.one", "fp16", 20, ("blocks.1",)), tmp_path).path)
    inside = {name: kind for name, kind in types.items() if name.startswith(("blocks.1.", "blocks.1/"))}
    assert [name for name, kind in inside.items() if kind == HALF] == ["blocks.1/Cast_1"]
    assert not [name for name, kind in types.items() if kind == FLOAT and name not in inside]


def test_there_is_no_cast_between_blocks_in_fp32_that_follow_each_other(copied: Path, tmp_path: Path) -> None:
    written = reopened(copied).write(Variant("fp16.two", "fp16", 20, ("blocks.0", "blocks.1")), tmp_path)
    assert written.nodes["Cast"] == 2


def test_casts_anywhere_else_are_refused(copied: Path, tmp_path: Path) -> None:
    written = reopened(copied).write(Variant("fp16.norms32", "fp16", 20, ("norm",)), tmp_path)
    for islands in ((), ("blocks.0",)):
        with pytest.raises(ExportError, match="has Cast"):
            check_graph(written.path, 20, islands=islands)


def test_a_variant_is_the_same_file_every_time_and_tells_nothing_of_this_machine(copied: Path, tmp_path: Path) -> None:
    def written() -> bytes:
        exported = reopened(copied)
        return exported.write(Variant("fp16.n", "fp16", 20, exported.written_of.norms), tmp_path).path.read_bytes()

    first, again = written(), written()
    assert first == again and b"site-packages" not in first and str(tmp_path).encode() not in first


@pytest.mark.slow
def test_a_variant_that_is_kept_is_part_of_the_export(copied: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(copied, tmp_path / "derived"))
    exported = reopened(folder)
    exported.keep(exported.write(Variant("fp32.opset17", "fp32", 17), tmp_path))
    report = ModelFolder(folder).export.record()
    assert report == exported.report and sorted(report.files)[-1] == "model.fp32.opset17.onnx"
    assert report.parity["fp32.opset17"].error < 1e-5 and report.opset == 20
    assert {p.name for p in (folder / "export").iterdir()} == {"export.json", *report.files}
    assert current_export(FilesRequest(model=folder)) == report, "it is still up to date"


@pytest.mark.slow
def test_variants_for_two_boards_that_are_built_at_once_are_both_kept(copied: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(copied, tmp_path / "derived"))
    one, other = reopened(folder), reopened(folder)
    one.keep(one.write(Variant("fp32.opset17", "fp32", 17), tmp_path))
    other.keep(other.write(Variant("fp32.opset18", "fp32", 18), tmp_path))
    report = ModelFolder(folder).export.record()
    assert {"fp32.opset17", "fp32.opset18"} < set(report.parity)
    assert {p.name for p in (folder / "export").iterdir()} == {"export.json", *report.files}


def test_a_variant_that_is_not_the_model_is_refused(copied: Path, tmp_path: Path) -> None:
    exported = reopened(copied)
    assert exported.written_of.model
    exported.source = open_model_source(copied)
    with torch.no_grad():
        exported.source.model.module.norm.weight[0] += 1
    with pytest.raises(ExportError, match="logits in fp32 are off"):
        exported.write(Variant("fp32.again", "fp32", 20), tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not compiler_installed(), reason="TensorRT-RTX is not installed")
def test_nvidia_s_compiler_fuses_attention_beside_fp32_norms_and_not_in_fp32_blocks(
    make_derived: Derive, tmp_path: Path
) -> None:
    """Built for SM 8.6 by TensorRT-RTX: a proxy for Orin."""
    folder = make_derived(16, 16)
    export(folder, accuracy=False, fp16=False)
    exported = reopened(folder)
    for modules, fused in ((exported.written_of.norms, 2), (("blocks.0",), 1), (exported.written_of.blocks, 0)):
        written = exported.write(Variant("fp16.tried", "fp16", 20, modules), tmp_path)
        assert count_fused(written.path, blocks=2, expected=fused).fused == fused


def test_a_record_reads_back_as_it_was_written(exported: tuple[Path, ExportRecord], tmp_path: Path) -> None:
    folder, report = exported
    assert ModelFolder(folder).export.record() == report
    (tmp_path / "export.json").write_text(json.dumps({"schema": 2, "files": []}))
    with pytest.raises(ExportError, match=r"export\.json has a list as files, .*; export the model again"):
        ExportFolder(tmp_path).record()
