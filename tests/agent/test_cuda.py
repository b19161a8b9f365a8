"""Both CUDA bindings: pycuda on a stand-in; ctypes on a stand-in that is compiled here, and on NVIDIA's own library."""

from __future__ import annotations

import ctypes
import importlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pythons import interpreter
from standin_board import play, play_cudart

from edgevit.agent import runners
from edgevit.agent.cuda import CaptureError, describe_cuda, open_cuda
from edgevit.agent.measure import Request, measure
from edgevit.agent.runners import RunnerError

ORIN = {"device": "Orin", "sms": 8, "capability": "8.7", "runtime": "12.6"}


@pytest.fixture(params=["ctypes", "pycuda"])
def binding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    play(monkeypatch, tmp_path)
    if request.param == "ctypes":
        play_cudart(monkeypatch, tmp_path)
    return str(request.param)


def exercise(copied: bytes) -> dict[str, Any]:
    """Copy there and back, wait, time and launch; return what it says of the device."""
    with open_cuda() as cuda:
        stream, start, end = cuda.stream(), cuda.event(), cuda.event()
        device, there, back = cuda.malloc(len(copied)), cuda.host(len(copied)), cuda.host(len(copied))
        there[:] = copied
        cuda.copy_in(device, there, stream)
        cuda.record(start, stream)
        cuda.copy_out(back, device, stream)
        cuda.record(end, stream)
        cuda.wait(end)
        assert bytes(back) == copied
        assert 0 <= cuda.elapsed_ns(start, end) < 1e9
        there[:4] = b"part"
        cuda.copy_in(device, there[:4], stream)
        launch = cuda.capture(stream, lambda: cuda.copy_out(back[:8], device, stream))
        launch()
        cuda.synchronize(stream)
        assert bytes(back[:8]) == b"part" + copied[4:8]
        return {"binding": cuda.binding, **cuda.describe()}


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
    command = [interpreter(version), "-c", code, str(Path(__file__).parent.parent.parent)]
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


def test_a_machine_without_any_cuda_says_what_to_try(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEVIT_CUDART", str(tmp_path / "none.so"))
    known = describe_cuda()
    assert known.pop("error").startswith("no CUDA runtime can be loaded (")
    assert set(known.values()) == {None}
    (tmp_path / "empty.so").write_bytes(b"")
    monkeypatch.setenv("EDGEVIT_CUDART", str(tmp_path / "empty.so"))
    assert "EDGEVIT_CUDART" in describe_cuda()["error"]


def real_cudart() -> Path:
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [path for folder in folders for path in sorted(Path(folder).glob("cu*/lib/libcudart.so.*"))]
    if not found:
        pytest.skip("no libcudart of NVIDIA's in this environment")
    return found[0]


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


# On a real GPU -------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torch, where it has a GPU; and its libcudart for the ctypes binding."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU here")
    monkeypatch.setenv("EDGEVIT_CUDART", str(real_cudart()))
    yield torch


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


TORCH_RUNNER = '''
"""A matrix product on the GPU, by torch: shows that what a runner tells of GPU time holds on a real one."""
from contextlib import contextmanager

from edgevit.agent.runners import Loaded

REQUIRES = ("torch",)


@contextmanager
def open_runner(model, batch, *, size=4096):
    import torch

    a = torch.randn(size, size, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def infer():
        start.record()
        for _ in range(batch):
            torch.mm(a, a)
        end.record()
        end.synchronize()

    yield Loaded(infer, "torch", {}, gpu_ns=lambda: round(start.elapsed_time(end) * 1e6))
'''


@pytest.mark.gpu
def test_a_runner_on_a_real_gpu_tells_gpu_time_apart_from_host_time(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch_product.py").write_text(TORCH_RUNNER)
    monkeypatch.setattr(runners, "__path__", [*runners.__path__, str(tmp_path)])
    monkeypatch.setitem(sys.modules, "edgevit.agent.runners.torch_product", None)
    monkeypatch.delitem(sys.modules, "edgevit.agent.runners.torch_product")
    known = dict(model=__file__, model_sha256="0" * 64, label="product", precision="fp32", runner="torch_product")
    run = measure(Request(**known, batch=4, samples=50, duration_s=0.5), lambda stage, done: None)
    assert run.gpu_ns is not None and len(run.gpu_ns) == len(run.latencies_ns)
    assert all(0 < gpu_ns <= 1.05 * host_ns for gpu_ns, host_ns in zip(run.gpu_ns, run.latencies_ns, strict=True))
