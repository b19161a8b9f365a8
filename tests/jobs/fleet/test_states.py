"""Which jobs are done, run, failed or wait, and for what."""

from __future__ import annotations

from typing import Any

from edgevit.errors import OutputError
from edgevit.jobs.fleet.plan import FleetJob, read_plan
from edgevit.jobs.fleet.states import JOB_KIND, RECORD, JobRecord, states_of
from edgevit.records.lock import alone_in


def write_record(job: FleetJob, state: Any, reason: str | None = None, **more: Any) -> None:
    job.folder.mkdir(parents=True, exist_ok=True)
    record = JobRecord(
        job.name, **{"sha256": job.sha256, **more}, state=state, reason=reason, versions={"edgevit": "1"}
    )
    (job.folder / RECORD).write_text(JOB_KIND.text(record))


def states(jobs: tuple[FleetJob, ...]) -> list[tuple[str, str | None]]:
    return [(state.state, state.reason) for state in states_of(jobs)]


def test_states_are_read_from_the_folders_of_jobs(fleet_plan: Any) -> None:
    jobs = read_plan(fleet_plan()).jobs
    derive, export, _ = jobs
    for_derive = ("waiting", f"for {derive.name}, which waits")
    assert states(jobs) == [("waiting", "for a worker"), for_derive, for_derive]
    write_record(derive, "done")
    assert states(jobs)[0] == ("waiting", "for a worker"), "its model is not there"
    derive.model.mkdir()
    (derive.model / "model.json").touch()
    assert states(jobs)[:2] == [("done", None), ("waiting", "for a worker")]
    write_record(export, "failed", "a check failed")
    assert states(jobs)[1:] == [("failed", "a check failed"), ("waiting", f"for {export.name}, which failed")]
    with alone_in(export.folder, OutputError("busy")):
        assert states(jobs)[1] == ("running", None)
    write_record(export, "waiting", "orin does not answer")
    assert states(jobs)[1] == ("waiting", "as orin does not answer")


def test_a_record_of_something_else_or_a_damaged_one_is_none(fleet_plan: Any) -> None:
    derive, *_ = jobs = read_plan(fleet_plan()).jobs
    write_record(derive, "failed", "a check failed", sha256="0" * 64)
    assert states(jobs)[0] == ("waiting", "for a worker")
    write_record(derive, "failed", "a check failed")
    file = derive.folder / RECORD
    file.write_text(file.read_text().replace("a check", "no check"))
    assert states(jobs)[0] == ("waiting", "for a worker")


def test_a_derivation_that_is_done_is_so_with_a_lenient_option_more_and_one_that_failed_is_due(fleet_plan: Any) -> None:
    strict, *_ = read_plan(fleet_plan()).jobs
    lenient = read_plan(fleet_plan(accept_preprocessing=True)).jobs
    assert lenient[0].sha256 != strict.sha256
    strict.model.mkdir(parents=True)
    (strict.model / "model.json").touch()
    write_record(strict, "done")
    assert states(lenient)[0] == ("done", None)
    write_record(strict, "failed", "the preprocessing is another")
    assert states(lenient)[0] == ("waiting", "for a worker"), "it is tried again with the option"
