"""A computed board: the time of a ViT by the effects that make real boards differ from a sum of tables.

Widths, the embedding's among them, are padded to tiles. A kernel takes what it computes or what it moves, whichever is
longer, and has a launch time that hides behind the kernel before it. What fits into the cache moves faster, which
depends on the whole model. Measurements are noisy. No real board has these laws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import le
from random import Random
from statistics import median
from typing import Literal, TypeVar

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.derivation.allocate.embedding import candidate_widths
from edgevit.derivation.allocate.knapsack import BlockMenu, Choice, allocate
from edgevit.derivation.allocate.policy import POLICIES
from edgevit.derivation.allocate.prices import Prices
from edgevit.errors import BudgetError
from edgevit.latency.fit import FittedCosts, FittedTable, StackFigure, fit_narrower
from edgevit.latency.grid import Grid
from edgevit.latency.paired import ROUNDS, SURE
from edgevit.latency.rounds import CONFIDENT, Candidate, MeasuredFigure, Search, Shape
from edgevit.latency.stacks import Stack
from edgevit.latency.table import cost_rows
from edgevit.network.anatomy import BlockDims

Sizes = TypeVar("Sizes", bound=tuple[int, ...])
SHRINKS = 0.5  # of what lies outside the blocks, how much is of the embedding: the rest is transfers


@dataclass(frozen=True)
class EmulatedBoard:
    """Times in ms, rates per ms, memory in bytes; of one image in fp16."""

    macs_per_ms: float
    bytes_per_ms: float
    launch_ms: float  # per kernel
    tile: int  # of every width
    fixed_ms: float  # patch embedding, classifier, transfers
    hidden: float  # share of a launch that hides behind the kernel before it
    cache_bytes: float  # of weights, what lies there is moved half as fast again
    noise: float  # relative standard deviation of one round of a measurement
    embed: int
    tokens: int
    attention_rate: float = 1.0  # that attentions take so many times as long: not every board has the same kernels
    ffn_rate: float = 1.0

    def _kernel(self, rows: int, inner: int, columns: int, cached: float, copies: int = 1) -> float:
        """Time `copies` products of [rows, inner] and [inner, columns]."""
        inner, columns = (math.ceil(n / self.tile) * self.tile for n in (inner, columns))
        computed = copies * rows * inner * columns / self.macs_per_ms
        moved = 2 * copies * (inner * columns + rows * (inner + columns)) / (self.bytes_per_ms * (1 + 0.5 * cached))
        busy = max(computed, moved)
        return busy + self.launch_ms - min(self.hidden * self.launch_ms, busy)

    def _between(self) -> float:
        """Time a norm and a sum."""
        return self.launch_ms + 8 * self.tokens * self.embed / self.bytes_per_ms

    def attention_ms(self, dims: BlockDims, cached: float) -> float:
        n, heads = self.tokens, dims.heads
        projections = self._kernel(n, self.embed, heads * (2 * dims.qk + dims.vo), cached)
        mixing = self._kernel(n, dims.qk, n, cached, heads) + self._kernel(n, n, dims.vo, cached, heads)
        out = self._kernel(n, heads * dims.vo, self.embed, cached)
        return self.attention_rate * (projections + mixing + out) + self._between()

    def ffn_ms(self, dims: BlockDims, cached: float) -> float:
        n = self.tokens
        both = self._kernel(n, self.embed, dims.ffn, cached) + self._kernel(n, dims.ffn, self.embed, cached)
        return self.ffn_rate * both + self._between()

    def narrowed(self, embed: int | None) -> EmulatedBoard:
        """Return the board for a narrower embedding; None is the base's own width."""
        if embed is None:
            return self
        fixed = self.fixed_ms * (1 - SHRINKS * (1 - embed / self.embed))
        return replace(self, embed=embed, fixed_ms=fixed)

    def ms(self, blocks: Sequence[BlockDims]) -> float:
        """Time a model."""
        weights = 2 * self.embed * sum(2 * b.heads * (b.qk + b.vo) + 2 * b.ffn for b in blocks)
        cached = min(self.cache_bytes / weights, 1.0)
        attention = sum(self.attention_ms(b, cached) for b in blocks if b.has("attention"))
        return self.fixed_ms + attention + sum(self.ffn_ms(b, cached) for b in blocks if b.has("ffn"))

    def measure(self, blocks: Sequence[BlockDims], random: Random, most: int = ROUNDS) -> MeasuredFigure:
        """Measure in turns: the median of several rounds, with an interval from their spread.

        Where the interval is wide, more rounds are measured, up to `most`.
        """
        times: list[float] = []
        while True:
            times += [self.ms(blocks) * max(random.gauss(1, self.noise), 0.5) for _ in range(ROUNDS)]
            spread = CONFIDENT * 1.25 * self.noise / math.sqrt(len(times))  # of a median
            if spread <= SURE or len(times) >= most:
                break
        value = median(times)
        return MeasuredFigure(value, value * (1 - spread), value * (1 + spread), len(times))


@dataclass(frozen=True)
class Losses:
    """The loss of narrower widths of a block in nats: steep at the end and flat before it, as of real bases."""

    attention: float
    ffn: float
    steepness: float
    block: float

    def of(self, scale: float, share: float) -> float:
        return scale * (math.exp(-self.steepness * share) - math.exp(-self.steepness))


@dataclass
class EmulatedBench:
    """Makes plans by the knapsack on invented losses, and measures them on an emulated board."""

    board: EmulatedBoard
    base: Sequence[BlockDims]
    losses: Sequence[Losses]
    random: Random
    embedding: Losses | None = None  # what its width is worth, as `ffn` of these; None: it stays
    ffn_step: int = 64
    bins: int = 2000
    most_rounds: int = ROUNDS  # of a plan's measurement, whose interval is to be narrow
    quantity: Literal["ms"] = "ms"

    def __post_init__(self) -> None:
        dims = self.base[0]
        self.heads = {1, max(dims.heads // 2, 1), dims.heads}
        self.widths = {16, 40, dims.qk}
        self.neurons = {8, *(share * dims.ffn // 8 for share in (1, 2, 4, 6, 8))}
        self.known: dict[BlockDims, float] = {}
        self.by_width: dict[int, dict[Stack, StackFigure]] = {}
        self.table = self._measured_table()

    def least_ms(self) -> float:
        """Return the real latency of the smallest plan: one block of the smallest sizes."""
        least = self.board.narrowed(self._embeds()[-1])
        return least.ms([BlockDims(min(2, self.base[0].heads), 16, 16, self.ffn_step)])

    def is_reachable(self, least_ms: float, most_ms: float) -> bool:
        """Return whether a plan may take between these bounds, inclusive; False is certain.

        Latency rises with sizes, so plans of equal blocks and embedding lie between the smallest one and the base's
        sizes.
        """
        least = BlockDims(min(2, self.base[0].heads), 16, 16, self.ffn_step)
        counts, boards = range(1, len(self.base) + 1), [self.board.narrowed(embed) for embed in self._embeds()]
        return any(
            board.ms([least] * count) <= most_ms and board.ms(self.base[:count]) >= least_ms
            for board in boards
            for count in counts
        )

    def loses_least(self, search: Search) -> bool:
        """Return whether no plan within the budget, by its own measured figure, loses less than the best one."""
        best, prices = search.best, self.table.in_quantity("ms")
        assert best is not None
        factors = search.factors(prices)
        limit = best.shape.terms(prices).times(factors).total * search.budget / best.measured.value
        shape, _ = self.best(self.table.corrected(**vars(factors)), limit)
        return shape == best.shape

    def measure(self, candidate: Candidate) -> MeasuredFigure:
        board = self.board.narrowed(candidate.shape.embed)
        return board.measure(candidate.shape.blocks, self.random, self.most_rounds)

    def refine(self, shape: Shape) -> None:
        for dims in shape.blocks:
            self.heads.add(dims.heads)
            self.widths.add(dims.qk)
            self.neurons.add(dims.ffn)
        if shape.embed is not None and shape.embed not in self.by_width:
            self._measure_width(shape.embed)
        self.table = self._measured_table()

    def allocate(self, table: CostTable, limit: float, at_least: Shape | None = None) -> Candidate:
        shape, _ = self.best(table, limit, at_least)
        return Candidate(shape, "")

    def best(self, table: CostTable, limit: float, at_least: Shape | None = None) -> tuple[Shape, float]:
        """Find the best plan within a limit by a table; return it with its loss."""
        prices = table.in_quantity("ms")
        plans, refused = [], None
        for embed in self._embeds(at_least):
            try:
                shape, lost = self._allocated(prices.at(embed or self.board.embed), embed, limit, at_least)
            except BudgetError as error:
                refused = error
                continue
            plans.append((shape, lost))
        if not plans:
            assert refused is not None
            raise refused
        return min(plans, key=lambda plan: plan[1])

    def _embeds(self, at_least: Shape | None = None) -> list[int | None]:
        """Return the embedding widths that may be chosen, the widest first; None is the base's own."""
        if self.embedding is None or (at_least is not None and at_least.embed is None):
            return [None]
        least = 0 if at_least is None else at_least.embed or 0
        narrower = candidate_widths(self.board.embed, POLICIES["fused"].embed_step)[1:]
        return [None, *(width for width in narrower if width >= least)]

    def _allocated(
        self, prices: Prices, embed: int | None, limit: float, at_least: Shape | None
    ) -> tuple[Shape, float]:
        """Find the best plan at one embedding width; return it with its loss."""
        indices = range(len(self.base)) if at_least is None else at_least.numbers
        menus = [self._menu(prices, i) for i in indices]
        if at_least is not None:
            menus = [_no_smaller(menu, dims) for menu, dims in zip(menus, at_least.blocks, strict=True)]
        certain = [menu for menu in menus if menu.dropped is None]
        least = prices.fixed + sum(min(c.cost for c in site) for m in certain for site in (m.attention, m.ffn))
        if limit < least:
            raise BudgetError("less than any plan costs", least=least)
        chosen = allocate(menus, limit - prices.fixed, bins=self.bins)
        stay = [(i, pair) for i, pair in zip(indices, chosen, strict=True) if pair is not None]
        sizes = [(i, a, f) for i, (a, f) in stay if a is not None and f is not None]
        blocks = tuple(BlockDims(a.value[0], a.value[1], a.value[1], f.value) for _, a, f in sizes)
        shape = Shape(blocks, tuple(i for i, _, _ in sizes), embed)
        lost = sum(a.loss + f.loss for _, a, f in sizes)
        lost += sum(self.losses[i].block for i in range(len(self.base)) if i not in shape.numbers)
        if self.embedding is not None and embed is not None:
            lost += self.embedding.of(self.embedding.ffn, embed / self.board.embed)
        return shape, lost

    def _menu(self, prices: Prices, block: int) -> BlockMenu:
        dims, lost = self.base[block], self.losses[block]
        attention = [
            Choice(
                prices.attention(heads, width, width) + prices.together,
                lost.of(lost.attention, heads * width / (dims.heads * dims.qk)),
                (heads, width),
            )
            for heads in range(min(2, dims.heads), dims.heads + 1)
            for width in range(16, dims.qk + 1, 8)
        ]
        ffn = [
            Choice(prices.ffn(width), lost.of(lost.ffn, width / dims.ffn), width)
            for width in range(self.ffn_step, dims.ffn + 1, self.ffn_step)
        ]
        return BlockMenu(attention, ffn, lost.block if block else None)

    def _measured_table(self) -> CostTable:
        """Measure a table as of a board: stacks of equal blocks at a few sizes, with lines between them.

        Stacks do not show how much of a small model fits into the cache.
        """
        dims, deep = self.base[0], len(self.base)
        dense = self._per_block(dims)
        part = self.board.attention_ms(dims, 0.0)
        part /= part + self.board.ffn_ms(dims, 0.0)
        attention = {
            (h, w): self._per_block(BlockDims(h, w, w, dims.ffn)) - (1 - part) * dense
            for h in self.heads
            for w in self.widths
        }
        ffn = {(n,): self._per_block(BlockDims(dims.heads, dims.qk, dims.vo, n)) - part * dense for n in self.neurons}
        fixed = max(self._stack([dims] * deep) - deep * dense, 0.002 * deep * dense)
        own = FittedCosts(fixed, 0.0, rising(attention), {n: ms for (n,), ms in rising(ffn).items()}, 0.01)
        fitted = FittedTable(own, self._narrower(own) if self.embedding is not None else {}, [])
        sizes = {"embed": self.board.embed, "tokens": self.board.tokens, "patch_values": 768, "depth": deep}
        content = {
            "schema": 1,
            "measured_on": "an emulated board",
            "base": {"family": "vit", **sizes, "blocks": [dims.sizes]},
            "costs": [*cost_rows({"ms": {0: fitted}})],
        }
        return CostTable.model_validate(content)

    def _narrower(self, base: FittedCosts) -> dict[int, FittedCosts]:
        """Fit the costs at three widths to a few stacks each, as `edgevit cost` does."""
        if not self.by_width:
            for embed in Grid.of(self.base, POLICIES["fused"], self.board.embed).narrower:
                self._measure_width(embed)
        return fit_narrower(base, self.by_width)

    def _measure_width(self, embed: int) -> None:
        heads, widths, neurons = (sorted(sizes) for sizes in (self.heads, self.widths, self.neurons))
        deep, board = len(self.base), self.board.narrowed(embed)
        stacks = [
            Stack(1, 0, 0, neurons[0]), Stack(deep, 0, 0, neurons[0]), Stack(deep, 0, 0, neurons[-1]),
            Stack(deep, heads[0], widths[0], 0), Stack(deep, heads[-1], widths[-1], 0),
            Stack(deep, heads[len(heads) // 2], widths[len(widths) // 2], neurons[len(neurons) // 2]),
        ]  # fmt: skip
        figures = {s: board.measure([s.dims] * s.count, self.random).value for s in stacks}
        self.by_width[embed] = {s: StackFigure(ms, max(self.board.noise, 0.002)) for s, ms in figures.items()}

    def _per_block(self, dims: BlockDims) -> float:
        """Return the time of one more block; measured once."""
        if dims not in self.known:
            deep, shallow = len(self.base), len(self.base) // 2
            apart = self._stack([dims] * deep) - self._stack([dims] * shallow)
            self.known[dims] = apart / (deep - shallow)
        return self.known[dims]

    def _stack(self, blocks: Sequence[BlockDims]) -> float:
        return self.board.measure(blocks, self.random).value


def _no_smaller(menu: BlockMenu, dims: BlockDims) -> BlockMenu:
    """Keep the choices of a menu that are at least this large; the block must stay."""
    attention = [c for c in menu.attention if c.value[0] >= dims.heads and c.value[1] >= dims.qk]
    return BlockMenu(attention, [c for c in menu.ffn if c.value >= dims.ffn], None)


def rising(costs: dict[Sizes, float]) -> dict[Sizes, float]:
    """Raise costs below those of smaller sizes, because a table must not fall."""
    positive = max(min(costs.values()), 1e-6)
    return {
        size: max(positive, *(cost for smaller, cost in costs.items() if all(map(le, smaller, size))))
        for size in sorted(costs)
    }


def draw(seed: int, *, narrower: bool = True) -> EmulatedBench:
    """Draw a board, a base and the losses of its widths, of the embedding, too, if `narrower`."""
    random = Random(seed)
    return draw_from(random, random, narrower=narrower)


def draw_from(random: Random, noise: Random, *, narrower: bool = True) -> EmulatedBench:
    """Draw the same with one generator for the constants and one for the noise of measurements."""
    heads, depth = random.choice([3, 6, 12]), random.choice([6, 8, 12])
    base = [BlockDims(heads, 64, 64, 256 * heads)] * depth
    board = EmulatedBoard(
        macs_per_ms=10 ** random.uniform(8, 10),
        bytes_per_ms=10 ** random.uniform(7, 8.3),
        launch_ms=10 ** random.uniform(-3, -1.7),
        tile=random.choice([1, 8, 16, 32, 64]),
        fixed_ms=10 ** random.uniform(-2, -0.3),
        hidden=random.uniform(0, 0.8),
        cache_bytes=10 ** random.uniform(5.5, 7.5),
        noise=random.uniform(0, 0.015),
        embed=64 * heads,
        tokens=random.choice([65, 197, 257]),
    )
    losses = [
        Losses(
            10 ** random.uniform(-2, 0),
            10 ** random.uniform(-2, 0),
            random.uniform(3, 12),
            10 ** random.uniform(-1, 0.7),
        )
        for _ in base
    ]
    embedding = Losses(0.0, 10 ** random.uniform(-1, 1), random.uniform(6, 20), 0.0) if narrower else None
    return EmulatedBench(board, base, losses, noise, embedding, ffn_step=16 * (heads // 3))
