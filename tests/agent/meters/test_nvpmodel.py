"""The power mode before and after."""

import subprocess

from edgevit.agent.meters import nvpmodel


def test_the_power_mode_is_asked_before_and_after(board_tree):
    root = board_tree("orin-nx-16gb-jetpack6.2")
    with nvpmodel.Meter(str(root)) as meter:
        meter.read()
        subprocess.run([root / "usr/sbin/nvpmodel", "-m", "3"], check=True)
    assert meter.figures() == {"power_mode_before": "MAXN_SUPER", "power_mode_after": "25W"}
