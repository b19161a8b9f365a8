"""Rounds of a search that were never measured, and a table for their plans."""

from __future__ import annotations

from some_tables import rows, table

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.latency.rounds import AIM, MeasuredFigure, Round, Shape
from edgevit.records.model import BlockDims

BASE = BlockDims(2, 32, 32, 64)
SHAPES = [
    Shape((BlockDims(heads, 32, 32, ffn),) * count, tuple(range(count)))
    for heads, ffn, count in ((1, 64, 4), (2, 16, 4), (1, 16, 4), (2, 64, 2), (2, 64, 1))
]


TABLE = table(
    rows(1.0, {(h, w): h * w / 64 for h in (1, 2) for w in (16, 32)}, {16: 0.5, 64: 2.0}, block=-0.1),
    base={"depth": 4, "blocks": [BASE.sizes]},
)
PRICES = CostTable.model_validate(TABLE).in_quantity("ms")


def exactly(value: float) -> MeasuredFigure:
    return MeasuredFigure(value, value, value, 8)


def a_round(value: float, *, limit: float = AIM, predicted: float = AIM, width: float = 0.0, shape: int = 0) -> Round:
    return Round(
        f"{shape}", limit, SHAPES[shape], predicted, MeasuredFigure(value, value * (1 - width), value * (1 + width), 8)
    )
