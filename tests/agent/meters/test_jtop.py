"""Power by jtop, on a stand-in for its package."""

import sys
import time

import pytest
from captured import AGX, AGX_TOTAL, read_power

from edgevit.agent.meters import ina3221, jtop
from edgevit.agent.power import power_meter, power_meters
from edgevit.agent.records import Power

# The package of jetson_stats, which needs its service: what the meter uses of it, and no more.
STAND_IN = """
import time

class JtopException(Exception):
    pass

class jtop:
    def __init__(self, interval):
        self.open = False

    def start(self):
        {start}
        self.open = True

    def ok(self, spin=False):
        return self.open and spin

    @property
    def power(self):
        rails = {rails}
        told = {{name: {{"power": mw, "volt": 5000, "avg": 1, "online": True}} for name, mw in rails.items()}}
        if "VDD_IN" in told:  # what feeds the whole module is the total, by its name, and no rail
            return {{"tot": {{**told.pop("VDD_IN"), "name": "VDD_IN"}}, "rail": told}}
        return {{"rail": told, "tot": {{"power": sum(rails.values()), "avg": 1}}}}

    def close(self):
        self.open = False
"""
HANGS = "time.sleep(600)"
RESET = "raise ConnectionResetError(104, 'Connection reset by peer')"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a stand-in for the package, here and for every process that is started; None: there is none."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))

    def install(start="pass", rails=None, source=None):
        (folder / "jtop.py").write_text(source or STAND_IN.format(start=start, rails=rails or {}))
        monkeypatch.setitem(sys.modules, "jtop", None)  # so that what the test imports is forgotten with it
        monkeypatch.delitem(sys.modules, "jtop")

    return install


@pytest.fixture
def service(tmp_path):
    """The root of a machine that tells nothing, and where the service's socket is."""
    (tmp_path / "board/run").mkdir(parents=True)
    (tmp_path / "board/run/jtop.sock").touch()
    return tmp_path / "board"


def test_jtop_gives_its_rails_and_never_its_own_total(board_tree, package):
    root = board_tree(AGX)
    (root / "run").mkdir()
    (root / "run/jtop.sock").touch()
    package(rails={"VDD_GPU_SOC": 2000, "VDD_CPU_CV": 1000, "VIN_SYS_5V0": 4000, "VDDQ_VDD2_1V8AO": 300, "NC": 0})
    meter = jtop.Meter(str(root), AGX_TOTAL)
    power = read_power(meter)
    assert Power.from_dict(power).total_mw()[0] == 7000
    assert "NC" not in power["rails"]
    assert meter.client.open is False
    assert jtop.why_not(str(root)) is None


def test_what_jtop_calls_the_total_is_a_rail_where_it_is_one(service, package):
    package(rails={"VDD_IN": 5000, "VDD_CPU_GPU_CV": 1000, "VDD_SOC": 1500})
    power = read_power(jtop.Meter(str(service), [["40", "VDD_IN"]]))
    assert power["total"] == ["VDD_IN"] and Power.from_dict(power).total_mw()[0] == 5000
    assert set(power["rails"]) == {"VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"}


def test_jtop_says_why_it_cannot_read(tmp_path, service, package):
    assert "does not run" in jtop.why_not(str(tmp_path))
    package(source="raise ModuleNotFoundError(\"No module named 'jtop'\")")
    assert jtop.why_not(str(service)) == "cannot import jtop (No module named 'jtop')"
    package(start="""raise JtopException("I can't access jtop.service.\\nPlease logout")""")
    assert jtop.why_not(str(service)) == "jtop: I can't access jtop.service. Please logout"
    package()
    assert jtop.why_not(str(service)) == "jtop tells no rails"
    package(source="import os\nos.abort()\n")
    assert jtop.why_not(str(service)) == "jtop: its client ended without an answer; try `sudo systemctl restart jtop`"


def test_a_service_that_resets_the_connection_is_no_meter_and_no_error(service, package):
    package(start=RESET)
    assert jtop.why_not(str(service)) == "jtop: ConnectionResetError(104, 'Connection reset by peer')"
    meter = jtop.Meter(str(service))
    assert read_power(meter) is None and "ConnectionResetError" in meter.reason
    assert power_meter(str(service), None, []) is None


def test_a_service_that_stops_while_it_is_read_is_no_error(service, package):
    """The client's thread meets it, and `ok` raises it whenever it is asked next."""
    stops = "self.asked = vars(self).get('asked', 0) + 1\n        if self.asked > 2: raise EOFError()\n"
    source = STAND_IN.replace("return self.open and spin", f"{stops}        return True")
    package(source=source.format(start="pass", rails={"VDD_IN": 5000}))
    with jtop.Meter(str(service), [["40", "VDD_IN"]]) as meter:
        for _ in range(3):
            meter.read()
    assert (meter.readings.rows, meter.reason) == ([[5000], [5000]], "jtop: EOFError()")


def test_a_service_that_hangs_is_given_up_and_others_read_the_power(board_tree, service, package, monkeypatch):
    monkeypatch.setattr(jtop, "ANSWER_S", 1.0)
    package(start=HANGS)
    began = time.monotonic()
    assert power_meters(str(service))["jtop"] == "jtop: no answer within 1 s; try `sudo systemctl restart jtop`"
    root = board_tree(AGX)
    (root / "run").mkdir()
    (root / "run/jtop.sock").touch()
    assert power_meters(str(root))["ina3221"] is None
    assert isinstance(power_meter(str(root), None, []), ina3221.Meter)
    assert time.monotonic() - began < 60
