"""Power: the meters on captured boards, the choice among them, and a known power curve played to the real agent."""

import sys
import threading
import time
import types
from dataclasses import replace
from math import exp

import pytest

from edgevit.agent.measure import Request, measure
from edgevit.agent.meters import ina3221, jtop, tegrastats
from edgevit.agent.power import Readings, power_meter, power_meters
from edgevit.agent.records import Power
from edgevit.agent.runners import RunnerError

AGX, NX, NANO = "agx-orin-64gb-jetpack6.2.1", "orin-nx-16gb-jetpack6.2", "orin-nano-8gb-jetpack6.2.1"
AGX_TOTAL = [["40", "VDD_GPU_SOC"], ["40", "VDD_CPU_CV"], ["40", "VIN_SYS_5V0"]]
INA = "sys/bus/i2c/drivers/ina3221"


def read(meter):
    with meter:
        meter.read()
    return meter.figures()["power"]


def test_the_sensors_give_all_rails_and_the_sum_of_those_that_make_the_module(board_tree):
    power = read(ina3221.Meter(str(board_tree(AGX)), AGX_TOTAL))
    rails = {name: int(row[0]) for name, row in power["rails"].items()}
    assert rails == {"VDD_GPU_SOC@40": 2412, "VDD_CPU_CV@40": 1607, "VIN_SYS_5V0@40": 4707, "VDDQ_VDD2_1V8AO@41": 301}
    assert power["total"] == ["VDD_GPU_SOC@40", "VDD_CPU_CV@40", "VIN_SYS_5V0@40"]
    assert int(Power.from_dict(power).mean_mw()) == pytest.approx(2412 + 1607 + 4707, abs=2)


def test_readings_reach_from_the_windows_beginning_to_its_end_and_are_not_waited_for(board_tree):
    began = time.monotonic()
    power = read(ina3221.Meter(str(board_tree(NX)), [["40", "VDD_IN"]]))
    assert power["interval_ms"] == 430
    assert len(power["times_ns"]) == 3
    assert power["times_ns"][0] <= power["window_started_ns"] < power["window_ended_ns"] <= power["times_ns"][-1]
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(("told", "interval_ms"), [("-430", None), ("soon", None), ("99999999", 99999999)])
def test_a_sensor_with_a_senseless_interval_is_told_as_it_is(told, interval_ms, board_tree):
    root = board_tree(NX)
    (root / f"{INA}/1-0040/hwmon/hwmon1/update_interval").write_text(told)
    assert read(ina3221.Meter(str(root)))["interval_ms"] == interval_ms


def test_a_total_that_lacks_a_rail_is_not_known(board_tree):
    root = board_tree(AGX)
    assert read(ina3221.Meter(str(root)))["total"] == []
    assert read(ina3221.Meter(str(root), [["41", "VDD_CPU_CV"]]))["total"] == []  # there, but at another address
    (root / f"{INA}/1-0040/hwmon/hwmon1/in2_enable").write_text("0\n")
    power = read(ina3221.Meter(str(root), AGX_TOTAL))
    assert ("VDD_CPU_CV@40" in power["rails"], power["total"]) == (False, [])


def test_a_reading_without_all_rails_is_left_out():
    readings = Readings("any", [["40", "A"]])
    readings.add(1, {"A@40": 1.0, "B@40": 2.0})
    readings.add(2, {"A@40": 1.0})
    readings.add(3, {"B@40": 4.0, "A@40": 3.0})
    power = readings.figures(None)["power"]
    assert (power["times_ns"], power["rails"]) == ([1, 3], {"A@40": [1.0, 3.0], "B@40": [2.0, 4.0]})


@pytest.mark.parametrize("board", [AGX, NX, NANO, "agx-orin-64gb-jetpack7.2.1"])
def test_tegrastats_tells_the_same_power_as_the_sensors(board, board_tree):
    root = str(board_tree(board))
    direct, told = read(ina3221.Meter(root)), read(tegrastats.Meter(root))
    assert told["meter"] == "tegrastats"
    for name, row in told["rails"].items():
        assert row[0] == int(direct["rails"][f"{name}@40"][0])


def test_tegrastats_knows_the_total_by_its_labels(board_tree):
    power = read(tegrastats.Meter(str(board_tree(AGX)), AGX_TOTAL))
    assert power["total"] == ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"]


def test_tegrastats_is_read_without_waiting_and_always_ended(board_tree):
    meter = tegrastats.Meter(str(board_tree(NANO)), [["40", "VDD_IN"]])
    with pytest.raises(KeyboardInterrupt), meter:
        for _ in range(100):
            meter.read()
        assert len(meter.readings.rows) < 50
        raise KeyboardInterrupt
    assert meter.process.poll() is not None
    assert meter.process.stdout.closed


def test_a_tegrastats_that_ignores_its_end_is_killed(board_tree):
    root = board_tree(NX)
    (root / "usr/bin/tegrastats").write_text(
        f"#!{sys.executable}\nimport signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('VDD_IN 4000mW/4000mW', flush=True)\ntime.sleep(60)\n"
    )
    with tegrastats.Meter(str(root)) as meter:
        assert meter.readings.rows == [[4000]]
    assert meter.process.returncode == -9


@pytest.mark.parametrize("script", ["exit 1", "echo no rails here", "exec yes", "exec tr '\\0' x </dev/zero"])
def test_a_tegrastats_that_tells_nothing_says_so(script, board_tree):
    root = board_tree(NX)
    (root / "usr/bin/tegrastats").write_text(f"#!/bin/sh\n{script}\n")
    meter = tegrastats.Meter(str(root))
    assert (read(meter), meter.process.stdout.closed) == (None, True)
    assert tegrastats.why_not(str(root)) == "tegrastats prints no rails"


def test_a_tegrastats_that_cannot_be_run_says_so(board_tree):
    root = board_tree(NX)
    (root / "usr/bin/tegrastats").write_text("#!/no/such/shell\n")
    assert tegrastats.why_not(str(root)) == "tegrastats prints no rails"


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


class JtopException(Exception):
    pass


def stand_in_jtop(rails, refuse=None):
    """A stand-in for the package of jetson_stats, which needs its service: what the meter uses of it, and no more."""

    class jtop:
        def __init__(self, interval):
            self.open = False

        def start(self):
            if refuse:
                raise JtopException(refuse)
            self.open = True

        def ok(self, spin=False):
            return self.open and spin

        @property
        def power(self):
            milliwatts = {
                name: {"power": power, "volt": 5000, "avg": 1, "online": True} for name, power in rails.items()
            }
            return {"rail": milliwatts, "tot": {"power": sum(rails.values()), "avg": 1}}

        def close(self):
            self.open = False

    return types.SimpleNamespace(jtop=jtop, JtopException=JtopException)


def test_jtop_gives_its_rails_and_never_its_own_total(board_tree, monkeypatch):
    root = board_tree(AGX)
    (root / "run").mkdir()
    (root / "run/jtop.sock").touch()
    rails = {"VDD_GPU_SOC": 2000, "VDD_CPU_CV": 1000, "VIN_SYS_5V0": 4000, "VDDQ_VDD2_1V8AO": 300, "NC": 0}
    monkeypatch.setitem(sys.modules, "jtop", stand_in_jtop(rails))
    meter = jtop.Meter(str(root), AGX_TOTAL)
    power = read(meter)
    assert Power.from_dict(power).total_mw()[0] == 7000
    assert "NC" not in power["rails"]
    assert meter.client.open is False
    assert jtop.why_not(str(root)) is None


def test_jtop_says_why_it_cannot_read(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jtop", None)
    assert "does not run" in jtop.why_not(str(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/jtop.sock").touch()
    assert "cannot import jtop" in jtop.why_not(str(tmp_path))
    monkeypatch.setitem(sys.modules, "jtop", stand_in_jtop({}, refuse="I can't access jtop.service"))
    assert jtop.why_not(str(tmp_path)) == "jtop: I can't access jtop.service"
    monkeypatch.setitem(sys.modules, "jtop", stand_in_jtop({}))
    assert jtop.why_not(str(tmp_path)) == "jtop tells no rails"


SHAPE_S = 2.4  # length of what the curves do between their two plateaus
FLAT_S = 0.6


def steps(t):
    return 5000 if t < 0.6 else 9000 if t < 1.2 else 6500 if t < 1.9 else 12000


def ramp(t):
    return 4000 + 8000 * t / SHAPE_S


def square(t):
    return 4000 if int(t / 0.3) % 2 else 12000


CURVES = {1: ("VDD_IN@40", steps), 2: ("VDD_CPU_GPU_CV@40", ramp), 3: ("VDD_SOC@40", square)}
FLAT_MW = 6000


class Sensor(threading.Thread):
    """Plays a power curve per channel into a board tree, as the INA3221 shows it.

    Its filter moves the register by 1/samples of the way at each conversion: seen from outside an exponential mean,
    with the update interval as its time constant. What it was really fed, and when, is in `fed`.
    """

    def __init__(self, root, step_s=0.004):
        super().__init__(daemon=True)
        self.folder = next(root.glob(f"{INA}/1-0040/hwmon/hwmon*"))
        self.constant_s = int((self.folder / "update_interval").read_text()) / 1e3
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


def test_the_energy_of_a_known_power_curve_is_recovered_within_one_percent(board_tree):
    root = board_tree(NX)
    with Sensor(root) as sensor:

        def told(stage, done, **_):
            if stage == "measure" and sensor.anchor_ns is None:
                sensor.anchor_ns = time.perf_counter_ns() + int(FLAT_S * 1e9)

        request = Request(
            model="any.onnx", model_sha256="0" * 64, label="any", precision=None, runner="fake", batch=1, samples=1,
            duration_s=0.2 + FLAT_S + SHAPE_S, warmup=1, warmup_seconds=0, options={"latency_ms": 20},
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
