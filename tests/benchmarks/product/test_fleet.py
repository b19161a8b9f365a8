from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.product.fleet import simulated, write_plan
from edgevit.jobs.fleet.plan import read_plan
from edgevit.jobs.jobs_file import read_jobs


def test_the_plan_and_the_jobs_file_have_the_same_derivations(tmp_path: Path) -> None:
    derivations = [job for job in read_plan(write_plan(tmp_path, 3, 2)).jobs if job.stage == "derive"]
    jobs, _ = read_jobs(write_plan(tmp_path, 3, 2, jobs_file=True))
    assert len(derivations) == len(jobs) == 6
    arguments = [{**job.derivation.arguments, "preprocessing": None} for job in derivations]
    assert all({**job.arguments, "preprocessing": None} in arguments for job in jobs)


def test_a_simulated_worker_is_idle_at_the_end_only() -> None:
    many = simulated([1.0] * 10, 4)
    assert many["wall_s"] == 3 and many["utilisation"] == pytest.approx(10 / 12)
