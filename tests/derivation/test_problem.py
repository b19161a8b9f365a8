"""A method learns from a teacher: the base as it is, or after training; with images of no known class."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from problems import untrained
from small_base import derive as derive_small

from edgevit.data.task import open_task
from edgevit.derivation import problem as problem_module
from edgevit.derivation.problem import Stopwatch, accuracy_on_validation
from edgevit.errors import OptionError
from edgevit.network.copies import bare_copy
from edgevit.network.model import describe
from edgevit.network.network import Network
from edgevit.network.output import Features, Levels, Map


def test_the_seconds_of_a_stage_within_another_are_its_own_alone(monkeypatch: Any) -> None:
    now = iter([0.0, 1.0, 3.0, 4.0, 5.0, 9.0])
    monkeypatch.setattr(problem_module, "monotonic", lambda: next(now))
    stopwatch = Stopwatch()
    with stopwatch.stage("outer"):
        for _ in range(2):
            with stopwatch.stage("inner"):
                pass
    assert stopwatch.seconds == {"inner": 3.0, "outer": 6.0}


def test_validation_images_are_shown_once_to_a_network_whose_weights_stay(
    small_vit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = describe(small_vit(depth=2), "vit_tiny_patch16_224", {"depth": 2})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    problem, shown = untrained(base, task, 0.6, tmp_path), []
    taken = problem_module.accuracy_of
    monkeypatch.setattr(problem_module, "accuracy_of", lambda *given: shown.append(given) or taken(*given))
    network, other = problem.network, bare_copy(problem.network)
    first, again, _ = (accuracy_on_validation(problem, n) for n in (network, network, other))
    assert sum(first.total) == len(task.validation) and again == first
    assert len(shown) == 2, "another network may compute another thing with the same weights"
    next(network.parameters()).data.zero_()
    assert accuracy_on_validation(replace(problem, policy=problem.policy), network) == taken(*shown[0])
    accuracy_on_validation(problem, network)
    assert len(shown) == 3


@pytest.mark.parametrize(
    ("output", "varies"), [(None, False), (Features(), True), (Map("values"), True), (Levels(), False)]
)
def test_too_few_images_are_varied_where_features_or_a_map_are_imitated(
    output: Any, varies: bool, small_vit: Callable[..., Any], tmp_path: Path
) -> None:
    base = describe(small_vit(depth=2), "vit_tiny_patch16_224", {"depth": 2})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    task = replace(task, train=task.train.subset(20), validation=task.validation.subset(10))
    problem = untrained(base, task, 0.6, tmp_path)
    if output is not None:
        problem = replace(problem, network=Network(problem.network.module, problem.network.family, output))
    assert problem.calibration(20).seeds is None, "there are enough"
    taken = {
        "calibration": (problem.calibration(40), 60, 20), "gradients": (problem.gradient_images(30), 30, 20),
        "judging": (problem.judging_images(25), 25, 10),
    }  # fmt: skip
    for name, (images, count, whole) in taken.items():
        assert len(images) == (count if varies else whole), name
        assert any(images.name(i)[1] is not None for i in range(len(images))) == varies, name


def test_unlabelled_images_without_a_teacher_are_refused_with_the_way_out(
    digits_checkpoint: Path, tmp_path: Path
) -> None:
    given: Any = {"unlabelled": "digits", "training": {"steps": 2}}
    with pytest.raises(OptionError, match="this training has none; add --teacher restricted"):
        derive_small(digits_checkpoint, tmp_path / "m", method="vulcan", **given)
    with pytest.raises(OptionError, match="with 0 steps nothing is trained"):
        derive_small(digits_checkpoint, tmp_path / "m", method="vulcan", unlabelled="digits",
                     training={"steps": 0, "teacher": "restricted"})  # fmt: skip


@pytest.mark.quick("subset-vulcan")
@pytest.mark.parametrize("method", ["vulcan", "nuwa"])
@pytest.mark.parametrize("head", ["subset", "full"])
def test_a_method_learns_from_the_restricted_base(
    digits_checkpoint: Path, tmp_path: Path, method: str, head: str
) -> None:
    quick = {"nuwa": {"purification": "none"}, "vulcan": {"calibration_images": 64}}
    taught: Any = {"steps": 3, "teacher": "restricted", "token_weight": 0.1}
    made = derive_small(digits_checkpoint, tmp_path / "m", method=method, head=head, options=quick[method],
                        unlabelled="digits", training=taught)  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "m" / "history.jsonl").read_text().splitlines()]
    later = [line for line in lines if line["stage"] in ("train", "finetune") and line["step"] > 1]
    assert [line["step"] for line in later] == [2, 3]  # at the first, vulcan's network is the teacher still
    assert all(line["loss_teacher"] > 0 and line["loss_tokens"] > 0 for line in later)
    assert made.record.training.more["teacher"] == "restricted" and made.record.data.unlabelled.images > 1000
