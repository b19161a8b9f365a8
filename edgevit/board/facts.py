"""The facts of a machine that the agent reads, as a typed record.

Fields are the keys of the agent's answer, which `agent/examine.py` explains. What cannot be read is None or empty.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from edgevit.board.answers import READER
from edgevit.board.connection import THIS_MACHINE, Board
from edgevit.progress import Progress, Silent

CLOCK_OFF_S = 60.0  # difference between two machines' clocks above which one of them is not set


@dataclass(frozen=True)
class Module:
    """The computer module: the part number of a Jetson, the model of another machine."""

    part: str | None = None
    compatible: tuple[str, ...] = ()
    model: str | None = None
    super: bool = False  # whether it runs at Super clocks
    memory_bytes: int | None = None


@dataclass(frozen=True)
class PowerMode:
    """The current power mode."""

    id: int | None
    name: str


@dataclass(frozen=True)
class ListedMode:
    """A mode of the board's own table; None means no limit."""

    id: int
    name: str
    cpus_online: int = 0
    tpc_mask: int | None = None
    gpu_max_hz: int | None = None
    emc_max_hz: int | None = None


@dataclass(frozen=True)
class Clock:
    cur_khz: int
    min_khz: int
    max_khz: int
    governor: str | None


@dataclass(frozen=True)
class RailReading:
    address: str
    label: str
    milliwatts: float


@dataclass(frozen=True)
class Memory:
    total_bytes: int | None = None
    available_bytes: int | None = None
    swap_total_bytes: int | None = None


@dataclass(frozen=True)
class Disk:
    cache_free_bytes: int | None = None
    cache: str | None = None  # the agent's cache folder on the board


@dataclass(frozen=True)
class TensorRT:
    """The TensorRT of the board; without a version, `error` gives the reason."""

    version: str | None = None
    error: str | None = None
    strongly_typed: bool | None = None
    fp16_flag: bool | None = None
    native_layer_norm: bool | None = None


@dataclass(frozen=True)
class CudaFacts:
    """The CUDA of the board; without a binding, `error` gives the reason."""

    binding: str | None = None
    error: str | None = None
    device: str | None = None
    sms: int | None = None
    capability: str | None = None
    runtime: str | None = None


@dataclass(frozen=True)
class OnnxRuntime:
    version: str
    providers: tuple[str, ...]


@dataclass(frozen=True)
class Recovered:
    """Settings that an interrupted process had changed, and whether all were restored."""

    clean: bool = True
    messages: tuple[str, ...] = ()


@dataclass(frozen=True)
class BoardFacts:
    """All facts of a machine."""

    host: str | None = None  # name of the host as the user gave it; None: this machine
    module: Module = field(default_factory=Module)
    l4t: str | None = None
    jetpack: str | None = None
    ubuntu: str | None = None
    machine: str = ""
    kernel: str | None = None
    python: str = ""
    python_path: str = ""
    in_venv: bool = False
    user: str = ""
    root: bool = False
    hostname: str = ""
    clock_s: float | None = None  # time by the board's own clock, in seconds since 1970
    clock_ahead_s: float | None = None  # how far the board's clock is ahead of this machine's, which dates the runs
    power_mode: PowerMode | None = None
    power_modes: tuple[ListedMode, ...] = ()
    default_power_mode: int | None = None
    clocks: dict[str, Clock | None] = field(default_factory=dict)
    clocks_locked: bool | None = None  # whether the clocks of GPU and cores are locked; None: not known
    # Whether the memory clock is locked; None: not known, as only root can read it.
    memory_clock_locked: bool | None = None
    rails: tuple[RailReading, ...] = ()
    power_interval_ms: float | None = None
    # Why each meter cannot read the power, by its name; None: it can.
    meters: dict[str, str | None] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    disk: Disk = field(default_factory=Disk)
    denied: tuple[str, ...] = ()  # device files of the GPU that the user may not open
    temperatures_c: dict[str, float] = field(default_factory=dict)
    trtexec: str | None = None
    programs: dict[str, str | None] = field(default_factory=dict)
    sudo: bool = False
    recovered: Recovered = field(default_factory=Recovered)
    tensorrt: TensorRT = field(default_factory=TensorRT)
    cuda: CudaFacts = field(default_factory=CudaFacts)
    onnxruntime: OnnxRuntime | None = None
    onnxruntime_packages: dict[str, str] = field(default_factory=dict)

    def listed_mode(self, name: str | None = None) -> ListedMode | None:
        """The mode of this name in the board's own table, or else the current one."""
        now = self.power_mode.id if self.power_mode else None
        named = [mode for mode in self.power_modes if mode.name == name]
        return next(iter(named or [mode for mode in self.power_modes if mode.id == now]), None)

    @property
    def is_jetson(self) -> bool:
        """Whether this is a Jetson; in a container the kernel may be the only evidence."""
        module = self.module
        tegra = any("tegra" in name for name in (*module.compatible, self.kernel or ""))
        return bool(module.part or self.l4t or tegra)

    @property
    def has_power(self) -> bool:
        """Whether any power meter can be read."""
        return any(reason is None for reason in self.meters.values())


def read_facts(answer: Any, host: str) -> BoardFacts:
    """Parse the answer of an agent.

    Raises:
        AgentError: a field has the wrong type.
    """
    if isinstance(answer, dict):
        answer = {**answer, "host": None if host == THIS_MACHINE else host}
    return READER.checked(answer, BoardFacts, f"the answer of {host} to 'examine'")


def examine(board: Board, progress: Progress | None = None) -> BoardFacts:
    """Read all facts of a board without changing anything, after the jobs of others.

    Raises:
        BoardError: the board did not answer.
    """
    facts = read_facts(board.examine(progress or Silent()), board.host)
    return facts if facts.clock_s is None else replace(facts, clock_ahead_s=facts.clock_s - time.time())
