"""The binding by pycuda, on a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest
from standin_board import play

from edgevit.agent.cuda import describe_cuda, open_cuda


def test_an_old_pycuda_says_that_it_has_no_graphs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STANDIN_PYCUDA", "2020")
    play(monkeypatch, tmp_path)
    with open_cuda() as cuda:
        assert (cuda.binding, cuda.graphs) == ("pycuda", False)


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
