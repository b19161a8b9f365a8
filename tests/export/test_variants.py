"""Files beside the two of every export: older operator sets, modules in fp32, and nodes named by module."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from small_models import random_base, slimmed

from edgevit.errors import ExportError
from edgevit.export.current import current_export
from edgevit.export.fusion import compiler_installed, count_fused
from edgevit.export.gates import Tolerances, check_graph
from edgevit.export.graph import write_onnx
from edgevit.export.onnx import export, open_source
from edgevit.export.precision import mixed, norm_names
from edgevit.export.record import ExportReport, read_report
from edgevit.export.session import OnnxModel
from edgevit.export.variants import Exported, Variant
from edgevit.progress import Silent

Derive = Callable[..., Path]


def reopened(folder: Path) -> Exported:
    return Exported(read_report(folder / "export"), open_source(folder), None, Tolerances())


@pytest.fixture(scope="module")
def copied(exported: tuple[Path, ExportReport], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with an export, to be looked at and not changed."""
    return Path(shutil.copytree(exported[0], tmp_path_factory.mktemp("variants") / "derived"))


@pytest.mark.parametrize("opset", [16, 17, 18])
@pytest.mark.parametrize("pool", ["token", "avg"])
@pytest.mark.parametrize("batch", [2, "dynamic"])
def test_older_operator_sets_compute_the_same(tmp_path: Path, opset: int, pool: str, batch: Any) -> None:
    network = slimmed(random_base(global_pool=pool, reg_tokens=1, init_values=0.1), 24, 16)
    path, images = tmp_path / "model.onnx", torch.randn(3, 3, 32, 32)
    write_onnx(network, path, input_size=(3, 32, 32), batch=batch, opset=opset, metadata={})
    counts = check_graph(path, opset)
    assert ("LayerNormalization" in counts) == (opset >= 17)
    torch.testing.assert_close(OnnxModel(path).predict(images), network(images).detach(), rtol=1e-5, atol=1e-4)


def test_a_fp16_file_of_an_older_operator_set_is_fp16(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_onnx(random_base().half(), path, input_size=(3, 32, 32), batch="dynamic", opset=16, metadata={})
    check_graph(path, 16)
    assert onnx.TensorProto.FLOAT not in {i.data_type for i in onnx.load(path).graph.initializer}


def test_every_node_is_named_by_its_module(exported: tuple[Path, ExportReport]) -> None:
    folder, report = exported
    modules = {name for name, _ in open_source(folder).network.named_modules()}
    for file in report.files:
        nodes = onnx.load(folder / "export" / file).graph.node
        names = [node.name for node in nodes]
        assert len(set(names)) == len(names)
        for node in nodes:
            module, _, rest = node.name.partition("/")
            assert module in modules | {"model"} and rest.split("_")[0] == node.op_type
        assert {"blocks.0.norm1/LayerNormalization", "blocks.1.attn/Softmax", "head/Gemm"} <= set(names)
        inside = [n for n in nodes if n.name.startswith(("blocks.0.", "blocks.0/"))]
        assert len(inside) == len([n for n in nodes if n.name.startswith(("blocks.1.", "blocks.1/"))])


def types_of(path: Path) -> dict[str, int]:
    """For each node, the element type of its first output."""
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    known = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output, *graph.input)}
    return {node.name: known[node.output[0]] for node in graph.node if node.output[0] in known}


FLOAT, HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


def test_norms_in_fp32_stand_between_casts_and_attention_stays_in_fp16(copied: Path, tmp_path: Path) -> None:
    exported = reopened(copied)
    assert exported.norms == ("blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.1.norm2", "norm")
    written = exported.write(Variant("fp16.norms32", "fp16", 20, exported.norms), tmp_path)
    assert written.nodes["Cast"] == 10 and written.parity.error < 5e-3
    types = types_of(written.path)
    assert {types[f"{name}/LayerNormalization"] for name in exported.norms} == {FLOAT}
    assert {kind for name, kind in types.items() if ".attn" in name or ".mlp" in name or name.startswith("head")} == {
        HALF
    }
    assert OnnxModel(written.path).metadata["fp32_modules"].split() == list(exported.norms)


def test_a_block_in_fp32_is_so_from_end_to_end_and_its_neighbours_are_not(copied: Path, tmp_path: Path) -> None:
    exported = reopened(copied)
    assert exported.blocks == ("blocks.0", "blocks.1")
    types = types_of(exported.write(Variant("fp16.one", "fp16", 20, ("blocks.1",)), tmp_path).path)
    inside = {name: kind for name, kind in types.items() if name.startswith(("blocks.1.", "blocks.1/"))}
    assert [name for name, kind in inside.items() if kind == HALF] == ["blocks.1/Cast_1"]
    assert not [name for name, kind in types.items() if kind == FLOAT and name not in inside]


def test_there_is_no_cast_between_blocks_in_fp32_that_follow_each_other(copied: Path, tmp_path: Path) -> None:
    written = reopened(copied).write(Variant("fp16.two", "fp16", 20, ("blocks.0", "blocks.1")), tmp_path)
    assert written.nodes["Cast"] == 2


def test_a_mixed_copy_leaves_the_network_as_it_was() -> None:
    network = random_base()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    copy = mixed(network, [*norm_names(network)[2:], "blocks.0"])
    assert copy(torch.randn(2, 3, 32, 32).half()).dtype == torch.float16
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert not any(module._forward_hooks for module in network.modules())


def test_casts_anywhere_else_are_refused(copied: Path, tmp_path: Path) -> None:
    written = reopened(copied).write(Variant("fp16.norms32", "fp16", 20, ("norm",)), tmp_path)
    for islands in ((), ("blocks.0",)):
        with pytest.raises(ExportError, match="holds Cast"):
            check_graph(written.path, 20, islands=islands)


def test_a_variant_is_the_same_file_every_time_and_tells_nothing_of_this_machine(copied: Path, tmp_path: Path) -> None:
    exported = reopened(copied)
    first, again = (
        exported.write(Variant("fp16.n", "fp16", 17, exported.norms), tmp_path).path.read_bytes() for _ in range(2)
    )
    assert first == again and b"site-packages" not in first and str(tmp_path).encode() not in first


def test_a_variant_that_is_kept_is_part_of_the_export(copied: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(copied, tmp_path / "derived"))
    exported = reopened(folder)
    exported.keep(exported.write(Variant("fp32.opset16", "fp32", 16), tmp_path))
    report = read_report(folder / "export")
    assert report == exported.report and sorted(report.files)[-1] == "model.fp32.opset16.onnx"
    assert report.parity["fp32.opset16"].error < 1e-5 and report.opset == 20
    assert {p.name for p in (folder / "export").iterdir()} == {"export.json", *report.files}
    assert current_export(folder) == report, "it is still up to date"


def test_a_variant_that_is_not_the_model_is_refused(copied: Path, tmp_path: Path) -> None:
    exported = reopened(copied)
    with torch.no_grad():
        exported.network.norm.weight[0] += 1
    exported.source = open_source(copied)
    with pytest.raises(ExportError, match="logits in fp32 are off"):
        exported.write(Variant("fp32.opset16", "fp32", 16), tmp_path)


@pytest.mark.skipif(not compiler_installed(), reason="TensorRT-RTX is not installed")
def test_nvidia_s_compiler_fuses_attention_beside_fp32_norms_and_not_in_fp32_blocks(
    make_derived: Derive, tmp_path: Path
) -> None:
    """Built for SM 8.6 by TensorRT-RTX: a proxy for Orin."""
    folder = make_derived(16, 16)
    export(folder, accuracy=False)
    exported = reopened(folder)
    for modules, fused in ((exported.norms, 2), (("blocks.0",), 1), (exported.blocks, 0)):
        written = exported.write(Variant("fp16.tried", "fp16", 20, modules), tmp_path)
        assert count_fused(written.path, blocks=2, expected=fused).fused == fused


class Heard(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def is_reused(folder: Path, **options: Any) -> bool:
    heard = Heard()
    current_export(folder, progress=heard, **options)
    return any("up to date: reused" in text for text in heard.notes)


def test_an_export_is_reused_until_the_model_the_options_or_its_files_change(copied: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(copied, tmp_path / "derived"))
    before = (folder / "export" / "export.json").read_bytes()
    assert is_reused(folder) and is_reused(folder, accuracy=False) and is_reused(folder, max_images=10)
    assert is_reused(folder, fp16=False), "what is there besides does no harm"
    assert (folder / "export" / "export.json").read_bytes() == before
    quick = {"accuracy": False, "fp16": False}
    assert not is_reused(folder, batch=2, **quick) and is_reused(folder, batch=2, **quick)
    assert not is_reused(folder, batch=2, accuracy=False), "fp16 is missing now"
    assert not is_reused(folder, batch=2, opset=17, **quick)
    assert not is_reused(folder, batch=2, opset=17, pad_heads=True, **quick)
    (folder / "export" / "model.fp32.onnx").write_bytes(b"altered")
    same = {"batch": 2, "opset": 17, "pad_heads": True, **quick}
    assert not is_reused(folder, **same)
    record = folder / "export" / "export.json"
    record.write_text(record.read_text().replace('"schema": 2', '"schema": 0'))
    assert not is_reused(folder, **same)


def test_an_export_of_other_weights_or_judged_by_less_is_made_anew(copied: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(copied, tmp_path / "derived"))
    report = read_report(folder / "export")
    for changed in (
        replace(report, model={**report.model, "weights_sha256": "0" * 64}),
        replace(report, accuracy=None),
        replace(report, rejection={"score": "logsumexp", "threshold": 1.0, "share": 0.1}),
    ):
        (folder / "export" / "export.json").write_text(changed.to_json())
        assert not is_reused(folder, max_images=20)
    with pytest.raises(ExportError, match="at most 1e-09 is allowed"):
        current_export(folder, tolerances=Tolerances(fp16_error=1e-9))


def test_a_record_reads_back_as_it_was_written(exported: tuple[Path, ExportReport], tmp_path: Path) -> None:
    folder, report = exported
    assert read_report(folder / "export") == report
    (tmp_path / "export.json").write_text(json.dumps({"schema": 1, "files": []}))
    with pytest.raises(ExportError, match=r"export\.json has a list as files, .*; export the model again"):
        read_report(tmp_path)
