"""ctypes on libcudart: a stand-in that is compiled here, and NVIDIA's own library."""

from __future__ import annotations

import ctypes
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from pythons import interpreter
from standin_board import ORIN, exercise, play_cudart, real_cudart

from edgevit.agent.cuda import describe_cuda, open_cuda
from edgevit.agent.runners import CaptureError, RunnerError


@pytest.mark.parametrize(
    "function",
    ["GetDeviceProperties", "HostAlloc", "StreamCreateWithFlags", "EventCreateWithFlags", "MemcpyAsync", "EventRecord",
     "EventSynchronize", "EventElapsedTime", "StreamSynchronize", "StreamBeginCapture", "StreamEndCapture",
     "GraphInstantiateWithFlags", "GraphLaunch"],
)  # fmt: skip
def test_every_return_code_is_looked_at(function: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = play_cudart(monkeypatch, tmp_path)
    monkeypatch.setenv("STANDIN_CUDART_FAIL", f"cuda{function}:700")
    with pytest.raises(RunnerError, match=rf"^cuda{function}: something else went wrong \(cudaErrorOther\)$"):
        exercise(bytes(64))
    standin = ctypes.CDLL(str(library))
    assert standin.standin_alive() == 0
    assert standin.cudaGetLastError() == 0  # TensorRT would take it for its own


def test_a_capture_that_is_refused_leaves_the_stream_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play_cudart(monkeypatch, tmp_path)
    with open_cuda() as cuda:
        stream, event = cuda.stream(), cuda.event()
        with pytest.raises(CaptureError, match="cudaStreamEndCapture"):
            cuda.capture(stream, lambda: cuda.synchronize(stream))

        def breaks() -> None:
            raise KeyError("an error of another kind")

        with pytest.raises(KeyError):
            cuda.capture(stream, breaks)
        cuda.record(event, stream)
        cuda.wait(event)
        cuda.capture(stream, lambda: None)()


@pytest.mark.quick("3.8")
@pytest.mark.parametrize("version", ["3.8", "3.12"])
def test_the_ctypes_binding_works_under_other_pythons(
    version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play_cudart(monkeypatch, tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from edgevit.agent.cuda import open_cuda\n"
        "with open_cuda(spin=True) as cuda:\n"
        "    stream, event, device, host = cuda.stream(), cuda.event(), cuda.malloc(9), cuda.host(9)\n"
        "    host[:] = b'there and'\n"
        "    cuda.copy_in(device, host[:5], stream)\n"
        "    host[:] = bytes(9)\n"
        "    cuda.copy_out(host[4:], device, stream)\n"
        "    cuda.capture(stream, lambda: cuda.record(event, stream))()\n"
        "    cuda.wait(event)\n"
        "    print(bytes(host), cuda.describe())\n"
    )
    command = [interpreter(version), "-c", code, str(ROOT)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == f"{bytes(4) + b'there'!r} {ORIN}\n"


def test_the_schedule_is_set_once_and_not_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play_cudart(monkeypatch, tmp_path)
    with open_cuda(spin=True):
        pass
    monkeypatch.setenv("STANDIN_CUDART_FAIL", "cudaSetDeviceFlags:708")  # as before CUDA 12 when the GPU is in use
    with open_cuda(spin=True):
        pass
    with pytest.raises(RunnerError, match="cudaSetDeviceFlags"), open_cuda(spin=False):
        pass


def has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def test_the_real_library_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEVIT_CUDART", str(real_cudart()))
    if has_gpu():
        pytest.skip("there is a driver")
    error = describe_cuda()["error"]
    assert error.startswith("cudaGetDeviceCount: CUDA driver version is insufficient")
    assert "(cudaErrorInsufficientDriver); in a container, start it with `--runtime nvidia`" in error


@pytest.mark.gpu
def test_the_real_library_copies_times_and_launches_on_a_gpu(gpu: Any) -> None:
    known = exercise(bytes(range(256)) * 4096)
    assert known["binding"] == "ctypes"
    assert known["device"] == gpu.cuda.get_device_name(0)
    assert known["sms"] == gpu.cuda.get_device_properties(0).multi_processor_count
    assert known["capability"] == "{}.{}".format(*gpu.cuda.get_device_capability(0))


@pytest.mark.gpu
def test_events_measure_a_copy_as_the_wall_clock_does(gpu: Any) -> None:
    size = 256 << 20
    with open_cuda() as cuda:
        stream, start, end = cuda.stream(), cuda.event(), cuda.event()
        device, host = cuda.malloc(size), cuda.host(size)
        for _ in range(2):
            began = time.perf_counter_ns()
            cuda.record(start, stream)
            cuda.copy_in(device, host, stream)
            cuda.record(end, stream)
            cuda.wait(end)
            wall_ns = time.perf_counter_ns() - began
        assert 0.5 * wall_ns < cuda.elapsed_ns(start, end) <= 1.05 * wall_ns
        with pytest.raises(RunnerError, match=r"MB free: cudaMalloc: out of memory"):
            cuda.malloc(1 << 50)
        cuda.synchronize(stream)  # the error is forgotten, and the device goes on
