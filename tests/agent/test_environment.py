"""What is said of a machine so that two runs can be compared."""

import subprocess

from captured import NX

from edgevit.agent import environment


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


def test_two_boards_or_two_settings_are_not_the_same_environment(board_tree):
    root = board_tree(NX)
    seen = environment.describe_environment(str(root))
    assert seen.items() >= {
        ("module", "p3767-0000-super"),
        ("memory", "15 GiB"),
        ("l4t", "36.4.3"),
        ("jetpack", "6.2"),
        ("power_mode", "MAXN_SUPER"),
        ("gpu_max_khz", "1173000"),
        ("clocks", "free"),
    }
    subprocess.run([root / "usr/bin/jetson_clocks"], check=True)
    subprocess.run([root / "usr/sbin/nvpmodel", "-m", "4"], check=True)
    table = root / "etc/nvpmodel.conf"
    table.write_text(table.read_text().replace("1190400", "1113600"))
    changed = environment.describe_environment(str(root))
    assert {name for name in seen if seen[name] != changed[name]} == {"clocks", "power_mode", "power_modes"}


def test_settings_count_also_where_a_container_hides_the_module(board_tree):
    root = board_tree(NX)
    (root / "proc/device-tree/compatible").unlink()
    seen = environment.describe_environment(str(root))
    assert "module" not in seen
    assert seen.items() >= {("l4t", "36.4.3"), ("power_mode", "MAXN_SUPER"), ("clocks", "free")}
