"""The search for a rate that ends at a latency."""

from __future__ import annotations

import pytest

from benchmarks.product.equal_latency import NEAR, TRIES, nearest_rate


@pytest.mark.parametrize(("aim", "first"), [(0.3, 0.9), (0.5, 0.5), (0.9, 0.3), (0.2, 0.98), (0.2, 0.02)])
def test_a_rate_is_found_that_takes_nearly_as_long_where_latency_falls_in_steps(aim: float, first: float) -> None:
    tried = []

    def measure(rate: float) -> float:
        tried.append(rate)
        return round(0.15 + 0.85 * (1 - rate) ** 1.4, 2)

    rate, taken = nearest_rate(aim, first, measure)
    assert abs(taken / aim - 1) <= 0.03 and rate in tried and len(tried) <= TRIES
    assert len(tried) == TRIES or abs(taken / aim - 1) <= NEAR
