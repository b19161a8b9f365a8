"""What a method is given, without a base on disk: a network, a task, and a budget."""

from __future__ import annotations

from pathlib import Path

from edgevit.data.task import Task
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.cache import Cache
from edgevit.derivation.problem import Problem, Stopwatch
from edgevit.network.classifier import with_classes
from edgevit.network.model import Model
from edgevit.train.history import History
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training


def untrained(base: Model, task: Task, rate: float, folder: Path, shape: str = "paper") -> Problem:
    """Derive for the task's classes from a copy of the base, without training and without a cache."""
    network, training = with_classes(base, task.base_columns), Training(device="cpu", batch_size=32, steps=0)
    return Problem(
        network, task, make_budget(base.spec.macs, base.spec.params, rate=rate),
        make_policy(shape), training, training, open_passes(training), folder, History(None, []),
        Stopwatch(), Cache(None), {"base": "", "state": ""},
    )  # fmt: skip
