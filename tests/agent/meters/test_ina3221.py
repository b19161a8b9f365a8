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
    assert power["interval_ms"] == pytest.approx(430.08)
    assert len(power["times_ns"]) == 3
    assert power["times_ns"][0] <= power["window_started_ns"] < power["window_ended_ns"] <= power["times_ns"][-1]
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    ("answer_ms", "samples", "channels", "averaging_ms"),
    [
        (1, 512, 3, 430.08),  # Linux 5.14 and newer, as L4T sets it: 3 x 280 us
        (430, 512, 3, 430),  # before: the whole average
        (1, 512, 1, 339.968),  # 0x41 of AGX Orin: for 430 ms the driver takes the conversion of 332 us
        (340, 512, 1, 340),
        (0, 512, 1, 208.896),
        (2, 512, 3, 1019.904),
        (49, 1024, 3, 50651.136),
        (7, 1, 3, 6.6),  # as the sensor starts: one sample of 1.1 ms
        (143, 512, 1, 143),
        (430, None, 3, 430),
        (0, None, 3, None),
        (0, 512, 0, None),
        (-430, 512, 3, None),
    ],
)
def test_the_averaging_time_follows_the_driver_of_each_kernel(answer_ms, samples, channels, averaging_ms):
    assert ina3221.averaging_ms(answer_ms, samples, channels) == (averaging_ms and pytest.approx(averaging_ms))


def test_the_averaging_time_is_that_of_the_sensors_of_the_total(board_tree):
    root = board_tree(AGX)
    assert ina3221.interval_ms(str(root), AGX_TOTAL) == pytest.approx(430.08)
    (root / f"{INA}/1-0041/hwmon/hwmon2/update_interval").write_text("16\n")
    assert ina3221.interval_ms(str(root), AGX_TOTAL) == pytest.approx(430.08)
    assert ina3221.interval_ms(str(root)) > 8000


@pytest.mark.parametrize(("answer", "interval_ms"), [("-430", None), ("soon", None), ("99999999", 99999999)])
def test_a_senseless_answer_of_the_driver_is_not_corrected(answer, interval_ms, board_tree):
    root = board_tree(NX)
    (root / f"{INA}/1-0040/hwmon/hwmon1/update_interval").write_text(answer)
    assert read_power(ina3221.Meter(str(root)))["interval_ms"] == interval_ms


def test_a_total_that_lacks_a_rail_is_not_known(board_tree):
    root = board_tree(AGX)
    assert read_power(ina3221.Meter(str(root)))["total"] == []
    assert read_power(ina3221.Meter(str(root), [["41", "VDD_CPU_CV"]]))["total"] == []  # there, but at another address
    (root / f"{INA}/1-0040/hwmon/hwmon1/in2_enable").write_text("0\n")
    power = read_power(ina3221.Meter(str(root), AGX_TOTAL))
    assert ("VDD_CPU_CV@40" in power["rails"], power["total"]) == (False, [])
