"""A report judges a ready-made ONNX file beside its models, and says whether deriving pays."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from model_folders import some_spec
from small_base import PREPROCESSING
from some_report import DATA, GOOD, accuracies, derived, turns, write_folder
from tiny_cnn import write_cnn

from edgevit.data.task import open_task
from edgevit.errors import CheckpointError, OptionError, OutputError
from edgevit.exporting.current import current_export
from edgevit.exporting.request import FilesRequest
from edgevit.records.answers import PartAnswers, RightImages
from edgevit.records.derivation import AccuracyRecord, DataRecord, ValidationRecord
from edgevit.records.model import BuilderFacts
from edgevit.records.model_folder import ModelFolder
from edgevit.reporting.run import report
from edgevit.reporting.tables import answer

BOARD = {"board": "Nano", "power_mode": "25W", "tensorrt": "10.3.0", "cores": "6"}


@pytest.fixture(scope="module")
def data() -> DataRecord:
    names = [str(digit) for digit in range(10)]
    preprocessing = {**PREPROCESSING, "input_size": [3, 32, 32], "crop_mode": "center"}
    return open_task("digits", ["3", "5", "8"], preprocessing=preprocessing, base_outputs=10, base_names=names).record()


def write_models(folder: Path, data: DataRecord) -> dict[str, str]:
    """A base and a model that are right on seven of ten images; return the hashes of their files."""
    counts = {"validation": data.images.validation, "test": data.images.test}
    right = {part: RightImages.of(i % 10 < 7 for i in range(count)) for part, count in counts.items()}
    record = AccuracyRecord(right["test"].right / counts["test"], counts["test"])
    fields = {
        "data": data,
        "accuracy": replace(accuracies(record), base_restricted=record),
        "answers": {part: PartAnswers(which, which) for part, which in right.items()},
        "validation": ValidationRecord(counts["validation"], right["validation"].right, right["validation"].right),
    }
    model = derived(record, **fields)
    of_data = {"classes": data.classes, "timm_args": {"num_classes": 3, "depth": 2}}
    return {
        "base": write_folder(folder / "base", macs=2_000_000, **of_data),
        "r0.5": write_folder(folder / "r0.5", derivation=model, macs=30_000, params=1_000, **of_data),
    }


def test_it_is_one_more_row_and_the_answer_says_that_deriving_does_not_pay(data: DataRecord, tmp_path: Path) -> None:
    models = tmp_path / "models"
    hashes = write_models(models, data)
    file = write_cnn(tmp_path / "cnn.onnx", ["3", "5", "8"])
    made = report([models], ready_made=[file], format="json")
    (panel,) = made.panels
    entry = panel.entries[-1]
    document = ModelFolder(tmp_path / "cnn").imported()
    assert (entry.kind, entry.title, entry.method, entry.model) == ("ready-made", "cnn.onnx", "ready-made", "cnn")
    assert (entry.macs, entry.params) == (document.macs, document.params) == (33_024, 2_163)
    assert entry.top1 == document.answers["test"].right / data.images.test and panel.part == "validation"
    assert entry.answers == document.answers and entry.ratio is None and not panel.baselines[0].runs
    assert panel.recommended() is panel.entries[-2], "it has fewer MACs"
    assert "ready-made" not in answer(panel)

    current_export(FilesRequest(model=tmp_path / "cnn", fp16=False, accuracy=False))
    exported = ModelFolder(tmp_path / "cnn").export.record().files["model.fp32.onnx"].sha256
    times = {hashes["base"]: ("base", 5.7), hashes["r0.5"]: ("r0.5", 3.0), exported: ("cnn", 1.8)}
    runs = [run for sha, (label, ms) in times.items() for run in turns(sha, label, ms, BOARD, "s")]
    (tmp_path / "runs.jsonl").write_text("".join(run.to_json() + "\n" for run in runs))
    made = report([models, tmp_path / "runs.jsonl"], ready_made=[file], output=tmp_path / "page.html")
    (panel,) = made.panels
    entry = panel.entries[-1]
    assert entry.ratio == pytest.approx(1.8 / 5.7, rel=0.02) and entry.p50_ms == pytest.approx(1.8, rel=0.02)
    assert panel.reference is not None and panel.reference.kind == "restricted" and panel.reference.ratio == 1
    assert panel.recommended() is entry
    sentence = answer(panel)[answer(panel).index("cnn.onnx is ready-made") :]
    assert "at least as accurate as r0.5" in sentence and "latency, p50 1.8" in sentence and "against 3.0" in sentence
    assert sentence.endswith("deriving pays only for MACs of an image, parameters, size of the file.")
    assert '"title":"cnn.onnx"' in made.text and '"method":"ready-made"' in made.text


def test_a_judgement_that_is_kept_needs_no_torch(data: DataRecord, tmp_path: Path) -> None:
    write_models(tmp_path / "models", data)
    file = write_cnn(tmp_path / "cnn.onnx", ["3", "5", "8"])
    report([tmp_path / "models"], ready_made=str(file), output=tmp_path / "p.html")
    code = (
        "import sys; from edgevit.reporting.run import report\n"
        f"made = report([{str(tmp_path / 'models')!r}], ready_made=[{str(file)!r}], format='md')\n"
        "print('cnn.onnx' in made.text, 'torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["True", "False"]
    file.write_bytes(file.read_bytes().replace(b"main_graph", b"mine_graph"))
    with pytest.raises(OutputError, match=r"has another cnn\.onnx"):
        report([tmp_path / "models"], ready_made=[file], format="md")


def test_what_cannot_stand_beside_the_models_is_refused(data: DataRecord, tmp_path: Path) -> None:
    write_models(tmp_path / "models", data)
    with pytest.raises(CheckpointError, match=r"there is no .*none\.onnx; check the path of --beside"):
        report([tmp_path / "models"], ready_made=[tmp_path / "none.onnx"], format="md")
    file = write_cnn(tmp_path / "cnn.onnx", ["3", "5", "8"], steps=0)
    (tmp_path / "more").mkdir()
    twin = Path(shutil.copy(file, tmp_path / "more"))
    with pytest.raises(OptionError, match=r"--beside has two files named cnn\.onnx; rename one"):
        report([tmp_path / "models"], ready_made=[file, twin], format="md")
    with pytest.raises(OptionError, match=r"model\.json is not an ONNX file"):
        report([tmp_path / "models"], ready_made=[tmp_path / "models" / "base" / "model.json"], format="md")
    with pytest.raises(OptionError, match="no model here says on which images it was judged"):
        report([tmp_path / "models" / "base"], ready_made=[file], format="md")
    write_folder(tmp_path / "models" / "other", derivation=derived(GOOD))
    with pytest.raises(OptionError, match="were judged on 2 sets of images, and --beside needs one"):
        report([tmp_path / "models"], ready_made=[file], format="md")


def test_features_and_maps_need_a_sweep_that_judged_them(tmp_path: Path) -> None:
    file = write_cnn(tmp_path / "cnn.onnx", ["3", "5", "8"], steps=0)
    of_data = {
        "classes": (), "timm_args": {"num_classes": 0, "depth": 2}, "base": replace(some_spec().base, outputs=0)
    }  # fmt: skip
    for kind, told in (
        (
            "features",
            "judged by probes, as --beside needs for features: sweep with --output features --probe knn,linear",
        ),
        ("foreground", "judged by masks, as --beside needs for maps: sweep with --data that has images/ and masks/"),
        ("boxes", "--beside is for classifiers, features and maps, and these models find boxes; leave it out"),
    ):
        model = derived(GOOD, data=replace(DATA, classes=()))
        head = {} if kind == "features" else {"output": kind, "builder": BuilderFacts("build", "backbone", "c" * 64)}
        write_folder(tmp_path / kind / "m", derivation=model, **{**of_data, **head})
        with pytest.raises(OptionError, match=told):
            report([tmp_path / kind], ready_made=[file], format="md")
    assert not (tmp_path / "cnn").exists()
