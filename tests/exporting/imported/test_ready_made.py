"""An ONNX file that somebody else trained is judged on the images of derived models."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bright_map import write_bright_map, write_masks
from dense_networks import write_frames
from foreign_onnx import write_vit
from PIL import Image
from recorded_progress import RecordedProgress
from small_base import PREPROCESSING, fewer_digits
from tiny_cnn import write_cnn
from torch import nn

from edgevit.data.task import open_task, open_unlabelled_task
from edgevit.engines.run import evaluate
from edgevit.errors import CheckpointError, DataError, EdgeVitError, ExportError, OptionError, OutputError
from edgevit.exporting.imported.ready_made import DerivedModels, check_ready_made, judge_ready_made
from edgevit.records.derivation import DataRecord
from edgevit.records.imported import ImportedDocument
from edgevit.records.model_folder import ModelFolder

OF_MODELS = {**PREPROCESSING, "input_size": [3, 32, 32], "crop_mode": "center"}


@pytest.fixture(scope="module")
def data() -> DataRecord:
    """The images of a model for three of ten classes."""
    names = [str(digit) for digit in range(10)]
    return open_task("digits", ["5", "3", "8"], preprocessing=OF_MODELS, base_outputs=10, base_names=names).record()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_cnn(folder / "some.onnx", ["3", "5", "8"])
    write_cnn(folder / "all.onnx", None)
    return folder


def judge(file: Path, data: DataRecord, told: RecordedProgress | None = None) -> ImportedDocument:
    models = DerivedModels(data, OF_MODELS)
    return judge_ready_made(file, ModelFolder(file.with_suffix("")), models, told or RecordedProgress())


@pytest.mark.parametrize(("name", "columns"), [("some", [1, 0, 2]), ("all", [5, 3, 8])])
def test_its_answers_to_the_same_images_are_recorded(
    files: Path, data: DataRecord, tmp_path: Path, name: str, columns: list[int]
) -> None:
    file, told = Path(shutil.copy(files / f"{name}.onnx", tmp_path)), RecordedProgress()
    document = judge(file, data, told)
    assert ModelFolder(tmp_path / name).imported() == document
    assert [(c.name, c.base_index) for c in document.classes] == list(zip(["5", "3", "8"], columns, strict=True))
    assert document.data == data and document.preprocessing == {**OF_MODELS, "input_size": [3, 16, 16]}
    for part in ("validation", "test"):
        answers = document.answers[part]
        assert answers.images == getattr(data.images, part) and answers.right > 0.8 * answers.images
        assert [*(answers.classes or {})] == ["5", "3", "8"]
        seen = evaluate(tmp_path / name, part=part)
        assert (seen.images, round(seen.top1 * seen.images)) == (answers.images, answers.right)
    assert "crop_mode center, as the derived models" in told.notes[0] and not told.warnings
    assert told.notes[-1].startswith(f"{name}.onnx: classes: 5 is output {columns[0]}, ")
    assert told.notes[-1].endswith("from the alphabet of the data's folders: id2label in a config.json beside it gives "
                                   "another order")  # fmt: skip


def test_the_judgement_is_kept_with_the_file(files: Path, data: DataRecord, tmp_path: Path) -> None:
    file, told = Path(shutil.copy(files / "some.onnx", tmp_path)), RecordedProgress()
    document = judge(file, data)
    written = (tmp_path / "some" / "onnx.json").stat().st_mtime_ns
    assert judge(file, data, told) == document and (tmp_path / "some" / "onnx.json").stat().st_mtime_ns == written
    assert told.notes == [f"{tmp_path / 'some'} has the answers of some.onnx to these images: reused"]
    others = replace(data, fingerprint="0" * 64)
    with pytest.raises(
        OutputError, match=r"some is some\.onnx for images of 3 classes of digits, and the models are for oth"
    ):
        judge(file, others)
    shutil.copy(files / "all.onnx", file)
    with pytest.raises(OutputError, match=r"has another some\.onnx than .*; remove the folder, or rename the file"):
        judge(file, data)


def test_a_file_that_was_imported_before_is_judged_where_it_lies(files: Path, data: DataRecord, tmp_path: Path) -> None:
    from edgevit.exporting.imported.importing import imported
    from edgevit.exporting.request import FilesRequest

    file = Path(shutil.copy(files / "all.onnx", tmp_path))
    imported(FilesRequest(model=file, preprocessing=PREPROCESSING))
    (tmp_path / "all" / "export").mkdir()
    assert judge(file, data).answers and (tmp_path / "all" / "export").is_dir()


def test_names_and_preprocessing_beside_the_file_come_first(files: Path, data: DataRecord, tmp_path: Path) -> None:
    file, told = Path(shutil.copy(files / "some.onnx", tmp_path)), RecordedProgress()
    config = {"id2label": {"0": "8", "1": "5", "2": "3"}, "pretrained_cfg": {"mean": [0.25] * 3}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    document = judge(file, data, told)
    assert [(c.name, c.base_index) for c in document.classes] == [("5", 1), ("3", 2), ("8", 0)]
    assert document.preprocessing["mean"] == [0.25] * 3 and document.preprocessing["std"] == [0.5] * 3
    assert "mean 0.25,0.25,0.25, by config.json" in told.notes[0]
    assert len(told.warnings) == 1 and "which is near chance; check the order of its outputs" in told.warnings[0]
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "8", "1": "5", "2": "cat"}}))
    shutil.rmtree(tmp_path / "some")
    with pytest.raises(DataError, match="has no output for the class '3'; name its outputs by id2label"):
        judge(file, data)
    assert not (tmp_path / "some").exists()


def test_a_file_of_other_outputs_is_refused(data: DataRecord, tmp_path: Path) -> None:
    file = write_cnn(tmp_path / "two.onnx", ["3", "5"], steps=0)
    with pytest.raises(DataError, match=r"has 2 outputs, expected 3 \(the classes of the models\) or 10 \(those of"):
        judge(file, data)
    assert sorted(tmp_path.iterdir()) == [file]


def test_a_map_is_not_compared_by_classes(data: DataRecord, tmp_path: Path) -> None:
    file = write_vit(tmp_path / "m.onnx", depth=1, output="map")
    with pytest.raises(CheckpointError, match=r"to \[2, 1, 32, 32\], and the models give a number for each class"):
        judge(file, data)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_a_file_that_takes_another_size_than_its_preprocessing_is_refused(data: DataRecord, tmp_path: Path) -> None:
    import onnx

    model = onnx.load(write_cnn(tmp_path / "m.onnx", ["3", "5", "8"], steps=0))
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "wide"
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(OptionError, match="takes images of 3x16x"):
        judge(tmp_path / "m.onnx", data)


def test_what_is_no_classifier_is_refused_before_anything_is_derived(files: Path, tmp_path: Path) -> None:
    check_ready_made(files / "some.onnx", "logits")
    cases: list[tuple[bytes, type[EdgeVitError], str]] = [
        (b"no ONNX at all", CheckpointError, "is not an ONNX file, or is damaged"),
        ((files / "some.onnx").read_bytes()[:2000], CheckpointError, "not an ONNX file|not a complete ONNX file"),
        ((files / "some.onnx").read_bytes().replace(b"Relu", b"Relx"), EdgeVitError, "Relx|not a complete"),
    ]
    for content, error, words in cases:
        (tmp_path / "m.onnx").write_bytes(content)
        with pytest.raises((error, ExportError), match=words):
            check_ready_made(tmp_path / "m.onnx", "logits")


def judge_features(file: Path, data: DataRecord, *probe: str) -> ImportedDocument:
    models = DerivedModels(data, OF_MODELS, "features", probe)
    return judge_ready_made(file, ModelFolder(file.with_suffix("")), models, RecordedProgress())


def test_features_of_another_width_are_judged_by_the_same_probes(files: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(files / "all.onnx", tmp_path))  # ten numbers, which are taken for features
    with fewer_digits():
        data = open_unlabelled_task("digits", preprocessing=OF_MODELS, outputs=64, by_class=True).record()
        document = judge_features(file, data, "knn")
        assert (document.output_kind, document.outputs, document.classes) == ("features", 10, ())
        seen = evaluate(tmp_path / "all", data="digits", probe=("knn",))
        right = document.probes["knn"]["test"]
        assert (right.images, right.right) == (data.images.test, round(seen.probes["knn"] * seen.images))
        assert right.right > 0.5 * right.images
        assert judge_features(file, data, "knn") == document, "reused"
        both = judge_features(file, data, "knn", "linear")
    assert both.probes["knn"] == document.probes["knn"] and list(both.probes) == ["knn", "linear"]
    assert ModelFolder(tmp_path / "all").imported() == both
    with pytest.raises(CheckpointError, match=r"gives features of width 10, and the models give a number for each"):
        judge(file, data)


@pytest.fixture
def judged_frames(tmp_path: Path) -> DataRecord:
    """Pictures with masks, as models for foreground were derived from them."""
    frames = write_frames(tmp_path / "frames" / "images", 20)
    write_masks(frames, tmp_path / "frames" / "masks")
    return open_unlabelled_task(tmp_path / "frames", preprocessing=OF_MODELS, outputs=1).record()


def judge_map(file: Path, data: DataRecord) -> ImportedDocument:
    models = DerivedModels(data, OF_MODELS, "foreground")
    return judge_ready_made(file, ModelFolder(file.with_suffix("")), models, RecordedProgress())


def test_maps_are_judged_by_the_masks_of_the_test_images(judged_frames: DataRecord, tmp_path: Path) -> None:
    assert judged_frames.images.test == 4 and judged_frames.images.train == 14, "masks are no images"
    document = judge_map(write_bright_map(tmp_path / "right.onnx"), judged_frames)
    assert document.targets is not None and document.targets.score == 1 and document.is_judged_on(judged_frames)
    assert document.targets.error == pytest.approx(0.3, abs=0.1), "the mean brightness is no sure probability"
    assert judge_map(tmp_path / "right.onnx", judged_frames) == document, "reused"
    all_of_it = judge_map(write_bright_map(tmp_path / "all.onnx", bias=2), judged_frames).targets
    assert all_of_it is not None and all_of_it.score == pytest.approx(12 * 12 / 32 / 32), "the area of a square"
    for mask in (tmp_path / "frames" / "masks").iterdir():
        Image.fromarray(~np.asarray(Image.open(mask))).save(mask)
    again = judge_map(tmp_path / "right.onnx", judged_frames).targets
    assert again is not None and again.score == 0, "masks that have changed are read again"


def test_maps_that_are_no_logits_or_of_another_size_are_refused(judged_frames: DataRecord, tmp_path: Path) -> None:
    sigmoid = write_bright_map(tmp_path / "sigmoid.onnx", nn.Sigmoid())
    with pytest.raises(
        CheckpointError, match=r"gives values from 0\.\d+ to 0\.\d+, as of probabilities, .* without the"
    ):
        judge_map(sigmoid, judged_frames)
    small = write_bright_map(tmp_path / "small.onnx", nn.AvgPool2d(4))
    with pytest.raises(
        CheckpointError, match=r"to \[2, 1, 8, 8\], and target maps are resized to 32 x 32, as the imag"
    ):
        check_ready_made(small, "foreground")
    check_ready_made(small, "foreground", own_score=True)
    for kind in ("logits", "features"):
        with pytest.raises(CheckpointError, match=r"to \[2, 1, 32, 32\], and the models give"):
            check_ready_made(sigmoid, kind)
    assert not (tmp_path / "sigmoid").exists() and not (tmp_path / "small").exists()


def test_a_file_of_two_outputs_is_told_how_to_become_one_of_one(files: Path, tmp_path: Path) -> None:
    import onnx

    model = onnx.load(files / "some.onnx")
    model.graph.output.append(onnx.helper.make_tensor_value_info(model.graph.node[0].output[0], 1, [None] * 4))
    onnx.save(model, tmp_path / "two.onnx")
    with pytest.raises(CheckpointError, match=r"has 2 outputs, .*two\.onnx --output-name y --out DIR` writes that one"):
        check_ready_made(tmp_path / "two.onnx", "features")
