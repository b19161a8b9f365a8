from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgevit.agent import environment
from edgevit.agent.meters import load

FILES = {
    "meminfo": "proc/meminfo",
    "status": "proc/self/status",
    "stat": "proc/stat",
    "loadavg": "proc/loadavg",
    "cpu0": "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq",
    "cpu1": "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq",
    "governor": "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "model": "proc/device-tree/model",
    "cpuinfo": "proc/cpuinfo",
    "gpu": "proc/driver/nvidia/gpus/0000:01:00.0/information",
    "driver": "proc/driver/nvidia/version",
    "nvmap": "sys/kernel/debug/nvmap/iovmm/clients",
}


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A two-core board whose files a test may rewrite between readings."""
    monkeypatch.setattr(environment, "usable_cpus", lambda: [0, 1])
    monkeypatch.setattr(load, "usable_cpus", lambda: [0, 1])
    monkeypatch.setattr(load.os, "sysconf", lambda name: 100)

    def write(**files: str) -> str:
        for name, text in files.items():
            path = tmp_path / FILES[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(tmp_path)

    return write


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torch, where it has a GPU; and its libcudart for the ctypes binding."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU here")
    from standin_board import real_cudart

    monkeypatch.setenv("EDGEVIT_CUDART", str(real_cudart()))
    yield torch
