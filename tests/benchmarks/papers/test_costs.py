from __future__ import annotations

import pytest

from benchmarks.papers.costs import hours, section


def test_what_models_of_a_task_share_counts_once_for_it() -> None:
    alone, every = hours(
        {"seconds": {"purification": 3000.0, "statistics": 240.0, "training": 300.0, "evaluation": 60}}
    )
    assert (alone, every) == (1.0, pytest.approx(50 * (0.9 + 10 * 0.1)))


def test_without_rows_there_is_no_table() -> None:
    assert section(None) == "" and section({"rows": {}}) == ""
