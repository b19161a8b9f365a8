"""From forge's plan to its network: realised, solved for its own inputs, its head fitted again.

Whether readers are aligned, whether another plan is taken and whether the head is fitted is decided on the validation
images: of the network without the step and the one with it, the one stays whose answers are nearer to the base's, and
another plan only if they are clearly nearer. No label is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derivation.measure.divergence import answers, base_answers, divergence
from edgevit.derivation.measure.thinning import thinning
from edgevit.derivation.methods.forge.config import Config
from edgevit.derivation.methods.forge.head import Taught, refit_head
from edgevit.derivation.methods.forge.ladders import without_tokens
from edgevit.derivation.methods.forge.sequential import Slim, solve_in_sequence
from edgevit.derivation.methods.forge.streams import keeping
from edgevit.derivation.plan import Plan
from edgevit.derivation.problem import Problem
from edgevit.derivation.realise import leave_tokens, realise
from edgevit.network.copies import bare_copy
from edgevit.network.families import family_of

# Another plan has to lose less than this share of what the first does: a model that tokens leave is none of timm's own.
CLEARLY = 0.9
SEARCHED_TOKENS = 6400  # for which plans are solved that a search judges
JUDGED_TOKENS = 50_000  # of the validation images, by which it judges them: 250 images of a DeiT
SWEPT_PARAMETERS = 10**8  # of a base whose plans are solved in one sweep, all plans together
PER_INPUT = 16  # tokens at least for each neuron of the widest FFN, in what is solved in sequence


@dataclass(frozen=True)
class Tried:
    """A step that stays only where it helps: KL(base || network) on the validation images, in nats per image."""

    kept: bool
    before: float
    after: float


@dataclass(frozen=True)
class Solved:
    network: nn.Module
    name: str  # of its plan
    tried: dict[str, Tried]  # by the option's name


def solve(
    problem: Problem, config: Config, by_token: Sequence[tuple[Tensor, Tensor]], plans: Mapping[str, Plan]
) -> Solved:
    """Realise the plans in one sweep, solve their weights again as far as that is asked for, and take the best.

    Weights are solved token by token, for all tokens; those that are to leave do so afterwards.

    Args:
        by_token: per block of the base, as for `solve_in_sequence`.
        plans: the first stays, unless another is better, and clearly so where tokens leave; each of the others by the
            option that it tries.
    """
    with problem.stopwatch.stage("closed_form"):
        made = [realise(problem.network, without_tokens(plan)) for plan in plans.values()]
    images = problem.task.train.subset(config.calibration_images)
    aligned = [bare_copy(network) if config.sequential and config.align else None for network in made]
    if config.sequential:
        with problem.stopwatch.stage("sequential"):
            slims = []
            for plan, network, other in zip(plans.values(), made, aligned, strict=True):
                slims.append(Slim(network, plan.kept_blocks, encode=plan.encode))
                slims += [] if other is None else [Slim(other, plan.kept_blocks, align=True, encode=plan.encode)]
            how: Any = {"ridge": config.sequential_ridge, "quick": config.quick}
            how["thinning"] = thinning(problem.network, len(images), PER_INPUT)
            how["keep"] = keeping(problem, images, quick=config.quick)
            solve_in_sequence(problem.network, slims, images, by_token, problem.passes, **how)
    of_plans = {
        name: (leave_tokens(network, plan), None if other is None else leave_tokens(other, plan))
        for (name, plan), network, other in zip(plans.items(), made, aligned, strict=True)
    }
    if len(plans) == 1 and aligned == [None] and not config.refit_head:
        ((name, (network, _)),) = of_plans.items()
        return Solved(network, name, {})
    with problem.stopwatch.stage("head"):
        return _judged(problem, of_plans, images if config.refit_head else None)


def judge_plans(
    problem: Problem, config: Config, by_token: Sequence[tuple[Tensor, Tensor]], plans: Sequence[Plan]
) -> list[float]:
    """KL(base || network) on some of the validation images of each plan's network, solved for some of the training's.

    Answers are only compared here, of dozens of plans: so few images are looked at, in bf16 where that is quicker.

    Args:
        by_token: as for `solve`.
    """
    base, tokens = problem.network, family_of(problem.network).geometry(problem.network).tokens
    images = problem.task.train.subset(min(config.calibration_images, -(-SEARCHED_TOKENS // tokens)))
    validation = problem.task.validation.subset(-(-JUDGED_TOKENS // tokens))
    taught = base_answers(problem, validation)
    how: Any = {"ridge": config.sequential_ridge, "quick": config.quick}
    how["thinning"] = thinning(base, len(images), PER_INPUT)
    how["keep"] = keeping(problem, images, quick=config.quick)
    at_once = max(SWEPT_PARAMETERS // sum(p.numel() for p in base.parameters()), 1)
    losses: list[float] = []
    for first in range(0, len(plans), at_once):
        some = plans[first : first + at_once]
        made = [realise(base, without_tokens(plan)) for plan in some]
        if config.sequential:
            slims = [
                Slim(network, plan.kept_blocks, align=config.align, encode=plan.encode)
                for network, plan in zip(made, some, strict=True)
            ]
            solve_in_sequence(base, slims, images, by_token, problem.passes, **how)
        for network, plan in zip(made, some, strict=True):
            judged = leave_tokens(network, plan)
            seen = answers(judged, validation, problem.columns, problem.passes, quick=config.quick)
            losses.append(divergence(taught, seen))
    return losses


@dataclass(frozen=True)
class _Candidate:
    """A network, and KL(base || network) on the validation images."""

    network: nn.Module
    loss: float


def _judged(
    problem: Problem, of_plans: Mapping[str, tuple[nn.Module, nn.Module | None]], images: Split | None
) -> Solved:
    """The best of the networks of every plan, without and with aligned readers, its head fitted to images if given."""

    validation = problem.task.validation
    judge = Taught(validation, base_answers(problem, validation))

    def judged(network: nn.Module) -> _Candidate:
        seen = answers(network, validation, problem.columns, problem.passes)
        return _Candidate(network, divergence(judge.answers, seen))

    found: dict[str, tuple[_Candidate, dict[str, Tried]]] = {}
    for name, (network, aligned) in of_plans.items():
        one, tried = judged(network), dict[str, Tried]()
        if aligned is not None:
            one = _better(one, judged(aligned), "align", tried)
        found[name] = one, tried
    (best, (one, tried)), *others = found.items()
    tried_plans = dict[str, Tried]()
    for name, (other, its) in others:
        share = CLEARLY if name == "cut_tokens" else 1.0
        if _better(one, other, name, tried_plans, share) is other:
            best, one, tried = name, other, its
    tried |= tried_plans
    if images is not None:
        fitted = bare_copy(one.network)
        taught = Taught(images, base_answers(problem, images))
        loss = refit_head(fitted, taught, judge, problem.columns, problem.passes)
        one = _better(one, _Candidate(fitted, loss), "refit_head", tried)
    return Solved(one.network, best, tried)


def _better(
    before: _Candidate, after: _Candidate, name: str, tried: dict[str, Tried], share: float = 1.0
) -> _Candidate:
    """The second, if it loses less than this share of what the first does; told under its name."""
    kept = after.loss < share * before.loss
    tried[name] = Tried(kept, before.loss, after.loss)
    return after if kept else before
