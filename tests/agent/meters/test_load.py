"""How busy the machine is, and with what."""

from edgevit.agent.meters import load


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
