"""Stand-ins for a job that ends badly. A worker imports them from here, and no torch before it needs some."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgevit.jobs.fleet.plan import FleetJob
    from edgevit.jobs.fleet.states import JobRecord


def die(job: FleetJob, *_: object) -> JobRecord:
    """End as by the system's hand, where the task is "odd"."""
    if job.derivation.task == "odd":
        os.kill(os.getpid(), signal.SIGKILL)
    from edgevit.jobs.fleet.states import JobRecord

    return JobRecord(job.name, job.sha256, "done")


def fail(job: FleetJob, *_: object) -> JobRecord:
    raise ZeroDivisionError("a fault of edgevit")


def wait(folder: str) -> None:
    """Say that it has begun, and keep something when it is ended."""
    begun = Path(folder, "begun.part")
    begun.write_text(str(os.getpid()))
    begun.rename(begun.with_suffix(""))
    try:
        time.sleep(300)
    except KeyboardInterrupt:
        Path(folder, "kept").touch()
        raise


def visible_gpu(folder: str, *_: object) -> str | None:
    """Wait until two such jobs have begun; name the GPU that CUDA would use."""
    Path(folder, str(os.getpid())).touch()
    while len(list(Path(folder).iterdir())) < 2:
        time.sleep(0.1)
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def count(file: str, results: Mapping[str, int], *_: object) -> int:
    """Count the calls in a file of the working folder; add the results that it needs."""
    with Path(file).open("a") as opened:
        opened.write("x")
    time.sleep(1)
    return len(Path(file).read_text()) + sum(results.values())
