"""What the jobs of a plan took, and what that costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgevit.jobs.fleet.costs import BoardCost, StageCost, cost_of
from edgevit.jobs.fleet.plan import HourPrices, Stage
from edgevit.jobs.fleet.states import JobProgress, JobState


def took(stage: Stage, seconds: float, state: JobProgress = "done", **more: Any) -> JobState:
    return JobState(stage, stage, state, seconds=seconds, **more)


STATES = [
    took("derive", 3600, cpu_s=7200, gpu_s=1800),
    took("derive", 1800, "failed", cpu_s=1800),
    JobState("later", "derive", "waiting"),
    took("engine", 600, cpu_s=36, board="orin1"),
    took("bench", 300, cpu_s=36, board="orin1"),
    took("bench", 120, cpu_s=36, board="orin2"),
]


def test_hours_are_added_by_stage_and_by_board_and_multiplied_by_the_prices_of_the_plan() -> None:
    cost = cost_of("out", STATES, HourPrices(cpu=0.1, gpu=2.0, board=6.0))
    assert cost.stages[0] == StageCost("derive", 2, 1.5, 2.5, 0.5, 0, pytest.approx(1.25))
    assert [(stage.stage, stage.jobs, stage.board_hours) for stage in cost.stages[1:]] == [
        ("engine", 1, 600 / 3600),
        ("bench", 2, 420 / 3600),
    ]
    assert cost.boards == (
        BoardCost("orin1", 15, 10, 5, 0, pytest.approx(1.5)),
        BoardCost("orin2", 2, 0, 2, 0, pytest.approx(0.2)),
    )
    assert cost.dollars == pytest.approx(1.25 + 1.7 + 0.1 * 108 / 3600)
    assert cost.text() == (
        "2.95 dollars at the plan's prices in dollars: "
        "0.1 of a processor hour and 2 of a GPU hour and 6 of a board hour"
    )
    head, rows = cost.tables()[1]
    assert head[-1] == "dollars" and rows[0] == ("orin1", "15.00", "10.00", "5.00", "0.00", "1.50")


def test_a_board_is_idle_only_while_a_job_that_is_ready_waits_for_it_and_another_job_runs() -> None:
    def job(name: str, began: float, seconds: float, *needs: str, board: str | None = None) -> JobState:
        place = "" if board is None else "orins"
        state = JobState(name, "derive", "done", seconds=seconds, began=began, board=board, place=place, needs=needs)
        return replace(state, stage="derive" if board is None else "engine")

    states = [
        job("a", 100, 50),
        job("b", 100, 80),
        job("c", 150, 60),
        job("a.engine", 150, 20, "a", board="orin1"),  # at once
        job("b.engine", 190, 30, "b", board="orin1"),  # 10 s late; orin2 had nothing to do either
        job("c.engine", 250, 10, "c", board="orin2"),  # 40 s late, of which a job ran for 10 s, on orin1
    ]
    costs = {cost.board: cost for cost in cost_of("out", states, HourPrices()).boards}
    assert costs["orin1"].idle_minutes * 60 == pytest.approx(10)
    assert costs["orin2"].idle_minutes * 60 == pytest.approx(20)
    assert [len(row) for row in cost_of("out", states, HourPrices()).tables()[1][1]] == [5, 5]


def test_without_prices_there_are_no_dollars_and_without_boards_no_table_of_boards() -> None:
    cost = cost_of("out", STATES[:3], HourPrices())
    assert (cost.dollars, cost.text(), cost.stages[0].dollars) == (None, "", None)
    assert [(len(head), len(rows[0])) for head, rows in cost.tables()] == [(5, 5)]
