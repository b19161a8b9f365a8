"""How busy the machine is, and with what."""

import time

from edgevit.agent.meters import load


def test_load_counts_busy_ticks_of_our_cores_and_our_own_share(board):
    #                user nice sys idle iowait irq softirq steal guest
    stat = "cpu  9 9 9 9 9 9 9 9 0\ncpu0 {0} 0 0 500 7 0 0 0 0\ncpu1 0 0 {0} 500 7 0 0 5 0\ncpu2 {0} 0 0 0 0 0 0 0 0\n"
    root = board(stat=stat.format(0), loadavg="1.25 0.50 0.25 1/90 42\n")
    began = time.process_time_ns()
    with load.Meter(root) as meter:
        board(stat=stat.format(100))
        while time.process_time_ns() - began < 20_000_000:
            pass
    figures = meter.figures()
    assert 0 < figures.pop("cpu_own_ns") <= time.process_time_ns() - began, "to less than a tick of 10 ms"
    assert figures == {"load_average_before": 1.25, "cpu_busy_ns": 2_000_000_000}
