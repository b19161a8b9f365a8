"""The binding by pycuda, on a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest
from standin_board import play, play_cudart

from edgevit.agent.cuda import describe_cuda, open_cuda, runtime


def test_a_pycuda_without_graphs_is_for_where_there_is_no_libcudart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As every release: without a graph, a latency holds what it takes to launch each kernel."""
    library = play_cudart(monkeypatch, tmp_path)
    monkeypatch.delenv("EDGEVIT_CUDART")
    monkeypatch.setenv("STANDIN_PYCUDA", "release")
    play(monkeypatch, tmp_path)
    for names, expected in (((str(library),), ("ctypes", True)), (("none.so",), ("pycuda", False))):
        monkeypatch.setattr(runtime, "NAMES", names)
        with open_cuda() as cuda:
            assert (cuda.binding, cuda.graphs) == expected


@pytest.mark.parametrize("error", ["ImportError('libcurand.so.10')", "ValueError('numpy.dtype size changed')"])
def test_a_pycuda_that_cannot_be_imported_is_passed_over(
    error: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path)
    (tmp_path / "pycuda").mkdir()
    (tmp_path / "pycuda/__init__.py").touch()
    (tmp_path / "pycuda/driver.py").write_text(f"raise {error}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert describe_cuda()["binding"] != "pycuda"
