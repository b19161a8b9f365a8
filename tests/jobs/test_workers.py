"""Pieces of work in processes of their own, which end with their parent."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from forks import Program

from edgevit.jobs.workers import Died, Pool


def told(name: str) -> tuple[str | None, int]:
    """What a worker sees; at module level, so that it can import it."""
    return os.environ.get(name), os.getpid()


def killed(when: str) -> int:
    if when == "now":
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def ends(pool: Pool[str, Any], count: int) -> list[tuple[str, Any]]:
    seen: list[tuple[str, Any]] = []
    while len(seen) < count:
        seen += pool.ended(60)
    return seen


def test_an_idle_process_gets_the_next_piece_and_waits_without_spinning() -> None:
    before = dict(os.environ)
    with Pool(told, threads=1) as pool:
        pool.begin("OMP_WAIT_POLICY")
        first = ends(pool, 1)
        pool.begin("OMP_NUM_THREADS")
        results = dict(first + ends(pool, 1))
    assert (results["OMP_WAIT_POLICY"][0], results["OMP_NUM_THREADS"][0]) == ("PASSIVE", "1")
    assert len({pid for _, pid in results.values()} - {os.getpid()}) == 1
    assert dict(os.environ) == before


def test_a_process_that_is_killed_ends_its_piece_alone_and_an_idle_one_ends_none() -> None:
    with Pool(killed, threads=1) as pool:
        pool.begin("")
        ((_, process),) = ends(pool, 1)
        os.kill(process, signal.SIGKILL)
        assert pool.ended(60) == []
        pool.begin("now")
        assert ends(pool, 1) == [("now", Died(-signal.SIGKILL))]


WAITING = """
import sys
from bad_jobs import wait
from edgevit.jobs.workers import Pool
with Pool(wait, threads=1) as pool:
    pool.begin(sys.argv[1])
    while not pool.ended(None):
        pass
"""


def test_a_worker_whose_parent_is_killed_keeps_what_it_can_and_ends(tmp_path: Path) -> None:
    program = Program("-c", WAITING, tmp_path)
    while not (tmp_path / "begun").exists():
        assert program.poll() is None, program.stderr
        time.sleep(0.02)
    worker = int((tmp_path / "begun").read_text())
    program.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while Path(f"/proc/{worker}").exists() and "zombie" not in Path(f"/proc/{worker}/status").read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
    assert (tmp_path / "kept").exists()
