"""Meters read a captured tree through `root`, and give None for what a tree does not tell."""

import os
import subprocess
from pathlib import Path

import pytest

from edgevit.agent import environment
from edgevit.agent.meters import clocks, gpu, ina3221, jtop, load, memory, nvpmodel, tegrastats, thermal

FILES_OF_METERS = (clocks, gpu, ina3221, jtop, load, memory, nvpmodel, tegrastats, thermal)
METERS = {file.__name__.rpartition(".")[2]: file.Meter for file in FILES_OF_METERS}


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
    "nvmap": "sys/kernel/debug/nvmap/iovmm/clients",
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
        "memory_nvmap_bytes": None,
    }


def test_memory_of_the_gpu_is_the_most_that_this_process_held(board):
    table = "CLIENT PROCESS PID SIZE\nuser python3 {pid} {size}K\nuser Xorg 1 9999K\ntotal 1G\n"
    root = board(nvmap=table.format(pid=os.getpid(), size=100))
    with memory.Meter(root) as meter:
        board(nvmap=table.format(pid=os.getpid(), size=300))
        meter.read()
        board(nvmap=table.format(pid=os.getpid(), size=200))
    assert meter.figures()["memory_nvmap_bytes"] == 300 * 1024


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


def test_clocks_of_a_jetson_include_the_gpu_and_where_readable_its_memory(board_tree):
    for board, emc in (("agx-orin-64gb-jetpack6.2.1", 2133000), ("orin-nx-16gb-jetpack6.2", None)):
        with clocks.Meter(str(board_tree(board))) as meter:
            meter.read()
        during = meter.figures()["clocks_during_khz"][0]
        assert (during["gpu"], during.get("emc")) == (306000, emc)
        assert during["cpu0"] > 729600


def test_a_core_that_is_switched_off_has_no_clock(board_tree):
    root = board_tree("orin-nano-8gb-jetpack6.2.1")
    (root / "sys/devices/system/cpu/cpu5/cpufreq").rename(root / "gone")
    with clocks.Meter(str(root)) as meter:
        pass
    assert set(meter.figures()["clocks_before_khz"]) == {"cpu0", "cpu1", "cpu2", "cpu3", "cpu4", "gpu"}


def test_gpu_load_is_read_wherever_the_driver_puts_it(tmp_path):
    for path in gpu.PATHS:
        file = tmp_path / path.replace("/", "_") / path
        file.parent.mkdir(parents=True)
        file.write_text("990\n")
        with gpu.Meter(str(tmp_path / path.replace("/", "_"))) as meter:
            meter.read()
            file.write_text("1000\n")
        assert meter.figures() == {"gpu_load_permille": (990, 1000)}


def test_the_power_mode_is_asked_before_and_after(board_tree):
    root = board_tree("orin-nx-16gb-jetpack6.2")
    with nvpmodel.Meter(str(root)) as meter:
        meter.read()
        subprocess.run([root / "usr/sbin/nvpmodel", "-m", "3"], check=True)
    assert meter.figures() == {"power_mode_before": "MAXN_SUPER", "power_mode_after": "25W"}


@pytest.fixture
def warm(board_tree):
    """A board, and a way to change one of its files of temperatures, of cooling devices or of over-current events."""
    root = board_tree("orin-nx-16gb-jetpack6.2")
    types = {path.read_text().strip(): path.parent for path in root.glob("sys/class/thermal/*/type")}
    [events] = root.glob("sys/class/hwmon/*/oc1_event_cnt")

    def write(name, value):
        kind, _, file = name.partition("/")
        (types.get(kind, events.parent) / file).write_text(f"{value}\n")

    return str(root), write


def test_temperatures_are_read_before_during_and_after(warm):
    root, write = warm
    with thermal.Meter(root) as meter:
        write("tj-thermal/temp", 71500)
        meter.read()
        assert meter.hottest_c() == 71.5
        write("tj-thermal/temp", 60000)
    figures = meter.figures()
    assert figures["temperatures_before_c"]["tj"] == 52.375
    assert [reading["tj"] for reading in figures["temperatures_during_c"]] == [71.5]
    assert figures["temperatures_after_c"]["tj"] == 60
    assert figures["throttled"] == ()


def test_what_was_held_back_during_the_window_is_named_even_if_it_is_over(warm):
    root, write = warm
    with thermal.Meter(root) as meter:
        write("gpu-throttle-alert/cur_state", 1)
        write("devfreq-17000000.gpu/cur_state", 3)
        write("pwm-fan/cur_state", 4)
        write("hot-surface-alert/cur_state", 1)
        meter.read()
        write("gpu-throttle-alert/cur_state", 0)
        write("events/oc1_event_cnt", 2)
        write("events/oc2_event_cnt", 1)
    assert set(meter.figures()["throttled"]) == {
        "gpu-throttle-alert at step 1",
        "devfreq-17000000.gpu at step 3",
        "under-voltage 2 times",
        "average over-current 1 times",
    }


@pytest.mark.parametrize(("events", "throttled"), [(4, ()), (4000, ("instantaneous over-current 4000 times",))])
def test_single_instantaneous_over_currents_are_an_orins_everyday_and_many_are_not(events, throttled, warm):
    root, write = warm
    with thermal.Meter(root) as meter:
        write("events/oc3_event_cnt", events)
        meter.started -= 1  # as if the window had lasted a second
    assert meter.figures()["throttled"] == throttled


def test_a_counter_that_appears_or_starts_anew_counts_nothing(warm):
    root, write = warm
    write("events/oc1_event_cnt", 9)
    write("events/oc2_event_cnt", "?")
    with thermal.Meter(root) as meter:
        write("events/oc1_event_cnt", 0)
        write("events/oc2_event_cnt", 5)
    assert meter.figures()["throttled"] == ()
