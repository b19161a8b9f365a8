"""What a suite has time for, by what its builds and runs took."""

from edgevit.jobs.suite.time_limit import END_S, WARMUP_S, WINDOW_S, TimeLimit


def test_a_limit_counts_earlier_commands_and_estimates_by_what_was_seen():
    now = 100.0
    limit = TimeLimit(minutes=1, earlier_s=20.0, began=100.0, clock=lambda: now)
    assert limit.elapsed_s == 20 and limit.allows(40 - END_S) and not limit.allows(40.1 - END_S)
    now = 130.0
    assert limit.elapsed_s == 50 and not limit.allows(10.1 - END_S)
    for seconds in (90.0, 30.0, 20.0):  # in the first build TensorRT times kernels for all others
        limit.add_build(seconds)
    assert limit.build_s == 30
    limit.add_runs(4, 8.0)
    assert limit.run_s == 2
    limit.add_runs(0, 0.0)
    assert limit.run_s == WINDOW_S + WARMUP_S, "a run takes no less"
