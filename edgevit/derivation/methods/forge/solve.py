"""Turn forge's plan into its network: realise it, solve weights for its own inputs, and fit the head.

The validation images decide whether another plan is used and whether the head is fitted. A step is kept if it brings
the network's answers nearer to the base's; a plan with fewer tokens only if they are clearly nearer. No label is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from edgevit.data.task import Split
from edgevit.derivation.measure.divergence import base_outputs, divergence, network_outputs
from edgevit.derivation.measure.thinning import thinnings
from edgevit.derivation.methods.forge.config import Config
from edgevit.derivation.methods.forge.head import Taught, refit_head
from edgevit.derivation.methods.forge.schedules import without_tokens
from edgevit.derivation.methods.forge.sequential import Slim, solve_in_sequence
from edgevit.derivation.methods.forge.streams import keeping
from edgevit.derivation.plan import Plan
from edgevit.derivation.problem import Problem
from edgevit.derivation.realise import leave_tokens, realise
from edgevit.network.copies import bare_copy
from edgevit.network.network import Network
from edgevit.network.output import Output

# Some plans must lose less than a share of another's loss: those with fewer tokens, as timm cannot express their
# models, and those that put out features of a narrower embedding.
CLEARLY, NARROWER = 0.9, 0.75
_SEARCHED_TOKENS = 6400  # number of tokens for which a search solves its plans
JUDGED_TOKENS = 50_000  # number of validation tokens by which a search judges its plans: 250 images of a DeiT
_SWEPT_PARAMETERS = 10**8  # most parameters of the base, times the number of plans, that one sweep solves
VALUES = 25_000_000  # most output values by which plans and heads are judged: 250 images with all tokens of a ViT-S
_PER_INPUT = 16  # least number of tokens per neuron of the widest FFN in the sequential solution


@dataclass(frozen=True)
class Tried:
    """A step kept only if it helps, by the divergence from the base on the validation images."""

    helped: bool
    before: float
    after: float


@dataclass(frozen=True)
class Solved:
    """The network of the best plan."""

    network: Network
    name: str  # name of the best plan
    tried: dict[str, Tried]  # steps that were kept only if they help, by the name of their option


def solve(
    problem: Problem, config: Config, by_token: Sequence[tuple[Tensor, Tensor]], plans: Mapping[str, Plan]
) -> Solved:
    """Realise the plans, solve their weights in one sweep as the options say, and return the best network.

    Weights are solved token by token, for all tokens; the tokens of a plan's schedule are removed afterwards.

    Args:
        by_token: per block of the base, as for `solve_in_sequence`.
        plans: the first is kept unless another is better, and clearly better if it removes tokens; the others by the
            name of the option that they try.
    """
    with problem.stopwatch.stage("closed_form"):
        networks = [realise(problem.network, without_tokens(plan)) for plan in plans.values()]
    images = problem.calibration(config.calibration_images)
    if config.sequential:
        with problem.stopwatch.stage("sequential"):
            slims = [
                Slim(network, plan.kept_blocks, align=config.align, encoders=plan.encoders)
                for plan, network in zip(plans.values(), networks, strict=True)
            ]
            _solve(problem, config, slims, images, by_token)
    of_plans = {
        name: leave_tokens(network, plan) for (name, plan), network in zip(plans.items(), networks, strict=True)
    }
    if len(plans) == 1 and not config.refit_head:
        ((name, network),) = of_plans.items()
        return Solved(network, name, {})
    with problem.stopwatch.stage("head"):
        return _judged(problem, of_plans, images if config.refit_head else None)


def _solve(
    problem: Problem, config: Config, slims: Sequence[Slim], images: Split, by_token: Sequence[tuple[Tensor, Tensor]]
) -> None:
    solve_in_sequence(
        problem.network,
        slims,
        images,
        by_token,
        problem.passes,
        thinnings=thinnings(problem.network, len(images), _PER_INPUT),
        keep=keeping(problem, images, quick=config.quick),
        quick=config.quick,
    )


def judge_plans(
    problem: Problem, config: Config, by_token: Sequence[tuple[Tensor, Tensor]], plans: Sequence[Plan]
) -> list[float]:
    """Measure the divergence from the base of each plan's network on some validation images, solved on some others.

    Dozens of plans are only compared here, so few images are enough, in bf16 if that is quicker.

    Args:
        by_token: as for `solve`.
    """
    base = problem.network
    tokens = min(stage.tokens for stage in base.geometry.stages)
    images = problem.calibration(min(config.calibration_images, -(-_SEARCHED_TOKENS // tokens)))
    validation = problem.judging_images(-(-JUDGED_TOKENS // tokens))
    target = base_outputs(problem, validation)
    at_once = max(_SWEPT_PARAMETERS // sum(p.numel() for p in base.parameters()), 1)
    losses: list[float] = []
    for first in range(0, len(plans), at_once):
        batch = plans[first : first + at_once]
        networks = [realise(base, without_tokens(plan)) for plan in batch]
        if config.sequential:
            slims = [
                Slim(network, plan.kept_blocks, align=config.align, encoders=plan.encoders)
                for network, plan in zip(networks, batch, strict=True)
            ]
            _solve(problem, config, slims, images, by_token)
        for network, plan in zip(networks, batch, strict=True):
            slim = leave_tokens(network, plan)
            of_slim = network_outputs(slim, validation, problem.passes, quick=config.quick)
            losses.append(divergence(base.output, target, of_slim))
    return losses


@dataclass(frozen=True)
class _Candidate:
    """A network, and its divergence from the base on the validation images."""

    network: Network
    loss: float


def _judged(problem: Problem, of_plans: Mapping[str, Network], images: Split | None) -> Solved:
    """Return the best network of all plans; fit its head if images are given."""
    geometry = problem.network.geometry
    most = max(VALUES // max(geometry.outputs * geometry.classified, 1), 1)
    validation = problem.judging_images(most)
    judge = Taught(validation, base_outputs(problem, validation))

    def judged(network: Network) -> _Candidate:
        of_network = network_outputs(network, validation, problem.passes)
        return _Candidate(network, divergence(problem.network.output, judge.outputs, of_network))

    (best_name, best), *alternatives = ((name, judged(network)) for name, network in of_plans.items())
    tried = dict[str, Tried]()
    for name, candidate in alternatives:
        share = CLEARLY if name == "cut_tokens" else _share(problem.network.output, best.network, candidate.network)
        if _better(best, candidate, name, tried, share) is candidate:
            best_name, best = name, candidate
    if images is not None:
        fitted = bare_copy(best.network)
        images = images.subset(most)
        train = Taught(images, base_outputs(problem, images))
        loss = refit_head(fitted, train, judge, problem.passes)
        best = _better(best, _Candidate(fitted, loss), "refit_head", tried)
    return Solved(best.network, best_name, tried)


def _share(output: Output, best: Network, other: Network) -> float:
    """The share of the best network's loss that another must be below.

    A narrower embedding is fitted to the calibration images. Probes of its features miss directions that other images
    need, although the features are nearer to the base's on images like these: it must be much nearer.
    """
    wider = other.geometry.embed - best.geometry.embed
    if not wider or output.kind != "features":
        return 1.0
    return 1 / NARROWER if wider > 0 else NARROWER


def _better(
    before: _Candidate, after: _Candidate, name: str, tried: dict[str, Tried], share: float = 1.0
) -> _Candidate:
    """Return `after` if its loss is below this share of that of `before`, and record the trial under `name`."""
    better = after.loss < share * before.loss
    tried[name] = Tried(better, before.loss, after.loss)
    return after if better else before
