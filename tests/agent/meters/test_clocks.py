"""Clocks of the cores, the GPU and its memory, as a captured tree has them."""

from edgevit.agent.meters import clocks


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
