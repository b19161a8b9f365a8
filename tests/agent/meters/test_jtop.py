"""Power by jtop, on a stand-in for its package."""

import sys
import types

from captured import AGX, AGX_TOTAL, read_power

from edgevit.agent.meters import jtop
from edgevit.agent.records import Power


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
    power = read_power(meter)
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
