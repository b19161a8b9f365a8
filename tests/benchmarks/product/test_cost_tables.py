"""What other plans say of a table's errors."""

from __future__ import annotations

from random import Random

from benchmarks.product.cost_tables import corrected, plan
from benchmarks.product.emulated import draw
from edgevit.latency.rounds import Shape, Terms


def test_plans_nearby_correct_a_table_that_is_wrong_about_attentions() -> None:
    bench, random = draw(1, narrower=False), Random(0)
    prices = bench.table.in_quantity("ms")
    shapes = [Shape(tuple(blocks), tuple(kept)) for blocks, kept in (plan(random, bench.base) for _ in range(12))]
    really = Terms(1.0, 1.3, 1.0, 1.0)
    seen = [shape.terms(prices).times(really).total / prices.base for shape in shapes]
    before = [shape.terms(prices).total / prices.base for shape in shapes]
    after = corrected(shapes, seen, prices)
    wrong, mended = ([abs(one / s - 1) for one, s in zip(told, seen, strict=True)] for told in (before, after))
    assert min(wrong) > 0.03 and max(mended) < max(wrong) / 2
