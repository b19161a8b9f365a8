"""How many processes decode images, where nobody says."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from edgevit.data import loading
from edgevit.data.loading import IMAGE_BYTES, workers_for


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 cores that fork, with room for any number of batches of 256 images."""
    monkeypatch.setattr(loading, "_cores", lambda: 16)
    monkeypatch.setattr(loading, "_forks", lambda: True)
    monkeypatch.setattr(loading, "shared_bytes", lambda: 64 * 2**30)


def test_what_is_asked_for_is_taken_and_else_a_gpu_has_some() -> None:
    assert [workers_for(asked, device, 256) for asked in (0, 3) for device in ("cpu", "cuda")] == [0, 0, 3, 3]
    assert workers_for(None, "cpu", 256) == 0 and workers_for(None, "cuda", 256) == 8


def test_processes_side_by_side_share_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert workers_for(None, "cuda", 256, sharing=4) == 4 and workers_for(None, "cuda", 256, sharing=32) == 0
    monkeypatch.setattr(loading, "shared_bytes", lambda: 6 * 2 * 256 * IMAGE_BYTES)
    assert [workers_for(None, "cuda", 256, sharing=n) for n in (1, 2)] == [6, 3]


def test_where_memory_is_not_shared_or_processes_are_not_forked_there_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loading, "shared_bytes", lambda: 64 * 2**20)  # of a container
    assert workers_for(None, "cuda", 256) == 0
    monkeypatch.undo()
    assert loading.shared_bytes(tmp_path / "none") == 0 < loading.shared_bytes(tmp_path) and loading._cores() > 0
    assert loading._forks() == (multiprocessing.get_start_method() == "fork")
    monkeypatch.setattr(loading, "_forks", lambda: False)
    assert workers_for(None, "cuda", 1) == 0
