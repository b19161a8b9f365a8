"""`--reject`: the threshold, what it promises, where it is written, and who honours it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from seals import reseal
from small_base import ARGS, PREPROCESSING, QUICK, derive

import edgevit
from edgevit.data.rejection import foreign_images
from edgevit.data.task import open_task
from edgevit.derivation.methods import own_method_names
from edgevit.engines.run import evaluate
from edgevit.errors import CheckpointError, DataError
from edgevit.jobs.jobs_file import read_jobs
from edgevit.network.folder import load, save
from edgevit.records.model_folder import ModelFolder
from edgevit.train.settings import Training

CLASSES = ["3", "5", "8"]


@pytest.mark.slow
def test_foreign_images_that_are_counted_are_not_trained_on(digits_checkpoint: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"unlabelled": "digits", "training": {"steps": 1, "teacher": "restricted"}}
    task = open_task("digits", CLASSES, preprocessing={**PREPROCESSING, "input_size": (3, 32, 32)}, base_outputs=10)
    counted = sum(len(foreign_images(task, part, task.class_names)) for part in ("validation", "test"))
    seen = []
    for reject in (0.1, None):
        made = derived(digits_checkpoint, tmp_path / str(reject), reject=reject, method="vulcan", **given)
        seen.append(made.record.data.unlabelled.images)
    assert seen[1] - seen[0] == counted > 100


def derived(checkpoint: Path, out: Path, **options: Any) -> Any:
    training = Training(**{**QUICK, **options.pop("training", {})})
    given: dict[str, Any] = {"rate": 0.3, "data": "digits", "classes": CLASSES, "model_args": ARGS, "reject": 0.1}
    given["accept_preprocessing"] = True  # the base was trained without a crop
    return edgevit.derive(
        "vit_tiny_patch16_224", checkpoint=checkpoint, out=out, training=training, **{**given, **options}
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, digits_checkpoint: Path) -> Path:
    """A model of three digits that may call an image `other`, and its export."""
    out = tmp_path_factory.mktemp("rejection") / "m"
    derived(digits_checkpoint, out, method="nuwa", options={"purification": "none"}, head="full", training={"steps": 0})
    edgevit.export(out)
    return out


@pytest.mark.slow
def test_the_folder_says_what_is_counted_by_hand(model: Path) -> None:
    opened = load(model)
    rule = opened.spec.rejection
    assert rule is not None and (rule.score, rule.share) == ("logsumexp", 0.1)
    task = open_task("digits", CLASSES, preprocessing=opened.preprocessing, base_outputs=10)
    told = json.loads((model / "derivation.json").read_text())["accuracy"]["derived"]["rejection"]
    for part, split in (("validation", task.validation), ("test", task.test)):
        images, labels = next(split.batches(1000))
        with torch.inference_mode():
            logits = opened(images)[:, [3, 5, 8]].double()
            names = opened.names(opened(images))
        low = logits.exp().sum(1).log() < rule.threshold - 1e-5
        assert told[part]["images"] == len(split) and abs(told[part]["other"] - int(low.sum())) <= 1
        assert abs(told[part]["right"] - int(((logits.argmax(1) == labels) & ~low).sum())) <= 1
        assert names.count("other") == told[part]["other"]
        assert sum(name == CLASSES[label] for name, label in zip(names, labels, strict=True)) == told[part]["right"]
        assert told[part]["foreign_images"] == len(foreign_images(task, part, CLASSES))
    assert told["validation"]["other"] == math.floor(0.1 * (len(task.validation) + 1)) - 1
    assert (
        told["test"]["foreign_other"] / told["test"]["foreign_images"]
        > 2 * told["test"]["other"] / told["test"]["images"]
    )


@pytest.mark.slow
def test_evaluate_finds_the_same_in_the_folder_and_in_the_exported_files(model: Path) -> None:
    told = json.loads((model / "derivation.json").read_text())["accuracy"]["derived"]["rejection"]
    for part in ("validation", "test"):
        own = evaluate(model, part=part)
        assert own.rejected is not None and asdict(own.rejected) == told[part]
    for precision in ("fp32", "fp16"):
        file = evaluate(model / "export" / f"model.{precision}.onnx", "digits").rejected
        assert file is not None and file.foreign_images == told["test"]["foreign_images"]
        assert (
            abs(file.other - told["test"]["other"]) <= 1
            and abs(file.foreign_other - told["test"]["foreign_other"]) <= 3
        )
    some = evaluate(model, "digits", classes="8,3").rejected
    assert some is not None and some.foreign_images == told["test"]["foreign_images"], "5 is no foreign class to it"
    assert ModelFolder(model).export.record().rejection == load(model).spec.rejection


def test_the_command_line_tells_of_it(model: Path, edgevit_main: Any) -> None:
    shown = edgevit_main("show", model)
    assert (
        shown.code == 0
        and "called other: logsumexp below" in shown.out
        and "10.0% or less of the target classes'" in " ".join(shown.out.split())
    )
    judged = edgevit_main("evaluate", model, "--device", "cpu")
    assert judged.code == 0 and "images of other classes" in judged.out.replace("\n", " ")
    assert "called `other`" in (model / "README.md").read_text()


@pytest.mark.quick("forge")
@pytest.mark.parametrize("method", [*own_method_names(), "taylor"])
def test_a_method_takes_it(method: str, tmp_path: Path, digits_checkpoint: Path) -> None:
    few = {"nuwa": {"purification": "none"}, "forge": {"calibration_images": 64, "sensitivity_images": 16}}
    how = {"reject": 0.05, "rate": 0.3, "training": {"steps": 2, "evaluations": 1}}  # heart reaches 0.4
    how["options"] = few.get(method, {})
    made = derive(digits_checkpoint, tmp_path / "m", method=method, **how)
    rule = load(tmp_path / "m").spec.rejection
    assert rule == made.model.spec.rejection and rule is not None and rule.share == 0.05
    assert made.record.accuracy.derived.rejection["validation"].other <= 0.05 * made.record.data.images.validation


def test_a_share_that_cannot_be_held_is_refused_before_any_work(tmp_path: Path, digits_checkpoint: Path) -> None:
    with pytest.raises(
        DataError, match=r"--reject 0.01 needs 99 validation images of the target classes, and there are \d\d;"
    ):
        derived(digits_checkpoint, tmp_path / "m", reject=0.01)
    assert not list(tmp_path.iterdir())


def test_a_rule_of_a_later_version_is_not_ignored(model: Path, tmp_path: Path) -> None:
    save(load(model), tmp_path / "later")
    reseal(tmp_path / "later" / "model.json", lambda spec: spec["rejection"].update(score="distance"))
    with pytest.raises(CheckpointError, match=r"has 'distance' as rejection\.score, expected 'logsumexp'"):
        load(tmp_path / "later")


@pytest.mark.slow
def test_without_it_nothing_is_called_other(tmp_path: Path, digits_checkpoint: Path) -> None:
    made = derived(digits_checkpoint, tmp_path / "m", reject=None, method="magnitude", training={"steps": 0})
    images = torch.zeros(2, 3, 32, 32)
    assert set(made.model.names(made.model(images))) < set(CLASSES)
    assert made.model.spec.rejection is None and made.record.accuracy.derived.rejection is None
    assert evaluate(tmp_path / "m").rejected is None


def test_a_plan_may_ask_for_it_and_jobs_done_without_it_stay_done(tmp_path: Path) -> None:
    plan = {"base": "vit", "out": "runs", "data": "digits", "tasks": [{"name": "t"}],
            "budgets": [{"name": "b", "rate": 0.5}], "methods": [{"name": "nuwa"}]}  # fmt: skip
    for reject in (None, 0.1):
        (tmp_path / "jobs.yaml").write_text(json.dumps(plan if reject is None else {**plan, "reject": reject}))
        [job], _ = read_jobs(tmp_path / "jobs.yaml")
        assert job.arguments.get("reject") == reject and ("reject" in job.arguments) == (reject is not None)


def test_a_class_that_is_called_other_is_refused(digits_checkpoint: Path, tmp_path: Path) -> None:
    names = ["other", *map(str, range(1, 10))]
    for label, name in enumerate(names):
        (tmp_path / "i" / name).mkdir(parents=True)
        for i in range(12):
            Image.new("RGB", (32, 32), (20 * label, 9 * i, 0)).save(tmp_path / "i" / name / f"{i}.png")
    given: dict[str, Any] = {"data": tmp_path / "i", "base_classes": names, "accept_weak_base": True}
    with pytest.raises(DataError, match="--reject calls images of no class 'other', and a class has that name"):
        derived(digits_checkpoint, tmp_path / "m", classes="3,other", **given)
    made = derived(digits_checkpoint, tmp_path / "m", classes="3,5", reject=0.5, method="random", **given)
    assert made.model.spec.rejection is not None
