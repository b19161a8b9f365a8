"""Choose the shape of each block, the width of the embedding and the token schedule within the budget, as a plan.

For each width of the embedding, dynamic programming finds the least predicted loss over all blocks
(`allocate.knapsack`), and the width with the least measured loss is chosen; likewise with token schedules, where the
options allow them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from edgevit.derivation.allocate.embedding import (
    Slices,
    WidthCandidate,
    balanced_width,
    climb,
    embed_widths,
    reason_against,
)
from edgevit.derivation.allocate.knapsack import Choice, allocate
from edgevit.derivation.allocate.menus import site_costs
from edgevit.derivation.measure.divergence import mean_nats
from edgevit.derivation.measure.embedding import TokenStatistics
from edgevit.derivation.methods.forge.config import Config
from edgevit.derivation.methods.forge.curves import BlockCurves, moment_of
from edgevit.derivation.methods.forge.menus import Removable, block_menu
from edgevit.derivation.methods.forge.schedules import Schedule, containing, with_schedule, worthwhile
from edgevit.derivation.methods.forge.schedules import reason_against as no_tokens
from edgevit.derivation.methods.forge.search import LEFT_OUT, MIXED, Sites, forced_to, mixed_prices, priced, search
from edgevit.derivation.plan import AttentionPlan, BlockPlan, EmbedPlan, FfnPlan, Plan
from edgevit.derivation.problem import Problem
from edgevit.derivation.realise import realise
from edgevit.derivation.solve.attention import reduced
from edgevit.errors import BudgetError
from edgevit.network.anatomy import Block
from edgevit.network.cost import Geometry

LITTLE = 0.01  # nats: below this loss, aligning and refitting the head gained at most 0.0002 nats
_NEXT_TO_NOTHING = 3e-4  # nats: a width of the embedding with no more predicted loss ends the search
_MOST_MEASURED = 4  # widths of the embedding whose loss is measured
_STANDARD_ERRORS = 2  # of the mean difference of two plans on the same images, to call one better
AS_PREDICTED = "as predicted"

# Returns the plan of an embedding of a width, None for the whole one, with its own loss in nats.
_Sliced = Callable[[int | None], tuple[EmbedPlan | None, float]]


@dataclass(frozen=True)
class ChosenShape:
    """The shape of each block of the base."""

    # Per block the sizes of its attention and its FFN width, None for a removed site; or None for a removed block.
    blocks: Sequence[tuple[AttentionPlan | None, int | None] | None]
    predicted_nats: float
    tokens: Schedule | None = None  # number of tokens that each block passes on; None: no block removes tokens


def _allocated(
    problem: Problem,
    config: Config,
    blocks: Sequence[Block],
    curves: Sequence[BlockCurves],
    geometry: Geometry,
    schedule: Schedule | None = None,
) -> ChosenShape:
    """Spend the budget on a network of this geometry with this token schedule.

    Raises:
        BudgetError: the budget cannot be met.
    """
    budget, policy = problem.budget, problem.policy
    dims = [b.dims for b in blocks]
    if schedule is not None:
        dims = with_schedule(dims, schedule)
    minimum = budget.at_least or dict.fromkeys(range(len(dims)))
    menus = []
    for i, (placed, block) in enumerate(zip(geometry.placed(dims), curves, strict=True)):
        d = placed.dims
        if i not in minimum:
            continue
        # A network needs a first block, and a block that removes tokens needs its attention.
        removable = Removable(
            config.drop_heads, config.drop_blocks and i > 0 and not d.tokens, config.drop_sites and not d.tokens
        )
        costs = site_costs(budget, geometry, placed)
        menus.append(block_menu(d, block, policy, costs, removable, geometry.frozen(i), minimum[i]))
    prices = budget.prices_at(geometry)
    fixed = geometry.outside(budget.linear) if prices is None else prices.fixed
    allocated = dict(zip(minimum, allocate(menus, budget.limit - fixed), strict=True))
    choices = [allocated.get(i) for i in range(len(dims))]
    losses = [
        float(block.block_loss) if pair is None else sum(choice.loss for choice in pair if choice is not None)
        for block, pair in zip(curves, choices, strict=True)
    ]

    def value(choice: Choice | None) -> Any:
        return None if choice is None else choice.value

    return ChosenShape(
        [None if pair is None else (value(pair[0]), value(pair[1])) for pair in choices], sum(losses), schedule
    )


@dataclass(frozen=True)
class Chosen:
    """The shape of the whole network."""

    shape: ChosenShape
    embed: EmbedPlan | None
    facts: dict[str, object]
    measured_nats: float | None = None

    @property
    def stay(self) -> Sites:
        return tuple(
            (False, False) if pair is None else (pair[0] is not None, pair[1] is not None) for pair in self.shape.blocks
        )

    @property
    def width(self) -> int | None:
        """The width of the embedding; None: the whole one."""
        return None if self.embed is None else self.embed.width

    @property
    def loses_little(self) -> bool:
        return (self.shape.predicted_nats if self.measured_nats is None else self.measured_nats) < LITTLE


@dataclass(frozen=True)
class _Spending:
    """The arguments of `choose`, from which the budget is spent."""

    problem: Problem
    config: Config
    blocks: Sequence[Block]
    curves: Sequence[BlockCurves]
    replaced: Callable[[], Sequence[BlockCurves]]
    judge: Callable[[Sequence[Plan]], list[float]]
    geometry_of: Callable[[int], Geometry]  # geometry of the network at a width of the embedding

    @property
    def whole(self) -> int:
        return self.problem.network.geometry.embed

    def shape(self, curves: Sequence[BlockCurves], width: int, schedule: Schedule | None = None) -> ChosenShape:
        """Return the shape of least loss by these curves at this width of the embedding.

        Raises:
            BudgetError: the budget cannot be met.
        """
        return _allocated(self.problem, self.config, self.blocks, curves, self.geometry_of(width), schedule)

    def unsliced(self, curves: Sequence[BlockCurves]) -> Chosen:
        """Return the choice with the whole embedding."""
        return Chosen(self.shape(curves, self.whole), None, {})

    def plan(self, shape: ChosenShape, embed: EmbedPlan | None) -> Plan:
        return plan_of(self.blocks, self.curves, shape, embed, refitted=not self.config.sequential)

    def refitted(self, shape: ChosenShape, embed: EmbedPlan | None) -> Plan:
        """The plan whose loss is the predicted one."""
        return plan_of(self.blocks, self.curves, shape, embed, refitted=True)

    def searched(self, least: Callable[[Sequence[BlockCurves]], Chosen], sliced: _Sliced) -> dict[str, Chosen]:
        """Return the plan of least loss and, if it removes many sites, the result of a search from it.

        Args:
            least: returns the plan of least loss by curves.
        """
        first = least(self.curves)
        if first.loses_little or not self.config.searches_sites or self.problem.budget.at_least is not None:
            return {AS_PREDICTED: first}
        sites = [site for block in self.blocks for site in (block.attention, block.ffn) if site is not None]
        if sum(map(sum, first.stay)) > (1 - LEFT_OUT) * len(sites):
            return {AS_PREDICTED: first}

        def judged(plans: Sequence[Chosen]) -> list[float]:
            return self.judge([self.plan(plan.shape, plan.embed) for plan in plans])

        replaced = self.replaced()
        starts = [first, *(least(mixed_prices(self.curves, replaced, share)) for share in MIXED)]
        prices = [tuple(block.site_losses.tolist()) for block in mixed_prices(self.curves, replaced, 0.5)]
        best, solved = search(starts, partial(self._forced, first, sliced), judged, prices, self.problem.progress)
        both = {AS_PREDICTED: first, "search_sites": best}
        if (best.stay, best.width) == (first.stay, first.width):
            del both["search_sites"]
        return {name: replace(plan, facts={**plan.facts, "plans_solved": solved}) for name, plan in both.items()}

    def _forced(self, first: Chosen, sliced: _Sliced, stay: Sites, width: int | None) -> Chosen | None:
        """Return the plan with exactly these sites at this width and the facts of `first`; None: too small a budget."""
        try:
            shape = self.shape(forced_to(self.curves, stay), self.whole if width is None else width)
        except BudgetError:
            return None
        embed, nats = sliced(width)
        nats += shape.predicted_nats + priced(self.curves, stay)
        facts = first.facts if width is None else {**first.facts, "embed": width}
        plan = Chosen(replace(shape, predicted_nats=nats), embed, facts)
        return plan if plan.stay == stay else None


def choose(
    problem: Problem,
    config: Config,
    blocks: Sequence[Block],
    curves: Sequence[BlockCurves],
    tokens: TokenStatistics | None,
    replaced: Callable[[], Sequence[BlockCurves]],
    judge: Callable[[Sequence[Plan]], list[float]],
) -> dict[str, Chosen]:
    """Spend the budget on the embedding, the tokens and all blocks.

    Args:
        replaced: returns the curves with removed blocks and sites priced with an affine map in their place.
        judge: solves plans and returns the divergence of their answers from the base's.

    Returns:
        The choice of least predicted loss, and alternatives by the name of the option that tries them.

    Raises:
        BudgetError: the budget cannot be met.
    """
    network = problem.network
    spending = _Spending(problem, config, blocks, curves, replaced, judge, cache(network.geometry_at))

    if not config.cut_embedding:
        return spending.searched(spending.unsliced, lambda _: (None, 0.0))
    reason = no_tokens(problem)
    if reason is not None and config.cut_tokens == "predicted":
        problem.progress.note(f"all tokens stay: {reason}")
    predicts_tokens = reason is None and config.cut_tokens == "predicted"
    tries_tokens = reason is None and config.cut_tokens == "tried" and problem.budget.quantity == "macs"
    if (fixed := reason_against(problem, config.calibration_images)) is not None:
        problem.progress.note(f"the embedding stays as it is: {fixed}")
        if not predicts_tokens and not tries_tokens:
            return spending.searched(spending.unsliced, lambda _: (None, 0.0))
    allowed = [spending.whole] if fixed is not None else embed_widths(
        network, problem.policy, problem.budget.least_embed
    )  # fmt: skip
    slices = Slices(
        problem, config.calibration_images, config.sensitivity_images, tokens, owner="forge",
        fitted=config.fit_decoders, quick=config.quick,
    )  # fmt: skip

    def search_widths(
        schedules: Sequence[tuple[Schedule | None, float]], curves: Sequence[BlockCurves]
    ) -> list[WidthCandidate[ChosenShape]]:
        spend = partial(spending.shape, curves)
        return _widths(allowed, slices, schedules, spend, balanced_width(network, problem.budget))

    def least(schedules: Sequence[tuple[Schedule | None, float]], curves: Sequence[BlockCurves]) -> Chosen:
        return _measured(problem, slices, search_widths(schedules, curves), spending.refitted)

    def predicted(candidate: WidthCandidate[ChosenShape]) -> Chosen:
        facts = {"embed": candidate.width, **_tokens_of(candidate.shape)}
        return Chosen(replace(candidate.shape, predicted_nats=candidate.nats), slices.plan(candidate.width), facts)

    def sliced(width: int | None) -> tuple[EmbedPlan | None, float]:
        return (None, 0.0) if width is None else (slices.plan(width), slices.nats(width))

    schedules: list[tuple[Schedule | None, float]] = [(None, 0.0)]
    if predicts_tokens:
        schedules += _schedules(problem, slices)
    choices = spending.searched(partial(least, schedules), sliced)
    first = choices[AS_PREDICTED]
    # What a narrower embedding or fewer tokens lose in the end shows only in solved networks.
    candidates = search_widths(schedules, curves)
    widest = max(candidates, key=lambda candidate: (candidate.width, -candidate.nats))
    for candidate in candidates[:1] if first.loses_little else (candidates[0], widest):
        if candidate.width != (first.width or spending.whole):
            choices[f"embed {candidate.width}"] = predicted(candidate)
    if first.loses_little:
        return choices
    if tries_tokens and (fewer := _schedules(problem, slices)):
        with suppress(BudgetError):  # blocks that remove tokens cannot be removed
            choices["cut_tokens"] = predicted(search_widths(fewer, curves)[0])
    return choices


def _schedules(problem: Problem, slices: Slices) -> list[tuple[Schedule | None, float]]:
    """List the schedules that remove tokens, each with its loss; if a plan grows, those that contain its tokens."""
    grown = problem.budget.at_least
    return [
        (schedule, nats)
        for schedule, nats in worthwhile(problem, slices)
        if any(schedule) and (grown is None or containing(schedule, grown))
    ]


def _widths(
    widths: list[int],
    slices: Slices,
    schedules: Sequence[tuple[Schedule | None, float]],
    spend: Callable[[int, Schedule | None], ChosenShape],
    begin: float,
) -> list[WidthCandidate[ChosenShape]]:
    """List the promising widths of the embedding with each token schedule, and the widest, by their predicted losses.

    Args:
        schedules: each with its own loss; None: all tokens stay.

    Raises:
        BudgetError: the budget cannot be met.
    """
    candidates: list[WidthCandidate[ChosenShape]] = []
    refused: BudgetError | None = None
    for schedule, nats in schedules:

        def spent(width: int, schedule: Schedule | None = schedule, nats: float = nats) -> tuple[ChosenShape, float]:
            shape = spend(width, schedule)
            return shape, shape.predicted_nats + nats

        try:
            candidates += climb(widths, spent, slices.nats, begin, _NEXT_TO_NOTHING)
        except BudgetError as error:
            refused = error
    if not candidates:
        assert refused is not None
        raise refused
    if all(candidate.width < widths[0] for candidate in candidates):
        schedule, nats = schedules[0]
        with suppress(BudgetError):
            shape = spend(widths[0], schedule)
            candidates.append(WidthCandidate(widths[0], shape, slices.nats(widths[0]), shape.predicted_nats + nats))
    return sorted(candidates, key=lambda candidate: candidate.nats)


def _measured(
    problem: Problem,
    slices: Slices,
    candidates: Sequence[WidthCandidate[ChosenShape]],
    plan: Callable[[ChosenShape, EmbedPlan | None], Plan],
) -> Chosen:
    """Choose the candidate of least loss, measuring where predictions may be wrong.

    The loss of a slice of the embedding is measured, but the loss of its blocks is predicted as a sum of parts, which a
    deep cut exceeds several times. So the candidate that seems best is realised and measured, its shortfall corrects
    the predictions of the others, and so on, until the one that seems best has been measured. The whole embedding stays
    if it is predicted to lose least and no other is measured to lose clearly less.

    Args:
        plan: makes the plan whose loss is the predicted one.
    """
    by_image: dict[int, Tensor] = {}
    measured: dict[int, float] = {}
    while (
        len(candidates) > 1
        and (number := _seems_best(candidates, measured)) not in measured
        and len(measured) < _MOST_MEASURED
    ):
        candidate = candidates[number]
        with problem.stopwatch.stage("embedding"):
            slim = realise(problem.network, plan(candidate.shape, slices.plan(candidate.width)))
            by_image[number] = slices.lost_by_image(slim.to(problem.compute.device))
            measured[number] = mean_nats(by_image[number])
    number = min(measured, key=measured.__getitem__, default=0)
    narrows = candidates[number].width < slices.whole == candidates[0].width
    if narrows and not _clearly_less(by_image[number], by_image[0]):
        number = 0
    best = candidates[number]
    rows = [
        {**candidate.facts(), "measured_nats": measured.get(i), **_tokens_of(candidate.shape)}
        for i, candidate in sorted(enumerate(candidates), key=lambda pair: -pair[1].width)
    ]
    facts: dict[str, object] = {"embed": best.width, "embed_widths": rows}
    facts |= _tokens_of(best.shape)
    shape = replace(best.shape, predicted_nats=best.nats)
    return Chosen(shape, slices.plan(best.width), facts, measured.get(number))


def _clearly_less(losses: Tensor, others: Tensor) -> bool:
    """Whether losses [images] are less than others of the same images, by more than other images could change."""
    less = others - losses
    return bool(less.mean() > _STANDARD_ERRORS * less.std() / len(less) ** 0.5)


def _tokens_of(shape: ChosenShape) -> dict[str, object]:
    return {"tokens": shape.tokens} if shape.tokens else {}


def _seems_best(candidates: Sequence[WidthCandidate[ChosenShape]], measured: Mapping[int, float]) -> int:
    """Return the index of the candidate of least loss, predictions corrected by the shortfall of the measured ones.

    Args:
        measured: nats by the index of the candidate.
    """
    shortfalls = [
        max(nats - candidates[i].slice_nats, 0.0) / candidates[i].shape_nats
        for i, nats in measured.items()
        if candidates[i].shape_nats > 0
    ]
    factor = median(shortfalls) if shortfalls else 1.0
    expected = [measured.get(i, c.slice_nats + factor * c.shape_nats) for i, c in enumerate(candidates)]
    return expected.index(min(expected))


# -- the plan ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def plan_of(
    blocks: Sequence[Block],
    curves: Sequence[BlockCurves],
    shape: ChosenShape,
    embed: EmbedPlan | None,
    *,
    refitted: bool,
) -> Plan:
    """Make the plan of a shape: factors, neurons and output weights for the base's inputs.

    Args:
        refitted: whether the FFNs' output weights make up for removed neurons, as predictions assume. The sequential
            solution starts from weights that do not: held-out images that the start had seen could not judge how far
            to go from it.
    """
    plans = []
    for i, (block, block_curves, pair) in enumerate(zip(blocks, curves, shape.blocks, strict=True)):
        if pair is None:
            continue
        sizes, width = pair
        attended, neurons = None, None
        if width is not None:
            assert block.ffn is not None and block_curves.removal is not None, "a menu has the block's sites only"
            remaining = block_curves.removal.remaining(width)
            weights = block_curves.refitted(block.ffn, width) if refitted else block.ffn.keep(remaining)
            neurons = FfnPlan(remaining, weights=weights)
        if sizes is not None:
            assert block.attention is not None and block_curves.spectra is not None, "a menu has the block's sites only"
            moment = moment_of(block_curves.statistics)
            slim = reduced(block.attention, sizes.heads, sizes.widths, moment, block_curves.spectra)
            attended = replace(sizes, weights=slim)
        passed = 0 if shape.tokens is None else shape.tokens[i]
        plans.append(BlockPlan(i, attended, neurons, passed))
    return Plan(tuple(plans), embed)
