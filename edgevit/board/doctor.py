"""Checks of a board's set-up; each problem comes with the command that fixes it.

A check is a function of the facts and the profile; None where it does not apply. To add one, write
it and name it in `CHECKS`, and in `_JETSON_ONLY` if other machines have nothing like it. A problem stops something that
edgevit is for; with a warning everything works, and figures are worse or other than they could be.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from edgevit.agent.jetson import modes_want_a_reboot
from edgevit.agent.meters.ina3221 import ROOT_ALONE
from edgevit.agent.onnx_runtime import CPU, GPU
from edgevit.board.facts import CLOCK_OFF_S, BoardFacts, ListedMode
from edgevit.board.profiles import Profile
from edgevit.board.roofline import board_ceiling

_OLDEST_PYTHON = (3, 8)
_GIB = 2**30
# Our own limits: a ViT's engine and its build fit below the first of each pair with room to spare, and not the second.
_MEMORY_GIB = (2.0, 0.75)
_DISK_GIB = (4.0, 1.0)
_FORGETFUL_L4T = ("36.4.4", "36.4.7")  # GPU memory is refused there that is free, by several users' reports
_RAIL_FILES = "/sys/bus/i2c/drivers/ina3221/*/hwmon/*/{in,curr}*_input"
_SYSTEM_PYTHON = "/usr/bin"  # has the Python that JetPack's TensorRT is for
_HOT_C = 85.0  # Orin slows down in the nineties


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    state: Literal["ok", "warning", "problem"]
    actual: str
    expected: str | None = None
    hint: str | None = None  # a command, or what to do; None only if all is well


def diagnose(facts: BoardFacts, profile: Profile | None) -> tuple[Check, ...]:
    """Check a machine; `profile` is that of its module, None if unknown.

    This machine may be any computer; a machine named by --board must be a Jetson.
    """
    apply = [check for check in CHECKS if facts.is_jetson or check not in _JETSON_ONLY]
    checks = [result for check in apply if (result := check(facts, profile)) is not None]
    if facts.host is None or facts.is_jetson:
        return tuple(checks)
    instead = {check.name: check for check in _no_jetson(facts, facts.host)}
    return tuple(instead.get(check.name, check) for check in checks)


def _no_jetson(facts: BoardFacts, host: str) -> Iterator[Check]:
    """Yield the checks for a machine that was named as a board and is not a Jetson."""
    yield Check(
        "module",
        "problem",
        f"no Jetson but {facts.module.model or facts.machine}: no power modes, rails or engines for a board there",
        "a Jetson Orin",
        f"check which machine `ssh {shlex.quote(host)}` reaches; in a container: docker run "
        "--security-opt systempaths=unconfined",
    )
    if facts.tensorrt.version is None:
        hint = "`edgevit export --trt` and engines need a Jetson; elsewhere measure with --runner onnxruntime"
        yield Check("TensorRT", "problem", _without_advice(facts.tensorrt.error), "one that Python imports there", hint)
    if not facts.onnxruntime and not facts.onnxruntime_packages:
        yield Check("ONNX Runtime", "ok", "none; only --runner onnxruntime needs it")


def _module(facts: BoardFacts, profile: Profile | None) -> Check:
    module = facts.module
    if not facts.is_jetson:
        return Check(
            "module",
            "warning",
            f"no Jetson but {module.model or facts.machine}: no power modes, rails or engines for a board here",
            "a Jetson Orin",
            "name a board, if you have one: `edgevit board USER@HOST`; on this machine `edgevit bench DIR` measures "
            "through ONNX Runtime",
        )
    name = f"{module.part or module.model or 'a Jetson'}{', Super' if module.super else ''}"
    if profile is None and module.part is None:
        return Check(
            "module",
            "warning",
            f"{name} that does not tell which, so that its power, peak and budgets are not known",
            "a part number in /proc/device-tree/compatible, which containers hide",
            "--profile NAME, one of those that `edgevit profiles` lists; in a container: docker run "
            "--security-opt systempaths=unconfined",
        )
    if profile is None:
        return Check(
            "module",
            "warning",
            f"{name}: none of the profiles fits, so that its power, peak and budgets are not known",
            "one of those that `edgevit profiles` lists",
            "write one (`edgevit profiles NAME --json` prints an example) and give it as --profile FILE",
        )
    return Check("module", "ok", f"{profile.module} ({name}), profile {profile.name}")


def _left_behind(facts: BoardFacts, profile: Profile | None) -> Check | None:
    recovered = facts.recovered
    messages = "; ".join(recovered.messages)
    if recovered.clean:
        return Check("earlier changes", "ok", messages) if messages else None
    if not messages:
        return Check("earlier changes", "ok", "a job that is running has changed power mode or clocks for itself")
    return Check("earlier changes", "problem", messages, "power mode and clocks as they were", "sudo nvpmodel -q")


def _jetpack(facts: BoardFacts, profile: Profile | None) -> Check:
    jetpack = facts.jetpack
    releases = " or ".join(release.jetpack for release in profile.software) if profile else None
    if jetpack is None:
        actual = "not known for this L4T" if facts.l4t else "cannot be read"
        return Check("JetPack", "warning", actual, releases, "apt show nvidia-jetpack")
    if jetpack.startswith("5."):
        return Check(
            "JetPack",
            "warning",
            f"{jetpack}: its TensorRT 8.5 has no fused attention for this GPU, so that attention is slower",
            "6.0 or newer",
            "flash JetPack 6.2 with NVIDIA's SDK Manager",
        )
    return Check("JetPack", "ok", jetpack)


def _l4t(facts: BoardFacts, profile: Profile | None) -> Check:
    l4t = facts.l4t
    if l4t is None:
        return Check(
            "L4T",
            "warning",
            "cannot be read",
            "/etc/nv_tegra_release",
            "in a container, mount it: docker run -v /etc/nv_tegra_release:/etc/nv_tegra_release",
        )
    if l4t in _FORGETFUL_L4T:
        return Check(
            "L4T",
            "warning",
            f"{l4t}: known to refuse GPU memory that is free (NvMapMemAllocInternalTagged, error 12)",
            "another release",
            "sudo reboot when that happens, and sudo apt update && sudo apt upgrade to leave it",
        )
    kernel = facts.kernel and f"kernel {facts.kernel}"
    return Check("L4T", "ok", ", ".join(part for part in (l4t, kernel, facts.ubuntu) if part))


def _python(facts: BoardFacts, profile: Profile | None) -> Check:
    actual = f"{facts.python} ({facts.python_path})"
    version = re.match(r"(\d{1,3})\.(\d{1,3})", facts.python)
    if version is None or (int(version[1]), int(version[2])) < _OLDEST_PYTHON:
        return Check("Python", "problem", actual, "3.8 or newer", "sudo apt install python3.8")
    return Check("Python", "ok", actual)


def _tensorrt(facts: BoardFacts, profile: Profile | None) -> Check:
    version, error = facts.tensorrt.version, facts.tensorrt.error
    if version is None and not facts.is_jetson:
        return Check("TensorRT", "ok", "none; ONNX Runtime does without")
    if version is None:
        hint = "sudo apt install python3-libnvinfer tensorrt"
        if facts.in_venv:
            hint = f"python3 -m venv --system-site-packages VENV, as other venvs do not see it; and {hint}"
        elif not facts.python_path.startswith(f"{_SYSTEM_PYTHON}/"):  # conda's or pyenv's, which apt does not serve
            folder = facts.python_path.rpartition("/")[0]
            hint = f"{_SYSTEM_PYTHON} before {folder} in the PATH of a command by ssh (see ~/.bashrc there); and {hint}"
        return Check(
            "TensorRT", "problem", _without_advice(error), "one that Python imports; pip has none for Jetsons", hint
        )
    if version.startswith("10.3."):
        return Check(
            "TensorRT",
            "warning",
            f"{version}: known to compile some ViTs into wrong engines",
            "10.5 or newer",
            "nothing to do before use: `edgevit export --trt` holds every engine to its accuracy gate",
        )
    return Check("TensorRT", "ok", version)


def _cuda(facts: BoardFacts, profile: Profile | None) -> Check:
    cuda = facts.cuda
    if cuda.binding:
        actual = f"{cuda.runtime} on {cuda.device}, {cuda.sms} SMs, through {cuda.binding}"
        return Check("CUDA", "ok", actual)
    if not facts.is_jetson:
        return Check("CUDA", "ok", f"none ({_without_advice(cuda.error)})")
    hint = "sudo apt install nvidia-jetpack; in a container: docker run --runtime nvidia"
    if facts.denied:
        actual = f"{_without_advice(cuda.error)}; {facts.user} may not open {facts.denied[0]}"
        hint = f"sudo usermod -aG video,render {facts.user}, and log in anew; if that is not it, {hint}"
        return Check("CUDA", "problem", actual, "a user in the groups video and render", hint)
    return Check("CUDA", "problem", _without_advice(cuda.error), "libcudart, or pycuda", hint)


def _without_advice(error: str | None) -> str:
    """An error without its advice, which other commands give."""
    return (error or "cannot be read").partition(";")[0]


def _power_mode(facts: BoardFacts, profile: Profile | None) -> Check:
    current, modes = facts.power_mode, {mode.id: mode for mode in facts.power_modes}
    if current is None or current.id not in modes:
        actual = current.name if current else "unknown"
        return Check("power mode", "warning", actual, "one of /etc/nvpmodel.conf", "sudo nvpmodel -q")
    actual = current.name + _label_misleads(modes[current.id], facts.power_modes)
    faster = _fastest(facts, profile)
    if faster is None or faster.id == current.id:
        return Check("power mode", "ok", actual)
    command = f"sudo nvpmodel -m {faster.id}"
    if faster.tpc_mask != modes[current.id].tpc_mask or modes_want_a_reboot(facts.l4t):
        hint = f"{command} (in a terminal: it asks for a reboot)"
    else:
        hint = f"{command}, or --power-mode {faster.name} of edgevit bench"
    return Check("power mode", "warning", actual, f"{faster.name}, where the GPU is fastest, unless it is meant", hint)


def _fastest(facts: BoardFacts, profile: Profile | None) -> ListedMode | None:
    """The power mode with the highest peak by the board's own table; the current mode if none is faster."""
    if profile is None:
        return None

    def rank(mode: ListedMode) -> tuple[float, bool]:
        peak = board_ceiling(profile, facts, mode).flop_per_s()
        return peak, facts.power_mode is not None and mode.id == facts.power_mode.id

    return max(facts.power_modes, key=rank)


def _label_misleads(current: ListedMode, modes: Sequence[ListedMode]) -> str:
    """Say that a mode of fewer watts has a faster GPU clock, as 15W against 25W on Orin NX."""
    watts, hz = _watts(current), current.gpu_max_hz
    faster = [mode for mode in modes if hz and 0 < _watts(mode) < watts and (mode.gpu_max_hz or 0) > hz]
    if not faster or hz is None:
        return ""
    fastest = max(faster, key=_watts)
    return (
        f": its GPU clock is {hz / 1e6:.0f} MHz, below the {(fastest.gpu_max_hz or 0) / 1e6:.0f} MHz of {fastest.name}"
    )


def _watts(mode: ListedMode) -> int:
    match = re.search(r"(\d+)W", mode.name)
    return int(match.group(1)) if match else 0


def _clocks(facts: BoardFacts, profile: Profile | None) -> Check:
    gpu, locked = facts.clocks.get("gpu"), facts.clocks_locked
    if locked is None:
        return Check("clocks", "warning", "cannot be read", "/sys/class/devfreq", "sudo jetson_clocks --show")
    low, high = (f"{khz / 1000:.0f}" for khz in (gpu.min_khz, gpu.max_khz)) if gpu else ("?", "?")
    hint = "sudo jetson_clocks, or --lock-clocks of edgevit bench, which frees them again"
    if locked and facts.memory_clock_locked is False:
        return Check(
            "clocks", "warning", f"the GPU at {high} MHz, and the memory's is free", "all of them locked", hint
        )
    if locked:
        unknown = "" if facts.memory_clock_locked else "; the memory's is not known, as root alone can read it"
        return Check("clocks", "ok", f"locked, the GPU at {high} MHz{unknown}")
    return Check("clocks", "warning", f"free, the GPU between {low} and {high} MHz", "locked while measuring", hint)


def _memory(facts: BoardFacts, profile: Profile | None) -> Check | None:
    free, total = facts.memory.available_bytes, facts.memory.total_bytes
    if free is None or total is None:
        return None
    hint = "sudo systemctl isolate multi-user.target (ends the desktop; graphical.target brings it back)"
    return _room("memory", free, _MEMORY_GIB, f" of {total / _GIB:.1f} GiB", hint)


def _disk(facts: BoardFacts, profile: Profile | None) -> Check | None:
    free, cache = facts.disk.cache_free_bytes, facts.disk.cache or "~/.cache/edgevit"
    hint = f"rm -r {cache}/files (models and engines there; they are sent and built again)"
    return None if free is None else _room("disk", free, _DISK_GIB, f" for {cache}", hint)


def _room(name: str, free: int, limits: tuple[float, float], place_text: str, hint: str) -> Check:
    enough, least = limits
    actual = f"{free / _GIB:.1f} GiB free{place_text}"
    if free >= enough * _GIB:
        return Check(name, "ok", actual)
    return Check(name, "warning" if free >= least * _GIB else "problem", actual, f"{enough:g} GiB", hint)


def _temperature(facts: BoardFacts, profile: Profile | None) -> Check | None:
    zones = facts.temperatures_c
    if not zones:
        return None
    zone = max(zones, key=lambda name: zones[name])
    actual = f"{zones[zone]:.0f} °C at most ({zone})"
    if zones[zone] < _HOT_C:
        return Check("temperature", "ok", actual)
    hint = "let it cool, and look at its fan and where its air comes from"
    return Check("temperature", "warning", f"{actual}, close to slowing down", f"below {_HOT_C:.0f} °C", hint)


def _clock(facts: BoardFacts, profile: Profile | None) -> Check | None:
    ahead_s = facts.clock_ahead_s
    if facts.clock_s is None or ahead_s is None or abs(ahead_s) <= CLOCK_OFF_S:
        return None
    days = abs(ahead_s) / 86_400
    off = f"{days:.0f} days" if days >= 2 else f"{abs(ahead_s) / 60:.0f} minutes"
    actual = f"{off} {'ahead of' if ahead_s > 0 else 'behind'} this machine's; runs are dated by this machine"
    return Check("clock", "warning", actual, "the same time", "sudo timedatectl set-ntp true, or sudo date -s TIME")


def _rails(facts: BoardFacts, profile: Profile | None) -> Check:
    meters, rails = facts.meters, facts.rails
    able = [name for name, reason in meters.items() if reason is None]
    reasons = "; ".join(f"{name}: {reason}" for name, reason in meters.items() if reason is not None)
    if not able:
        hint = "sudo modprobe ina3221; in a container: docker run -v /sys:/sys:ro"
        if ROOT_ALONE in reasons:  # as some kernels of JetPack 5 have it
            hint = f"sudo chmod a+r {_RAIL_FILES}, until the next boot"
        return Check("power rails", "warning", f"no meter can read them, so no energy ({reasons})", "ina3221", hint)
    names = {(rail.address, rail.label) for rail in rails}
    shown = ", ".join(f"{rail.label} {rail.milliwatts / 1000:.2f} W" for rail in rails)
    interval = f", each over {facts.power_interval_ms:.0f} ms" if facts.power_interval_ms else ""
    actual = f"{shown or 'read'} through {' or '.join(able)}{interval}" + (f" ({reasons})" if reasons else "")
    missing = [label for address, label in profile.total_rails() if (address, label) not in names] if profile else []
    if rails and missing:
        return Check(
            "power rails",
            "warning",
            f"{actual}; {', '.join(missing)} is missing, so the module's power is not known",
            " + ".join(label for _, label in profile.total_rails()) if profile else None,
            "--profile FILE with the rails of this board (`edgevit profiles NAME --json` prints an example)",
        )
    return Check("power rails", "ok", actual)


def _trtexec(facts: BoardFacts, profile: Profile | None) -> Check:
    if facts.trtexec:
        return Check("trtexec", "ok", facts.trtexec)
    hint = "sudo apt install libnvinfer-bin"
    return Check("trtexec", "warning", "not found: no --cross-check", "/usr/src/tensorrt/bin/trtexec", hint)


def _onnxruntime(facts: BoardFacts, profile: Profile | None) -> Check:
    package, packages = facts.onnxruntime, facts.onnxruntime_packages
    named = " and ".join(f"{name} {version}" for name, version in packages.items())
    pip = f"{facts.python_path} -m pip"
    if len(packages) > 1:
        actual = f"{named} side by side, which overwrite one another"
        hint = f"{pip} uninstall -y {' '.join(packages)} && {pip} install {CPU}, or {GPU} for an NVIDIA GPU"
        return Check("ONNX Runtime", "warning" if facts.is_jetson else "problem", actual, "one of the two", hint)
    if package:
        providers = ", ".join(name.replace("ExecutionProvider", "") for name in package.providers)
        return Check("ONNX Runtime", "ok", f"{named or package.version} ({providers})")
    if packages and not facts.is_jetson:
        hint = f"{pip} install --force-reinstall {' '.join(packages)}"
        return Check("ONNX Runtime", "problem", f"{named}, which cannot be imported", "what can run a model here", hint)
    if facts.is_jetson:
        return Check("ONNX Runtime", "ok", "none; only --runner onnxruntime needs it")
    hint = f"{pip} install {CPU}, or {GPU} for an NVIDIA GPU (edgevit[cpu], edgevit[gpu])"
    return Check("ONNX Runtime", "problem", "none", "what can run a model here", hint)


def _sudo(facts: BoardFacts, profile: Profile | None) -> Check:
    if facts.sudo:
        return Check("root", "ok", "nvpmodel and jetson_clocks run as root without a password")
    actual = "nvpmodel and jetson_clocks need a password: no --power-mode and --lock-clocks"
    missing = [name for name in ("nvpmodel", "jetson_clocks") if not facts.programs.get(name)]
    if missing:
        actual = f"no {' and no '.join(missing)}: no --power-mode and --lock-clocks"
    hint = "read deploy/jetson/setup.sh and run it there once, or set both by hand"
    return Check("root", "warning", actual, "sudo without a password for these two, if you want those options", hint)


def _jtop(facts: BoardFacts, profile: Profile | None) -> Check:
    reason = facts.meters["jtop"]
    return Check("jtop", "ok", f"not in use, and not needed: {reason}" if reason else "its service answers")


CHECKS = (
    *(_module, _left_behind, _jetpack, _l4t, _python, _tensorrt, _cuda, _onnxruntime, _trtexec),
    *(_power_mode, _clocks, _memory, _disk, _temperature, _clock, _rails, _jtop, _sudo),
)
_JETSON_ONLY = (_jetpack, _l4t, _trtexec, _power_mode, _clocks, _rails, _jtop, _sudo)
