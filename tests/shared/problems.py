"""What a method is given, without a base on disk: a network, a task, and a budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from family_examples import SWIN
from small_models import SWIN_ARGS, lie_in_few_directions

from edgevit.data.task import Task, open_task
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.cache import Cache
from edgevit.derivation.measure.divergence import divergence, network_outputs
from edgevit.derivation.problem import Derived, Problem, Stopwatch
from edgevit.network.classifier import with_classes
from edgevit.network.model import Model, describe
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


def assert_stages_are_narrowed(
    derive: Callable[[Problem, bool], Derived], small_vit: Any, rate: float, folder: Path
) -> Derived:
    """Narrow a Swin whose tokens lie in few directions: both stages in proportion, for half of the loss, or less.

    Args:
        derive: a method; False: without narrowing the embedding.
    """
    args = {"depths": [2, 2], "window_size": 3}  # shifted, and padded
    network = small_vit(SWIN, **args)
    lie_in_few_directions(network, 48)
    with torch.no_grad():
        network.classifiers[0].weight.mul_(20)
    base = describe(network, SWIN, {**SWIN_ARGS, **args})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    made, lost = dict[bool, Derived](), dict[bool, float]()
    for narrows in (True, False):
        problem = untrained(base, task, rate, folder, "free")
        made[narrows] = derive(problem, narrows)
        derived = made[narrows].network
        geometry, images = derived.geometry, task.validation.subset(200)
        assert geometry.macs(derived.dims) <= problem.budget.limit
        assert (geometry.embed < 128) == narrows and [stage.embed for stage in geometry.stages] == [
            geometry.embed // 2, geometry.embed
        ]  # fmt: skip
        outputs = [network_outputs(each, images, problem.passes) for each in (problem.network, derived)]
        lost[narrows] = divergence(problem.network.output, *outputs)
    assert lost[True] < 0.5 * lost[False]
    return made[True]
