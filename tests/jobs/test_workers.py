"""Pieces of work in processes of their own, which end with their parent."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from forks import Program

from edgevit.jobs.workers import work_off


def told(name: str) -> tuple[str | None, int]:
    """What a worker sees; at module level, so that it can import it."""
    return os.environ.get(name), os.getpid()


def test_every_piece_is_told_when_it_begins_and_when_it_ends_and_workers_wait_without_spinning() -> None:
    names = ["OMP_WAIT_POLICY", "OMP_NUM_THREADS"]
    before = dict(os.environ)
    events = list(work_off(told, names, processes=1, threads=1))
    assert sorted(piece for piece, result in events if result is None) == sorted(names)
    results = {piece: result for piece, result in events if isinstance(result, tuple)}
    assert (results["OMP_WAIT_POLICY"][0], results["OMP_NUM_THREADS"][0]) == ("PASSIVE", "1")
    assert {pid for _, pid in results.values()}.isdisjoint({os.getpid()})
    assert dict(os.environ) == before


WAITING = """
import sys
from bad_jobs import wait
from edgevit.jobs.workers import work_off
for _ in work_off(wait, [sys.argv[1]], processes=1, threads=1):
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
