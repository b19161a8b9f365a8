import time

import pytest

from edgevit.agent import runners
from edgevit.agent.measure import TICK_NS, Request, clock_step_ns, measure, repeat
from edgevit.agent.runners import RunnerError


def request(**changes):
    known = dict(model="/models/any.onnx", model_sha256="0" * 64, label="any", precision=None, runner="fake", batch=4)
    return Request(**{**known, "samples": 20, "min_seconds": 0, "warmup": 3, "warmup_seconds": 0, **changes})


def silent(stage, done):
    pass


def test_a_run_holds_every_sample_and_tells_the_regimes_apart():
    run = measure(request(options={"latency_ms": 5}), silent)
    assert (run.model, run.runner, run.batch, run.warmup, len(run.latencies_ns)) == ("any.onnx", "fake", 4, 3, 20)
    assert min(run.latencies_ns) >= 5e6
    assert run.first_inference_ns >= 5e6
    assert run.load_ns > 0
    assert sum(run.latencies_ns) <= run.wall_ns


def test_sampling_goes_on_until_both_the_count_and_the_time_are_reached():
    latencies, wall_ns = repeat(lambda: time.sleep(0.001), samples=5, min_seconds=0.05)
    assert len(latencies) > 5
    assert wall_ns >= 50e6
    latencies, _ = repeat(lambda: None, samples=5, min_seconds=0)
    assert len(latencies) == 5


def test_the_time_that_meters_take_is_not_in_the_window():
    ticks = []

    def slow_tick(done):
        ticks.append(done)
        time.sleep(0.3)

    started = time.perf_counter_ns()
    latencies, wall_ns = repeat(lambda: time.sleep(0.01), samples=1, min_seconds=3 * TICK_NS / 1e9, tick=slow_tick)
    assert len(ticks) >= 2
    assert ticks == sorted(ticks)
    assert all(0 < done <= 1 for done in ticks)
    assert time.perf_counter_ns() - started - wall_ns >= 0.3e9 * len(ticks)
    assert sum(latencies) == pytest.approx(wall_ns, rel=0.2)


def test_progress_names_the_stages_in_order():
    told = []
    measure(request(samples=1, min_seconds=0.5, warmup_seconds=0.5), lambda stage, done: told.append(stage))
    assert list(dict.fromkeys(told)) == ["load", "warm up", "measure"]


def test_meters_read_under_the_given_root(tmp_path):
    run = measure(request(), silent, root=str(tmp_path))
    assert run.memory_peak_rss_bytes is run.clocks_before_khz is run.cpu_busy_ns is None


def test_the_clock_steps_forward():
    assert 1 <= clock_step_ns() < 1_000_000


@pytest.mark.parametrize("name", runners.runner_names())
def test_every_runner_says_what_it_requires_and_takes_model_and_batch(name):
    runner = runners.import_runner(name)
    assert isinstance(runner.REQUIRES, tuple)
    assert not {"model", "batch"} & set(runners.runner_options(name))
    assert runner.__doc__


def test_an_unknown_runner_lists_the_known_ones():
    with pytest.raises(RunnerError, match="no runner 'nope'; known: fake, onnxruntime"):
        measure(request(runner="nope"), silent)


def test_a_missing_runtime_names_the_interpreter_that_lacks_it(monkeypatch):
    monkeypatch.setattr(runners.import_runner("fake"), "REQUIRES", ("no_such_runtime",))
    with pytest.raises(RunnerError, match="cannot import no_such_runtime"):
        measure(request(), silent)
