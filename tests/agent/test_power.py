"""Power: the meters on captured boards, the choice among them, and a known power curve played to the real agent."""

import os
import re
import threading
import time
from dataclasses import replace
from math import exp

import pytest
from captured import AGX5, INA, NX

from edgevit.agent.measure import MeasurementRequest, measure
from edgevit.agent.meters import ina3221, tegrastats
from edgevit.agent.power import Readings, power_meter, power_meters
from edgevit.agent.records import Power
from edgevit.agent.runners import RunnerError


def test_a_reading_without_all_rails_is_left_out():
    readings = Readings("any", [["40", "A"]])
    readings.add(1, {"A@40": 1.0, "B@40": 2.0})
    readings.add(2, {"A@40": 1.0})
    readings.add(3, {"B@40": 4.0, "A@40": 3.0})
    power = readings.figures(None)["power"]
    assert (power["times_ns"], power["rails"]) == ([1, 3], {"A@40": [1.0, 3.0], "B@40": [2.0, 4.0]})


def test_a_first_reading_without_all_rails_is_left_out_too():
    readings = Readings("any", [["40", "A"]])
    readings.add(1, {"B@40": 2.0})
    readings.add(2, {"B@40": 4.0, "A@40": 3.0})
    readings.add(3, {"B@40": 5.0})
    readings.add(4, {"B@40": 6.0, "A@40": 7.0})
    power = readings.figures(None)["power"]
    assert (power["times_ns"], power["rails"]) == ([2, 4], {"A@40": [3.0, 7.0], "B@40": [4.0, 6.0]})
    assert power["total"] == ["A@40"]


def test_a_window_that_begins_anew_keeps_the_newest_of_the_readings_before_it():
    readings = Readings("any", [["40", "A"]])
    readings.add(1, {"A@40": 1.0})
    readings.add(2, {"A@40": 2.0})
    readings.begin()
    readings.add(readings.started_ns + 1, {"A@40": 3.0})
    power = readings.figures(None)["power"]
    assert power["rails"] == {"A@40": [2.0, 3.0]}
    assert 2 == power["times_ns"][0] < power["window_started_ns"] < power["times_ns"][1]


@pytest.mark.parametrize(
    ("times_s", "silent_s", "valid"),
    [([1], 0.5, True), ([1], 1.5, False), ([1, 4], 5.5, True), ([1, 4], 6.5, False)],
    ids=["one", "one, long ago", "every three seconds", "every three seconds, and then none"],
)
def test_a_sensor_that_falls_silent_within_the_window_gives_no_power(times_s, silent_s, valid):
    readings = Readings("any", [["40", "A"]])
    readings.begin()
    for second in times_s:
        readings.add(readings.started_ns + second * 10**9, {"A@40": 2.0})
    readings.ended_ns = readings.times_ns[-1] + round(silent_s * 1e9)
    assert (readings.figures(None)["power"] is not None) is valid


def test_sensors_that_take_long_to_read_are_left_to_tegrastats(board_tree, monkeypatch):
    """As in Linux 5.10 of some L4T 35. The file here is mostly a hole, whose zeros take their time to read."""
    root = board_tree(AGX5)
    slow = next(root.glob(f"{INA}/1-0040/hwmon/hwmon*/in1_input"))
    assert ina3221.why_not(str(root)) is None
    monkeypatch.setattr(ina3221, "BLOCKED_MS", 10.0)
    os.truncate(slow, 20_000_000)
    assert re.fullmatch(r"a reading takes \d+ ms or more, as this kernel waits .*", ina3221.why_not(str(root)))
    assert isinstance(power_meter(str(root), None, []), tegrastats.Meter)
    with pytest.raises(RunnerError, match="ina3221 cannot read the power here: a reading takes"):
        power_meter(str(root), "ina3221", [])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all files")
def test_sensors_that_root_alone_may_read_say_so(board_tree):
    root = board_tree(AGX5)
    for file in root.glob(f"{INA}/*/hwmon/hwmon*/*_input"):
        file.chmod(0o200)
    assert ina3221.why_not(str(root)).startswith("root alone may read VDD_GPU_SOC, VDD_CPU_CV, VIN_SYS_5V0")


def test_the_best_meter_that_can_read_is_taken(board_tree):
    root = board_tree(NX)
    assert isinstance(power_meter(str(root), None, []), ina3221.Meter)
    (root / INA).rename(root / "gone")
    assert isinstance(power_meter(str(root), None, []), tegrastats.Meter)
    (root / "usr/bin/tegrastats").unlink()
    assert power_meter(str(root), None, []) is None
    assert power_meters(str(root)) == {
        "ina3221": "no INA3221 under /sys/bus/i2c/drivers/ina3221",
        "tegrastats": "no program tegrastats",
        "jtop": "no /run/jtop.sock: the service of jetson_stats does not run",
    }


def test_a_meter_that_was_asked_for_is_taken_or_refused(board_tree, tmp_path):
    root = str(board_tree(NX))
    assert isinstance(power_meter(root, "tegrastats", []), tegrastats.Meter)
    with pytest.raises(RunnerError, match="ina3221 cannot read the power here: no INA3221 under"):
        power_meter(str(tmp_path / "nothing"), "ina3221", [])
    with pytest.raises(RunnerError, match="no power meter 'volts'; known: ina3221, tegrastats, jtop"):
        power_meter(root, "volts", [])


SHAPE_S = 2.4  # length of what the curves do between their two plateaus
FLAT_S = 0.6


def steps(t):
    return 5000 if t < 0.6 else 9000 if t < 1.2 else 6500 if t < 1.9 else 12000


def ramp(t):
    return 4000 + 8000 * t / SHAPE_S


def square(t):
    return 4000 if int(t / 0.3) % 2 else 12000


# As L4T sets the sensor: 512 samples of three channels, each of which converts voltage and current in 140 us.
TIME_CONSTANT_S = 512 * 3 * 2 * 140e-6
CURVES = {1: ("VDD_IN@40", steps), 2: ("VDD_CPU_GPU_CV@40", ramp), 3: ("VDD_SOC@40", square)}
FLAT_MW = 6000


class Sensor(threading.Thread):
    """Plays a power curve per channel into a board tree, as the INA3221 shows it.

    Its filter moves the register by 1/samples of the way at each conversion: seen from outside an exponential mean.
    `fed` is the power that went in, and when.
    """

    def __init__(self, root, step_s=0.004):
        super().__init__(daemon=True)
        self.folder = next(root.glob(f"{INA}/1-0040/hwmon/hwmon*"))
        self.constant_s = TIME_CONSTANT_S
        self.step_s = step_s
        self.anchor_ns = None  # where the curves leave their first plateau
        self.fed = []  # (time in ns until which, power of each channel)
        self.ended = threading.Event()
        self.shown = dict.fromkeys(CURVES, float(FLAT_MW))
        for channel in CURVES:
            (self.folder / f"in{channel}_input").write_text("5000\n")
            self._show(channel)

    def _show(self, channel):
        new = self.folder / "new"
        new.write_text(f"{round(self.shown[channel] / 5)}\n")  # mA at 5 V
        new.replace(self.folder / f"curr{channel}_input")  # never half written

    def power(self, channel, now_ns):
        t = -1 if self.anchor_ns is None else (now_ns - self.anchor_ns) / 1e9
        return CURVES[channel][1](t) if 0 <= t < SHAPE_S else FLAT_MW

    def run(self):
        before_ns = time.perf_counter_ns()
        fed = {channel: FLAT_MW for channel in CURVES}
        while not self.ended.wait(self.step_s):
            now_ns = time.perf_counter_ns()
            weight = 1 - exp(-(now_ns - before_ns) / 1e9 / self.constant_s)
            for channel in CURVES:
                self.shown[channel] += (fed[channel] - self.shown[channel]) * weight
                self._show(channel)
            self.fed.append((before_ns, now_ns, fed))
            fed = {channel: self.power(channel, now_ns) for channel in CURVES}
            before_ns = now_ns

    def energy_mj(self, channel, started_ns, ended_ns):
        return sum(
            power[channel] * max(0, min(to, ended_ns) - max(since, started_ns)) / 1e9 for since, to, power in self.fed
        )

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()


def step_response(window_s, interval_ms, warmup_s=0.5, step_mw=40):
    """The readings of a step from 5 to 20 W at the start of the warm-up; `step_mw` is the sensor's resolution."""
    count = round(window_s / 0.2)
    times_s = [warmup_s + window_s * i / count for i in range(count + 1)]
    exact = [20_000 - 15_000 * exp(-t / TIME_CONSTANT_S) for t in times_s]
    return Power(
        meter="ina3221", rails={"VDD_IN@40": tuple(step_mw * round(mw / step_mw) for mw in exact)},
        times_ns=tuple(round(t * 1e9) for t in times_s), total=("VDD_IN@40",), interval_ms=interval_ms,
        window_started_ns=round(warmup_s * 1e9), window_ended_ns=round((warmup_s + window_s) * 1e9),
    )  # fmt: skip


@pytest.mark.parametrize(("window_s", "uncorrected"), [(10, -0.010), (3, -0.034), (1, -0.092)])
def test_a_step_of_power_is_recovered_in_windows_of_any_length(window_s, uncorrected, board_tree):
    interval_ms = ina3221.interval_ms(str(board_tree(NX)))
    assert step_response(window_s, interval_ms).mean_mw() == pytest.approx(20_000, rel=0.003)
    one_conversion = step_response(window_s, interval_ms=1.0).mean_mw()
    assert one_conversion / 20_000 - 1 == pytest.approx(uncorrected, abs=0.003)


def test_the_energy_of_a_known_power_curve_is_recovered_within_one_percent(board_tree):
    root = board_tree(NX)
    with Sensor(root) as sensor:

        def told(stage, done, **_):
            if stage == "measure" and sensor.anchor_ns is None:
                sensor.anchor_ns = time.perf_counter_ns() + int(FLAT_S * 1e9)

        request = MeasurementRequest(
            model="any.onnx", model_sha256="0" * 64, label="any", precision=None, runner="fake", batch=1, samples=1,
            duration_s=0.2 + FLAT_S + SHAPE_S + 1.5, warmup=1, warmup_seconds=0, options={"latency_ms": 20},
            total_rails=(("40", "VDD_IN"),),
        )  # fmt: skip
        run = measure(request, told, root=str(root))
    power = run.power
    assert (power.meter, power.total) == ("ina3221", ("VDD_IN@40",))
    for channel, (name, _) in CURVES.items():
        true_mj = sensor.energy_mj(channel, power.window_started_ns, power.window_ended_ns)
        assert replace(power, total=(name,)).energy_mj() == pytest.approx(true_mj, rel=0.01), name
        flat_mj = FLAT_MW * (power.window_ended_ns - power.window_started_ns) / 1e9
        assert true_mj != pytest.approx(flat_mj, rel=0.03), f"{name} would pass without its shape"
