"""What must be the same for two runs to be compared. What cannot be read is left out, never guessed."""

from __future__ import annotations

import os
import platform
from hashlib import sha256
from pathlib import Path

from . import jetson
from .kernel import read_keys, read_text

_CPUFREQ = "sys/devices/system/cpu/cpu0/cpufreq"


def usable_cpus() -> list[int]:
    """Return the numbers of the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def describe_environment(root: str) -> dict[str, str]:
    facts = {
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "board": read_text(root, "proc/device-tree/model"),
        "cpu": read_keys(root, "proc/cpuinfo").get("model name"),
        "cores": str(len(usable_cpus())),
        "cpu_governor": read_text(root, f"{_CPUFREQ}/scaling_governor"),
        "cpu_max_khz": read_text(root, f"{_CPUFREQ}/scaling_max_freq"),
        "gpu": _gpu(root),
        "gpu_driver": read_keys(root, "proc/driver/nvidia/version").get("NVRM version"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    facts.update(_jetson(root))
    return {name: value for name, value in facts.items() if value}


def _jetson(root: str) -> dict[str, str | None]:
    """The facts in which Jetsons differ; nothing on other machines."""
    module, l4t = jetson.identify(root), jetson.l4t(root)
    if not module["part"] and not l4t:  # a container may hide the first, and a Jetson of another maker not tell it
        return {}
    mode, clocks = jetson.power_mode(root), jetson.clocks(root)
    gpu, memory, table = clocks["gpu"], module["memory_bytes"], read_text(root, "etc/nvpmodel.conf")
    return {
        "module": module["part"] and module["part"] + ("-super" if module["super"] else ""),
        "memory": f"{memory / 2**30:.0f} GiB" if memory else None,  # one part number may stand for several modules
        "l4t": l4t,
        "jetpack": jetson.jetpack(root),
        "power_mode": mode and mode["name"],
        "power_modes": sha256(table.encode()).hexdigest()[:12] if table else None,  # the table may have been edited
        "gpu_max_khz": str(gpu["max_khz"]) if gpu else None,
        "clocks": "locked" if jetson.clocks_locked(root) else "free",
    }


def _gpu(root: str) -> str | None:
    folders = sorted(Path(root, "proc/driver/nvidia/gpus").glob("*"))
    models = [read_keys(str(folder), "information").get("Model") for folder in folders]
    return ", ".join(model for model in models if model) or None
