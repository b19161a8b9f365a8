"""Which Jetson this is and how it is set: read from files that need no root, and from nvpmodel. JetPack 5, 6 and 7.

What a machine does not tell is None or missing, so that all of it may be asked of any machine.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, Optional, TypedDict

from .kernel import integer, read_bytes, read_integer, read_text, run_program
from .meters import ina3221

# L4T to JetPack, from NVIDIA's archive of both.
_JETPACK = {
    "35.2.1": "5.1",
    "35.3.1": "5.1.1",
    "35.4.1": "5.1.2",
    "35.5.0": "5.1.3",
    "35.6.0": "5.1.4",
    "35.6.1": "5.1.5",
    "35.6.2": "5.1.5",
    "35.6.4": "5.1.6",
    "36.2.0": "6.0 DP",
    "36.3.0": "6.0",
    "36.4.0": "6.1",
    "36.4.2": "6.1",
    "36.4.3": "6.2",
    "36.4.4": "6.2.1",
    "36.4.7": "6.2.1",
    "36.5.0": "6.2.2",
    "36.5.2": "6.2.3",
    "38.2.0": "7.0",
    "38.2.1": "7.0",
    "38.2.2": "7.0",
    "38.4.0": "7.1",
    "39.0.0": "7.2 EA",
    "39.2.0": "7.2",
    "39.2.1": "7.2.1",
    "39.2.2": "7.2.2",
}

EMC_LOCKED = "sys/kernel/debug/bpmp/debug/clk/emc/mrq_rate_locked"
_PART = re.compile(r"p\d{4}-\d{4}")
_RELEASE = re.compile(r"# R(\d+) \(release\), REVISION: (\d+(?:\.\d+)*)")
_MODE = re.compile(r"<\s*POWER_MODEL\s+ID=(\d{1,9})\s+NAME=([^\s>]+)\s*>")
_DEFAULT_MODE = re.compile(r"<\s*PM_CONFIG\s+DEFAULT=(\d{1,9})\s*>")
_ANSWER = re.compile(r"NV Power Mode:[ \t]*(\S+)(?:\s+(\d{1,9})\b)?")  # the name, and the number on the line after it
_SAVED = re.compile(r"pmode:(\d{1,9})\b")


class ModuleIdentity(TypedDict):
    part: Optional[str]  # part number of the module, such as p3767-0000; None: not known
    compatible: List[str]
    model: Optional[str]  # name of the carrier board; None: not known
    super: bool
    memory_bytes: Optional[int]


class CurrentMode(TypedDict):
    id: Optional[int]
    name: str


class PowerModeLimits(TypedDict):
    """A mode of the board's table. A limit of None: only the hardware limits it."""

    id: int
    name: str
    cpus_online: int
    tpc_mask: Optional[int]  # bits of the parts of the GPU (TPCs) that are switched off
    gpu_max_hz: Optional[int]
    emc_max_hz: Optional[int]


class ClockReading(TypedDict):
    cur_khz: int
    min_khz: int
    max_khz: int
    governor: Optional[str]


class RailPower(TypedDict):
    address: str
    label: str
    milliwatts: float


def identify(root: str) -> ModuleIdentity:
    """Identify the module by its part number, because `model` names the carrier board, which may have any module."""
    compatible = [name for name in (read_text(root, "proc/device-tree/compatible") or "").split("\0") if name]
    numbers = [_PART.findall(name) for name in compatible if name.startswith("nvidia,")]
    return {
        # "nvidia,p3768-0000+p3767-0000-super": the carrier board, the module on it, and that it runs at Super clocks
        "part": next((groups[-1] for groups in numbers if groups), None),
        "compatible": compatible,
        "model": read_text(root, "proc/device-tree/model") or None,
        "super": any(name.endswith("-super") for name in compatible),
        "memory_bytes": read_bytes(root, "proc/meminfo", "MemTotal"),
    }


def l4t(root: str) -> str | None:
    """Return the release of Jetson Linux, e.g. "36.4.3"."""
    release = _RELEASE.match(read_text(root, "etc/nv_tegra_release") or "")
    return ".".join(release.groups()) if release else None


def modes_want_a_reboot(release: str | None) -> bool:
    """Whether nvpmodel of this release may ask for a reboot at any change of the mode, once the GPU was used."""
    return int((release or "0").partition(".")[0]) >= 39  # JetPack 7.2


def jetpack(root: str) -> str | None:
    return _JETPACK.get(l4t(root) or "")


def power_modes(root: str) -> list[PowerModeLimits]:
    """Return the modes of this board's own table; their numbers differ between boards."""
    modes: list[PowerModeLimits] = []
    inside = False
    for line in (read_text(root, "etc/nvpmodel.conf") or "").splitlines():
        if line.lstrip().startswith("<"):
            opened = _MODE.search(line)
            inside = opened is not None
            if opened:
                modes.append(
                    {
                        "id": int(opened.group(1)),
                        "name": opened.group(2),
                        "cpus_online": 0,
                        "tpc_mask": None,
                        "gpu_max_hz": None,
                        "emc_max_hz": None,
                    }
                )
        elif inside:
            _add_setting(modes[-1], line.split())
    return modes


def _add_setting(mode: PowerModeLimits, words: list[str]) -> None:
    value = integer(words[2]) if len(words) == 3 else None
    if value is None:
        return
    if words[0] == "CPU_ONLINE":
        mode["cpus_online"] += value == 1
    elif words[:2] == ["TPC_POWER_GATING", "TPC_PG_MASK"]:
        mode["tpc_mask"] = value
    elif words[:2] == ["GPU", "MAX_FREQ"]:
        mode["gpu_max_hz"] = value if value > 0 else None  # -1: no limit
    elif words[:2] == ["EMC", "MAX_FREQ"]:
        mode["emc_max_hz"] = value if value > 0 else None  # -1 or 0: no limit


def default_power_mode(root: str) -> int | None:
    match = _DEFAULT_MODE.search(read_text(root, "etc/nvpmodel.conf") or "")
    return int(match.group(1)) if match else None


def power_mode(root: str) -> CurrentMode | None:
    """Return number and name of the mode, as nvpmodel says, or else as it has saved them."""
    modes = power_modes(root)
    answer = parse_answer(run_program(root, "nvpmodel", "-q") or "")
    if answer:
        name, number = answer
        numbers = [number] if number is not None else [mode["id"] for mode in modes if mode["name"] == name]
        return {"id": numbers[0] if numbers else None, "name": name}
    saved = _SAVED.search(read_text(root, "var/lib/nvpmodel/status") or "")
    number = integer(saved.group(1)) if saved else None
    return next((CurrentMode(id=number, name=mode["name"]) for mode in modes if mode["id"] == number), None)


def parse_answer(text: str) -> tuple[str, int | None] | None:
    """Return name and number of the mode from what `nvpmodel -q` prints; warnings may come first."""
    match = _ANSWER.search(text)
    return (match.group(1), integer(match.group(2) or "")) if match else None


def gpu_devfreq(root: str) -> str | None:
    """Return where the GPU's clock is: JetPack 5 calls it 17000000.ga10b, 6 and 7 17000000.gpu."""
    return next((str(folder) for folder in sorted(Path(root, "sys/class/devfreq").glob("17000000.*"))), None)


def cpufreq(root: str) -> dict[str, str]:
    """Return where the clock of each core is that is switched on.

    A power mode may switch cores off. Before Linux 6 such a core keeps its folder, with limits that nobody can change.
    """
    folders = Path(root, "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq")
    return {
        folder.parent.name: str(folder)
        for folder in sorted(folders)
        if read_integer(str(folder.parent), "online") != 0  # cpu0 may have no such file, and is always on
    }


def clocks(root: str) -> Dict[str, Optional[ClockReading]]:
    """Return the clocks of "gpu" (None if unknown) and of each core."""
    gpu = gpu_devfreq(root)
    clocks = {"gpu": _clock(gpu, "{}_freq", "governor", 1000) if gpu else None}
    for core, folder in cpufreq(root).items():
        clock = _clock(folder, "scaling_{}_freq", "scaling_governor", 1)
        if clock:
            clocks[core] = clock
    return clocks


def _clock(folder: str, file: str, governor: str, per_khz: int) -> ClockReading | None:
    current, lowest, highest = (read_integer(folder, file.format(name)) for name in ("cur", "min", "max"))
    if current is None or lowest is None or highest is None:
        return None
    return {
        "cur_khz": current // per_khz,
        "min_khz": lowest // per_khz,
        "max_khz": highest // per_khz,
        "governor": read_text(folder, governor),
    }


def clocks_locked(root: str) -> bool | None:
    """Whether each clock that can be read, of the GPU and of the cores, stays at one speed; None: none can be read."""
    readings = [clock for clock in clocks(root).values() if clock]
    return all(is_locked(clock) for clock in readings) if readings else None


def is_locked(clock: ClockReading) -> bool:
    """Whether one speed is left to choose from, or the governor always takes the highest, as on JetPack 7.2."""
    return clock["min_khz"] == clock["max_khz"] or clock["governor"] == "performance"


def memory_clock_locked(root: str) -> bool | None:
    """Whether jetson_clocks holds the clock of the memory (EMC); None: it cannot be read, as by all but root."""
    locked = read_integer(root, EMC_LOCKED)
    return None if locked is None else locked == 1


def temperatures_c(root: str) -> dict[str, float]:
    """Return degrees by thermal zone ("cpu", "gpu", "tj"); zones that are switched off are left out."""
    degrees: dict[str, float] = {}
    for zone in sorted(Path(root, "sys/class/thermal").glob("thermal_zone*")):
        name = re.sub(r"-therm(al)?$", "", (read_text(str(zone), "type") or "").lower())
        millidegrees = read_integer(str(zone), "temp")
        if name and millidegrees is not None and millidegrees > -256_000:  # -256: off, as JetPack 5 says it
            degrees[name] = max(millidegrees / 1000, degrees.get(name, -256.0))
    return degrees


def rails(root: str) -> list[RailPower]:
    """Return what each power rail draws now."""
    readings: list[RailPower] = []
    for rail in ina3221.sensor_channels(root):
        milliwatts = rail.milliwatts()
        if milliwatts is not None:
            readings.append({"address": rail.address, "label": rail.label, "milliwatts": milliwatts})
    return readings
