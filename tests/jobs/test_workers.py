"""Pieces of work in processes of their own; tests/jobs/test_many.py ends them from outside."""

from __future__ import annotations

import os

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
