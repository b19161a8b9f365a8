from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from model_folders import rewrite_spec
from onnx.reference import ReferenceEvaluator
from recorded_progress import RecordedProgress
from safetensors.torch import load_file, save_file
from seals import reseal
from small_models import write_fewer_tokens, write_halves, write_headless, write_narrower, write_swin

from edgevit.derivation.session.base import base
from edgevit.engines.run import export
from edgevit.errors import CheckpointError, DataError, ExportError, OptionError, OutputError
from edgevit.exporting.gates import Tolerances
from edgevit.exporting.session import OnnxModel
from edgevit.network.folder import load
from edgevit.records.export import EXPORT_KIND, ExportRecord
from edgevit.records.writing import file_sha256
from edgevit.version import written_by

Derive = Callable[..., Path]
Exported = tuple[Path, ExportRecord]


def alter_weights(folder: Path, name: str, value: float) -> None:
    """Put one value into a tensor, and make the folder consistent again."""
    weights = load_file(folder / "model.safetensors")
    weights[name].view(-1)[0] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    own = {"weights_sha256": file_sha256(folder / "model.safetensors")}
    rewrite_spec(folder, lambda spec: spec.update(own))
    reseal(folder / "derivation.json", lambda content: content.update(own))


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def check_logits(folder: Path, images: torch.Tensor, precision: str, tolerance: float) -> None:
    expected = load(folder)(images).detach()
    logits = OnnxModel(folder / "export" / f"model.{precision}.onnx").predict(images)
    torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def test_export_writes_two_files_and_a_record_of_every_check(exported: Exported) -> None:
    folder, report = exported
    assert sorted(p.name for p in report.folder.iterdir()) == ["export.json", "model.fp16.onnx", "model.fp32.onnx"]
    record = json.loads((folder / "export" / "export.json").read_text())
    assert record == EXPORT_KIND.content(report)
    for name, file in record["files"].items():
        assert file["sha256"] == file_sha256(folder / "export" / name)
        assert file["bytes"] == (folder / "export" / name).stat().st_size
    assert record["schema"] == 2 and record["batch"] == "dynamic"
    assert record["classes"][2] == {"name": "8", "column": 8}
    derivation = json.loads((folder / "derivation.json").read_text())
    assert record["accuracy"]["images"] == derivation["data"]["images"]["test"]
    assert record["accuracy"]["files"]["fp32"]["agreement"] == 1
    assert record["parity"]["fp16"]["source"] == "digits"


def test_exported_files_compute_what_torch_computes(exported: Exported, make_derived: Derive) -> None:
    images = torch.randn(5, 3, 32, 32)
    check_logits(exported[0], images, "fp32", 1e-5)
    check_logits(exported[0], images, "fp16", 1e-2)
    plain = make_derived(16, 16)
    export(plain, accuracy=False, fp16=False)
    check_logits(plain, images, "fp32", 1e-5)


@pytest.mark.parametrize(
    "args",
    [
        {},
        pytest.param({"embed": 48}, marks=pytest.mark.slow),
        pytest.param({"img_size": 40, "window_size": 3}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_windows_are_exported_with_a_constant_bias(tmp_path: Path, args: dict[str, Any]) -> None:
    folder, network = write_swin(tmp_path / "swin", depths=[2, 1], **args)
    export(folder, accuracy=False)
    images = torch.randn(3, *network.input_size)
    check_logits(folder, images, "fp32", 1e-5)
    check_logits(folder, images, "fp16", 1e-2)
    graph = onnx.load(folder / "export" / "model.fp32.onnx").graph
    assert sum(node.op_type == "Softmax" for node in graph.node) == 3
    constants = {one.name for one in graph.initializer}
    made = {name: node for node in graph.node for name in node.output}
    for softmax in (node for node in graph.node if node.op_type == "Softmax"):
        added = made[softmax.input[0]]
        assert added.op_type == "Add" and constants & set(added.input)


def check_attention(path: Path, opset: int) -> None:
    """Softmax((Q * scale) K') twice, and nothing that a board's parser lacks."""
    graph = onnx.load(path)
    assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", opset)]
    makers = {output: node for node in graph.graph.node for output in node.output}
    softmaxes = [node for node in graph.graph.node if node.op_type == "Softmax"]
    assert len(softmaxes) == 2
    for softmax in softmaxes:
        scores = makers[softmax.input[0]]
        assert scores.op_type == "MatMul"
        assert [makers[i].op_type for i in scores.input] == ["Mul", "Transpose"]
    assert not {"Cast", "Attention"} & {node.op_type for node in graph.graph.node}


def test_the_graph_is_decomposed_with_the_scale_on_q_and_no_casts(exported: Exported) -> None:
    for name in ("model.fp32.onnx", "model.fp16.onnx"):
        check_attention(exported[0] / "export" / name, 20)


@pytest.mark.slow
def test_the_graph_of_an_older_operator_set_is_decomposed_alike(make_derived: Derive) -> None:
    older = make_derived(24, 16)
    export(older, opset=17, accuracy=False)
    check_attention(older / "export" / "model.fp16.onnx", 17)


def test_fp16_is_fp16_from_end_to_end(exported: Exported) -> None:
    _, report = exported
    model = onnx.load(report.folder / "model.fp16.onnx")
    tensors = [*model.graph.input, *model.graph.output]
    assert {t.type.tensor_type.elem_type for t in tensors} == {onnx.TensorProto.FLOAT16}
    assert onnx.TensorProto.FLOAT not in {i.data_type for i in model.graph.initializer}
    assert report.inputs[0].dtypes == {"model.fp32.onnx": "float32", "model.fp16.onnx": "float16"}


@pytest.mark.slow
@pytest.mark.usefixtures("traced_anew")
def test_files_tell_nothing_of_this_machine_and_a_second_export_is_the_same(exported: Exported, tmp_path: Path) -> None:
    folder, report = exported
    for name in report.files:
        content = (folder / "export" / name).read_bytes()
        assert b"site-packages" not in content and str(folder).encode() not in content
    shutil.copytree(folder, tmp_path / "moved", ignore=shutil.ignore_patterns("export"))
    assert export(tmp_path / "moved", accuracy=False).files == report.files


@pytest.mark.slow
def test_a_dynamic_batch_runs_at_any_size_and_a_static_one_at_its_own(exported: Exported, make_derived: Derive) -> None:
    images = torch.randn(3, 3, 32, 32)
    session = OnnxModel(exported[0] / "export" / "model.fp32.onnx").session
    for count in (1, 2, 3):
        assert session.run(None, {"images": images[:count].numpy()})[0].shape == (count, 10)
    folder = make_derived(16, 16)
    static = export(folder, batch=2, accuracy=False, fp16=False)
    assert static.batch == 2 and static.inputs[0].shape == (2, 3, 32, 32)
    assert OnnxModel(static.folder / "model.fp32.onnx").session.get_inputs()[0].shape == [2, 3, 32, 32]
    check_logits(folder, images, "fp32", 1e-5)  # an odd number of images still runs: the last batch is filled up


def test_metadata_names_classes_preprocessing_and_origin(exported: Exported) -> None:
    folder, report = exported
    model = OnnxModel(folder / "export" / "model.fp16.onnx")
    assert model.described("class_names", list[str]) == ["3", "5", "8"]
    assert model.described("class_columns", list[int]) == [3, 5, 8]
    assert model.described("preprocessing", dict) == report.preprocessing
    assert model.metadata["edgevit_version"] == written_by()
    assert model.metadata["base"] == "vit_tiny_patch16_224"
    assert model.metadata["precision"] == "fp16"


@pytest.mark.slow
def test_register_tokens_average_pooling_and_layer_scale_export(make_derived: Derive) -> None:
    folder = make_derived(16, 24, global_pool="avg", reg_tokens=2, init_values=1e-1)
    assert export(folder, accuracy=False, fp16=False).parity["fp32"].error < 1e-5


@pytest.mark.slow
def test_padded_heads_give_the_same_logits_and_fuse(make_derived: Derive) -> None:
    folder = make_derived(24, 16)
    report = export(folder, pad_heads=True)
    assert report.parity["fp32"].error < 1e-5
    assert report.padded is not None and report.padded.widths == (24, 24)
    assert report.padded.macs > load(folder).spec.macs
    assert report.fusion is None or report.fusion.fused == report.fusion.expected == 2


def test_a_model_whose_images_are_gone_exports_with_a_warning(make_derived: Derive) -> None:
    folder = make_derived(16, 16)
    moved = {"data": "/nowhere/images"}
    reseal(folder / "derivation.json", lambda content: content["data"].update(moved))
    report = export(folder, fp16=False)
    assert report.accuracy is None
    assert any("accuracy not checked" in w and "/nowhere/images" in w for w in report.warnings)
    with pytest.raises(DataError, match="/nowhere/else"):
        export(folder, data="/nowhere/else")


@pytest.mark.slow
def test_the_order_of_classes_that_is_assumed_of_a_base_is_told(base_folder: Path, make_derived: Derive) -> None:
    told = RecordedProgress()
    export(base_folder, data="digits", fp16=False, max_images=20, progress=told)
    (said,) = (text for text in told.notes if text.startswith("classes: 0 is output 0, 1 is output 1"))
    assert said.endswith("assumed from the data's own order: `edgevit base` with --base-classes FILE gives another")
    told = RecordedProgress()
    export(make_derived(16, 16), fp16=False, max_images=20, progress=told)
    assert not any(text.startswith("classes:") for text in told.notes)


def test_weights_that_are_no_numbers_fail(make_derived: Derive) -> None:
    folder = make_derived(16, 16)
    alter_weights(folder, "blocks.1.mlp.fc1.weight", float("nan"))
    with pytest.raises(CheckpointError, match=r"blocks\.1\.mlp\.fc1\.weight has 1 values"):
        export(folder)
    assert not (folder / "export").exists()


def test_weights_or_activations_that_overflow_fp16_fail_and_fp32_alone_is_a_way_out(make_derived: Derive) -> None:
    folder = make_derived(16, 16)
    alter_weights(folder, "head.bias", 1e5)
    with pytest.raises(ExportError, match=r"head\.bias overflows fp16.*--no-fp16"):
        export(folder)
    report = export(folder, fp16=False, accuracy=False)
    assert sorted(report.files) == ["model.fp32.onnx"] and report.fusion is None and report.range is None

    activations = make_derived(16, 16, name="activations")
    alter_weights(activations, "blocks.0.mlp.fc2.bias", 6e4)
    alter_weights(activations, "blocks.1.mlp.fc2.bias", 6e4)
    with pytest.raises(ExportError, match=r"the output of blocks\.1.* overflows fp16: 1\.2e\+05 seen"):
        export(activations)


def test_an_earlier_export_is_replaced_only_by_one_that_passes_every_check(exported: Exported, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(exported[0], folder)
    before = {p.name: p.read_bytes() for p in (folder / "export").iterdir()}
    with pytest.raises(ExportError, match=r"logits in fp16 are off by .* at most 1e-09 is allowed.*--fp16-tolerance"):
        export(folder, batch=1, accuracy=False, tolerances=Tolerances(fp16_error=1e-9))
    assert {p.name: p.read_bytes() for p in (folder / "export").iterdir()} == before
    assert export(folder, batch=1, accuracy=False, fp16=False).batch == 1
    assert sorted(p.name for p in (folder / "export").iterdir()) == ["export.json", "model.fp32.onnx"]
    assert leftovers(folder) == []


def test_a_folder_that_is_no_export_is_not_replaced(make_derived: Derive) -> None:
    folder = make_derived(16, 16)
    (folder / "export").mkdir()
    (folder / "export" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="not an earlier export"):
        export(folder, accuracy=False)
    assert (folder / "export" / "notes.txt").read_text() == "mine"


def test_a_large_model_keeps_its_weights_beside_the_file(make_derived: Derive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgevit.exporting.graph.PROTOBUF_LIMIT_BYTES", 1000)
    report = export(make_derived(16, 16))
    assert "model.fp16.onnx.data" in report.files and report.accuracy is not None
    assert report.fusion is None or report.fusion.fused == 2


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch": 0}, "batch 0"),
        ({"opset": 21}, "17 to 20"),
        ({"max_images": 0}, r"--max-images 0 is not in \[1, 2\*\*31\)"),
    ],
)
def test_options_out_of_range_are_refused(make_derived: Derive, options: dict[str, int], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        export(make_derived(16, 16), **options)


def test_what_is_no_model_folder_is_refused(tmp_path: Path, make_derived: Derive) -> None:
    with pytest.raises(CheckpointError, match="does not exist; check the path of the model folder"):
        export(tmp_path / "nothing")
    folder = make_derived(16, 16)
    shutil.copy(folder / "model.json", folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="was altered"):
        export(folder)


@pytest.mark.slow
def test_a_model_of_half_blocks_is_exported_and_its_attentions_are_counted(tmp_path: Path) -> None:
    folder = write_halves(tmp_path / "m")
    report = export(folder, accuracy=False)
    check_logits(folder, torch.randn(2, 3, 32, 32), "fp32", 1e-5)
    there = sum(dims.has("attention") for dims in load(folder).spec.blocks)
    assert there == 1 and (report.fusion is None or report.fusion.blocks == there)


def write_rms(small_vit: Callable[..., Any], folder: Path, stream: float = 1.0) -> Path:
    """Write a base with RMS norms and gated FFNs; `stream` is how large its residual stream is."""
    name, args = (
        "aimv2_large_patch14_224",
        {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2},
    )
    weights = small_vit(name, **args).state_dict()
    weights["pos_embed"] *= stream
    save_file(weights, folder / "w.safetensors")
    base(name, checkpoint=folder / "w.safetensors", model_args={**args, "num_classes": 10}, out=folder / "b")
    return folder / "b"


@pytest.mark.slow
def test_a_model_of_rms_norms_and_gated_ffns_is_exported(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    report = export(write_rms(small_vit, tmp_path))
    assert (report.files["model.fp16.onnx"].nodes or {})["Reciprocal"] == 6 and set(report.parity) == {"fp32", "fp16"}
    assert report.fp32_modules == ()


@pytest.mark.slow
def test_rms_norms_whose_squares_overflow_fp16_are_in_fp32(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    folder = write_rms(small_vit, tmp_path, stream=1e4)
    report = export(folder)
    norms = ("patch_embed.norm", "blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.1.norm2", "norm")
    assert report.fp32_modules == norms and any("fp16 overflows in" in text for text in report.warnings)
    images = torch.randn(2, 3, 32, 32)
    computed = ReferenceEvaluator(
        str(folder / "export" / "model.fp16.onnx")
    )  # each node in its own type, unlike ORT's CPU
    logits = torch.from_numpy(computed.run(None, {"images": images.half().numpy()})[0]).float()
    torch.testing.assert_close(logits, load(folder)(images).detach(), rtol=0.02, atol=0.02)


@pytest.mark.slow
def test_a_model_with_a_narrower_embedding_is_exported(tmp_path: Path) -> None:
    folder = write_narrower(tmp_path / "m", 24)
    report = export(folder, accuracy=False)
    check_logits(folder, torch.randn(2, 3, 32, 32), "fp32", 1e-5)
    assert load(folder).module.embed_dim == 24
    assert report.fusion is None or report.fusion.fused == report.fusion.blocks == 2


@pytest.mark.slow
def test_a_model_whose_tokens_leave_as_one_is_exported_in_fp16_without_a_cast(tmp_path: Path) -> None:
    report = export(write_fewer_tokens(tmp_path / "m", 9, 0, merged=True), accuracy=False)
    assert "Cast" not in (report.files["model.fp16.onnx"].nodes or {}), "torch's own fp16 of it has four"
    assert report.fusion is None or report.fusion.fused == report.fusion.blocks == 2


def test_a_network_without_a_classifier_is_exported_and_judged_by_its_features(tmp_path: Path) -> None:
    folder = write_headless(tmp_path / "headless")
    report = export(folder, data="digits", max_images=40)
    (output,) = report.outputs
    assert (output.name, output.shape, report.classes) == ("features", ("batch", 64), ())
    assert report.parity["fp32"].error < 1e-5 < report.parity["fp16"].error < 1e-2
    checked = report.accuracy
    assert checked is not None and checked.torch is None and checked.images == 40
    assert checked.files["fp32"].agreement == pytest.approx(1) and 0.999 < checked.files["fp16"].agreement <= 1
    assert checked.files["fp16"].top1 is None and checked.files["fp16"].per_class == {}
    file = OnnxModel(report.folder / "model.fp32.onnx")
    assert file.described("output", str) == "features" and json.loads(file.metadata["class_names"]) == []
    images = torch.randn(3, 3, 32, 32)
    check_logits(folder, images, "fp32", 1e-4)
    assert load(folder)(images).shape == (3, 64)
