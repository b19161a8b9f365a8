"""From forge's plan to its network: realised, solved for its own inputs, its head fitted again.

Whether readers are aligned and whether the head is fitted is decided on the validation images: of the network without
the step and the one with it, the one stays whose answers are nearer to the base's. No label is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derive.measure.divergence import answers, base_answers, divergence
from edgevit.derive.methods.forge.head import Taught, refit_head
from edgevit.derive.methods.forge.ladders import without_tokens
from edgevit.derive.methods.forge.sequential import Slim, solve_in_sequence
from edgevit.derive.methods.forge.streams import keeping
from edgevit.derive.plan import Plan
from edgevit.derive.problem import Problem
from edgevit.derive.realise import realise
from edgevit.models.copies import bare_copy
from edgevit.models.families import family_of


class Options(Protocol):
    """Those of forge's options that decide here."""

    @property
    def calibration_images(self) -> int: ...
    @property
    def sequential(self) -> bool: ...
    @property
    def sequential_ridge(self) -> float: ...
    @property
    def align(self) -> bool: ...
    @property
    def refit_head(self) -> bool: ...
    @property
    def quick(self) -> bool: ...


@dataclass(frozen=True)
class Tried:
    """A step that stays only where it helps: KL(base || network) on the validation images, in nats per image."""

    kept: bool
    before: float
    after: float


@dataclass(frozen=True)
class Solved:
    network: nn.Module
    tried: dict[str, Tried]  # by the option's name


def solve(problem: Problem, options: Options, by_token: Sequence[tuple[Tensor, Tensor]], plan: Plan) -> Solved:
    """Realise the plan, and solve its weights again as far as that is asked for.

    Weights are solved token by token, for all tokens; those that are to leave do so afterwards.

    Args:
        by_token: per block of the base, as for `solve_in_sequence`.
    """
    with problem.stopwatch.stage("closed_form"):
        network = realise(problem.network, without_tokens(plan))
    images = problem.task.train.subset(options.calibration_images)
    aligned = bare_copy(network) if options.sequential and options.align else None
    if options.sequential:
        with problem.stopwatch.stage("sequential"):
            encode = None if plan.embed is None else plan.embed.encode
            slims = [Slim(network, plan.kept_blocks, encode=encode)]
            slims += [] if aligned is None else [Slim(aligned, plan.kept_blocks, align=True, encode=encode)]
            how: Any = {"ridge": options.sequential_ridge, "quick": options.quick}
            how["keep"] = keeping(problem, images, quick=options.quick)
            solve_in_sequence(problem.network, slims, images, by_token, problem.passes, **how)
    network, aligned = _leaving(network, plan), None if aligned is None else _leaving(aligned, plan)
    if aligned is None and not options.refit_head:
        return Solved(network, {})
    with problem.stopwatch.stage("head"):
        return _judged(problem, network, aligned, images if options.refit_head else None)


def _leaving(network: nn.Module, plan: Plan) -> nn.Module:
    """The network with as many tokens passed on as planned."""
    if not any(block.tokens for block in plan.blocks):
        return network
    family = family_of(network)
    pairs = zip(family.read(network), plan.blocks, strict=True)
    return family.build(network, [replace(block, tokens=planned.tokens) for block, planned in pairs])


def _judged(problem: Problem, network: nn.Module, aligned: nn.Module | None, images: Split | None) -> Solved:
    """The better of a network and the same with aligned readers, and that one or it with a head fitted to images."""

    validation = problem.task.validation
    judge, tried = Taught(validation, base_answers(problem, validation)), dict[str, Tried]()

    def lost(network: nn.Module) -> float:
        return divergence(judge.answers, answers(network, validation, problem.columns, problem.passes))

    loss = lost(network)
    if aligned is not None:
        other = lost(aligned)
        tried["align"] = Tried(other < loss, loss, other)
        network, loss = (aligned, other) if other < loss else (network, loss)
    if images is not None:
        fitted = bare_copy(network)
        taught = Taught(images, base_answers(problem, images))
        other = refit_head(fitted, taught, judge, problem.columns, problem.passes)
        tried["refit_head"] = Tried(other < loss, loss, other)
        network = fitted if other < loss else network
    return Solved(network, tried)
