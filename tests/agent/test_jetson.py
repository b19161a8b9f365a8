"""What the agent says of the captured boards, and of machines that are no Jetson."""

import subprocess
from pathlib import Path

import places
import pytest
from captured import AGX, AGX5, AGX7, AGX623, AGX722, NANO, NX

from edgevit.agent import jetson

BOARDS = {AGX, AGX5, AGX7, NX, NANO}
VARIANTS = {AGX623, AGX722}
PYTHON_38 = next(Path.home().glob(".pyenv/versions/3.8*/bin/python"), None)


@pytest.fixture(params=sorted(BOARDS))
def any_board(request, board_tree):
    return str(board_tree(request.param))


def test_every_captured_board_is_tested_here_and_says_where_it_is_from():
    folders = {path for path in places.BOARDS.iterdir() if path.is_dir()}
    assert {path.name for path in folders} - {"programs"} == BOARDS | VARIANTS
    assert all("[" in (path / "README.md").read_text() for path in folders if path.name != "programs")


@pytest.mark.parametrize(
    ("board", "part", "is_super", "gibibytes", "l4t", "jetpack", "mode"),
    [
        (AGX, "p3701-0005", False, 61, "36.4.4", "6.2.1", {"id": 0, "name": "MAXN"}),
        (AGX5, "p3701-0005", False, 61, "35.3.1", "5.1.1", {"id": 0, "name": "MAXN"}),
        (AGX623, "p3701-0005", False, 61, "36.5.2", "6.2.3", {"id": 0, "name": "MAXN"}),
        (AGX722, "p3701-0000", False, 61, "39.2.2", "7.2.2", {"id": 0, "name": "MAXN"}),
        (AGX7, "p3701-0000", False, 61, "39.2.1", "7.2.1", {"id": 0, "name": "MAXN"}),
        (NX, "p3767-0000", True, 15, "36.4.3", "6.2", {"id": 0, "name": "MAXN_SUPER"}),
        (NANO, "p3767-0005", True, 7, "36.4.4", "6.2.1", {"id": 1, "name": "25W"}),
    ],
)
def test_a_board_is_known_by_its_files(board, part, is_super, gibibytes, l4t, jetpack, mode, board_tree):
    root = str(board_tree(board))
    module = jetson.identify(root)
    assert (module["part"], module["super"], module["memory_bytes"] >> 30) == (part, is_super, gibibytes)
    assert module["compatible"][-1] == "nvidia,tegra234"
    assert module["model"].startswith("NVIDIA Jetson") and "\0" not in module["model"]
    assert (jetson.l4t(root), jetson.jetpack(root), jetson.power_mode(root)) == (l4t, jetpack, mode)


def test_a_core_that_a_power_mode_switched_off_is_no_clock_that_is_free(board_tree):
    root = board_tree(AGX7)  # after jetson_clocks
    assert jetson.clocks_locked(str(root))
    off = root / "sys/devices/system/cpu/cpu8"
    (off / "online").write_text("0\n")
    for name, khz in {"cur": 729600, "min": 729600, "max": 2201600}.items():  # as an AGX Orin in MODE_30W says
        (off / f"cpufreq/scaling_{name}_freq").write_text(f"{khz}\n")
    assert jetson.clocks_locked(str(root)) and "cpu8" not in jetson.clocks(str(root))
    (off / "online").write_text("1\n")
    assert jetson.clocks_locked(str(root)) is False and "cpu8" in jetson.clocks(str(root))


def test_the_power_modes_are_those_of_the_boards_own_table(board_tree):
    root = str(board_tree(NX))
    modes = {mode["name"]: mode for mode in jetson.power_modes(root)}
    assert list(modes) == ["MAXN_SUPER", "10W", "15W", "25W", "40W"]
    assert modes["MAXN_SUPER"] == {
        "id": 0, "name": "MAXN_SUPER", "cpus_online": 8, "tpc_mask": 240, "gpu_max_hz": None, "emc_max_hz": None,
    }  # fmt: skip
    assert modes["10W"] == {
        "id": 1, "name": "10W", "cpus_online": 4, "tpc_mask": 252, "gpu_max_hz": 612000000, "emc_max_hz": 2133000000,
    }  # fmt: skip
    assert jetson.default_power_mode(root) == 4


def test_the_same_mode_has_another_number_on_another_board(board_tree):
    numbers = [
        {mode["name"]: mode["id"] for mode in jetson.power_modes(str(board_tree(board)))}["MAXN_SUPER"]
        for board in (NX, NANO)
    ]
    assert numbers == [0, 2]


def test_the_saved_mode_counts_where_nvpmodel_does_not_answer(board_tree):
    root = board_tree(NANO)
    (root / "usr/sbin/nvpmodel").write_text("#!/bin/sh\necho 'NVPM ERROR: failed to query'\nexit 1\n")
    assert jetson.power_mode(str(root)) == {"id": 1, "name": "25W"}
    (root / "var/lib/nvpmodel/status").write_text("pmode:0009 fmode:quiet\n")
    assert jetson.power_mode(str(root)) is None


def test_clocks_are_read_for_the_gpu_and_each_core_that_is_on(board_tree):
    root = board_tree(NX)
    (root / "sys/devices/system/cpu/cpu7").rename(root / "sys/devices/system/cpu/away")
    clocks = jetson.clocks(str(root))
    assert set(clocks) == {"gpu", *(f"cpu{i}" for i in range(7))}
    assert clocks["gpu"] == {"cur_khz": 306000, "min_khz": 306000, "max_khz": 1173000, "governor": "nvhost_podgov"}
    assert clocks["cpu0"] == {"cur_khz": 1984000, "min_khz": 729600, "max_khz": 1984000, "governor": "schedutil"}


def test_jetpack_5_calls_the_gpu_by_another_name(board_tree):
    root = board_tree(AGX)
    (root / "sys/class/devfreq/17000000.gpu").rename(root / "sys/class/devfreq/17000000.ga10b")
    assert jetson.clocks(str(root))["gpu"]["max_khz"] == 1300500


def test_clocks_that_a_governor_keeps_at_their_maximum_are_locked(board_tree):
    root = board_tree(NX)
    for path in root.glob("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"):
        path.write_text("performance\n")
    assert jetson.clocks_locked(str(root)) is False
    (root / "sys/class/devfreq/17000000.gpu/governor").write_text("performance\n")
    assert jetson.clocks_locked(str(root)) is True


def test_the_lock_of_the_memorys_clock_is_known_where_it_can_be_read(board_tree):
    root = board_tree(AGX)
    assert jetson.memory_clock_locked(str(root)) is None
    for text, locked in (("0", False), ("1", True)):
        (root / jetson.EMC_LOCKED).write_text(f"{text}\n")
        assert jetson.memory_clock_locked(str(root)) is locked


def test_clocks_are_locked_when_each_has_one_speed_left(board_tree, tmp_path):
    assert jetson.clocks_locked(str(board_tree(AGX7))) is True
    root = board_tree(NX)
    assert jetson.clocks_locked(str(root)) is False
    subprocess.run([root / "usr/bin/jetson_clocks", "--store", tmp_path / "clocks"], check=True)
    subprocess.run([root / "usr/bin/jetson_clocks"], check=True)
    assert jetson.clocks_locked(str(root)) is True
    assert jetson.clocks(str(root))["gpu"]["cur_khz"] == 1173000
    subprocess.run([root / "usr/bin/jetson_clocks", "--restore", tmp_path / "clocks"], check=True)
    assert jetson.clocks_locked(str(root)) is False
    assert jetson.clocks_locked(str(tmp_path)) is None


def test_zones_that_are_switched_off_have_no_temperature(board_tree):
    root = board_tree(NANO)
    warm = {"cpu": 48.468, "gpu": 48.562, "soc0": 48.062, "soc1": 49.156, "soc2": 47.531, "tj": 49.156}
    assert jetson.temperatures_c(str(root)) == warm
    (root / "sys/class/thermal/thermal_zone1/temp").write_text("-256000\n")
    del warm["gpu"]
    assert jetson.temperatures_c(str(root)) == warm


def test_rails_are_those_with_a_sensor_that_is_on(board_tree):
    rails = jetson.rails(str(board_tree(AGX)))
    assert [(rail["address"], rail["label"], int(rail["milliwatts"])) for rail in rails] == [
        ("40", "VDD_GPU_SOC", 2412),
        ("40", "VDD_CPU_CV", 1607),
        ("40", "VIN_SYS_5V0", 4707),
        ("41", "VDDQ_VDD2_1V8AO", 301),
    ]


def test_a_machine_that_is_no_jetson_has_none_of_it(tmp_path):
    root = str(tmp_path)
    assert jetson.identify(root) == {
        "part": None, "compatible": [], "model": None, "super": False, "memory_bytes": None,
    }  # fmt: skip
    assert (
        jetson.l4t(root) is jetson.jetpack(root) is jetson.power_mode(root) is jetson.default_power_mode(root) is None
    )
    assert jetson.power_modes(root) == jetson.rails(root) == []
    assert (jetson.clocks(root), jetson.temperatures_c(root)) == ({"gpu": None}, {})


def test_another_makers_board_has_no_part_number(board_tree):
    root = board_tree(NX)
    (root / "proc/device-tree/compatible").write_bytes(b"raspberrypi,p1234-5678\0brcm,bcm2711\0")
    assert jetson.identify(str(root))["part"] is None


def test_the_stand_in_nvpmodel_changes_the_mode_and_asks_for_a_reboot_where_the_real_one_does(board_tree):
    root = board_tree(NX)

    def nvpmodel(*arguments):
        done = subprocess.run(
            [root / "usr/sbin/nvpmodel", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        return done.returncode, done.stdout

    assert nvpmodel("-q") == (0, "NVPM WARN: fan mode is not set!\nNV Power Mode: MAXN_SUPER\n0\n")
    assert nvpmodel("-m", "4")[0] == 0
    assert jetson.power_mode(str(root)) == {"id": 4, "name": "40W"}
    assert nvpmodel("-m", "9")[0] != 0
    code, said = nvpmodel("-m", "2")  # half of the GPU would be switched off
    assert (code, "REBOOT" in said) == (0, True)
    assert jetson.power_mode(str(root)) == {"id": 4, "name": "40W"}


@pytest.mark.quick("*5.1.1", "*7.2.1")
def test_the_stand_in_jetson_clocks_shows_what_the_real_one_does(any_board):
    shown = subprocess.run([f"{any_board}/usr/bin/jetson_clocks", "--show"], capture_output=True, text=True, check=True)
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("SOC family:tegra234  Machine:NVIDIA Jetson")
    assert ("Offline CPUs" in lines[1]) == ("jetpack7" in any_board)
    assert lines[-1] == f"NV Power Mode: {jetson.power_mode(any_board)['name']}"


@pytest.mark.quick("*5.1.1", "*7.2.1")
@pytest.mark.skipif(PYTHON_38 is None, reason="no Python 3.8 here, which is JetPack 5's")
def test_everything_about_a_board_is_read_by_python_3_8(any_board):
    program = """
import json, sys
from edgevit.agent import environment, jetson, power
from edgevit.agent.meters import clocks, gpu, load, memory, nvpmodel, thermal
root = sys.argv[1]
meters = [kind.Meter(root) for kind in (memory, clocks, gpu, load, nvpmodel, thermal)]
meters += [power.power_meter(root, name, [["40", "VDD_IN"]]) for name in ("ina3221", "tegrastats")]
figures = {}
for meter in meters:
    with meter:
        meter.read()
    figures.update(meter.figures())
print(json.dumps([figures, environment.describe_environment(root), jetson.clocks(root), power.power_meters(root)]))
"""
    done = subprocess.run(
        [PYTHON_38, "-W", "error", "-c", program, any_board],
        cwd=places.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert '"meter": "tegrastats"' in done.stdout


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
