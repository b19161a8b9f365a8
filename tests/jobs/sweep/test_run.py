"""A sweep over rates of a small base on digits: once, and then gone on with."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bright_map import write_bright_map, write_masks
from dense_networks import write_depth, write_frames
from recorded_progress import RecordedProgress
from safetensors.torch import load_file, save_file
from small_base import ARGS, assert_same_weights, fewer_digits
from tiny_cnn import write_cnn

import edgevit
from edgevit.board.comparison import load_runs
from edgevit.board.request import Conditions
from edgevit.data.task import open_task, reopen, with_labels
from edgevit.derivation.cache import derivations_folder, entries
from edgevit.errors import (
    BudgetError,
    CheckpointError,
    DataError,
    ExportError,
    OptionError,
    OutputError,
    SweepError,
    UnknownNameError,
)
from edgevit.jobs.sweep import run
from edgevit.jobs.sweep.record import read_sweep, write_sweep
from edgevit.records.model_folder import ModelFolder
from edgevit.train.settings import Training

pytestmark = pytest.mark.usefixtures("examined_once")

BASE = "vit_tiny_patch16_224"
TRAINED = {"derive_from": "finetuned", "base_steps": 20, "training": Training(device="cpu", batch_size=24, lr=3e-3)}


@pytest.fixture(scope="module", autouse=True)
def short() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "ROUNDS", 2)
        patch.setattr(run, "CONDITIONS", Conditions(samples=20, duration_s=0, warmup=1, warmup_seconds=0))
        yield


@pytest.fixture(scope="module")
def asked(digits_checkpoint: Path) -> dict[str, Any]:
    base = {"checkpoint": digits_checkpoint, "model_args": ARGS}
    return {
        **base,
        "data": "digits",
        "classes": ["3", "5", "8"],
        "method": "nuwa",
        "options": {"purification": "none"},  # or it trains
        "training": Training(device="cpu"),
    }


@pytest.fixture(scope="module")
def told() -> RecordedProgress:
    return RecordedProgress()


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, asked: dict[str, Any], told: RecordedProgress) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "s"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("fresh cache")))
        edgevit.sweep(BASE, out=out, rates=(0.7, 0.4), progress=told, **asked)
    return out


@pytest.fixture
def copy(swept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(swept, tmp_path / "s"))


def test_the_base_and_every_rate_are_judged_exported_and_measured(swept: Path) -> None:
    found = read_sweep(swept)
    assert [point.folder for point in found.points] == ["base", "r0.4", "r0.7"]
    assert len({point.images for point in found.points}) == 1 and found.part == "validation"
    macs = [point.macs for point in found.points]
    assert macs == sorted(macs, reverse=True) and macs[2] <= 0.3 * macs[0]
    for point in found.points:
        model = edgevit.load(swept / point.folder)
        assert (model.spec.macs, model.classes) == (point.macs, ["3", "5", "8"])
        assert (swept / point.folder / "export" / "model.fp32.onnx").is_file()
        seen = edgevit.evaluate(swept / point.folder, "digits", part="validation")
        assert (seen.images, round(seen.top1 * seen.images)) == (point.images, point.right)
        assert (
            point.latency is not None and point.latency.ms > 0 and point.latency.figure in ("p50", "mean", "processor")
        )
    assert found.points[0].latency.ratio == 1
    labels = [r.label for r in load_runs(swept / "runs.jsonl")]
    assert sorted(set(labels)) == ["base", "r0.4", "r0.7"] and len(labels) == 6, "each once in each of two rounds"


def test_how_long_all_derivations_take_is_told_before_the_first(swept: Path, told: RecordedProgress) -> None:
    durations = [note for note in told.notes if "derivation takes" in note or "derivations take about" in note]
    assert [duration.partition(" about")[0] for duration in durations] == [
        "the 2 derivations take", "this derivation takes",
    ]  # fmt: skip
    order = [told.notes.index(note) for note in (run._ON_TOP, durations[0], "r0.4: export", durations[1])]
    assert order == sorted(order)


def test_the_derivations_share_their_work(swept: Path) -> None:
    first, second = (json.loads((swept / f / "derivation.json").read_text()) for f in ("r0.4", "r0.7"))
    assert first["facts"]["steps"] == second["facts"]["steps"] == 0
    assert set(second["facts"]["reused"]) >= {"statistics"} > set(first["facts"].get("reused", []))


def test_the_same_sweep_again_does_nothing(copy: Path, asked: dict[str, Any]) -> None:
    before = {file: file.stat().st_mtime_ns for file in copy.rglob("*") if file.is_file()}
    assert edgevit.sweep(BASE, out=copy, rates=(0.4, 0.7), **asked) == read_sweep(copy)
    assert {file: file.stat().st_mtime_ns for file in copy.rglob("*") if file.is_file()} == before


@pytest.mark.slow
def test_what_is_missing_is_done_and_all_are_measured_again(copy: Path, asked: dict[str, Any]) -> None:
    shutil.rmtree(copy / "r0.7")
    kept = (copy / "r0.4" / "model.safetensors").stat().st_mtime_ns
    before = read_sweep(copy)
    base, first, second = before.points
    # As if another model had been judged at the first rate.
    write_sweep(copy, replace(before, points=(base, replace(first, weights_sha256="b" * 64), second)))
    again = edgevit.sweep(BASE, out=copy, rates=(0.4, 0.7), **asked)
    assert again.points[1].weights_sha256 == first.weights_sha256 == ModelFolder(copy / "r0.4").weights_sha256()
    assert (copy / "r0.4" / "model.safetensors").stat().st_mtime_ns == kept
    judged = [[(p.folder, p.right, p.macs) for p in sweep.points] for sweep in (before, again)]
    assert judged[0] == judged[1]
    assert again.points[1].latency != before.points[1].latency, "measured in turns with the new one"


@pytest.mark.slow
def test_with_other_threads_all_are_measured_again_and_nothing_else_is_done(copy: Path, asked: dict[str, Any]) -> None:
    before, runs = read_sweep(copy), load_runs(copy / "runs.jsonl")
    again = edgevit.sweep(BASE, out=copy, rates=(0.4, 0.7), threads=1, **asked)
    assert [replace(p, latency=None) for p in again.points] == [replace(p, latency=None) for p in before.points]
    assert {run.environment["threads"] for run in load_runs(copy / "runs.jsonl")} == {"1"}
    assert (before.threads, again.threads) == (None, 1) and load_runs(copy / "runs.jsonl") != runs
    assert edgevit.sweep(BASE, out=copy, rates=(0.4, 0.7), threads=1, **asked) == again


def test_on_another_part_the_same_models_are_judged_and_nothing_is_derived_or_measured(
    copy: Path, asked: dict[str, Any]
) -> None:
    before, files = read_sweep(copy), {f: f.stat().st_mtime_ns for f in copy.rglob("*") if f.is_file()}
    again = edgevit.sweep(BASE, out=copy, rates=(0.4, 0.7), part="test", **asked)
    changed = {f.name for f, ns in files.items() if f.stat().st_mtime_ns != ns}
    assert changed == {"sweep.json"} and (before.part, again.part) == ("validation", "test")
    assert [p.latency for p in again.points] == [p.latency for p in before.points]
    record = json.loads((copy / "r0.7" / "derivation.json").read_text())
    assert again.points[2].top1 == record["accuracy"]["derived"]["top1"]
    assert again.points[0].top1 == record["accuracy"]["base_restricted"]["top1"]
    assert again.fingerprint == record["data"]["fingerprint"]
    older = replace(before, points=tuple(replace(point, judged=None) for point in before.points))
    write_sweep(copy, older)
    assert edgevit.sweep(BASE, out=copy, rates=(0.4, 0.7), **asked) == older
    with pytest.raises(SweepError, match="were judged on the validation images alone, by an older edgevit"):
        edgevit.sweep(BASE, out=copy, rates=(0.4, 0.7), part="test", **asked)


def test_a_rate_that_cannot_be_reached_is_left_out_and_said_to_be(asked: dict[str, Any], copy: Path) -> None:
    found = edgevit.sweep(BASE, out=copy, rates=(0.4, 0.7, 0.999), **asked)
    assert [p.rate for p in found.points] == [None, 0.4, 0.7]
    assert found.left_out[0].startswith("rate 0.999: ")
    with pytest.raises(BudgetError, match="no model can be derived at any of the rates"):
        edgevit.sweep(BASE, out=copy.with_name("none"), rates=(0.999,), **asked)


def test_a_sweep_of_something_else_and_other_folders_are_refused(copy: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(
        SweepError, match=r"holds a sweep of something else: classes was 3,5,8 and is 3,5; choose another --out"
    ):
        edgevit.sweep(BASE, out=copy, **{**asked, "classes": ["3", "5"]})
    with pytest.raises(OutputError, match="is no sweep"):
        edgevit.sweep(BASE, out=copy / "base", **asked)
    with pytest.raises(OptionError, match="--rates"):
        edgevit.sweep(BASE, out=copy, rates=(0.5, 1.5), **asked)


@pytest.mark.slow
def test_without_the_cache_the_work_is_shared_and_the_base_has_the_head_that_its_models_were_derived_with(
    small_vit: Any, asked: dict[str, Any], tmp_path: Path
) -> None:
    save_file(small_vit(num_classes=0).state_dict(), tmp_path / "headless.safetensors")
    given = {**asked, "checkpoint": tmp_path / "headless.safetensors"}
    given |= {"training": Training(device="cpu", seed=3), "accept_weak_base": True}
    before = entries(derivations_folder())
    edgevit.sweep(BASE, out=tmp_path / "s", rates=(0.4, 0.7), cache=False, **given)
    assert entries(derivations_folder()) == before
    second = json.loads((tmp_path / "s" / "r0.7" / "derivation.json").read_text())
    assert "statistics" in second["facts"]["reused"]
    small, whole = (edgevit.load(tmp_path / "s" / name).spec for name in ("r0.7", "base"))
    assert small.base == whole.base and small.class_names == whole.class_names == ["3", "5", "8"]


@pytest.mark.slow
def test_the_base_is_judged_on_the_images_that_its_models_are_however_many_are_held_out(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    base, small = edgevit.sweep(BASE, out=tmp_path / "s", rates=(0.4,), validation_fraction=0.3, **asked).points
    held_out = json.loads((tmp_path / "s" / "r0.4" / "derivation.json").read_text())["data"]["images"]["validation"]
    assert base.images == small.images == held_out


@pytest.mark.slow
def test_a_ready_made_file_is_judged_on_the_same_images_and_measured_in_turns(
    copy: Path, asked: dict[str, Any], tmp_path: Path
) -> None:
    file = write_cnn(tmp_path / "my cnn.onnx", ["3", "5", "8"])
    with pytest.raises(CheckpointError, match="has no nodes, so it is not a model"):
        broken = tmp_path / "broken.onnx"
        broken.write_bytes(b"x" * 100)
        edgevit.sweep(BASE, out=copy, rates=(0.4, 0.7), ready_made=[broken], **asked)
    before = read_sweep(copy)
    again = edgevit.sweep(BASE, out=copy, rates=(0.4, 0.7), ready_made=[file], **asked)
    (point,) = again.ready_made
    assert point.judged is not None and (point.folder, point.rate, point.macs) == ("my cnn", None, 33_024)
    assert point.right == point.judged["validation"].right > 0.8 * point.images
    assert [p.images for p in again.points] == [point.images] * 3 and again.base == again.points[0]
    assert point.latency is not None and point.latency.ratio != 1
    assert [replace(p, latency=None) for p in again.points] == [replace(p, latency=None) for p in before.points]
    assert {run.label for run in load_runs(copy / "runs.jsonl")} == {"base", "r0.4", "r0.7", "my cnn"}
    on_test = edgevit.sweep(BASE, out=copy, rates=(0.4, 0.7), part="test", **asked)
    assert on_test.ready_made[0].right == point.judged["test"].right and on_test.ready_made[0].latency == point.latency
    (panel,) = edgevit.report(copy, format="md").panels
    (entry,) = [entry for entry in panel.entries if entry.kind == "ready-made"]
    assert entry.title == "my cnn.onnx" and entry.on("validation") == again.ready_made[0].on("validation")


FEW = {"calibration_images": 48, "sensitivity_images": 16, "measured_images": 10}


@pytest.fixture(scope="module")
def backbones(digits_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {
        "checkpoint": digits_checkpoint, "model_args": ARGS, "data": "digits", "output": "features", "rates": (0.4,),
        "options": FEW, "training": Training(device="cpu"), "out": tmp_path_factory.mktemp("backbones") / "s",
    }  # fmt: skip


@pytest.mark.slow
def test_features_are_judged_by_probes_on_the_parts_of_their_derivation(
    backbones: dict[str, Any], tmp_path: Path
) -> None:
    folder = backbones["out"] / "r0.4"
    with fewer_digits():
        found = edgevit.sweep(BASE, probe=("linear", "knn"), **backbones)
        task = with_labels(reopen(ModelFolder(folder).derivation().data, edgevit.load(folder).preprocessing))
    base, small = found.points
    for point in (base, small):
        assert point.probes is not None and list(point.probes) == ["linear", "knn"]
        assert (point.right, point.images) == (point.probes["linear"]["validation"].right, len(task.validation))
        assert point.probes["knn"]["test"].images == len(task.test)
        assert list(point.probes["linear"]["test"].classes or {}) == task.class_names
    assert min(base.probes["knn"]["test"].right, base.probes["linear"]["test"].right) > 0.6 * len(task.test)
    assert small.similarity == ModelFolder(folder).derivation().similarity and found.part == "validation"
    # the nearest training image by the folder that was written, by hand
    model = edgevit.load(folder)
    with torch.inference_mode(), fewer_digits():
        parts = [next(part.batches(len(part))) for part in (task.train, task.test)]
        train, test = (torch.nn.functional.normalize(model(images)) for images, _ in parts)
    nearest = parts[0][1][(test @ train.mT).argmax(1)] == parts[1][1]
    assert abs(int(nearest.sum()) - small.probes["knn"]["test"].right) < 0.1 * len(test)
    edgevit.report(backbones["out"], output=tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert f"| {small.probes['knn']['test'].right / len(test):.2%} |" in page and "| linear probe |" in page
    # ten numbers for each image, as features of a ready-made backbone
    file = write_cnn(tmp_path / "cnn.onnx", None)
    with fewer_digits():
        (rival,) = edgevit.sweep(BASE, probe=("linear", "knn"), ready_made=[file], **backbones).ready_made
        (panel,) = edgevit.report(backbones["out"], ready_made=[file], format="md").panels
    assert rival.probes is not None and (rival.images, rival.macs) == (len(task.validation), 34_816)
    assert rival.right == rival.probes["linear"]["validation"].right > 0.5 * rival.images
    assert rival.latency is not None and [entry.kind for entry in panel.entries][-1] == "ready-made"
    assert panel.entries[-1].knn == rival.probes["knn"]["test"].right / len(task.test) and panel.entries[-1].ratio


@pytest.mark.slow
def test_without_labels_features_are_judged_by_their_neighbours(backbones: dict[str, Any], tmp_path: Path) -> None:
    with fewer_digits():
        found = edgevit.sweep(BASE, **{**backbones, "out": tmp_path / "s"})
        with pytest.raises(SweepError, match="something else: probe was"):
            edgevit.sweep(BASE, probe=("knn",), **{**backbones, "out": tmp_path / "s"})
    base, small = found.points
    assert (base.right, small.right, base.likeness, found.part) == (None, None, 1.0, "test")
    assert small.similarity is not None and small.likeness == small.similarity.same_neighbours
    assert found.chosen() == (small if small.likeness >= 0.5 else None)
    assert small.latency is not None and edgevit.load(tmp_path / "s" / "base").spec.output_kind == "features"


@pytest.mark.slow
def test_maps_are_judged_by_their_agreement(tmp_path: Path) -> None:
    file, frames = write_depth(tmp_path), write_frames(tmp_path / "data" / "images")
    write_masks(frames, tmp_path / "data" / "masks")
    asked = {
        "data": tmp_path / "data", "output": "map:foreground", "rates": (0.4,), "out": tmp_path / "s", "options": FEW,
        "training": Training(device="cpu"),
    }  # fmt: skip
    rival = write_bright_map(tmp_path / "bright.onnx")
    found = edgevit.sweep(f"{file}:build", ready_made=[rival], **asked)
    base, small = found.points
    assert small.map is not None and small.likeness == small.map.agreement and base.latency is not None
    assert found.chosen() == (small if small.map.agreement >= 0.9 else None)
    # of the 60 pictures, without their masks, 12 are for the test
    assert base.targets is not None and small.targets is not None and base.images == found.ready_made[0].images == 12
    (bright,) = found.ready_made
    assert bright.targets is not None and bright.targets.score > 0.9 > base.targets.score and bright.latency is not None
    data = ModelFolder(tmp_path / "s" / "r0.4").derivation().data
    task = reopen(data, edgevit.load(tmp_path / "s" / "r0.4").preprocessing)
    shutil.copytree(tmp_path / "data" / "masks", tmp_path / "test" / "masks")
    for image in task.test.references:
        (tmp_path / "test" / "images").mkdir(exist_ok=True)
        shutil.copy(str(image), tmp_path / "test" / "images")
    assert edgevit.evaluate(tmp_path / "s" / "r0.4", tmp_path / "test").targets == small.targets
    (panel,) = edgevit.report(tmp_path / "s", ready_made=[rival], format="md").panels
    scores = [entry.score for entry in panel.entries]
    assert scores == [base.targets.score, small.targets.score, bright.targets.score] and panel.entries[2].ratio


def test_what_is_for_classes_or_for_features_is_refused(backbones: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "photos" / "day").mkdir(parents=True)
    file = write_bright_map(tmp_path / "bright.onnx")
    for changed, error, message in (
        ({"output": "classes"}, OptionError, "--probe is for --output features, and the output is classes"),
        ({"probe": (), "part": "validation"}, OptionError, "--split is for classes, and the output is features"),
        ({"ready_made": [tmp_path / "photos"]}, CheckpointError, "there is no .*photos; check the path of --beside"),
        (
            {"ready_made": [file], "probe": ()},
            OptionError,
            "--beside: features of another network .*; give --probe knn",
        ),
        ({"output": "feature"}, UnknownNameError, "no output 'feature'"),
        ({"data": tmp_path / "photos" / "day"}, DataError, "holds no class folders"),
    ):
        with pytest.raises(error, match=message):
            edgevit.sweep(BASE, **{"probe": ("knn",), **backbones, "out": tmp_path / "s", **changed})
        assert not (tmp_path / "s").exists()


def test_nothing_is_derived_beside_a_file_that_gives_something_else(backbones: dict[str, Any], tmp_path: Path) -> None:
    file = write_bright_map(tmp_path / "bright.onnx")
    with pytest.raises(
        CheckpointError, match=r"bright\.onnx maps .* to \[2, 1, 32, 32\], and the models give features"
    ):
        edgevit.sweep(BASE, probe=("knn",), **{**backbones, "out": tmp_path / "s", "ready_made": [file]})
    assert not list((tmp_path / "s").iterdir())


def test_nothing_is_derived_where_nothing_can_be_measured(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # not to be imported
    with pytest.raises(ExportError, match="cannot import onnxruntime"):
        edgevit.sweep(BASE, out=tmp_path / "s", rates=(0.4,), **asked)
    assert [file.name for file in (tmp_path / "s").iterdir()] == ["sweep.json"]
    with pytest.raises(ExportError, match="cannot import onnxruntime"):  # a sweep without a model is started over
        edgevit.sweep(
            BASE, out=tmp_path / "s", rates=(0.4,), **{**asked, "skip_bad_images": True, "classes": ["3", "5"]}
        )
    begun = read_sweep(tmp_path / "s").request
    assert (begun["skip_bad_images"], begun["classes"]) == (True, ["3", "5"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, asked: dict[str, Any]) -> Path:
    """A sweep of a trained base, which leaves nothing in the cache."""
    out = tmp_path_factory.mktemp("trained") / "s"
    edgevit.sweep(BASE, out=out, rates=(0.4, 0.7), cache=False, **{**asked, **TRAINED})
    return out


@pytest.mark.slow
def test_the_base_is_trained_once_for_all_rates_without_the_cache_too(trained: Path) -> None:
    found = read_sweep(trained)
    lines = {f: (trained / f / "history.jsonl").read_text().splitlines() for f in ("r0.4", "r0.7")}
    stages = [{json.loads(line)["stage"] for line in lines[f]} for f in ("r0.4", "r0.7")]
    assert ["finetune base" in each for each in stages] == [True, False]
    starts = [json.loads((trained / f / "derivation.json").read_text())["start"] for f in ("r0.4", "r0.7")]
    assert starts[0] == starts[1] == asdict(found.finetuned.start) and starts[0]["network"] == "finetuned"
    assert [p.folder for p in found.points] == ["base", "r0.4", "r0.7"], "the trained base is in no folder"


@pytest.mark.slow
def test_a_derivation_by_the_same_options_cuts_the_same_base_which_is_as_good_as_the_sweep_says(
    trained: Path, asked: dict[str, Any], tmp_path: Path
) -> None:
    found, cache = read_sweep(trained), tmp_path / "cache"
    given = {**asked, **TRAINED, "training": replace(TRAINED["training"], steps=0)}
    alone = edgevit.derive(BASE, rate=0.7, out=tmp_path / "m", cache=cache, **given)
    swept = edgevit.load(trained / "r0.7")
    assert_same_weights(alone.model.state_dict(), swept.state_dict())
    # the weights that were kept, judged anew
    network = edgevit.load(trained / "base")
    (kept,) = cache.glob("finetuned-*.safetensors")
    network.load_state_dict(load_file(kept))
    task = open_task("digits", ["3", "5", "8"], preprocessing=swept.preprocessing, base_outputs=10)
    with torch.inference_mode():
        seen = [(network(images).argmax(1) == labels).sum() for images, labels in task.validation.batches(64)]
    assert (found.finetuned.right, found.finetuned.images) == (int(sum(seen)), found.base.images)
    on_test = alone.record.accuracy.base_finetuned
    again = edgevit.sweep(
        BASE, out=tmp_path / "on test", rates=(0.7,), part="test", cache=cache, **{**asked, **TRAINED}
    )
    assert (again.finetuned.top1, again.finetuned.images) == (on_test.top1, on_test.images)
    assert again.finetuned.images == again.base.images > found.base.images


@pytest.mark.slow
def test_another_training_of_the_base_is_something_else(trained: Path, copy: Path, asked: dict[str, Any]) -> None:
    given = {"out": trained, "rates": (0.4, 0.7), **asked, **TRAINED}
    for changed, told in (
        ({"base_steps": 30}, "base_steps was 20 and is 30"),
        ({"derive_from": "better"}, "derive_from was finetuned and is better"),
        ({"training": replace(TRAINED["training"], lr=1e-3)}, "lr was 0.003 and is 0.001"),
    ):
        with pytest.raises(SweepError, match=f"holds a sweep of something else: {told}; choose another --out"):
            edgevit.sweep(BASE, **{**given, **changed})
    with pytest.raises(SweepError, match=r"base_steps was not given and is 20, batch_size .*, derive_from .*, lr "):
        edgevit.sweep(BASE, **{**given, "out": copy})
    assert edgevit.sweep(BASE, **given) == read_sweep(trained)
