"""The lower bound on the time of an inference on a board: a faster measurement is wrong.

A model needs at least

    max( 2 MACs / (active tensor cores x FLOP per clock x GPU clock),   bytes beyond the caches / memory bandwidth )

with the clocks, the active SMs and the memory clock of the power mode. MACs are those of `edgevit.network.cost`. Bytes
are every weight once, the images and the logits: activations between layers may stay on the chip, and so may as much of
the rest as the caches hold, so that neither is counted. What is left out makes the bound lower and never wrong.

Only dense fp16 has a peak on Orin that NVIDIA publishes. fp32 is bounded by half of it: TensorRT computes fp32 in TF32
unless told not to, and a TF32 operand is twice as wide as an fp16 one; the CUDA cores' own peak is an eighth, and would
call true measurements false. Engines with 2:4 sparse weights may be twice as fast; edgevit builds none.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgevit.board.facts import BoardFacts, ListedMode
from edgevit.board.profiles import FLOP_PER_TENSOR_CORE, Mode, Profile
from edgevit.records.precisions import FP16, precision_of

_SMS_PER_TPC = 2
_TPC_MASK_BITS = 8  # on every Orin; a bit that is set is a TPC that is off, or not there


@dataclass(frozen=True)
class Ceiling:
    """The peaks of a board in one power mode."""

    tensor_cores: int  # tensor cores of the SMs that are on
    gpu_hz: float
    bytes_per_s: float
    cache_bytes: float

    def flop_per_s(self, precision: str = FP16.name) -> float:
        return self.tensor_cores * FLOP_PER_TENSOR_CORE * self.gpu_hz * precision_of(precision).peak_share


@dataclass(frozen=True)
class Roofline:
    """The least time of one inference, by each of its two bounds."""

    compute_s: float
    memory_s: float

    @property
    def least_s(self) -> float:
        return max(self.compute_s, self.memory_s)


def ceiling(profile: Profile, mode: Mode | str | None = None, *, super_clocks: bool = False) -> Ceiling:
    """The ceiling by the profile alone; without a mode, at the highest standard or Super clocks.

    Raises:
        UnknownNameError: the profile has no such mode.
    """
    if mode is None:
        variant = profile.variant(super_clocks=super_clocks)
        return _ceiling(profile, profile.sms, variant.gpu_max_mhz * 1e6, variant.emc_max_mhz)
    caps = profile.mode(mode, super_clocks=super_clocks) if isinstance(mode, str) else mode
    return _ceiling(profile, _SMS_PER_TPC * caps.tpcs, caps.gpu_hz, caps.emc_mhz)


def board_ceiling(profile: Profile, facts: BoardFacts, mode: ListedMode | None = None) -> Ceiling:
    """The ceiling by the caps of a mode of the board's own table, by default the current one.

    A clock that the table does not cap has its highest value.
    """
    caps = mode or facts.listed_mode() or ListedMode(0, "")
    variant = profile.variant(super_clocks=facts.module.super)
    gpu_hz = _capped(caps.gpu_max_hz, variant.gpu_max_mhz * 1e6)
    emc_hz = _capped(caps.emc_max_hz, variant.emc_max_mhz * 1e6)
    return _ceiling(profile, _sms_on(profile, caps.tpc_mask), gpu_hz, emc_hz / 1e6)


def _sms_on(profile: Profile, tpc_mask: int | None) -> int:
    if tpc_mask is None:
        return profile.sms
    off = bin(tpc_mask & (1 << _TPC_MASK_BITS) - 1).count("1")
    return min(profile.sms, _SMS_PER_TPC * (_TPC_MASK_BITS - off))


def _capped(cap: float | None, highest: float) -> float:
    """Apply a cap; nvpmodel writes -1 or 0 for none."""
    return min(cap, highest) if cap and cap > 0 else highest


def _ceiling(profile: Profile, sms: int, gpu_hz: float, emc_mhz: float) -> Ceiling:
    per_sm = profile.tensor_cores // profile.sms
    return Ceiling(per_sm * sms, gpu_hz, profile.bytes_per_s(emc_mhz), profile.cache_mib * 2**20)


def least_bytes(params: int, values_per_image: int, *, batch: int, precision: str) -> int:
    """Bytes that one inference moves at least: every weight, and the pixels and logits of each image."""
    return (params + batch * values_per_image) * precision_of(precision).value_bytes


def roofline(limits: Ceiling, macs: int, moved_bytes: int, precision: str = FP16.name) -> Roofline:
    """Bound one inference; `macs` and `moved_bytes` are those of all its images.

    Raises:
        UnknownNameError: the peak of the precision is not known.
    """
    beyond = max(0.0, moved_bytes - limits.cache_bytes)
    return Roofline(2 * macs / limits.flop_per_s(precision), beyond / limits.bytes_per_s)
