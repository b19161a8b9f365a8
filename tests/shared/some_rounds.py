"""Rounds of a search that were never measured, and a table for their plans."""

from __future__ import annotations

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.latency.rounds import AIM, MeasuredFigure, Round, Shape
from edgevit.records.model import BlockDims

BASE = BlockDims(2, 32, 32, 64)
SHAPES = [
    Shape((BlockDims(heads, 32, 32, ffn),) * count, tuple(range(count)))
    for heads, ffn, count in ((1, 64, 4), (2, 16, 4), (1, 16, 4), (2, 64, 2), (2, 64, 1))
]


TABLE = {
    "schema": 1,
    "measured_on": "paper",
    "between": "linear",
    "base": {"family": "vit", "embed": 64, "tokens": 17, "patch_values": 192, "depth": 4},
    "fixed_ms": 1.0,
    "blocks": [
        {
            "base": BASE.sizes,
            "block_ms": -0.1,
            "attention": [{"heads": h, "width": w, "ms": h * w / 64} for h in (1, 2) for w in (16, 32)],
            "ffn": [{"width": 16, "ms": 0.5}, {"width": 64, "ms": 2.0}],
        }
    ],
}
PRICES = CostTable.model_validate(TABLE).in_quantity("ms")


def exactly(value: float) -> MeasuredFigure:
    return MeasuredFigure(value, value, value, 8)


def a_round(value: float, *, limit: float = AIM, predicted: float = AIM, width: float = 0.0, shape: int = 0) -> Round:
    return Round(
        f"{shape}", limit, SHAPES[shape], predicted, MeasuredFigure(value, value * (1 - width), value * (1 + width), 8)
    )
