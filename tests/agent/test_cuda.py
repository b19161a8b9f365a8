"""Both CUDA bindings: pycuda on a stand-in; ctypes on a stand-in that is compiled here, and on NVIDIA's own library."""

from __future__ import annotations

import ctypes
import importlib
from pathlib import Path

import pytest
from standin_board import ORIN, exercise, play, play_cudart

from edgevit.agent.cuda import describe_cuda, open_cuda
from edgevit.agent.runners import RunnerError


@pytest.fixture(params=["ctypes", "pycuda"])
def binding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    play(monkeypatch, tmp_path)
    if request.param == "ctypes":
        play_cudart(monkeypatch, tmp_path)
    return str(request.param)


def test_copies_events_and_graphs_work_through_each_binding(binding: str) -> None:
    assert exercise(bytes(range(256)) * 100) == {"binding": binding, **ORIN}
    assert describe_cuda() == {"error": None, "binding": binding, **ORIN}


def alive(binding: str) -> int:
    """How much of what was made is not freed."""
    if binding == "ctypes":
        import os

        return int(ctypes.CDLL(os.environ["EDGEVIT_CUDART"]).standin_alive())
    return len(importlib.import_module("pycuda.driver").alive)


def test_everything_is_freed_on_leaving_even_by_an_error(binding: str) -> None:
    with pytest.raises(ZeroDivisionError), open_cuda(spin=False) as cuda:
        stream = cuda.stream()
        memory, host = cuda.malloc(64), cuda.host(64)
        cuda.copy_in(memory, host, stream)
        cuda.capture(stream, lambda: None)
        cuda.wait(cuda.event())
        assert alive(binding) > 0
        _ = 1 / 0
    assert alive(binding) == 0


def test_a_device_without_memory_is_one_line(binding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_CUDART_FAIL", "cudaMalloc:2")
    monkeypatch.setenv("STANDIN_PYCUDA_FAIL", "cuMemAlloc")
    with pytest.raises(RunnerError, match=r"out of memory.*; close other programs") as error, open_cuda() as cuda:
        cuda.malloc(1 << 20)
    assert "\n" not in str(error.value)
    if binding == "ctypes":
        assert "1.0 MB asked for, 250.0 MB free: cudaMalloc: out of memory" in str(error.value)


def test_a_machine_without_any_cuda_says_what_to_try(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEVIT_CUDART", str(tmp_path / "none.so"))
    known = describe_cuda()
    assert known.pop("error").startswith("no CUDA runtime can be loaded (")
    assert set(known.values()) == {None}
    (tmp_path / "empty.so").write_bytes(b"")
    monkeypatch.setenv("EDGEVIT_CUDART", str(tmp_path / "empty.so"))
    assert "EDGEVIT_CUDART" in describe_cuda()["error"]
