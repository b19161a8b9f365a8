"""Measure the baselines of a derivation, and evaluate the derived network against them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edgevit.data.assumptions import Sureness
from edgevit.data.task import Split
from edgevit.derivation.estimate import estimate
from edgevit.derivation.problem import Problem, accuracy_on_validation, finetuned_base
from edgevit.derivation.session.base_check import ask, judge_base
from edgevit.derivation.session.rejection import calibrate_rejection
from edgevit.derivation.session.resolved import ResolvedDerivation
from edgevit.network.accuracy import Accuracy, from_counts
from edgevit.network.network import Network
from edgevit.records.answers import PartAnswers
from edgevit.records.derivation import Accuracies, AccuracyRecord, BaseCheckRecord, JudgedPart, ValidationRecord
from edgevit.records.model import Rejection
from edgevit.records.state import BASELINES_KIND, Baselines
from edgevit.records.unfinished import BASELINES
from edgevit.records.writing import write_whole, writing
from edgevit.train.passes import accuracy_of
from edgevit.version import written_by


@dataclass(frozen=True)
class HeldOutResults:
    """The accuracies of a derived model and of its baselines."""

    accuracy: Accuracies
    validation: ValidationRecord | None = None
    rule: Rejection | None = None
    answers: dict[JudgedPart, PartAnswers] | None = None


NO_IMAGES = HeldOutResults(Accuracies(None, None, None, None))


def _take_baselines(resolved: ResolvedDerivation, problem: Problem) -> Baselines:
    """Measure the baselines that need no training, or read them from the unfinished folder."""
    file, task = problem.folder / BASELINES, problem.task
    if file.is_file():
        return BASELINES_KIND.read(file)
    problem.progress.note(f"baselines on {len(task.test)} test images")
    trains_base = resolved.request.finetunes_base
    duration = estimate(problem, resolved.config, finetune_base=trains_base, derivations=resolved.derivations)
    problem.progress.note(duration.text())
    with problem.stopwatch.stage("baselines"):
        test = _base_accuracy(resolved.opened.base, problem, task.test)
        validation = _base_accuracy(resolved.opened.base, problem, task.validation)
    assert test.which is not None and validation.which is not None
    baselines = Baselines(
        AccuracyRecord(test.top1_full, test.images),
        test.record(),
        sum(validation.restricted),
        edgevit=written_by(),
        answers={"validation": PartAnswers(validation.which), "test": PartAnswers(test.which)},
    )
    _save(baselines, problem)
    return baselines


def _add_finetuned(baselines: Baselines, resolved: ResolvedDerivation, problem: Problem) -> Baselines:
    """Add the fine-tuned base as the third baseline, where the base is trained."""
    task = problem.task
    if baselines.base_finetuned is not None or not _finetunes(resolved, problem):
        return baselines
    network = finetuned_base(problem)
    test = accuracy_of(network, task.test, task.class_names, problem.passes)
    validation = accuracy_on_validation(problem, network)
    baselines = replace(
        baselines,
        base_finetuned=test.record(),
        finetuned_right_on_validation=sum(validation.restricted),
        edgevit=written_by(),
        answers=_with_answers(baselines, "base_finetuned", test, validation),
    )
    _save(baselines, problem)
    return baselines


def _finetunes(resolved: ResolvedDerivation, problem: Problem) -> bool:
    if not resolved.request.finetunes_base:
        return False
    if problem.base_training.steps == 0:  # as long as a model that is not trained
        problem.progress.warn(
            "the base is fine-tuned for no steps, so it is no baseline; say how many with --base-steps"
        )
        return False
    return True


def finetuned_detector(resolved: ResolvedDerivation, problem: Problem) -> Network | None:
    """The base after training by its own losses, as the third baseline of a detector; None: it is not trained."""
    return finetuned_base(problem) if _finetunes(resolved, problem) else None


def _with_answers(
    baselines: Baselines, network: str, test: Accuracy, validation: Accuracy
) -> dict[JudgedPart, PartAnswers] | None:
    """The answers of the baselines and of one more network, by part."""
    if baselines.answers is None:
        return None
    assert validation.which is not None and test.which is not None
    which = {"validation": validation.which, "test": test.which}
    return {part: replace(answers, **{network: which[part]}) for part, answers in baselines.answers.items()}


def evaluate_base(resolved: ResolvedDerivation, problem: Problem) -> tuple[Baselines, BaseCheckRecord]:
    """Measure the baselines, and check the base before it is trained.

    Raises:
        DataError: the base is near chance, or better with other preprocessing, and the request does not accept that.
    """
    baselines = _take_baselines(resolved, problem)
    checked = _check_base(baselines, resolved, problem)
    return _add_finetuned(baselines, resolved, problem), checked


def _check_base(baselines: Baselines, resolved: ResolvedDerivation, problem: Problem) -> BaseCheckRecord:
    task = problem.task
    images = len(task.test)
    full, restricted = (round(record.top1 * images) for record in (baselines.base_full_head, baselines.base_restricted))
    sureness = Sureness("test", images, full, restricted, task.arguments["base_outputs"], len(task.classes))
    with problem.stopwatch.stage("check"):
        answers = ask(resolved.opened)
    assert resolved.opened.assumed is not None, "there are images"
    return judge_base(
        answers, sureness, task, problem.progress, resolved.request,
        assumed=resolved.opened.assumed,
    )  # fmt: skip


def evaluate_derived(
    network: Network, baselines: Baselines, resolved: ResolvedDerivation, problem: Problem
) -> HeldOutResults:
    """Measure a derived network on the held-out images."""
    task, passes = problem.task, problem.passes
    with problem.stopwatch.stage("evaluation"):
        test = accuracy_of(network, task.test, task.class_names, passes, "test the model")
        validation = accuracy_on_validation(problem, network)
    rule, rejected = None, None
    if resolved.rejection is not None:
        with problem.stopwatch.stage("rejection"):
            rule, rejected = calibrate_rejection(network, resolved.rejection, passes)
    measured = replace(test.record(), rejection=rejected)
    return HeldOutResults(
        Accuracies(baselines.base_full_head, baselines.base_restricted, baselines.base_finetuned, measured),
        ValidationRecord(
            validation.images,
            baselines.right_on_validation,
            sum(validation.restricted),
            baselines.finetuned_right_on_validation,
        ),
        rule,
        _with_answers(baselines, "derived", test, validation),
    )


def _base_accuracy(base: Network, problem: Problem, part: Split) -> Accuracy:
    """Accuracy of the base on a part of the images, cached for all derivations from it."""
    task, names = problem.task, problem.task.class_names
    key = {**problem.identity, "test": part.content_sha256(), "precision": problem.training.precision}

    def measure() -> dict[str, Tensor]:
        accuracy = accuracy_of(base.with_columns(task.base_columns), part, names, problem.passes, "baselines")
        assert accuracy.which is not None
        return {
            "counts": torch.tensor([accuracy.total, accuracy.restricted, accuracy.full]),
            "answers": torch.tensor(accuracy.answers),
            "which": torch.tensor(accuracy.which.flags()),
        }

    counts = problem.cache.tensors("baselines", {**key, "with": "which"}, measure)
    return from_counts(names, counts["counts"], counts["answers"], counts["which"])


def _save(baselines: Baselines, problem: Problem) -> None:
    if problem.compute.is_main:
        with writing(problem.folder):
            write_whole(problem.folder / BASELINES, BASELINES_KIND.text(baselines))
