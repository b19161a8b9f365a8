"""What is known of each board: one YAML file per module, checked when it is read. A person may write their own.

A new board is a new file in `profiles/`; nothing else names it. What a board can tell itself, such as the clocks of its
power modes, is taken from the board where it can be asked: these files say what to expect.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from edgevit.errors import ProfileError, UnknownNameError

SHIPPED = Path(__file__).parent / "shipped"  # profiles/ of the repository
SUFFIXES = (".yaml", ".yml", ".json")  # JSON is YAML, so what `edgevit profiles NAME --json` prints is a profile
FLOP_PER_TENSOR_CORE = 512  # per clock, fp16 and dense: 256 multiply-adds
TRANSFERS_PER_CLOCK = 2  # LPDDR5 moves data on both edges of the memory controller's clock
ROUNDING = 0.01  # published figures are rounded
GATE = re.compile(r"[a-z][a-z0-9_]*\s*[<>]=?\s*[0-9.]+\s*[A-Za-z/%]*")  # the form; `bench` knows the metrics
GENERIC = "-0000"  # the part number that many boards of a family give instead of their own

VariantName = Literal["standard", "super"]


class Mode(BaseModel, extra="forbid", frozen=True):
    """A power mode, by the name that `nvpmodel -q` prints. Ids mean other modes on other boards."""

    id: int | None
    name: str
    cpus: int = Field(gt=0)
    tpcs: int = Field(gt=0)  # on; each has two SMs
    gpu_mhz: float = Field(gt=0)  # the cap
    gpu_mhz_jetpack5: float | None = Field(default=None, gt=0)  # where JetPack 5's table has another
    emc_mhz: float = Field(gt=0)  # the memory controller's cap

    @property
    def gpu_hz(self) -> float:
        """The highest cap that any JetPack gives the mode."""
        return max(self.gpu_mhz, self.gpu_mhz_jetpack5 or 0) * 1e6


class Variant(BaseModel, extra="forbid", frozen=True):
    """A module as it left the factory, or with the clocks that NVIDIA calls Super."""

    gpu_max_mhz: float = Field(gt=0)
    emc_max_mhz: float = Field(gt=0)
    fp16_tflops: float  # dense, through tensor cores
    derivation: str
    bandwidth_gb_per_s: float
    default_mode: str | None
    modes: tuple[Mode, ...]

    @model_validator(mode="after")
    def _default_is_a_mode(self) -> Variant:
        names = [mode.name for mode in self.modes]
        if self.default_mode is not None and self.default_mode not in names:
            raise ValueError(f"default_mode {self.default_mode} is none of its modes: {', '.join(names)}")
        return self


class Rail(BaseModel, extra="forbid", frozen=True):
    """A channel of a power sensor."""

    address: str  # on the I2C bus, in hexadecimal
    channel: int
    label: str
    total: bool  # the rails that are make the module's power, each counted once


class Release(BaseModel, extra="forbid", frozen=True):
    """JetPack releases with one TensorRT."""

    jetpack: str
    l4t: str
    tensorrt: str


class Profile(BaseModel, extra="forbid", frozen=True):
    """A module: how it is recognised, what it can do, where its power is read, and what is asked of a model on it."""

    name: str
    module: str
    parts: tuple[str, ...] = Field(min_length=1)
    memory_gb: int
    mem_total_gib: tuple[float, float]  # MemTotal, at least and below
    sms: int = Field(gt=0)
    tensor_cores: int = Field(gt=0)
    cpus: int = Field(gt=0)
    cache_mib: float = Field(ge=0)  # what of an inference's data may stay beside the GPU until the next one
    memory_bus_bits: int = Field(gt=0)
    variants: dict[VariantName, Variant]
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
            if not GATE.fullmatch(gate):
                raise ValueError(f"budget {gate!r} is not of the form metric, comparison, value, unit; try 'p99<33ms'")
        for name, variant in self.variants.items():
            computed = {
                "fp16_tflops": self.tensor_cores * FLOP_PER_TENSOR_CORE * variant.gpu_max_mhz / 1e6,
                "bandwidth_gb_per_s": self.bytes_per_s(variant.emc_max_mhz) / 1e9,
            }
            for figure, value in computed.items():
                if abs(getattr(variant, figure) / value - 1) > ROUNDING:
                    raise ValueError(f"{figure} of {name} is {getattr(variant, figure):g}; its clock gives {value:.1f}")
        return self

    @property
    def families(self) -> set[str]:
        return {part.partition("-")[0] for part in self.parts}

    def bytes_per_s(self, emc_mhz: float) -> float:
        return emc_mhz * 1e6 * TRANSFERS_PER_CLOCK * self.memory_bus_bits / 8

    def variant(self, *, super_clocks: bool) -> Variant:
        return self.variants["super"] if super_clocks and "super" in self.variants else self.variants["standard"]

    def mode_names(self) -> list[str]:
        return list(dict.fromkeys(mode.name for variant in self.variants.values() for mode in variant.modes))

    def mode(self, name: str, *, super_clocks: bool = False) -> Mode:
        """Find a power mode; one that both variants have is the standard one, unless `super_clocks`.

        Raises:
            UnknownNameError: neither has it.
        """
        first = self.variant(super_clocks=super_clocks)
        for variant in (first, *self.variants.values()):
            for mode in variant.modes:
                if mode.name == name:
                    return mode
        raise UnknownNameError(f"power mode of {self.name}", name, self.mode_names())

    def total_rails(self) -> list[tuple[str, str]]:
        """Address and label of the rails whose sum is the module's power."""
        return [(rail.address, rail.label) for rail in self.rails if rail.total]

    def fits(self, facts: Mapping[str, Any]) -> bool:
        """Whether the module found may be this one; of a part number that says little, only its family counts."""
        part, gib = _part(facts), _mem_total_gib(facts)
        low, high = self.mem_total_gib
        if part is None or (gib is not None and not low <= gib < high):
            return False
        return part in self.parts or (part.endswith(GENERIC) and part.partition("-")[0] in self.families)

    def check(self, facts: Mapping[str, Any]) -> None:
        """Make sure that the profile is of the module found.

        Raises:
            ProfileError: it is of another.
        """
        if not self.fits(facts):
            found = match(facts)
            hint = f"try --profile {found.name}" if found else "`edgevit profiles` lists those known"
            low, high = self.mem_total_gib
            raise ProfileError(
                f"profile {self.name} is for {' or '.join(self.parts)} with {low:g} to {high:g} GiB, and the board has "
                f"{_seen(facts)}; {hint}"
            )


def _part(facts: Mapping[str, Any]) -> str | None:
    part: str | None = (facts.get("module") or {}).get("part")
    return part


def _mem_total_gib(facts: Mapping[str, Any]) -> float | None:
    size = (facts.get("module") or {}).get("memory_bytes")
    return None if size is None else size / 2**30


def _seen(facts: Mapping[str, Any]) -> str:
    part, gib = _part(facts), _mem_total_gib(facts)
    return f"{part or 'no Jetson module'} with {'unknown memory' if gib is None else f'{gib:.1f} GiB'}"


def profile_names() -> list[str]:
    """Names of the profiles that come with edgevit."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def load_profile(name_or_path: str | Path) -> Profile:
    """Read a profile that comes with edgevit by its name, or one's own by its path.

    Raises:
        UnknownNameError: no profile of that name.
        ProfileError: the file cannot be read, or is not a profile.
    """
    text = str(name_or_path)
    if text.endswith(SUFFIXES) or os.sep in text:
        return _read(Path(text))
    if text not in profile_names():
        raise UnknownNameError("profile", text, profile_names())
    return _read(SHIPPED / f"{text}.yaml")


def match(facts: Mapping[str, Any]) -> Profile | None:
    """Find the profile of the module found; None if it is not known, or could be more than one.

    The names of its power modes tell modules of one family and memory size apart, where the part number does not.
    """
    fitting = [profile for profile in map(load_profile, profile_names()) if profile.fits(facts)]
    modes = {mode["name"] for mode in facts.get("power_modes") or ()}
    if modes and len(fitting) > 1:
        fitting = [profile for profile in fitting if modes <= set(profile.mode_names())]
    if len(fitting) > 1:
        fitting = [profile for profile in fitting if _part(facts) in profile.parts]
    return fitting[0] if len(fitting) == 1 else None


def _read(path: Path) -> Profile:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"cannot read the profile {path}: {error.strerror}; check the path") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date that is none
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ProfileError(f"{where}: not YAML: {reason}") from error
    if not isinstance(content, dict):
        raise ProfileError(f"{path} is not a profile but a {type(content).__name__}; `edgevit profiles` shows some")
    try:
        return Profile.model_validate(content)
    except ValidationError as error:
        raise ProfileError(f"{path}: {_first_fault(error)}") from error


def _first_fault(error: ValidationError) -> str:
    """Say in one line what is wrong with the first entry that is, and what would be right."""
    faults = error.errors()
    # A misspelt key is also a missing one: the former says what to do.
    fault = next((f for f in faults if f["type"] == "extra_forbidden"), faults[0])
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault["loc"]).lstrip(".")
    if fault["type"] == "extra_forbidden":
        known = _keys(fault["loc"])
        close = get_close_matches(str(fault["loc"][-1]), known, n=1, cutoff=0.5)
        return f"unknown key {where}; " + (f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}")
    if fault["type"] == "missing":
        return f"{where} is missing"
    if fault["type"] == "value_error":  # raised above, in our words
        return fault["msg"].removeprefix("Value error, ")
    return f"{where}: {fault['msg']}, not {str(fault['input'])[:60]!r}"


def _keys(location: Sequence[int | str]) -> list[str]:
    """The keys that are known where the last one of `location` stands."""
    model: type[BaseModel] = Profile
    for step in location[:-1]:
        field = model.model_fields.get(str(step))
        kinds = (field.annotation, *get_args(field.annotation)) if field else ()
        model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), model)
    return list(model.model_fields)
