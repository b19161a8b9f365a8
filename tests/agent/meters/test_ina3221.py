"""The module's own power sensors."""

import time

import pytest
from captured import AGX, AGX_TOTAL, INA, NX, read_power

from edgevit.agent.meters import ina3221
from edgevit.agent.records import Power


def test_the_sensors_give_all_rails_and_the_sum_of_those_that_make_the_module(board_tree):
    power = read_power(ina3221.Meter(str(board_tree(AGX)), AGX_TOTAL))
    rails = {name: int(row[0]) for name, row in power["rails"].items()}
    assert rails == {"VDD_GPU_SOC@40": 2412, "VDD_CPU_CV@40": 1607, "VIN_SYS_5V0@40": 4707, "VDDQ_VDD2_1V8AO@41": 301}
    assert power["total"] == ["VDD_GPU_SOC@40", "VDD_CPU_CV@40", "VIN_SYS_5V0@40"]
    assert int(Power.from_dict(power).mean_mw()) == pytest.approx(2412 + 1607 + 4707, abs=2)


def test_readings_reach_from_the_windows_beginning_to_its_end_and_are_not_waited_for(board_tree):
    began = time.monotonic()
    power = read_power(ina3221.Meter(str(board_tree(NX)), [["40", "VDD_IN"]]))
    assert power["interval_ms"] == 430
    assert len(power["times_ns"]) == 3
    assert power["times_ns"][0] <= power["window_started_ns"] < power["window_ended_ns"] <= power["times_ns"][-1]
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(("told", "interval_ms"), [("-430", None), ("soon", None), ("99999999", 99999999)])
def test_a_sensor_with_a_senseless_interval_is_told_as_it_is(told, interval_ms, board_tree):
    root = board_tree(NX)
    (root / f"{INA}/1-0040/hwmon/hwmon1/update_interval").write_text(told)
    assert read_power(ina3221.Meter(str(root)))["interval_ms"] == interval_ms


def test_a_total_that_lacks_a_rail_is_not_known(board_tree):
    root = board_tree(AGX)
    assert read_power(ina3221.Meter(str(root)))["total"] == []
    assert read_power(ina3221.Meter(str(root), [["41", "VDD_CPU_CV"]]))["total"] == []  # there, but at another address
    (root / f"{INA}/1-0040/hwmon/hwmon1/in2_enable").write_text("0\n")
    power = read_power(ina3221.Meter(str(root), AGX_TOTAL))
    assert ("VDD_CPU_CV@40" in power["rails"], power["total"]) == (False, [])
