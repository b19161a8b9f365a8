"""The input and the result of a method, and what methods share in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from edgevit.data.task import Split, Task
from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.cache import Cache
from edgevit.derivation.plan import EmbedPlan, Plan
from edgevit.network.accuracy import Accuracy
from edgevit.network.copies import bare_copy
from edgevit.network.model import tensors_sha256
from edgevit.network.network import Network
from edgevit.network.output import may_be_varied
from edgevit.progress import Progress
from edgevit.train.compute import Compute
from edgevit.train.constraint import Constraint
from edgevit.train.detections import box_precision
from edgevit.train.distil import Distillation, make_distillation
from edgevit.train.history import History
from edgevit.train.loop import train
from edgevit.train.passes import Passes, accuracy_of
from edgevit.train.settings import TEACHING, Training
from edgevit.train.state import load_tensors, reading_state, save_tensors
from edgevit.train.validation import Keep

_FINETUNED = "finetuned"
ENOUGH_IMAGES, _JUDGES = 512, 128  # numbers of training and of validation images of which none needs to be varied


@dataclass
class Stopwatch:
    """Seconds per stage of a derivation; those of a nested stage count for the inner one alone."""

    seconds: dict[str, float] = field(default_factory=dict)
    within_s: float = 0.0  # seconds of the stages that have ended within the running stage

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start, before_s, self.within_s = monotonic(), self.within_s, 0.0
        try:
            yield
        finally:
            took_s = monotonic() - start
            self.seconds[name] = round(self.seconds.get(name, 0.0) + took_s - self.within_s, 3)
            self.within_s = before_s + took_s


@dataclass(frozen=True)
class Problem:
    """A network to cut, with everything that a method needs."""

    network: Network  # the base with the requested head; the method may train it
    task: Task
    budget: Budget
    policy: Policy
    training: Training
    base_training: Training  # training of a copy of the whole base, where one is fine-tuned
    passes: Passes
    folder: Path  # OUT.partial, the folder for files that must survive an interruption
    history: History
    stopwatch: Stopwatch
    cache: Cache
    identity: Mapping[str, Any]  # everything that determines the network's outputs, for cache keys
    before_training: Callable[[Network], None] | None = None  # changes a network that is cut already, in place
    # Results of `accuracy_on_validation`: of each network, with the hash of its weights.
    judged: WeakKeyDictionary[nn.Module, tuple[str, Accuracy]] = field(default_factory=WeakKeyDictionary, repr=False)

    @property
    def compute(self) -> Compute:
        return self.passes.compute

    @property
    def progress(self) -> Progress:
        return self.passes.progress

    def calibration(self, count: int) -> Split:
        """Choose at most `count` images for what needs no labels: of the training part, and then unlabelled ones.

        Where features or a map are imitated, which no label limits, two varied copies stand for each that is missing.
        """
        images = self.task.calibration(count)
        return images.with_variants(2 * count - len(images)) if self._varies else images

    def gradient_images(self, count: int) -> Split:
        """Choose at most `count` training images for sensitivities, of all and of varied ones where these are few."""
        images = self.task.train
        return (images.with_variants(ENOUGH_IMAGES) if self._varies else images).subset(count)

    def judging_images(self, count: int | None = None) -> Split:
        """Choose at most `count` validation images, to which nothing is fitted; they are varied where they are few."""
        images = self.task.validation
        count = max(len(images), _JUDGES) if count is None else count
        return (images.with_variants(min(count, _JUDGES)) if self._varies else images).subset(count)

    @property
    def _varies(self) -> bool:
        return may_be_varied(self.network.output)


@dataclass(frozen=True)
class Derived:
    """The result of a method: the slim network, its plan, and figures for the record."""

    network: Network
    plan: Plan  # how the slim network is made from the problem's network
    facts: dict[str, object]


def accuracy_on_validation(problem: Problem, network: Network) -> Accuracy:
    """The accuracy of a network among the task's classes; measured once for the same weights."""
    task, weights = problem.task, tensors_sha256(network.state_dict())
    previous = problem.judged.get(network)
    if previous is not None and previous[0] == weights:
        return previous[1]
    accuracy = accuracy_of(network, task.validation, task.class_names, problem.passes)
    problem.judged[network] = weights, accuracy
    return accuracy


def score_on_validation(problem: Problem, network: Network) -> float | None:
    """The accuracy of a classifier, or the average precision of a detector's boxes; None: no label is read."""
    if problem.task.objects is not None:
        return box_precision(network.to(problem.compute.device), problem.task)
    return accuracy_on_validation(problem, network).top1 if problem.task.classes else None


def finetuned_base(problem: Problem) -> Network:
    """A copy of the problem's whole network, trained on the classes: a baseline, a teacher, or the network to cut.

    If the problem's network is that trained copy, this returns it. Derivations share it, for any budget.
    """
    network, file = bare_copy(problem.network), _finetuned_file(problem)
    if not file.is_file():  # else it was trained before: as the baseline, or before an interruption
        tensors = problem.cache.tensors(_FINETUNED, _finetuned_key(problem), lambda: _finetune(network, problem))
        if problem.compute.is_main:
            save_tensors(file, tensors)
        problem.compute.wait()
        torch.manual_seed(problem.base_training.seed)  # the same random numbers whether this was trained or read
    with reading_state(file):
        network.load_state_dict(load_tensors(file))
    return network.to(problem.compute.device).eval()


def has_finetuned_base(problem: Problem) -> bool:
    """Whether `finetuned_base` is trained already."""
    return _finetuned_file(problem).is_file() or problem.cache.has(_FINETUNED, _finetuned_key(problem))


def _finetuned_file(problem: Problem) -> Path:
    return problem.folder / f"{_FINETUNED}-base.safetensors"


def _finetuned_key(problem: Problem) -> dict[str, Any]:
    task, training = problem.task, asdict(problem.base_training)
    settings = {name: value for name, value in training.items() if name not in ("device", "workers", *TEACHING)}
    images = {"train": task.train.content_sha256(), "validation": task.validation.content_sha256()}
    return {**problem.identity, **images, "training": settings}


def _finetune(network: Network, problem: Problem) -> dict[str, Tensor]:
    torch.manual_seed(problem.base_training.seed)
    with problem.stopwatch.stage("finetune_base"):
        train(
            network,
            problem.task,
            problem.base_training,
            problem.passes,
            problem.history,
            stage="finetune base",
            folder=problem.folder / "finetune-base",
        )
    return {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}


def distillation_for(problem: Problem, embed: EmbedPlan | None = None) -> Distillation | None:
    """Make the teacher of the problem's training; call this before training the problem's network.

    Args:
        embed: the plan of the student's embedding; None: it has the base's.
    """
    training = problem.training
    if not training.has_teacher:
        return None
    teacher = finetuned_base(problem) if training.teacher == "finetuned" else problem.network
    encode = None if embed is None else embed.encode
    decode = None if embed is None or embed.decoders is None else embed.decoders[-1]
    return make_distillation(teacher, training, encode, decode)


def train_for(
    problem: Problem,
    network: Network,
    *,
    stage: str = "train",
    constraint: Constraint | None = None,
    distillation: Distillation | None = None,
    keep: Keep = "last",
    folder: str = "train",
) -> int:
    """Train `network` in place for the problem's steps; return the number of steps done.

    If the problem says so, the network is first cut behind its backbone, too, so that what is left there is trained.

    Args:
        folder: of the problem's folder, for the state of a training that is interrupted.
    """
    if problem.training.steps == 0:
        return 0
    if problem.before_training is not None and constraint is None:  # with one, the whole network is trained
        problem.before_training(network)
    with problem.stopwatch.stage("training"):
        return train(
            network,
            replace(problem.task, validation=problem.judging_images()),
            problem.training,
            problem.passes,
            problem.history,
            stage=stage,
            constraint=constraint,
            distillation=distillation,
            keep=keep,
            folder=problem.folder / folder,
        )


def facts_of_training(problem: Problem, stage: str, done: int) -> dict[str, object]:
    """The figures of a training in which `train_for` kept the best state, for a record."""
    outcome = problem.history.outcome(stage)
    steps = {"reused": problem.cache.reused, "steps": done, "steps_planned": problem.training.steps}
    return {**steps, **(asdict(outcome) if outcome else {})}
