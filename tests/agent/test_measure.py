import time
from contextlib import contextmanager
from threading import Thread

import pytest

from edgevit.agent import runners
from edgevit.agent.measure import TICK_NS, MeasurementRequest, clock_step_ns, measure, repeat, repeat_lanes
from edgevit.agent.records import Run
from edgevit.agent.runners import Loaded, RunnerError


def request(**changes):
    known = dict(model="/models/any.onnx", model_sha256="0" * 64, label="any", precision=None, runner="fake", batch=4)
    return MeasurementRequest(**{**known, "samples": 20, "duration_s": 0, "warmup": 3, "warmup_seconds": 0, **changes})


def silent(stage, done, **figures):
    pass


def test_a_run_holds_every_sample_and_tells_the_regimes_apart():
    run = measure(request(options={"latency_ms": 5}), silent)
    assert (run.model, run.runner, run.batch, run.warmup, len(run.latencies_ns)) == ("any.onnx", "fake", 4, 3, 20)
    assert min(run.latencies_ns) >= 5e6
    assert run.first_inference_ns >= 5e6
    assert run.load_ns > 0
    assert sum(run.latencies_ns) <= run.wall_ns


def test_sampling_goes_on_until_both_the_count_and_the_time_are_reached():
    latencies, wall_ns = repeat(lambda: time.sleep(0.001), samples=5, duration_s=0.05)
    assert wall_ns >= 50e6
    assert len(latencies) == 5 or sum(latencies[:-1]) < 50e6, "a busy machine may take all the time for five"
    latencies, _ = repeat(lambda: None, samples=5, duration_s=0)
    assert len(latencies) == 5


def test_the_time_that_meters_take_is_not_in_the_window():
    ticks = []

    def slow_tick(done):
        ticks.append(done)
        time.sleep(0.3)

    started = time.perf_counter_ns()
    latencies, wall_ns = repeat(lambda: time.sleep(0.01), samples=1, duration_s=3 * TICK_NS / 1e9, tick=slow_tick)
    assert len(ticks) >= 2
    assert ticks == sorted(ticks)
    assert all(0 < done <= 1 for done in ticks)
    assert time.perf_counter_ns() - started - wall_ns >= 0.3e9 * len(ticks)
    assert sum(latencies) == pytest.approx(wall_ns, rel=0.2)


class Sleeper:
    """A stream whose batches take `seconds` and run beside those of other streams."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.thread = None
        self.enqueued = 0

    def enqueue(self):
        assert self.thread is None, "one batch at a time"
        self.thread = Thread(target=time.sleep, args=(self.seconds,))
        self.thread.start()
        self.enqueued += 1

    def wait(self):
        self.thread.join()
        self.thread = None


def test_two_lanes_do_twice_as_much_in_the_same_time():
    walls = []
    for count in (1, 2):
        lanes = [Sleeper(0.02) for _ in range(count)]
        latencies, wall_ns = repeat_lanes(lanes, samples=30, duration_s=0)
        assert 30 <= len(latencies) < 30 + count
        assert min(latencies) >= 20e6
        assert all(lane.thread is None for lane in lanes), "nothing is under way any more"
        assert sum(lane.enqueued for lane in lanes) == len(latencies), "what was begun is counted"
        walls.append(wall_ns)
    # Where other programs are busy, either may take longer; one after the other, both would take as long.
    assert walls[0] / walls[1] > 1.4


def test_lanes_go_on_until_both_the_count_and_the_time_are_reached_and_tick_meanwhile():
    ticks = []
    lanes = [Sleeper(0.01) for _ in range(3)]
    latencies, wall_ns = repeat_lanes(lanes, samples=5, duration_s=2.5 * TICK_NS / 1e9, tick=ticks.append)
    assert len(latencies) > 5
    assert wall_ns >= 2.5 * TICK_NS
    assert len(ticks) >= 2 and ticks == sorted(ticks) and ticks[-1] <= 1


def test_the_time_that_meters_take_is_in_no_latency_of_several_lanes_and_not_in_the_window():
    lanes, busy = [Sleeper(0.01) for _ in range(3)], []

    def slow_tick(done):
        busy.extend(lane for lane in lanes if lane.thread)
        time.sleep(1)

    started = time.perf_counter_ns()
    latencies, wall_ns = repeat_lanes(lanes, samples=1, duration_s=2.5 * TICK_NS / 1e9, tick=slow_tick)
    assert not busy, "no batch is under way while the meters are read"
    assert max(latencies) < 1e9
    assert time.perf_counter_ns() - started - wall_ns >= 2e9


def test_slow_lanes_are_not_made_to_wait_for_one_another_after_each_batch():
    ticks = []
    repeat_lanes([Sleeper(TICK_NS / 2e9) for _ in range(2)], samples=12, duration_s=0, tick=ticks.append)
    assert ticks == [1]


def loaded_as(monkeypatch, loaded):
    """Have the fake runner load this."""

    @contextmanager
    def open_runner(model, batch):
        yield loaded

    monkeypatch.setattr(runners.import_runner("fake"), "open_runner", open_runner)


def test_the_gpus_own_times_are_kept_for_each_sample_and_no_other_inference(monkeypatch):
    inferences = []
    infer = lambda: inferences.append(1)  # noqa: E731
    loaded_as(monkeypatch, Loaded(infer, "GPU", {"tensorrt": "10.3"}, gpu_ns=lambda: len(inferences), engine_bytes=7))
    run = measure(request(samples=20, warmup=3), silent)
    assert list(run.gpu_ns) == list(range(5, 25))  # after the first inference and three of warm-up
    assert (run.memory_engine_bytes, run.provider, run.environment["tensorrt"]) == (7, "GPU", "10.3")


def test_a_run_of_several_streams_counts_them_and_has_no_gpu_times(monkeypatch):
    lanes = [Sleeper(0.002) for _ in range(2)]
    loaded_as(monkeypatch, Loaded(lambda: time.sleep(0.002), None, {}, gpu_ns=lambda: 1, lanes=lanes))
    run = measure(request(samples=10), silent)
    assert (run.streams, run.gpu_ns, len(run.latencies_ns)) == (2, None, 10)
    loaded_as(monkeypatch, Loaded(lambda: time.sleep(0.002), None, {}, lanes=lanes[:1]))
    assert measure(request(samples=10), silent).streams == 1


def test_progress_names_the_stages_in_order_and_the_temperature(tmp_path):
    zone = tmp_path / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("cpu-thermal\n")
    (zone / "temp").write_text("48125\n")
    told = []

    def report(stage, done, **figures):
        told.append((stage, figures))

    run = measure(request(samples=1, duration_s=0.5, warmup_seconds=0.5), report, root=str(tmp_path))
    assert list(dict.fromkeys(stage for stage, _ in told)) == ["load", "warm up", "measure"]
    assert all(figures["temperature_c"] == run.temperature_max_c() for stage, figures in told if stage == "measure")
    assert run.temperature_max_c() == 48.125


def test_meters_read_under_the_given_root(tmp_path):
    run = measure(request(), silent, root=str(tmp_path))
    assert run.memory_peak_rss_bytes is run.clocks_before_khz is run.cpu_busy_ns is None
    assert run.gpu_load_permille is run.temperatures_before_c is run.throttled is run.power_mode_before is None
    assert run.power is run.idle_power is None
    assert run.void() == []


def write_rail(root, millivolts, milliamperes):
    """The sysfs folder of one INA3221 sensor with one rail, in the form that the kernel's driver gives it."""
    folder = root / "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3"
    folder.mkdir(parents=True)
    files = {"in1_label": "VDD_IN", "in1_input": millivolts, "curr1_input": milliamperes, "update_interval": 100}
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")


def test_the_power_of_the_module_is_read_before_during_and_after_the_window(tmp_path):
    write_rail(tmp_path, 5000, 1200)
    asked = request(samples=1, duration_s=2.5 * TICK_NS / 1e9, total_rails=(("40", "VDD_IN"),))
    power = measure(asked, silent, root=str(tmp_path)).power
    assert (power.meter, power.total, power.interval_ms) == ("ina3221", ("VDD_IN@40",), 100)
    assert power.times_ns[0] <= power.window_started_ns < power.window_ended_ns <= power.times_ns[-1]
    assert len(power.times_ns) >= 4
    assert power.mean_mw() == pytest.approx(6000)


SLOW_TEGRASTATS = """\
#!/bin/sh
sleep 0.8
while :; do
    echo "VDD_IN 4000mW/4000mW"
    sleep 0.05
done
"""


def test_a_power_meter_that_takes_its_time_does_so_before_the_warm_up(tmp_path, monkeypatch):
    program = tmp_path / "usr/bin/tegrastats"
    program.parent.mkdir(parents=True)
    program.write_text(SLOW_TEGRASTATS)
    program.chmod(0o755)
    ended = []

    def infer():
        time.sleep(0.01)
        ended.append(time.perf_counter_ns())

    loaded_as(monkeypatch, Loaded(infer, None, {}))
    asked = request(power_meter="tegrastats", warmup_seconds=0.5, duration_s=0.5, total_rails=(("40", "VDD_IN"),))
    run = measure(asked, silent, root=str(tmp_path))
    last_warm, first_timed = ended[run.warmup], ended[run.warmup + 1]
    assert ended[1] - ended[0] > 0.7e9, "it was waited for between the first inference and the warm-up"
    assert first_timed - last_warm < 0.5e9
    assert last_warm < run.power.window_started_ns < first_timed
    assert run.power.times_ns[1] > run.power.window_started_ns, "of the warm-up only the newest reading is kept"


def test_a_power_meter_that_cannot_read_is_refused_if_it_was_asked_for(tmp_path):
    with pytest.raises(RunnerError, match="ina3221 cannot read the power here"):
        measure(request(power_meter="ina3221"), silent, root=str(tmp_path))


def test_a_measured_run_survives_a_json_line(tmp_path):
    write_rail(tmp_path, 5000, 1200)
    run = measure(request(total_rails=(("40", "VDD_IN"),)), silent, root=str(tmp_path))
    assert Run.from_json(run.to_json()) == run


def test_the_clock_steps_forward():
    assert 1 <= clock_step_ns() < 1_000_000


def test_a_missing_runtime_names_the_interpreter_that_lacks_it(monkeypatch):
    monkeypatch.setattr(runners.import_runner("fake"), "REQUIRES", ("no_such_runtime",))
    with pytest.raises(RunnerError, match="cannot import no_such_runtime"):
        measure(request(), silent)
