"""What must be the same for two runs to be compared. What cannot be read is left out, never guessed."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from .kernel import read_keys, read_text

CPUFREQ = "sys/devices/system/cpu/cpu0/cpufreq"


def usable_cpus() -> list[int]:
    """Return the numbers of the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def describe_environment(root: str) -> dict[str, str]:
    known = {
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "board": read_text(root, "proc/device-tree/model"),
        "cpu": read_keys(root, "proc/cpuinfo").get("model name"),
        "cores": str(len(usable_cpus())),
        "cpu_governor": read_text(root, f"{CPUFREQ}/scaling_governor"),
        "cpu_max_khz": read_text(root, f"{CPUFREQ}/scaling_max_freq"),
        "gpu": _gpu(root),
        "gpu_driver": read_keys(root, "proc/driver/nvidia/version").get("NVRM version"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    return {name: value for name, value in known.items() if value}


def _gpu(root: str) -> str | None:
    folders = sorted(Path(root, "proc/driver/nvidia/gpus").glob("*"))
    models = [read_keys(str(folder), "information").get("Model") for folder in folders]
    return ", ".join(model for model in models if model) or None
