"""Runs as a board might have written them, for tests to alter."""

from dataclasses import replace

from edgevit.agent.records import Power, Run

MS = 1_000_000
S = 1_000_000_000

DENSE = Run(
    label="dense",
    model="dense.onnx",
    model_sha256="d" * 64,
    precision="fp32",
    runner="onnxruntime",
    provider="CPUExecutionProvider",
    batch=1,
    streams=1,
    latencies_ns=tuple(10 * MS + 1000 * n for n in range(200)),
    gpu_ns=None,
    wall_ns=2_100 * MS,
    load_ns=123 * MS,
    first_inference_ns=45 * MS,
    warmup=10,
    clock_step_ns=50,
    memory_peak_rss_bytes=96 * 2**20,
    memory_available_before_bytes=None,
    memory_available_min_bytes=None,
    memory_available_after_bytes=None,
    memory_engine_bytes=None,
    memory_nvmap_bytes=None,
    clocks_before_khz=None,
    clocks_during_khz=None,
    clocks_after_khz=None,
    load_average_before=None,
    cpu_busy_ns=None,
    cpu_own_ns=None,
    gpu_load_permille=None,
    temperatures_before_c=None,
    temperatures_during_c=None,
    temperatures_after_c=None,
    throttled=None,
    power_mode_before=None,
    power_mode_after=None,
    power=None,
    idle_power=None,
    session=None,
    round=None,
    turn=None,
    environment={"cpu": "ARMv8", "cores": "6"},
    created="2026-01-01T00:00:00+00:00",
)
SLIM = replace(
    DENSE,
    label="slim",
    model_sha256="5" * 64,
    latencies_ns=tuple(5 * MS + 1000 * n for n in range(200)),
    wall_ns=1050 * MS,
)


def watts(*readings, total=("VDD_IN@40",)):
    """One reading of 1000 x `readings` mW every 0.2 s, and a rail that is a part of it."""
    times = tuple(n * S // 5 for n in range(len(readings)))
    rails = {"VDD_IN@40": tuple(1000.0 * w for w in readings), "VDD_SOC@40": (1.0,) * len(readings)}
    return Power("ina3221", rails, times, total, None, 0, times[-1])


ON_A_BOARD = replace(
    SLIM,
    precision="fp16",
    runner="tensorrt",
    provider="TensorRT 10.3.0",
    latencies_ns=(8 * MS, 10 * MS) * 600,
    gpu_ns=(7 * MS, 9 * MS) * 600,
    wall_ns=12 * S,
    memory_available_before_bytes=2**33,
    memory_available_min_bytes=2**33 - 300 * 2**20,
    memory_engine_bytes=48 * 2**20,
    memory_nvmap_bytes=150 * 2**20,
    clocks_before_khz={"cpu0": 1_984_000, "gpu": 918_000},
    clocks_during_khz=({"cpu0": 1_984_000, "gpu": 918_000},) * 50,
    clocks_after_khz={"cpu0": 1_984_000, "gpu": 918_000},
    gpu_load_permille=(900, 1000, 950),
    temperatures_before_c={"cpu-thermal": 48.0, "gpu-thermal": 47.5},
    temperatures_during_c=({"cpu-thermal": 50.0, "gpu-thermal": 52.5},),
    temperatures_after_c={"cpu-thermal": 49.0, "gpu-thermal": 51.0},
    throttled=(),
    power_mode_before="MAXN_SUPER",
    power_mode_after="MAXN_SUPER",
    power=watts(*(9.8, 10.2) * 30, 9.8),
    idle_power=watts(*(4.0,) * 60),
)
