"""Runs of a quiet machine and of a board that was left alone, for tests of the agent to alter."""

from dataclasses import replace

from some_runs import DENSE, MS, S

from edgevit.agent.records import Power

QUIET = replace(
    DENSE,
    label="t1",
    model="model.fp32.onnx",
    model_sha256="0" * 64,
    batch=8,
    latencies_ns=(10 * MS, 11 * MS) * 100,
    load_ns=100 * MS,
    first_inference_ns=20 * MS,
    memory_peak_rss_bytes=2**27,
    memory_available_before_bytes=2**33,
    memory_available_min_bytes=2**33 - 2**26,
    memory_available_after_bytes=2**33,
    clocks_before_khz={"cpu0": 1_500_000, "cpu1": 700_000},
    clocks_during_khz=({"cpu0": 1_500_000, "cpu1": 1_500_000},),
    clocks_after_khz={"cpu0": 800_000, "cpu1": 1_500_000},
    load_average_before=0.5,
    cpu_busy_ns=2_200 * MS,
    cpu_own_ns=2_100 * MS,
    environment={"kernel": "Linux 5.15", "cores": "2", "threads": "2"},
)


def power(readings, times_ns, *, window, interval_ms=None, total=("VDD_IN@40",), **others):
    rails = {"VDD_IN@40": tuple(map(float, readings)), **others}
    return Power("ina3221", rails, tuple(times_ns), total, interval_ms, *window)


# An Orin NX whose GPU, supply and cooling were fine.
BOARD = replace(
    QUIET,
    wall_ns=12 * S,
    cpu_busy_ns=13 * S,
    cpu_own_ns=12 * S,
    gpu_ns=(9 * MS, 10 * MS) * 100,
    clocks_before_khz={"cpu0": 1_984_000, "gpu": 918_000},
    clocks_during_khz=({"cpu0": 1_984_000, "gpu": 918_000}, {"cpu0": 1_984_000, "gpu": 906_000}),
    clocks_after_khz={"cpu0": 1_984_000, "gpu": 306_000},
    throttled=(),
    power_mode_before="15W",
    power_mode_after="15W",
    power=power([10_000] * 13, range(0, 13 * S, S), window=(0, 12 * S)),
    session="5e55",
    round=2,
    turn=5,
)

SLOWED = ({"cpu0": 1_984_000, "gpu": 918_000}, {"cpu0": 1_984_000, "gpu": 612_000})
