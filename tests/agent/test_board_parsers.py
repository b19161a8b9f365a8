"""Real lines of all JetPacks are understood, and whatever else a board prints neither raises nor hangs."""

import os
import string

import pytest
from captured import JETPACK_5_ROOT, JETPACK_7_ROOT, NVMAP
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgevit.agent import environment, jetson, kernel
from edgevit.agent.meters import clocks, gpu, ina3221, memory, nvpmodel, tegrastats, thermal

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
FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(TEXT)
def test_no_text_breaks_a_parser(text):
    assert all(milliwatts >= 0 for milliwatts in tegrastats.rails_mw(text).values())
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
