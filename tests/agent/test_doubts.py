"""What speaks against a run, and what makes its numbers void."""

import re
from dataclasses import replace

import pytest
from quiet_runs import BOARD, MS, QUIET, SLOWED, S, power


def test_a_quiet_run_has_no_warnings():
    assert QUIET.warnings() == []


def test_a_run_on_a_machine_that_tells_nothing_has_no_warnings():
    silent = dict.fromkeys(["clocks_before_khz", "clocks_during_khz", "clocks_after_khz", "cpu_busy_ns", "cpu_own_ns"])
    assert replace(QUIET, load_average_before=None, **silent).warnings() == []


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"latencies_ns": (10 * MS,) * 99}, "p99 of 99 samples is just the slowest of them; try --samples 100"),
        ({"wall_ns": 400 * MS, "cpu_busy_ns": None}, "the window lasted 0.40 s, .* try --duration 10"),
        ({"latencies_ns": (900,) * 200}, "takes 900 ns and the clock steps by 50 ns; try a larger --batch"),
        ({"latencies_ns": (5 * MS, 15 * MS) * 100}, "deviation is 50% of the mean; close other programs"),
        ({"latencies_ns": (10 * MS,) * 4999 + (60 * MS,)}, "slowest inference took 6 times the median; close"),
        (
            {"latencies_ns": (10 * MS,) * 100 + (11 * MS,) * 100},
            "second half .* was 10% slower .*; let the machine cool",
        ),
        (
            {"latencies_ns": (11 * MS,) * 100 + (10 * MS,) * 100},
            "second half .* was 9% faster .*; try a longer --warmup",
        ),
        ({"clocks_after_khz": {"cpu0": 1_000_000}}, "moved between 1000 and 1500 MHz; try the performance governor"),
        (
            {"load_average_before": 2.4, "cpu_busy_ns": None},
            "the load average was 2.4 on 2 cores; close other programs",
        ),
        (
            {"environment": {**QUIET.environment, "cuda_graph": "refused"}},
            "a CUDA graph was refused, .* compare it with runs of --option cuda_graph=False",
        ),
        ({"cpu_busy_ns": 3_150 * MS}, "other programs took 25% of the processor .* close them"),
    ],
)
def test_a_doubtful_run_says_why_and_what_to_try(changes, warning):
    (text,) = replace(QUIET, **changes).warnings()
    assert re.search(warning, text)


def test_where_ticks_say_that_nothing_else_ran_on_these_cores_the_load_average_says_nothing():
    assert replace(QUIET, load_average_before=9.0).warnings() == []


def test_missed_periods_are_told():
    run = replace(QUIET, period_ns=33 * MS, missed=50)
    assert f"50 of {50 + len(QUIET.latencies_ns)} periods were missed" in run.doubts()["missed"]
    assert "missed" not in replace(run, missed=0).doubts()


def test_clocks_that_fall_in_pauses_are_what_is_measured_and_void_nothing():
    moving = ({"gpu": 918_000}, {"gpu": 306_000})
    closed = replace(QUIET, gpu_ns=QUIET.latencies_ns, clocks_during_khz=moving)
    assert "the GPU clock moved" in closed.void()[0]
    assert replace(closed, period_ns=33 * MS, missed=0).void() == []


def test_a_run_on_a_board_that_was_left_alone_is_not_void():
    assert (BOARD.void(), BOARD.warnings(), QUIET.void()) == ([], [], [])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"throttled": ("gpu-throttle at step 2", "under-voltage 3 times")},
            r"\(gpu-throttle at step 2; under-voltage 3",
        ),
        ({"power_mode_after": "MAXN"}, "the power mode changed from 15W to MAXN"),
        ({"clocks_during_khz": SLOWED}, "GPU clock moved between 612 and 918 MHz; try --lock-clocks"),
        ({"clocks_during_khz": SLOWED, "gpu_ns": None, "streams": 2}, "GPU clock moved between 612 and 918 MHz"),
    ],
)
def test_a_run_whose_clocks_or_mode_moved_or_that_throttled_is_void(changes, reason):
    (text,) = replace(BOARD, **changes).void()
    assert re.search(reason, text)


def test_the_clock_of_a_gpu_that_was_not_used_voids_nothing():
    assert replace(BOARD, clocks_during_khz=SLOWED, gpu_ns=None).void() == []


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        (
            {"power": power([1] * 3, [0, S, 2 * S], window=(0, 2 * S))},
            "power was read over 2.0 s only, .* --duration 10",
        ),
        ({"power": replace(BOARD.power, total=())}, r"no energy \(VDD_IN@40 were read\); try --profile"),
    ],
)
def test_power_that_is_doubtful_says_why_and_what_to_try(changes, warning):
    (text,) = replace(BOARD, **changes).warnings()
    assert re.search(warning, text)
