"""The roofline: figures worked out by hand, and the board's own caps."""

from __future__ import annotations

from typing import Any

import pytest

from edgevit.board.facts import BoardFacts, read_facts
from edgevit.board.profiles import Profile, load_profile, profile_names
from edgevit.board.roofline import board_ceiling, ceiling, least_bytes, roofline
from edgevit.errors import UnknownNameError

DEIT_BASE_MACS, DEIT_BASE_PARAMS = 17_570_000_000, 86_567_656
PIXELS_AND_LOGITS = 3 * 224 * 224 + 1000


def least_seconds(profile: Profile, mode: str | None, macs: int, moved_bytes: int) -> float:
    return roofline(ceiling(profile, mode), macs, moved_bytes).least_s


def test_deit_base_on_an_orin_nx_is_bound_by_arithmetic_at_batch_8_and_by_memory_when_it_is_pruned_to_a_tenth() -> None:
    limits = ceiling(load_profile("orin-nx-16gb"), "MAXN")
    moved = least_bytes(DEIT_BASE_PARAMS, PIXELS_AND_LOGITS, batch=8, precision="fp16")
    assert moved == 2 * (86_567_656 + 8 * 151_528)
    whole = roofline(limits, 8 * DEIT_BASE_MACS, moved)
    assert whole.compute_s > whole.memory_s
    assert whole.least_s == pytest.approx(8 * 2 * 17.57e9 / (32 * 512 * 918e6))  # 18.7 ms
    few_macs = roofline(limits, DEIT_BASE_MACS // 20, moved)
    assert few_macs.memory_s > few_macs.compute_s
    assert few_macs.least_s == pytest.approx((moved - 8 * 2**20) / 102.368e9)


def test_a_mode_with_half_the_tpcs_at_two_thirds_of_the_clock_takes_three_times_as_long() -> None:
    profile = load_profile("orin-nx-16gb")
    uncapped = least_seconds(profile, None, DEIT_BASE_MACS, 0)
    assert least_seconds(profile, "MAXN", DEIT_BASE_MACS, 0) == uncapped
    assert least_seconds(profile, "15W", DEIT_BASE_MACS, 0) == pytest.approx(uncapped * 2 * 918 / 624.75)
    assert least_seconds(profile, "MAXN_SUPER", DEIT_BASE_MACS, 0) == pytest.approx(uncapped * 918 / 1173)


def test_a_memory_cap_counts_and_what_the_caches_hold_does_not() -> None:
    profile = load_profile("orin-nx-16gb")
    assert least_seconds(profile, "10W", 0, 8 * 2**20) == 0
    slow, fast = (least_seconds(profile, mode, 0, 10**9) for mode in ("10W", "15W"))
    assert slow / fast == pytest.approx(3199 / 2133)


def test_fp32_is_bounded_by_half_the_fp16_peak_and_twice_the_bytes() -> None:
    limits = ceiling(load_profile("agx-orin-64gb"))
    assert limits.flop_per_s() == pytest.approx(42.6e12, rel=1e-3)
    assert limits.flop_per_s("fp32") == limits.flop_per_s("fp16") / 2
    assert least_bytes(1000, 10, batch=1, precision="fp32") == 4040
    assert limits.flop_per_s("int8") == 2 * limits.flop_per_s("fp16")
    with pytest.raises(UnknownNameError, match="no precision 'int4'"):
        limits.flop_per_s("int4")
    with pytest.raises(UnknownNameError, match="no precision 'int4'"):
        least_bytes(1, 1, batch=1, precision="int4")


def test_a_mode_that_the_profile_lacks_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="orin-nx-16gb has no power mode 'MODE_30W'"):
        ceiling(load_profile("orin-nx-16gb"), "MODE_30W")


def found(mode: dict[str, Any] | None, *, super_clocks: bool = False) -> BoardFacts:
    table = [{"id": 9, "name": "other", "tpc_mask": 255, "gpu_max_hz": 1, "emc_max_hz": 1}]
    module = {"super": super_clocks}
    if mode is None:
        return read_facts({"module": module, "power_mode": None, "power_modes": []}, "orin")
    now = {"id": 2, "name": "now"}
    return read_facts({"module": module, "power_mode": now, "power_modes": [*table, {**now, **mode}]}, "orin")


@pytest.mark.parametrize(
    ("mode", "tensor_cores", "gpu_mhz", "emc_mhz"),
    [
        ({"tpc_mask": 252, "gpu_max_hz": 624750000, "emc_max_hz": 2133000000}, 16, 624.75, 2133),
        ({"tpc_mask": 240, "gpu_max_hz": -1, "emc_max_hz": 0}, 32, 918, 3199),
        ({"tpc_mask": 240, "gpu_max_hz": 2147483647, "emc_max_hz": None}, 32, 918, 3199),
        ({"tpc_mask": 0, "gpu_max_hz": None, "emc_max_hz": None}, 32, 918, 3199),
        ({"tpc_mask": None, "gpu_max_hz": 408000000, "emc_max_hz": None}, 32, 408, 3199),
        (None, 32, 918, 3199),
    ],
)
def test_the_boards_own_table_decides_where_it_can_be_read(
    mode: dict[str, Any] | None, tensor_cores: int, gpu_mhz: float, emc_mhz: float
) -> None:
    limits = board_ceiling(load_profile("orin-nx-16gb"), found(mode))
    assert limits.tensor_cores == tensor_cores and limits.gpu_hz == gpu_mhz * 1e6
    assert limits.bytes_per_s == pytest.approx(emc_mhz * 1e6 * 32)


def test_super_clocks_raise_what_is_uncapped() -> None:
    mode = {"tpc_mask": 240, "gpu_max_hz": -1, "emc_max_hz": -1}
    assert board_ceiling(load_profile("orin-nx-16gb"), found(mode, super_clocks=True)).gpu_hz == 1173e6


def test_one_tpc_of_an_agx_32gb_is_never_there() -> None:
    mode = {"tpc_mask": 128, "gpu_max_hz": -1, "emc_max_hz": -1}
    assert board_ceiling(load_profile("agx-orin-32gb"), found(mode)).tensor_cores == 7 * 2 * 4


@pytest.mark.parametrize("name", profile_names())
def test_no_mode_of_a_profile_is_faster_than_the_module(name: str) -> None:
    profile = load_profile(name)
    for mode in profile.mode_names():
        for super_clocks in (False, True):
            limits = ceiling(profile, mode, super_clocks=super_clocks)
            best = ceiling(profile, super_clocks=True)
            assert limits.flop_per_s() <= best.flop_per_s() and limits.bytes_per_s <= best.bytes_per_s
