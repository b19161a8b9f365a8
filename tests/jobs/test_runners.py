"""Jobs in this process, in order; tests/jobs/test_many.py has those in processes of their own."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from edgevit.errors import BudgetError, DataError, JobsError
from edgevit.jobs.runners import Job, Results, run_here, run_in_processes
from edgevit.progress import Progress, Silent


def total(number: int, results: Results, _: Progress) -> int:
    """The number and the results that it needs; 0 is no job."""
    if not number:
        raise BudgetError("nothing is as small", least=0.5)
    return number + sum(results.values())


def test_jobs_are_done_once_with_the_results_that_they_need_and_go_on_after_one_that_is_refused() -> None:
    jobs = [
        Job("a", 1, total),
        Job("b", 2, total, ("a", "done")),
        Job("none", 0, total),
        Job("c", 3, total, ("none", "a")),
        Job("d", 4, total),
        Job("done", 5, total),
    ]
    results: dict[str, Any] = {"done": 10}
    events = [(job.name, result) for job, result in run_here(jobs, results, Silent(), refusals=(BudgetError,))]
    assert [event for event in events if not isinstance(event[1], Exception)] == [
        ("a", None), ("a", 1), ("b", None), ("b", 13), ("none", None), ("d", None), ("d", 4),
    ]  # fmt: skip
    refused, blocked = (result for _, result in events if isinstance(result, Exception))
    assert isinstance(refused, BudgetError) and refused.least == 0.5
    assert isinstance(blocked, JobsError) and str(blocked) == "it needs none, which failed"
    assert results == {"done": 10, "a": 1, "b": 13, "d": 4}


def test_an_error_that_is_no_refusal_ends_all() -> None:
    with pytest.raises(BudgetError, match="nothing is as small"):
        list(run_here([Job("none", 0, total), Job("a", 1, total)], {}, Silent(), refusals=(DataError,)))


def test_a_job_can_be_sent_to_another_process_and_where_all_are_done_none_is_started() -> None:
    job = Job("a", 1, len, ("b",))  # type: ignore[arg-type]  # any function of a module
    assert pickle.loads(pickle.dumps(job)) == job
    assert list(run_in_processes([job], {"a": 1}, workers=1, threads=1)) == []
