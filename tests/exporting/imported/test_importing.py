"""An ONNX file that edgevit did not make becomes a folder that export, evaluate, bench and show take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from dense_networks import write_frames
from foreign_onnx import PREPARED, quantised, write_vit
from onnx import TensorProto, helper
from recorded_progress import RecordedProgress

from edgevit.board.models import find_file
from edgevit.engines.run import evaluate, export
from edgevit.errors import CheckpointError, DataError, OptionError, OutputError, UnknownNameError
from edgevit.exporting.current import current_export
from edgevit.exporting.imported.importing import batch_and_opset, imported
from edgevit.exporting.request import FilesRequest
from edgevit.exporting.session import OnnxModel
from edgevit.records.model_folder import ModelFolder

QUICK: dict[str, Any] = {"preprocessing": PREPARED, "data": "digits"}


def take(file: Path, told: RecordedProgress | None = None, **options: Any) -> ModelFolder:
    request = FilesRequest(model=file, out=file.with_suffix(""), **{**QUICK, **options})
    return ModelFolder(imported(request, told).model)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a file, exported; to be looked at and not changed."""
    file = write_vit(tmp_path_factory.mktemp("importing") / "other.onnx")
    export(file, out=file.parent / "m", classes="3,5,8", max_images=60, **QUICK)
    return file.parent / "m"


def test_the_folder_says_what_the_file_is_and_where_each_class_lies(exported: Path) -> None:
    document = ModelFolder(exported).imported()
    assert (document.file, document.batch, document.opset, document.outputs) == ("other.onnx", "dynamic", 16, 10)
    assert [(c.name, c.base_index) for c in document.classes] == [("3", 3), ("5", 5), ("8", 8)]
    assert document.preprocessing == {**PREPARED, "input_size": [3, 32, 32], "crop_mode": "center"}
    assert [block.name for block in document.blocks] == ["blocks.0", "blocks.1"] and len(document.norms) == 5
    assert document.data is not None and document.data.data == "digits"


def test_its_export_is_of_the_usual_files_with_the_usual_checks(exported: Path) -> None:
    report = ModelFolder(exported).export.record()
    assert sorted(report.files) == ["model.fp16.onnx", "model.fp32.onnx"] and report.opset == 16
    assert (report.model.timm_name, report.model.file) == (None, "other.onnx")
    assert report.model.weights_sha256 == ModelFolder(exported).weights_sha256()
    assert report.parity["fp32"].error < 1e-6 and report.parity["fp16"].error < 5e-3
    assert report.accuracy is not None and report.accuracy.files["fp16"].agreement >= 0.99
    assert any("other.onnx is correct on" in text and "--base-classes" in text for text in report.warnings), (
        "it guesses"
    )
    assert report.fp32_modules == () and report.range is not None and report.range.overflowing == ()
    assert [(t.name, t.shape) for t in (*report.inputs, *report.outputs)] == [
        ("images", ("batch", 3, 32, 32)), ("logits", ("batch", 10)),
    ]  # fmt: skip


def test_files_of_it_compute_what_the_file_computes(exported: Path) -> None:
    import onnxruntime

    images = np.random.default_rng(1).standard_normal((3, 3, 32, 32)).astype(np.float32)
    own = onnxruntime.InferenceSession(str(exported.parent / "other.onnx")).run(None, {"pixel_values": images})[0]
    for precision, tolerance in (("fp32", 1e-4), ("fp16", 2e-2)):
        session = OnnxModel(exported / "export" / f"model.{precision}.onnx").session
        kind = np.float32 if precision == "fp32" else np.float16
        seen = session.run(None, {"images": images.astype(kind)})[0]
        np.testing.assert_allclose(seen, own, atol=tolerance * np.abs(own).max())


def test_folder_and_files_are_evaluated_alike_and_found_by_bench(exported: Path) -> None:
    folder = evaluate(exported, max_images=60)
    file = evaluate(exported / "export" / "model.fp32.onnx", "digits", max_images=60)
    assert (folder.form, sorted(folder.per_class), folder.outputs) == ("onnx", ["3", "5", "8"], 10)
    assert (folder.top1, folder.per_class) == (file.top1, file.per_class)
    assert find_file(exported, None, None).path.name == "model.fp32.onnx"


def test_an_export_that_is_up_to_date_is_reused(exported: Path) -> None:
    told = RecordedProgress()
    assert current_export(FilesRequest(model=exported, accuracy=False), told) == ModelFolder(exported).export.record()
    assert any("is up to date: reused" in text for text in told.notes)


def test_the_same_file_with_the_same_answers_keeps_the_folder_and_another_is_refused(tmp_path: Path) -> None:
    file = write_vit(tmp_path / "m.onnx", depth=1)
    folder, told = take(file), RecordedProgress()
    (folder.path / "export").mkdir()
    assert take(file, told).path == folder.path and (folder.path / "export").is_dir()
    assert any(text.endswith("is up to date: kept") for text in told.notes)
    with pytest.raises(OutputError, match=r"has another file, or m\.onnx with other options; choose another --out"):
        take(file, preprocessing={**PREPARED, "crop_pct": 0.5})


def test_what_is_assumed_and_recognised_is_told(tmp_path: Path) -> None:
    told = RecordedProgress()
    take(write_vit(tmp_path / "m.onnx", depth=1), told, classes="3,5")
    assert told.notes[0].startswith("preprocessing: input_size 3,32,32, as its input is; interpolation bicubic")
    assert told.notes[1] == "recognised 1 blocks and 3 layer normalisations"
    assert told.notes[2].startswith("classes: 3 is output 3, 5 is output 5 of 10 outputs")


def test_a_fixed_batch_is_that_of_every_file(tmp_path: Path) -> None:
    file = write_vit(tmp_path / "m.onnx", depth=1, batch=2)
    report = export(file, out=tmp_path / "f", accuracy=False, fp16=False, **QUICK)
    assert report.batch == 2 == OnnxModel(tmp_path / "f" / "export" / "model.fp32.onnx").batch
    request = FilesRequest(model=tmp_path / "f")
    assert batch_and_opset(request) == (2, 16)
    with pytest.raises(OptionError, match="has a batch of 2"):
        batch_and_opset(replace(request, batch=4))


def test_without_data_nothing_is_known_of_classes_and_the_rest_goes_on(tmp_path: Path) -> None:
    folder = take(write_vit(tmp_path / "m.onnx", depth=1), data=None)
    assert folder.imported().classes == () and folder.imported().data is None
    assert evaluate(folder.path, "digits", classes="3,5", max_images=20).outputs == 10


def test_labels_beside_the_file_name_its_outputs_with_data_and_without(tmp_path: Path) -> None:
    file, told = write_vit(tmp_path / "m.onnx", depth=1), RecordedProgress()
    digits = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
    config = {"id2label": {str(output): str(digit) for output, digit in enumerate(digits)}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    labelled = take(file, told, data=None).imported()
    assert [(c.name, c.base_index) for c in labelled.classes] == [(str(d), i) for i, d in enumerate(digits)]
    assert told.notes[-1].endswith("of 10 outputs, as config.json beside the weights says")
    folder = tmp_path / "some"
    request = FilesRequest(model=file, out=folder, classes="7,0", **QUICK)
    assert [(c.name, c.base_index) for c in ModelFolder(imported(request).model).imported().classes] == [
        ("7", 9),
        ("0", 3),
    ]


def test_a_file_that_edgevit_made_brings_its_classes(exported: Path, tmp_path: Path) -> None:
    request = FilesRequest(model=exported / "export" / "model.fp32.onnx", out=tmp_path / "again")
    again = ModelFolder(imported(request).model).imported()
    before = ModelFolder(exported).imported()
    assert (again.classes, again.preprocessing) == (before.classes, before.preprocessing)
    assert (again.norms, again.blocks) == (before.norms, before.blocks)


def test_a_file_of_a_map_that_edgevit_made_is_one_again(tmp_path: Path) -> None:
    file = write_vit(tmp_path / "m.onnx", depth=1, output="map")
    export(file, output="map:foreground", preprocessing=PREPARED, fp16=False)
    request = FilesRequest(model=tmp_path / "m" / "export" / "model.fp32.onnx", out=tmp_path / "again")
    assert ModelFolder(imported(request).model).imported().output_kind == "foreground"
    with pytest.raises(OptionError, match="says itself that it gives maps; leave --output out"):
        imported(replace(request, out=tmp_path / "other", output="map"))


def test_a_file_whose_own_names_are_edgevit_s_keeps_its_function(tmp_path: Path) -> None:
    file = write_vit(tmp_path / "m.onnx", depth=1)
    model = onnx.load(file)
    renamed = {model.graph.initializer[0].name: "images", model.graph.node[1].output[0]: "logits"}
    for weight in model.graph.initializer:
        weight.name = renamed.get(weight.name, weight.name)
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    onnx.save(model, file)
    graph = onnx.load(take(file, data=None).imported_onnx).graph
    assert (graph.input[0].name, graph.output[0].name) == ("images", "logits")
    names = [*(w.name for w in graph.initializer), *(name for node in graph.node for name in node.output)]
    assert len(set(names)) == len(names) and {"images.inner", "logits.inner"} <= set(names)


def test_a_file_of_edgevit_s_whose_metadata_is_damaged_is_told(exported: Path, tmp_path: Path) -> None:
    model = onnx.load(exported / "export" / "model.fp32.onnx")
    said = {entry.key: entry.value for entry in model.metadata_props}
    helper.set_model_props(model, {**said, "class_columns": "[1]"})
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(CheckpointError, match="has metadata that contradicts its input or output"):
        take(tmp_path / "m.onnx", data=None)


def test_sizes_that_the_file_leaves_open_are_asked_for(tmp_path: Path) -> None:
    file = write_vit(tmp_path / "m.onnx", depth=1, side="side")
    with pytest.raises(OptionError, match=r"input_size missing; give .*--input-size 3x224x224"):
        take(file)
    assert take(file, input_size=(3, 32, 32)).imported().preprocessing["input_size"] == [3, 32, 32]


@pytest.mark.parametrize(
    ("output", "given", "kind", "shape"),
    [("map", None, "values", (1, 32, 32)), ("map", "map:foreground", "foreground", (1, 32, 32)),
     ("tokens", None, "features", (16, 32)), ("features", "features", "features", (32,))],
)  # fmt: skip
def test_features_and_maps_are_judged_on_images_without_labels(
    tmp_path: Path, output: str, given: str | None, kind: str, shape: tuple[int, ...]
) -> None:
    frames = write_frames(tmp_path / "frames")
    file, told = write_vit(tmp_path / "m.onnx", depth=1, output=output), RecordedProgress()
    report = export(file, data=frames, output=given, preprocessing=PREPARED, progress=told)
    document = ModelFolder(tmp_path / "m").imported()
    assert (document.output_kind, document.classes) == (kind, ())
    assert document.outputs == (1 if output == "map" else 32)
    assert any("; if not, give --output " in text for text in told.notes) == (given is None)
    assert told.notes[-1].startswith("recognised 1 blocks"), "no classes are assumed"
    name = "maps" if output == "map" else "features"
    assert [(t.name, t.shape) for t in report.outputs] == [(name, ("batch", *shape))]
    checked = report.accuracy
    assert checked is not None and checked.torch is None and checked.images == 12
    assert 0.99 < checked.files["fp16"].agreement <= 1 and report.parity["fp16"].error > 0
    assert find_file(tmp_path / "m", None, None).path.name == "model.fp32.onnx"
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    seen = OnnxModel(tmp_path / "m" / "export" / "model.fp32.onnx").predict(images)
    torch.testing.assert_close(seen, run_alone(file, images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("output", "given"), [("map", None), ("features", "features")])
def test_images_of_features_and_maps_are_assumed_to_be_prepared_as_imagenets(
    tmp_path: Path, output: str, given: str | None
) -> None:
    file, told = write_vit(tmp_path / "m.onnx", depth=1, output=output), RecordedProgress()
    folder = take(file, told, data=None, output=given, preprocessing={"std": [0.5] * 3})
    document = folder.imported()
    assert document.preprocessing["mean"] == [0.485, 0.456, 0.406] and document.preprocessing["std"] == [0.5] * 3
    assert document.assumed == ("interpolation", "mean", "crop_pct")
    assert any("crop_pct 1.0, assumed, as nothing states it" in text for text in told.notes)
    with pytest.raises(
        OptionError, match=r"not stated: interpolation, mean, .* missing; .*; if .* --output features is eno"
    ):
        take(write_vit(tmp_path / "c.onnx", depth=1), data=None, preprocessing={"std": [0.5] * 3})


def run_alone(file: Path, images: torch.Tensor) -> torch.Tensor:
    import onnxruntime

    (outputs,) = onnxruntime.InferenceSession(str(file)).run(None, {"pixel_values": images.numpy()})
    return torch.from_numpy(outputs)


def reshaped(file: Path, shape: list[int], declared: list[int | str]) -> Path:
    """Reshape the output of a file."""
    model = onnx.load(file)
    model.graph.node[-1].output[0] = "before"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(shape), "last_shape"))
    model.graph.node.append(helper.make_node("Reshape", ["before", "last_shape"], ["prob"]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("prob", TensorProto.FLOAT, declared))
    onnx.save(model, file)
    return file


def test_a_map_without_a_channel_gets_one(tmp_path: Path) -> None:
    file = reshaped(write_vit(tmp_path / "m.onnx", output="map"), [0, 32, 32], ["n", 32, 32])
    with pytest.raises(OptionError, match=r"to \[2, 32, 32\], of which .*; give --output features or map or map:fore"):
        take(file, data=None)
    folder = take(file, data=None, output="map")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    seen = OnnxModel(folder.imported_onnx).predict(images)
    torch.testing.assert_close(seen, run_alone(file, images)[:, None], rtol=1e-4, atol=1e-4)


def test_what_a_file_puts_out_is_what_it_can_be_and_nothing_is_left(tmp_path: Path) -> None:
    file, frames = write_vit(tmp_path / "m.onnx", depth=1, output="map"), write_frames(tmp_path / "frames", 4)
    with pytest.raises(OptionError, match=r"to \[2, 1, 32, 32\], which is not classes; give --output map or map:fore"):
        take(file, output="classes")
    with pytest.raises(OptionError, match="gives maps; leave --classes and --base-classes out"):
        take(file, classes="3,5")
    with pytest.raises(UnknownNameError, match="output 'boxes'"):
        take(file, output="boxes")
    with pytest.raises(DataError, match=r"class folders.*; if \S*m.onnx gives features, give --output features$"):
        take(write_vit(file, depth=1), data=frames)
    for shape, seen in (([-1], "20"), ([0, 10, 1], "2, 10, 1")):
        with pytest.raises(CheckpointError, match=rf"maps 2 images to \[{seen}\], expected for each image a row of"):
            take(reshaped(write_vit(file, depth=1), shape, ["n", 10, 1][: len(shape)]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frames", "m.onnx"]


def test_of_several_outputs_the_one_that_is_named_holds_the_logits(tmp_path: Path) -> None:
    file = write_vit(tmp_path / "m.onnx", depth=1)
    expected = OnnxModel(file).predict(torch.ones(2, 3, 32, 32))
    model = onnx.load(file)
    tokens = next(n.output[0] for n in model.graph.node if n.op_type == "Softmax")
    model.graph.output.insert(0, helper.make_tensor_value_info(tokens, TensorProto.FLOAT, ["n", 2, 16, 16]))
    onnx.save(model, file)
    with pytest.raises(CheckpointError, match=rf"has 2 outputs \({tokens}, prob\).*such as --output-name {tokens}$"):
        take(file)
    with pytest.raises(UnknownNameError, match=r"output of \S+m\.onnx 'logits'"):
        take(file, output_name="logits")
    found = OnnxModel(take(file, output_name="prob").imported_onnx).predict(torch.ones(2, 3, 32, 32))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(CheckpointError, match=r"has 1 inputs and 2 outputs, .* with `edgevit export .*--output-name"):
        OnnxModel(file)


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_typed_file_is_exported_and_judged_as_it_is(tmp_path: Path, precision: str) -> None:
    halved = precision == "fp16"
    file = write_vit(tmp_path / "m.onnx", depth=1, kind=TensorProto.FLOAT16 if halved else TensorProto.FLOAT)
    file = file if halved else quantised(file)
    told, images = RecordedProgress(), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    report = export(file, out=tmp_path / "m", max_images=20, progress=told, **QUICK)
    taken = ModelFolder(tmp_path / "m")
    assert f"{file} is in {precision}: exported, judged and built as it is" in told.notes
    name = taken.export.onnx(precision).name
    assert list(report.files) == [name] and find_file(taken.path, None, None).path.name == name
    assert report.inputs[0].dtypes == {name: "float16" if halved else "float32"}
    kinds = [{w.data_type for w in onnx.load(path).graph.initializer} for path in (file, taken.export.onnx(precision))]
    assert kinds[0] - {TensorProto.INT64} == kinds[1] - {TensorProto.INT64}
    own, exported = (OnnxModel(path).predict(images) for path in (file, taken.export.onnx(precision)))
    torch.testing.assert_close(exported, own, rtol=2e-2, atol=2e-2)
    assert report.accuracy is not None and report.accuracy.files[precision].agreement == 1
    assert [block.name for block in taken.imported().blocks] == ["blocks.0"]
    told.notes.clear()
    assert current_export(FilesRequest(model=taken.path, accuracy=False), told).files == report.files
    assert any("is up to date: reused" in text for text in told.notes)


def test_an_input_that_no_machine_holds_is_one_line(tmp_path: Path) -> None:
    file = write_vit(tmp_path / "m.onnx", depth=1, batch=2**40)
    said = r"takes 1099511627776x3x32x32 values at once, 13510799 GB, and 4 GB is the limit; export it with a small"
    for opening in (take, OnnxModel):
        with pytest.raises(CheckpointError, match=said):
            opening(file)


def test_logits_that_are_no_numbers_are_the_file_s_own(tmp_path: Path) -> None:
    file = write_vit(tmp_path / "m.onnx", depth=1)
    model = onnx.load(file)
    weight = next(w for w in model.graph.initializer if w.data_type == TensorProto.FLOAT and len(w.dims) == 2)
    broken = onnx.numpy_helper.to_array(weight).copy()
    broken[0, 0] = np.nan
    weight.CopyFrom(onnx.numpy_helper.from_array(broken, weight.name))
    onnx.save(model, file)
    with pytest.raises(CheckpointError, match="maps random images to NaN or infinity"):
        take(file)


def test_data_of_other_classes_than_outputs_needs_their_order(tmp_path: Path, image_folder: Any) -> None:
    file = write_vit(tmp_path / "m.onnx", depth=1)
    data = image_folder(tmp_path / "d", {"cat": 4, "dog": 4})
    with pytest.raises(DataError, match=r"2 classes \('cat', 'dog'\) and the base 10 outputs"):
        take(file, data=data)
    (tmp_path / "names.txt").write_text("\n".join([*"abcd", "dog", "cat", *"efgh"]))
    classes = take(file, data=data, base_classes=tmp_path / "names.txt").imported().classes
    assert sorted((c.name, c.base_index) for c in classes) == [("cat", 5), ("dog", 4)]


def test_onnx_json_is_sealed(exported: Path, tmp_path: Path) -> None:
    content = json.loads((exported / "onnx.json").read_text())
    content["outputs"] = 11
    (tmp_path / "onnx.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="was altered"):
        ModelFolder(tmp_path).imported()
