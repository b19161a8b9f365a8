"""Meters read a captured tree through `root`, and give None for what a tree does not tell."""

from pathlib import Path

import pytest

from edgevit.agent import environment
from edgevit.agent.meters import clocks, load, memory

METERS = {"memory": memory.Meter, "clocks": clocks.Meter, "load": load.Meter}


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A two-core board whose files a test may rewrite between readings."""
    monkeypatch.setattr(environment, "usable_cpus", lambda: [0, 1])
    monkeypatch.setattr(load, "usable_cpus", lambda: [0, 1])
    monkeypatch.setattr(load.os, "sysconf", lambda name: 100)

    def write(**files: str) -> str:
        for name, text in files.items():
            path = tmp_path / FILES[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(tmp_path)

    return write


FILES = {
    "meminfo": "proc/meminfo",
    "status": "proc/self/status",
    "stat": "proc/stat",
    "self_stat": "proc/self/stat",
    "loadavg": "proc/loadavg",
    "cpu0": "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq",
    "cpu1": "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq",
    "governor": "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "model": "proc/device-tree/model",
    "cpuinfo": "proc/cpuinfo",
    "gpu": "proc/driver/nvidia/gpus/0000:01:00.0/information",
    "driver": "proc/driver/nvidia/version",
}


def test_every_meter_file_is_tested_here():
    files = {path.stem for path in Path(memory.__file__).parent.glob("*.py")}
    assert files - {"__init__"} == set(METERS)


@pytest.mark.parametrize("name", METERS)
def test_a_machine_that_tells_nothing_gives_none(name, tmp_path):
    with METERS[name](str(tmp_path)) as meter:
        meter.read()
    assert set(meter.figures().values()) == {None}


@pytest.mark.parametrize("name", METERS)
def test_a_meter_works_on_this_machine_whatever_it_tells(name):
    with METERS[name]("/") as meter:
        meter.read()
    assert meter.figures()


def test_memory_is_the_lowest_that_was_available_and_the_peak_of_the_process(board):
    root = board(meminfo="MemTotal: 9000 kB\nMemAvailable:    8000 kB\n", status="VmHWM:\t  300 kB\nVmRSS: 200 kB\n")
    with memory.Meter(root) as meter:
        board(meminfo="MemAvailable: 5000 kB\n")
        meter.read()
        board(meminfo="MemAvailable: 7000 kB\n")
    assert meter.figures() == {
        "memory_peak_rss_bytes": 300 * 1024,
        "memory_available_before_bytes": 8000 * 1024,
        "memory_available_min_bytes": 5000 * 1024,
        "memory_available_after_bytes": 7000 * 1024,
    }


def test_clocks_are_read_for_each_core_before_during_and_after(board):
    root = board(cpu0="1510400\n", cpu1="729600\n")
    with clocks.Meter(root) as meter:
        board(cpu1="1510400\n")
        meter.read()
        meter.read()
    high = {"cpu0": 1510400, "cpu1": 1510400}
    assert meter.figures() == {
        "clocks_before_khz": {"cpu0": 1510400, "cpu1": 729600},
        "clocks_during_khz": (high, high),
        "clocks_after_khz": high,
    }


def test_load_counts_busy_ticks_of_our_cores_and_our_own_share(board):
    #                user nice sys idle iowait irq softirq steal guest
    stat = "cpu  9 9 9 9 9 9 9 9 0\ncpu0 {0} 0 0 500 7 0 0 0 0\ncpu1 0 0 {0} 500 7 0 0 5 0\ncpu2 {0} 0 0 0 0 0 0 0 0\n"
    own = "42 (python (x) y) R 1 1 1 0 -1 4 5 6 7 8 {0} {0} 0 0 20 0 1 0 9\n"
    root = board(stat=stat.format(0), self_stat=own.format(0), loadavg="1.25 0.50 0.25 1/90 42\n")
    with load.Meter(root) as meter:
        board(stat=stat.format(100), self_stat=own.format(30))
    assert meter.figures() == {
        "load_average_before": 1.25,
        "cpu_busy_ns": 2_000_000_000,
        "cpu_own_ns": 600_000_000,
    }


def test_the_environment_names_board_cpu_and_gpu_where_they_are_told(board):
    root = board(
        governor="schedutil\n",
        model="NVIDIA Jetson Orin Nano\0",
        cpuinfo="processor\t: 0\nmodel name\t: ARMv8 (rev 1)\nprocessor\t: 1\n",
        gpu="Model: \t\t NVIDIA H100\nIRQ: 1\n",
        driver="NVRM version: NVIDIA UNIX x86_64 570.1\nGCC version: 12\n",
    )
    seen = environment.describe_environment(root)
    assert seen.items() >= {
        ("board", "NVIDIA Jetson Orin Nano"),
        ("cpu", "ARMv8 (rev 1)"),
        ("cores", "2"),
        ("cpu_governor", "schedutil"),
        ("gpu", "NVIDIA H100"),
        ("gpu_driver", "NVIDIA UNIX x86_64 570.1"),
    }


def test_the_environment_leaves_out_what_cannot_be_read(tmp_path):
    assert set(environment.describe_environment(str(tmp_path))) == {"kernel", "machine", "cores", "python"}
