"""Board profiles: one YAML file per module, checked when it is read. Users may write their own.

A new board is a new file in `profiles/`. What a board reports itself, such as the clocks of its power modes, takes
precedence over the profile.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, model_validator

from edgevit.board.facts import BoardFacts
from edgevit.errors import ProfileError, UnknownNameError
from edgevit.records.documents import Reader
from edgevit.records.model import Size

_SHIPPED = Path(__file__).parent / "shipped"  # profiles/ of the repository
_SUFFIXES = (".yaml", ".yml", ".json")  # JSON is YAML, so what `edgevit profiles NAME --json` prints is a profile
FLOP_PER_TENSOR_CORE = 512  # per clock, fp16 and dense: 256 multiply-adds
_TRANSFERS_PER_CLOCK = 2  # LPDDR5 moves data on both edges of the memory controller's clock
_ROUNDING = 0.01  # published figures are rounded
_GATE = re.compile(r"[a-z][a-z0-9_]*\s*[<>]=?\s*[0-9.]+\s*[A-Za-z/%]*")  # the form; `bench` knows the metrics
_GENERIC = "-0000"  # the part number that many boards of a family give instead of their own

_READER = Reader(ProfileError, hint="correct it, or begin with what `edgevit profiles NAME --json` prints")
_VariantName = Literal["standard", "super"]


class Mode(BaseModel, extra="forbid", frozen=True):
    """A power mode, by the name that `nvpmodel -q` prints. On other boards an id is another mode."""

    id: int | None
    name: str
    cpus: Size
    tpcs: Size  # number of TPCs that are on, each with two SMs
    gpu_mhz: float = Field(gt=0)  # highest GPU clock
    # Highest GPU clock in the table of JetPack 5, if another; None: the same.
    gpu_mhz_jetpack5: float | None = Field(default=None, gt=0)
    emc_mhz: float = Field(gt=0)  # highest clock of the memory controller

    @property
    def gpu_hz(self) -> float:
        """The highest GPU clock that any JetPack gives the mode."""
        return max(self.gpu_mhz, self.gpu_mhz_jetpack5 or 0) * 1e6


class BoardVariant(BaseModel, extra="forbid", frozen=True):
    """A module with standard clocks, or with those that NVIDIA calls Super."""

    gpu_max_mhz: float = Field(gt=0)
    emc_max_mhz: float = Field(gt=0)
    fp16_tflops: float  # peak of dense fp16 products in tensor cores
    derivation: str
    bandwidth_gb_per_s: float
    default_mode: str | None
    modes: tuple[Mode, ...]

    @model_validator(mode="after")
    def _default_is_a_mode(self) -> BoardVariant:
        names = [mode.name for mode in self.modes]
        if self.default_mode is not None and self.default_mode not in names:
            raise ValueError(f"default_mode {self.default_mode} is none of its modes: {', '.join(names)}")
        return self


class Rail(BaseModel, extra="forbid", frozen=True):
    """A channel of a power sensor."""

    address: str  # hexadecimal address on the I2C bus
    channel: int
    label: str
    total: bool  # whether the rail counts towards the module's power


class Release(BaseModel, extra="forbid", frozen=True):
    """JetPack releases with one TensorRT."""

    jetpack: str
    l4t: str
    tensorrt: str


class Profile(BaseModel, extra="forbid", frozen=True):
    """A module: how it is recognised, its peaks, its power rails, and the budgets of a model on it."""

    name: str
    module: str
    parts: tuple[str, ...] = Field(min_length=1)
    memory_gb: Size
    mem_total_gib: tuple[float, float]  # range of MemTotal: at least the first, below the second
    sms: Size
    tensor_cores: Size
    cpus: Size
    cache_mib: float = Field(ge=0)  # data of an inference that may stay in caches until the next one
    memory_bus_bits: Size
    variants: dict[_VariantName, BoardVariant]
    rails: tuple[Rail, ...]
    software: tuple[Release, ...]
    budgets: tuple[str, ...]  # gates, such as "p99<33ms"
    budgets_note: str
    unconfirmed: tuple[str, ...]
    sources: dict[str, str]

    @model_validator(mode="after")
    def _entries_agree(self) -> Profile:
        if "standard" not in self.variants:
            raise ValueError("variants has no 'standard'")
        for gate in self.budgets:
            if not _GATE.fullmatch(gate):
                raise ValueError(f"budget {gate!r} is not of the form metric, comparison, value, unit; try 'p99<33ms'")
        for name, variant in self.variants.items():
            computed = {
                "fp16_tflops": self.tensor_cores * FLOP_PER_TENSOR_CORE * variant.gpu_max_mhz / 1e6,
                "bandwidth_gb_per_s": self.bytes_per_s(variant.emc_max_mhz) / 1e9,
            }
            for figure, value in computed.items():
                if abs(getattr(variant, figure) / value - 1) > _ROUNDING:
                    raise ValueError(f"{figure} of {name} is {getattr(variant, figure):g}; its clock gives {value:.1f}")
        return self

    @property
    def families(self) -> set[str]:
        return {part.partition("-")[0] for part in self.parts}

    def bytes_per_s(self, emc_mhz: float) -> float:
        return emc_mhz * 1e6 * _TRANSFERS_PER_CLOCK * self.memory_bus_bits / 8

    def variant(self, *, super_clocks: bool) -> BoardVariant:
        return self.variants["super"] if super_clocks and "super" in self.variants else self.variants["standard"]

    def mode_names(self) -> list[str]:
        return list(dict.fromkeys(mode.name for variant in self.variants.values() for mode in variant.modes))

    def mode(self, name: str, *, super_clocks: bool = False) -> Mode:
        """Find a power mode; if both variants have it, the standard one, unless `super_clocks`.

        Raises:
            UnknownNameError: neither variant has it.
        """
        first = self.variant(super_clocks=super_clocks)
        for variant in (first, *self.variants.values()):
            for mode in variant.modes:
                if mode.name == name:
                    return mode
        raise UnknownNameError("power mode", name, self.mode_names(), owner=self.name)

    def total_rails(self) -> list[tuple[str, str]]:
        """Address and label of the rails whose sum is the module's power."""
        return [(rail.address, rail.label) for rail in self.rails if rail.total]

    def fits(self, facts: BoardFacts) -> bool:
        """Whether the module may be this one; of an incomplete part number only the family counts."""
        part = facts.module.part
        if part is None or not self._has_memory_of(facts):
            return False
        return part in self.parts or (part.endswith(_GENERIC) and part.partition("-")[0] in self.families)

    def _has_memory_of(self, facts: BoardFacts) -> bool:
        gib, (low, high) = _mem_total_gib(facts), self.mem_total_gib
        return gib is None or low <= gib < high

    def check(self, facts: BoardFacts) -> None:
        """Check that the profile fits the module; a Jetson without a part number may be any.

        Raises:
            ProfileError: the profile is of another module.
        """
        untold = facts.is_jetson and facts.module.part is None and self._has_memory_of(facts)
        if not untold and not self.fits(facts):
            nearest = match(facts)
            hint = f"try --profile {nearest.name}" if nearest else "`edgevit profiles` lists those known"
            (low, high), gib = self.mem_total_gib, _mem_total_gib(facts)
            raise ProfileError(
                f"profile {self.name} is for {' or '.join(self.parts)} with {low:g} to {high:g} GiB, and the board has "
                f"{facts.module.part or 'no Jetson module'} with "
                f"{'unknown memory' if gib is None else f'{gib:.1f} GiB'}; {hint}"
            )


def _mem_total_gib(facts: BoardFacts) -> float | None:
    size = facts.module.memory_bytes
    return None if size is None else size / 2**30


def profile_names() -> list[str]:
    """Names of the profiles that come with edgevit."""
    return sorted(path.stem for path in _SHIPPED.glob("*.yaml"))


def load_profile(name_or_path: str | Path) -> Profile:
    """Read a profile of edgevit by name, or of the user by path.

    Raises:
        UnknownNameError: there is no profile of that name.
        ProfileError: the file cannot be read, or is not a profile.
    """
    text = str(name_or_path)
    if text.endswith(_SUFFIXES) or os.sep in text:
        return _READER.yaml(Path(text), Profile)
    if text not in profile_names():
        raise UnknownNameError("profile", text, profile_names())
    return _shipped(text)


@cache  # each look at a board asks all of them
def _shipped(name: str) -> Profile:
    return _READER.yaml(_SHIPPED / f"{name}.yaml", Profile)


def match(facts: BoardFacts) -> Profile | None:
    """Find the profile of a module; None if there is none, or more than one fits.

    Where the part number does not decide, the names of power modes do: the profile that lacks the fewest of them fits,
    as users and new JetPacks add modes.
    """
    fitting = [profile for profile in map(load_profile, profile_names()) if profile.fits(facts)]
    modes = {mode.name for mode in facts.power_modes}
    unknown = {profile.name: len(modes - set(profile.mode_names())) for profile in fitting}
    fitting = [profile for profile in fitting if unknown[profile.name] == min(unknown.values())]
    if len(fitting) > 1:
        fitting = [profile for profile in fitting if facts.module.part in profile.parts]
    return fitting[0] if len(fitting) == 1 else None
