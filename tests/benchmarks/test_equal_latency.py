"""The search for a rate that ends at a latency, and the table of what it is worth."""

from __future__ import annotations

import pytest
from equal_latency import NEAR, TRIES, nearest_rate, section
from meet import here_section


@pytest.mark.parametrize(("aim", "first"), [(0.3, 0.9), (0.5, 0.5), (0.9, 0.3), (0.2, 0.98), (0.2, 0.02)])
def test_a_rate_is_found_that_takes_nearly_as_long_where_latency_falls_in_steps(aim: float, first: float) -> None:
    tried = []

    def measure(rate: float) -> float:
        tried.append(rate)
        return round(0.15 + 0.85 * (1 - rate) ** 1.4, 2)

    rate, taken = nearest_rate(aim, first, measure)
    assert abs(taken / aim - 1) <= 0.03 and rate in tried and len(tried) <= TRIES
    assert len(tried) == TRIES or abs(taken / aim - 1) <= NEAR


def test_tables_show_what_rows_say() -> None:
    row = {
        "base_of": "demo", "task": 6, "seed": 42, "share": 0.5, "rate": 0.61, "apart": [1.004, 0.99, 1.01],
        "load_average": 0.5, "accuracy": {"ms": 0.9, "rate": 0.88}, "base_restricted": 0.92,
        "embed": {"ms": 192, "rate": 144}, "outcome": "met",
    }  # fmt: skip
    told = section({"rows": [row, {**row, "seed": 43, "accuracy": {"ms": 0.92, "rate": 0.86}}]})
    assert "In 2 of 2 pairs the two differ by at most 2%: over these, `--ms` is worth +4.0" in told.replace("\n", " ")
    slower = {**row, "seed": 44, "apart": [1.05, 1.04, 1.06], "accuracy": {"ms": 0.99, "rate": 0.1}}
    apart = section({"rows": [row, slower]}).replace("\n", " ")
    assert "is worth +2.0 points" in apart and "The others differ by +5.0%" in apart and "| +2.0 of 1 |" in apart
    assert "2 of 2 met, 0 below the window, 0 above" in told.replace("\n", " ")
    assert "91.0 (90.0 to 92.0)" in told and "+4.0 (+2.0 to +6.0)" in told
    assert section(None) == ""
    assert "the base of the demo," in told.replace("\n", " ")
    assert "the base of 48 finer classes," in section({"rows": [{**row, "base_of": "fine"}]}).replace("\n", " ")
    here = {
        "model": "demo", "share": 0.5, "repeat": 0, "outcome": "met", "rounds": [[1, 1]], "verified": 0.98,
        "afterwards": 0.97, "interval": [0.95, None], "seconds": 120, "table_seconds": 60, "measured_on": "a test",
        "load_average": 0.1,
    }  # fmt: skip
    told = here_section([here, {**here, "repeat": 1, "afterwards": 1.02}])
    assert "1 of 2" in told.replace("\n", " ")
    assert "| demo, 0.5 of its base | met | 1 | 0.980 | 0.970 | 2.0; 1.0 | 0.1 |" in told, "half an interval is none"
    assert "| demo, 0.5 of its base, run 2 | met |" in told
    assert "| 0.970 (0.950 to 0.990) |" in here_section([{**here, "interval": [0.95, 0.99]}])
