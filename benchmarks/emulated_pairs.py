"""Two emulated boards that one model is to run on: each obeys laws of its own, and one may be cheap where the other is
dear."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from emulated import EmulatedBench, draw

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.derivation.allocate.mixed_table import mixed
from edgevit.errors import BudgetError
from edgevit.latency.boards import Searches
from edgevit.latency.mixing import CLOSE, fitting
from edgevit.latency.rounds import Candidate, MeasuredFigure, Shape

RATE = 0.3  # of attentions and of FFNs: up to 10 ** 0.3 = 2 times as long or as short on one board as on another
HALVINGS = 12


@dataclass
class EmulatedPair:
    """The bench of two boards; plans are made by the first one's base and losses, which the second one shares."""

    benches: tuple[EmulatedBench, EmulatedBench]
    quantity: Literal["ms"] = "ms"
    allocated: int = 0  # times

    def tables(self) -> tuple[CostTable, ...]:
        return tuple(bench.table for bench in self.benches)

    def allocate(self, table: CostTable, limit: float, at_least: Shape | None = None) -> Candidate:
        self.allocated += 1
        return self.benches[0].allocate(table, limit, at_least)

    def measure(self, candidate: Candidate) -> tuple[MeasuredFigure, ...]:
        return tuple(seen for bench in self.benches for seen in bench.measure(candidate))

    def refine(self, shape: Shape, board: int) -> None:
        self.benches[board].refine(shape)

    def base_ms(self) -> tuple[float, ...]:
        return tuple(bench.board.ms(bench.base) for bench in self.benches)

    def ms(self, shape: Shape) -> tuple[float, ...]:
        """What a plan really takes on each board."""
        return tuple(bench.board.narrowed(shape.embed).ms(shape.blocks) for bench in self.benches)


def draw_pair(seed: int, *, narrower: bool = True) -> EmulatedPair:
    """A base and two boards, all drawn."""
    random = Random(seed + 2 * 10**6)
    first, other = draw(seed, narrower=narrower), draw(seed + 10**4, narrower=narrower)

    def board(of: EmulatedBench) -> EmulatedBench:
        rates: dict[str, Any] = {name: 10 ** random.uniform(-RATE, RATE) for name in ("attention_rate", "ffn_rate")}
        own = replace(of.board, embed=first.board.embed, tokens=first.board.tokens, **rates)
        return EmulatedBench(own, first.base, first.losses, of.random, first.embedding, ffn_step=first.ffn_step)

    return EmulatedPair((board(first), board(other)))


def draw_opposed(seed: int) -> EmulatedPair:
    """Two boards alike, but that attentions take three times as long on the first, and FFNs on the second."""
    bench = draw(seed)
    boards = (replace(bench.board, attention_rate=3.0), replace(bench.board, ffn_rate=3.0))
    first, second = (
        EmulatedBench(board, bench.base, bench.losses, Random(seed), bench.embedding, ffn_step=bench.ffn_step)
        for board in boards
    )
    return EmulatedPair((first, second))


def lost_by_one_table(pair: EmulatedPair, searches: Searches) -> tuple[float, float]:
    """What the best plan within both budgets loses, by the mixed tables, and by the slower board's table alone.

    The second is the plan of one board's table, whose limit is lowered until the plan is within the other's budget too;
    both by the tables as they are corrected at the end of a search.
    """

    prices = [table.in_quantity("ms") for table in pair.tables()]
    factors = [search.factors(of) for search, of in zip(searches.each, prices, strict=True)]
    tables = [table.corrected(**vars(one)) for table, one in zip(pair.tables(), factors, strict=True)]
    limits = [search.budget for search in searches.each]
    lost: list[float] = []

    def kept(table: CostTable, limit: float) -> Candidate:
        shape, loss = pair.benches[0].best(table, limit)
        lost.append(loss)
        return Candidate(shape, "")

    fitting(kept, tables, limits, "ms")
    by_both = lost[-1]
    cut = [of.base / limit for of, limit in zip(prices, limits, strict=True)]
    slower = cut.index(max(cut))
    scaled = mixed([(table, float(i == slower)) for i, table in enumerate(tables)])
    corrected = [table.in_quantity("ms") for table in tables]
    low, high, limit, by_one = 0.0, limits[slower], limits[slower], float("inf")
    for _ in range(HALVINGS):
        try:
            shape, loss = pair.benches[0].best(scaled, limit)
        except BudgetError:
            low = limit
        else:
            if all(shape.terms(of).total <= most * (1 + CLOSE) for of, most in zip(corrected, limits, strict=True)):
                low, by_one = limit, min(loss, by_one)
            else:
                high = limit
        limit = (low + high) / 2
        if low == high:
            break
    return by_both, by_one
