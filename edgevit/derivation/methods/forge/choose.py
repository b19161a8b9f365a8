"""What becomes of each block, of the embedding and of the tokens within the budget, and the plan that says so.

For each width of the embedding the least predicted loss over all blocks at once (`allocate.knapsack`), and of all the
widths the one that measures best; likewise with tokens that leave, where that is to be tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import median
from typing import Any

import torch

from edgevit.derivation.allocate.embedding import (
    Rung,
    Slices,
    balanced_width,
    climb,
    embed_widths,
    geometry_at,
    reason_against,
)
from edgevit.derivation.allocate.knapsack import Choice, allocate
from edgevit.derivation.allocate.menus import Heads
from edgevit.derivation.allocate.policy import fit, uniform
from edgevit.derivation.allocate.widths import adaptive
from edgevit.derivation.measure.embedding import TokenStatistics
from edgevit.derivation.methods.forge.config import Config
from edgevit.derivation.methods.forge.curves import BlockCurves, moment_of
from edgevit.derivation.methods.forge.ladders import Ladder, containing, with_ladder, worthwhile
from edgevit.derivation.methods.forge.ladders import reason_against as no_tokens
from edgevit.derivation.methods.forge.menus import Goes, block_costs, block_menu
from edgevit.derivation.methods.forge.search import LEFT_OUT, MIXED, Sites, forced_to, mixed_prices, priced, search
from edgevit.derivation.plan import AttentionPlan, BlockPlan, EmbedPlan, FfnPlan, Plan
from edgevit.derivation.problem import Problem
from edgevit.derivation.realise import realise
from edgevit.derivation.solve.attention import Spectra, keep_heads, narrow
from edgevit.derivation.solve.factorise import Spectrum
from edgevit.errors import BudgetError
from edgevit.network.anatomy import Attention, Block
from edgevit.network.cost import Geometry
from edgevit.network.families import family_of

# nats: where less is lost, or predicted to be, aligning and refitting the head won 0.0002 at most (lab log)
LITTLE = 0.01
NEXT_TO_NOTHING = 3e-4  # nats: where a width is predicted to lose no more, no other is looked for (lab log)
MOST_MEASURED = 4  # widths of the embedding that are realised, and their loss measured
AS_PREDICTED = "as predicted"

# The plan of an embedding of this width, and the nats that it loses by itself; None: it stays.
Sliced = Callable[[int | None], tuple[EmbedPlan | None, float]]


@dataclass(frozen=True)
class ChosenShape:
    """What becomes of each block of the base: its attention and FFN width, None where they go; or None: it goes."""

    blocks: Sequence[tuple[Heads | None, int | None] | None]
    predicted_nats: float | None
    tokens: Ladder | None = None  # that each block of the base passes on; None: all


def _allocated(
    problem: Problem,
    config: Config,
    blocks: Sequence[Block],
    curves: Sequence[BlockCurves],
    geometry: Geometry,
    ladder: Ladder | None = None,
) -> ChosenShape:
    """Spend the budget on a network of this geometry, whose blocks pass on as many tokens as the ladder says.

    Raises:
        BudgetError: it is not reachable.
    """
    budget, policy = problem.budget, problem.policy
    dims = [b.dims for b in blocks]
    if config.allocation != "joint":
        activations = [known.statistics.activation for known in curves]
        wishes = uniform(dims) if config.allocation == "uniform" else adaptive(blocks, activations, policy)
        chosen = fit(wishes, dims, geometry, budget, policy)
        return ChosenShape(
            [
                (Heads(tuple(range(d.heads)), d.qk, d.vo) if d.has_attention else None, d.ffn if d.has_ffn else None)
                for d in chosen
            ],
            None,
        )
    if ladder is not None:
        dims = with_ladder(dims, ladder)
    stay = budget.at_least or dict.fromkeys(range(len(dims)))
    menus = []
    for i, (d, known, tokens) in enumerate(zip(dims, curves, geometry.reaching(dims), strict=True)):
        if i not in stay:
            continue
        # The first block always stays: a network has one. One behind which tokens leave needs its attention.
        goes = Goes(
            config.drop_heads,
            config.drop_blocks and i > 0 and not d.tokens,
            config.drop_sites and config.by_loss and not d.tokens,
        )
        costs = block_costs(budget, geometry.at(tokens), i, d.tokens)
        menus.append(block_menu(d, known, policy, costs, goes, geometry.frozen(i), stay[i]))
    prices = budget.prices_at(geometry)
    fixed = geometry.fixed(0, budget.linear) if prices is None else prices.fixed
    made = dict(zip(stay, allocate(menus, budget.limit - fixed), strict=True))
    found = [made.get(i) for i in range(len(dims))]
    lost = [
        float(known.block_loss) if pair is None else sum(choice.loss for choice in pair if choice is not None)
        for known, pair in zip(curves, found, strict=True)
    ]

    def value(choice: Choice | None) -> Any:
        return None if choice is None else choice.value

    return ChosenShape(
        [None if pair is None else (value(pair[0]), value(pair[1])) for pair in found], sum(lost), ladder
    )


@dataclass(frozen=True)
class Chosen:
    """What becomes of the whole network."""

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
        """Of the embedding; None: it stays."""
        return None if self.embed is None else self.embed.width

    @property
    def loses_little(self) -> bool:
        nats = self.shape.predicted_nats if self.measured_nats is None else self.measured_nats
        return nats is not None and nats < LITTLE


@dataclass(frozen=True)
class _Spending:
    """How the budget is spent on a network; as for `choose`."""

    problem: Problem
    config: Config
    blocks: Sequence[Block]
    curves: Sequence[BlockCurves]
    stand: Callable[[], Sequence[BlockCurves]]
    judge: Callable[[Sequence[Plan]], list[float]]
    geometry_of: Callable[[int], Geometry]  # by the width of the embedding

    @property
    def whole(self) -> int:
        return family_of(self.problem.network).geometry(self.problem.network).embed

    def shape(self, curves: Sequence[BlockCurves], width: int, ladder: Ladder | None = None) -> ChosenShape:
        """The shape of least loss by these curves at this width of the embedding.

        Raises:
            BudgetError: none reaches the budget.
        """
        return _allocated(self.problem, self.config, self.blocks, curves, self.geometry_of(width), ladder)

    def unsliced(self, curves: Sequence[BlockCurves]) -> Chosen:
        """That of the whole embedding."""
        return Chosen(self.shape(curves, self.whole), None, {})

    def plan(self, shape: ChosenShape, embed: EmbedPlan | None) -> Plan:
        return plan_of(self.config, self.blocks, self.curves, shape, embed)

    def found(self, least: Callable[[Sequence[BlockCurves]], Chosen], sliced: Sliced) -> dict[str, Chosen]:
        """The plan of least loss, and where it leaves out many sites what a search from it comes to.

        Args:
            least: the plan of least loss by curves.
        """
        first = least(self.curves)
        if first.loses_little or not self.config.searches_sites or self.problem.budget.at_least is not None:
            return {AS_PREDICTED: first}
        there = [site for block in self.blocks for site in (block.attention, block.ffn) if site is not None]
        if sum(map(sum, first.stay)) > (1 - LEFT_OUT) * len(there):
            return {AS_PREDICTED: first}

        def judged(some: Sequence[Chosen]) -> list[float]:
            return self.judge([self.plan(one.shape, one.embed) for one in some])

        stood_in = self.stand()
        begun = [first, *(least(mixed_prices(self.curves, stood_in, share)) for share in MIXED)]
        prices = [tuple(known.site_losses.tolist()) for known in mixed_prices(self.curves, stood_in, 0.5)]
        best, solved = search(begun, partial(self._forced, first, sliced), judged, prices, self.problem.progress)
        both = {AS_PREDICTED: first, "search_sites": best}
        if (best.stay, best.width) == (first.stay, first.width):
            del both["search_sites"]
        return {name: replace(one, facts={**one.facts, "plans_solved": solved}) for name, one in both.items()}

    def _forced(self, first: Chosen, sliced: Sliced, stay: Sites, width: int | None) -> Chosen | None:
        """The plan with exactly these sites at this width, with facts of `first`; None: the budget is not enough."""
        try:
            shape = self.shape(forced_to(self.curves, stay), self.whole if width is None else width)
        except BudgetError:
            return None
        embed, nats = sliced(width)
        assert shape.predicted_nats is not None
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
    stand: Callable[[], Sequence[BlockCurves]],
    judge: Callable[[Sequence[Plan]], list[float]],
) -> dict[str, Chosen]:
    """Spend the budget, which is reachable, on the embedding, the tokens and all blocks.

    Args:
        stand: the curves with blocks and sites that go priced with what stands in for them.
        judge: how far the answers of plans are from the base's, once they are solved.

    Returns:
        What is predicted to lose least, and beside it what is to be tried, by the name of the option that says so.

    Raises:
        BudgetError: what the embedding, the tokens and the blocks may give do not reach it together.
    """
    network = problem.network
    spending = _Spending(problem, config, blocks, curves, stand, judge, cache(partial(geometry_at, network)))

    if not config.cuts_embedding:
        return spending.found(spending.unsliced, lambda _: (None, 0.0))
    all_stay = no_tokens(problem, config)
    if all_stay is not None and config.cut_tokens == "predicted":
        problem.progress.note(f"all tokens stay: {all_stay}")
    leave = all_stay is None and config.cut_tokens == "predicted"
    may_leave = all_stay is None and config.cut_tokens == "tried" and problem.budget.quantity == "macs"
    if (stays := reason_against(problem, config.calibration_images)) is not None:
        problem.progress.note(f"the embedding stays as it is: {stays}")
        if not leave and not may_leave:
            return spending.found(spending.unsliced, lambda _: (None, 0.0))
    allowed = [spending.whole] if stays is not None else embed_widths(
        network, problem.policy, config.embed_width, "forge", problem.budget.least_embed
    )  # fmt: skip
    how = {"fitted": config.fit_decoders, "quick": config.quick}
    slices = Slices(problem, config.calibration_images, config.sensitivity_images, tokens, owner="forge", **how)

    def least(ladders: Sequence[tuple[Ladder | None, float]], curves: Sequence[BlockCurves]) -> Chosen:
        spent = partial(spending.shape, curves)
        rungs = _rungs(allowed, slices, ladders, spent, balanced_width(network, problem.budget))
        return _measured(problem, slices, rungs, spending.plan)

    def sliced(width: int | None) -> tuple[EmbedPlan | None, float]:
        return (None, 0.0) if width is None else (slices.plan(width), slices.nats(width))

    ladders: list[tuple[Ladder | None, float]] = [(None, 0.0), *(_leaving(problem, slices) if leave else [])]
    choices = spending.found(partial(least, ladders), sliced)
    if may_leave and not choices[AS_PREDICTED].loses_little and (leaving := _leaving(problem, slices)):
        with suppress(BudgetError):  # blocks behind which tokens leave have to stay
            choices["cut_tokens"] = least(leaving, curves)
    return choices


def _leaving(problem: Problem, slices: Slices) -> list[tuple[Ladder, float]]:
    """The ladders with which tokens leave, each with what it loses; where a plan grows, those that contain it."""
    grown = problem.budget.at_least
    return [
        (ladder, nats)
        for ladder, nats in worthwhile(problem, slices)
        if any(ladder) and (grown is None or containing(ladder, grown))
    ]


def _rungs(
    widths: list[int],
    slices: Slices,
    ladders: Sequence[tuple[Ladder | None, float]],
    spend: Callable[[int, Ladder | None], ChosenShape],
    begin: float,
) -> list[Rung[ChosenShape]]:
    """The widths of the embedding worth a thought, each with every ladder of tokens; the least predicted loss first.

    Args:
        ladders: each with what it loses by itself; None: all tokens stay.

    Raises:
        BudgetError: none reaches the budget.
    """
    rungs: list[Rung[ChosenShape]] = []
    refused: BudgetError | None = None
    for ladder, nats in ladders:

        def spent(width: int, ladder: Ladder | None = ladder, nats: float = nats) -> tuple[ChosenShape, float]:
            shape = spend(width, ladder)
            assert shape.predicted_nats is not None
            return shape, shape.predicted_nats + nats

        try:
            rungs += climb(widths, spent, slices.nats, begin, NEXT_TO_NOTHING)
        except BudgetError as error:
            refused = error
    if not rungs:
        assert refused is not None
        raise refused
    return sorted(rungs, key=lambda rung: rung.nats)


def _measured(
    problem: Problem,
    slices: Slices,
    rungs: Sequence[Rung[ChosenShape]],
    plan: Callable[[ChosenShape, EmbedPlan | None], Plan],
) -> Chosen:
    """The rung that loses least, where measuring says which.

    What a slice of the embedding loses is measured, and what its blocks lose a sum of parts, which a deep cut exceeds
    several times: so the width that seems best is realised and measured, what the sums fall short by is learnt from it,
    and so on, until the width that seems best is one that was measured.
    """
    measured: dict[int, float] = {}
    while len(rungs) > 1 and (seems := _seems_best(rungs, measured)) not in measured and len(measured) < MOST_MEASURED:
        rung = rungs[seems]
        with problem.stopwatch.stage("embedding"):
            slim = realise(problem.network, plan(rung.shape, slices.plan(rung.width)))
            measured[seems] = slices.lost(slim.to(problem.compute.device))
    number = min(measured, key=measured.__getitem__, default=0)
    best = rungs[number]
    told = [
        {**rung.facts(), "measured_nats": measured.get(i), **({"tokens": t} if (t := rung.shape.tokens) else {})}
        for i, rung in sorted(enumerate(rungs), key=lambda pair: -pair[1].width)
    ]
    facts: dict[str, object] = {"embed": best.width, "embed_rungs": told}
    if best.shape.tokens:
        facts["tokens"] = best.shape.tokens
    shape = replace(best.shape, predicted_nats=best.nats)
    return Chosen(shape, slices.plan(best.width), facts, measured.get(number))


def _seems_best(rungs: Sequence[Rung[ChosenShape]], measured: Mapping[int, float]) -> int:
    """The number of the rung with the least loss, where those that were measured tell how far sums of parts fall short.

    `measured`: nats by the number of the rung.
    """
    shortfalls = [
        max(nats - rungs[i].slice_nats, 0.0) / rungs[i].shape_nats
        for i, nats in measured.items()
        if rungs[i].shape_nats > 0
    ]
    factor = median(shortfalls) if shortfalls else 1.0
    expected = [measured.get(i, rung.slice_nats + factor * rung.shape_nats) for i, rung in enumerate(rungs)]
    return expected.index(min(expected))


# -- the plan ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def plan_of(
    config: Config, blocks: Sequence[Block], curves: Sequence[BlockCurves], shape: ChosenShape, embed: EmbedPlan | None
) -> Plan:
    """Carry the allocation out in the base's own terms: factors, neurons and output weights for its inputs."""
    plans = []
    for i, (block, known, decided) in enumerate(zip(blocks, curves, shape.blocks, strict=True)):
        if decided is None:
            continue
        chosen, width = decided
        planned, neurons = None, None
        if width is not None:
            assert block.ffn is not None and known.removal is not None, "only what is there is on the menu"
            neurons = FfnPlan(known.removal.remaining(width), weights=known.refitted(block.ffn, width, config.ridge))
        if chosen is not None:
            assert block.attention is not None, "only what is there is on the menu"
            planned = _plan_attention(block.attention, known, chosen)
        passed = 0 if shape.tokens is None else shape.tokens[i]
        plans.append(BlockPlan(i, planned, neurons, passed))
    return Plan(tuple(plans), embed)


def _plan_attention(attention: Attention, known: BlockCurves, chosen: Heads) -> AttentionPlan:
    heads, moment = list(chosen.heads), moment_of(known.statistics)
    assert known.qk is not None and known.vo is not None
    spectra = Spectra(*((_of_heads(part, heads),) for part in (known.qk, known.vo)))
    (slim,) = narrow([keep_heads(attention, heads, moment)], [(chosen.qk, chosen.vo)], [moment], spectra)
    return AttentionPlan(chosen.heads, chosen.qk, chosen.vo, weights=slim)


def _of_heads(spectrum: Spectrum, heads: Sequence[int]) -> Spectrum:
    return Spectrum(*(tensor[list(heads)] for tensor in vars(spectrum).values()))
