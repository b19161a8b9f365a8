"""The jobs of a fleet, with a line in the file $COUNTED_JOBS for each that begins, each that ends, and each entry of
the content cache that they make.

`python -c "import counted_jobs; counted_jobs.main()" fleet PLAN ...` is `edgevit fleet PLAN ...` with them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgevit.jobs.fleet.plan import FleetJob

PROGRAM = ("-c", "import counted_jobs; counted_jobs.main()")
VARIABLE = "COUNTED_JOBS"
HELD = "HELD_JOB"  # variable with the name of a job that does not go on before its process is stopped


@dataclass(frozen=True)
class Event:
    """One line: a job begins, or it ends as done, failed or put off; or an entry is made."""

    job: str  # or the name of the entry
    event: str
    parent: int  # process number of who started the worker: on Ray the raylet of a node
    reason: str = ""
    written_ns: int = 0  # when the record of a job that is done was written: by which process it was done


def events() -> list[Event]:
    """The events so far."""
    file = Path(os.environ[VARIABLE])
    return [Event(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def _note(job: str, event: str, reason: str = "", written_ns: int = 0) -> None:
    line = json.dumps(asdict(Event(job, event, os.getppid(), reason, written_ns))) + "\n"
    with open(os.environ[VARIABLE], "a") as opened:
        opened.write(line)


@cache
def _note_entries() -> None:
    """Note each entry that this process makes from now on."""
    from edgevit.derivation.cache import Cache

    store = Cache._store

    def noted(self: Cache, file: Path, *rest: Any) -> None:
        _note(file.name, "entry")
        store(self, file, *rest)

    Cache._store = noted  # type: ignore[method-assign]


def carry_out(job: FleetJob, *rest: object) -> Any:
    from edgevit.jobs.fleet import stages
    from edgevit.jobs.fleet.states import RECORD, JobRecord
    from edgevit.jobs.runners import Retry

    _note_entries()
    _note(job.name, "begins")
    while os.environ.get(HELD) == job.name:
        time.sleep(0.05)
    result = stages.carry_out(job, *rest)
    if isinstance(result, Retry):
        _note(job.name, "put off", result.reason)
    elif isinstance(result, JobRecord):
        _note(job.name, "done", written_ns=(job.folder / RECORD).stat().st_mtime_ns)
    else:
        _note(job.name, "failed", str(result))
    return result


def main() -> None:
    from edgevit.cli.app import main as edgevit
    from edgevit.jobs.fleet import run

    run.carry_out = carry_out  # type: ignore[assignment]  # a function of this module, as the workers import it
    sys.argv[0] = "edgevit"
    edgevit()
