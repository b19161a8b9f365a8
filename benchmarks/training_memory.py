"""The most memory that the steps of a training take, as Vulcan's Figure 22 sets beside its batch sizes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgevit.progress import Silent, Stage

PROCESS = Path("/proc/self")
PEAK_ONLY = "5"  # of Linux' proc(5), clear_refs: the high-water mark becomes what the process holds now


class Watched(Silent):
    """Shows no progress, and records the peak memory of the steps of stage `train`.

    Steps after an evaluation are left out, the first step among them, because the evaluation may need more. On a
    processor the peak is that of the whole process; on a GPU what torch allocated.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.peak_mib: float | None = None  # None: nothing was trained, or this system does not tell

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Stage]:
        with super().stage(name, total, unit) as silent:
            yield _Steps(self) if name == "train" else silent


class _Steps:
    def __init__(self, watched: Watched) -> None:
        self.watched, self.judged = watched, True  # before the first step, too

    def update(self, done: int, **figures: float | None) -> None:
        """End a step; figures with an accuracy come after an evaluation."""
        if self.judged or "accuracy_trained" in figures:
            hand_back()  # what judging has freed
        elif (peak := peak_mib(self.watched.device)) is not None:
            self.watched.peak_mib = max(peak, self.watched.peak_mib or 0.0)
        self.judged = not reset_peak(self.watched.device)


def hand_back() -> None:
    """Return freed memory to the system, which the C library would keep in the resident set."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc
        trim(0)


def peak_mib(device: str) -> float | None:
    """Return the peak since the last `reset_peak`."""
    if device != "cpu":
        import torch

        return float(torch.cuda.max_memory_allocated(device)) / 2**20
    try:
        peak = (PROCESS / "status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 2**10 for line in peak if line.startswith("VmHWM")), None)  # told in kB


def reset_peak(device: str) -> bool:
    """Reset the peak; return whether the system allows it."""
    if device != "cpu":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        (PROCESS / "clear_refs").write_text(PEAK_ONLY)
    except OSError:
        return False
    return True
