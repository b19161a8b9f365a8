"""Real lines of all JetPacks are understood, and whatever else a board prints neither raises nor hangs."""

import os
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgevit.agent import environment, jetson, kernel
from edgevit.agent.meters import clocks, gpu, ina3221, memory, nvpmodel, tegrastats, thermal

JETPACK_5_ROOT = (
    "04-24-2023 00:01:24 RAM 1282/62795MB (lfb 15152x4MB) SWAP 0/31398MB (cached 0MB) CPU [0%@729,0%@729,off,off] "
    "EMC_FREQ 0%@2133 GR3D_FREQ 0%@0 GR3D2_FREQ 0%@0 VIC_FREQ 729 APE 174 CV0@-256C CPU@42.593C Tboard@32C "
    "SOC2@39.343C Tdiode@33.25C SOC0@39.375C CV1@-256C GPU@-256C tj@42.593C SOC1@40.468C CV2@-256C "
    "VDD_GPU_SOC 2399mW/2399mW VDD_CPU_CV 400mW/400mW VIN_SYS_5V0 4032mW/4032mW NC 0mW/0mW "
    "VDDQ_VDD2_1V8AO 301mW/301mW NC 0mW/0mW"
)
JETPACK_6_ROOT = (
    "05-09-2026 18:42:06 RAM 18207/62841MB (lfb 466x4MB) SWAP 86/31420MB (cached 0MB) CPU [14%@2188,5%@2112] "
    "EMC_FREQ 3%@2133 GR3D_FREQ 0%@[0,0] NVENC 79%@166 NVDEC off APE 174 cpu@52.562C soc2@48.437C soc0@49.093C "
    "tj@52.562C soc1@49.656C VDD_GPU_SOC 2412mW/2412mW VDD_CPU_CV 1607mW/1607mW VIN_SYS_5V0 4707mW/4707mW"
)
JETPACK_6_USER = (
    "04-27-2026 14:59:41 RAM 775/7620MB (lfb 3x4MB) SWAP 0/3810MB (cached 0MB) CPU [1%@729,0%@729] GR3D_FREQ 0% "
    "cpu@48.468C soc2@47.531C gpu@48.562C VDD_IN 4761mW/4778mW VDD_CPU_GPU_CV 515mW/501mW VDD_SOC 1428mW/1428mW"
)
JETPACK_7_ROOT = (
    "07-25-2026 09:08:28 RAM 20642/62817MB (lfb 1x2MB) CPU [23%@2201,10%@2201] EMC_FREQ 3%@3199 "
    "GR3D_FREQ 12%@[1300,1300] NVENC0 off APE 174 cpu@52.968C/53.968C soc2@48.406C/48.406C gpu@47.625C/47.625C "
    "VDD_GPU_SOC 5139mW/5200mW/5300mW VDD_CPU_CV 3268mW/3268mW/3268mW VIN_SYS_5V0 5500mW/5500mW/5500mW"
)


def test_tegrastats_of_jetpack_5_as_root():
    stats = tegrastats.parse(JETPACK_5_ROOT)
    assert (stats.ram_used_bytes, stats.ram_total_bytes) == (1282 << 20, 62795 << 20)
    assert stats.gpu_load_percent == 0
    zones = {"cpu": 42.593, "tboard": 32, "soc2": 39.343, "tdiode": 33.25, "soc0": 39.375, "tj": 42.593, "soc1": 40.468}
    assert stats.temperatures_c == zones
    assert stats.rails_mw == {"VDD_GPU_SOC": 2399, "VDD_CPU_CV": 400, "VIN_SYS_5V0": 4032, "VDDQ_VDD2_1V8AO": 301}


@pytest.mark.parametrize(
    ("line", "load", "cpu", "rails"),
    [
        (JETPACK_6_ROOT, 0, 52.562, {"VDD_GPU_SOC": 2412, "VDD_CPU_CV": 1607, "VIN_SYS_5V0": 4707}),
        (JETPACK_6_USER, 0, 48.468, {"VDD_IN": 4761, "VDD_CPU_GPU_CV": 515, "VDD_SOC": 1428}),
        (JETPACK_7_ROOT, 12, 52.968, {"VDD_GPU_SOC": 5139, "VDD_CPU_CV": 3268, "VIN_SYS_5V0": 5500}),
    ],
)
def test_tegrastats_tells_what_is_so_now_and_not_its_mean(line, load, cpu, rails):
    stats = tegrastats.parse(line)
    assert (stats.gpu_load_percent, stats.temperatures_c["cpu"], stats.rails_mw) == (load, cpu, rails)


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        ("NV Power Mode: MODE_30W\n2\n", {"id": 2, "name": "MODE_30W"}),
        ("NVPM WARN: fan mode is not set!\nNV Power Mode: MAXN\n0\n", {"id": 0, "name": "MAXN"}),
        ("NV Fan Mode:quiet\nNV Power Mode: MAXN_SUPER\n2\n", {"id": 2, "name": "MAXN_SUPER"}),
        ("NVPM VERB: Current mode: NV Power Mode: 25W\n1\nNVPM VERB: PARAM GPU\n", {"id": 1, "name": "25W"}),
        ("NV Power Mode: 25W\n", {"id": 1, "name": "25W"}),  # its number is in the table
        ("NV Power Mode: CUSTOM\n", {"id": None, "name": "CUSTOM"}),
    ],
)
def test_nvpmodel_says_the_mode_in_several_ways(said, mode, board_tree):
    root = board_tree("orin-nano-8gb-jetpack6.2.1")
    (root / "answer").write_text(said)
    (root / "usr/sbin/nvpmodel").write_text(f"#!/bin/sh\ncat '{root}/answer'\n")
    assert jetson.power_mode(str(root)) == mode


@pytest.mark.parametrize(
    ("line", "release"),
    [
        ("# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, EABI: aarch64", ("35.4.1", "5.1.2")),
        ("# R36 (release), REVISION: 5.0, GCID: 1", ("36.5.0", "6.2.2")),
        ("# R39 (release), REVISION: 2.1, GCID: 46758480, BOARD: generic", ("39.2.1", "7.2.1")),
        ("# R41 (release), REVISION: 0.0, GCID: 1", ("41.0.0", None)),
        ("R36.4.3", (None, None)),
    ],
)
def test_the_release_of_l4t_names_the_jetpack_if_it_is_a_known_one(line, release, tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nv_tegra_release").write_text(line + "\n# KERNEL_VARIANT: oot\n")
    assert (jetson.l4t(str(tmp_path)), jetson.jetpack(str(tmp_path))) == release


NVMAP = """CLIENT                        PROCESS      PID        SIZE
user                         gpu_burn     7979   23525644K
user                   two words here     4711       1024K
user                      gnome_shell     4711          2M
total                                            2G
"""


def test_nvmap_gives_what_one_process_holds():
    assert memory.parse_nvmap(NVMAP, 7979) == 23525644 * 1024
    assert memory.parse_nvmap(NVMAP, 4711) == (1 << 20) + (2 << 20)
    assert memory.parse_nvmap(NVMAP, 1) is None
    newer = "CLIENT PROCESS PID PSS SIZE\nuser nvargus-daemon 4678 0K 76K\ntotal 64K 76K\n"
    assert memory.parse_nvmap(newer, 4678) == 76 * 1024
    assert memory.parse_nvmap("", 1) is None


# Words of the real outputs, so that the fuzz gets past their beginnings.
WORDS = (
    *sorted({word for line in (JETPACK_5_ROOT, JETPACK_7_ROOT, NVMAP) for word in line.split()}),
    *(
        "< POWER_MODEL ID=",
        "0",
        "-1",
        "NAME=MAXN",
        " >",
        "< PM_CONFIG DEFAULT=",
        "CPU_ONLINE CORE_0 1",
        "GPU MAX_FREQ ",
    ),
    *(
        "TPC_POWER_GATING TPC_PG_MASK ",
        "EMC MAX_FREQ ",
        "NV Power Mode: ",
        "pmode:",
        "# R36 (release), REVISION: ",
        "4.3",
    ),
    *("nvidia,p3768-0000+p3767-0000", "cpu-thermal", "gpu-throttle-alert", "soctherm_oc", "MemTotal: 1 kB", "\n", "\0"),
    *("²", "٣", "9" * 19, "9" * 400, "9" * 5000),
)
NOISE = st.text(st.characters(codec="utf-8"), max_size=40) | st.text(string.digits + "-.\n K", max_size=12)
TEXT = st.lists(st.sampled_from(WORDS) | NOISE, max_size=30).map(" ".join) | st.lists(st.sampled_from(WORDS)).map(
    "".join
)
FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(TEXT)
def test_no_text_breaks_a_parser(text):
    stats = tegrastats.parse(text)
    assert all(milliwatts >= 0 for milliwatts in stats.rails_mw.values())
    assert all(degrees > -256 for degrees in stats.temperatures_c.values())
    held = memory.parse_nvmap(text, os.getpid())
    assert held is None or isinstance(held, int)
    assert isinstance(kernel.integer(text), (int, type(None)))


INA3221 = "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon1"
FUZZED = (
    "etc/nvpmodel.conf",
    "etc/nv_tegra_release",
    "var/lib/nvpmodel/status",
    "proc/device-tree/compatible",
    "proc/meminfo",
    "sys/kernel/debug/nvmap/iovmm/clients",
    "sys/kernel/debug/bpmp/debug/clk/emc/rate",
    "sys/class/thermal/thermal_zone0/type",
    "sys/class/thermal/thermal_zone0/temp",
    "sys/class/thermal/cooling_device4/type",
    "sys/class/thermal/cooling_device4/cur_state",
    "sys/class/hwmon/hwmon2/name",
    "sys/class/hwmon/hwmon2/oc2_event_cnt",
    "sys/class/devfreq/17000000.gpu/cur_freq",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq",
    "sys/devices/platform/bus@0/17000000.gpu/load",
    *(f"{INA3221}/{file}" for file in ("in1_label", "curr1_input", "in1_enable", "in2_input")),
)


@pytest.fixture
def quick_board(board_tree, monkeypatch):
    """A board whose nvpmodel is gone, so that no process is started, and whose sensor need not be waited for."""
    root = board_tree("orin-nx-16gb-jetpack6.2")
    (root / "usr/sbin/nvpmodel").unlink()
    (root / f"{INA3221}/update_interval").write_text("0\n")
    return root


@FUZZ
@given(st.dictionaries(st.sampled_from(FUZZED), TEXT | st.binary(max_size=20), min_size=1, max_size=6))
def test_no_file_of_a_board_breaks_what_reads_it(quick_board, files):
    root = str(quick_board)
    whole = {}
    for name, content in files.items():
        path = quick_board / name
        path.parent.mkdir(parents=True, exist_ok=True)
        whole[path] = path.read_bytes() if path.exists() else None
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        for kind in (memory, clocks, gpu, nvpmodel, thermal, ina3221):
            with kind.Meter(root) as meter:
                meter.read()
            assert meter.figures()
        environment.describe_environment(root)
        jetson.rails(root)
        jetson.default_power_mode(root)
        assert all(isinstance(mode["id"], int) for mode in jetson.power_modes(root))
    finally:
        for path, content in whole.items():
            path.unlink() if content is None else path.write_bytes(content)


@FUZZ
@given(TEXT)
def test_no_answer_of_nvpmodel_breaks_what_asks_it(text):
    answer = jetson.parse_answer(text)
    assert answer is None or answer[0]
