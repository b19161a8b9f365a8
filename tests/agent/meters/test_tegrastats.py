"""What tegrastats prints, on all JetPacks, and what it tells of the power."""

import sys
import time

import pytest
from captured import (
    AGX,
    AGX5,
    AGX7,
    AGX_TOTAL,
    JETPACK_5_ROOT,
    JETPACK_6_ROOT,
    JETPACK_6_USER,
    JETPACK_7_ROOT,
    NANO,
    NX,
    read_power,
)

from edgevit.agent.meters import ina3221, tegrastats


@pytest.mark.parametrize(
    ("line", "rails"),
    [
        (JETPACK_5_ROOT, {"VDD_GPU_SOC": 2399, "VDD_CPU_CV": 400, "VIN_SYS_5V0": 4032, "VDDQ_VDD2_1V8AO": 301}),
        (JETPACK_6_ROOT, {"VDD_GPU_SOC": 2412, "VDD_CPU_CV": 1607, "VIN_SYS_5V0": 4707}),
        (JETPACK_6_USER, {"VDD_IN": 4761, "VDD_CPU_GPU_CV": 515, "VDD_SOC": 1428}),
        (JETPACK_7_ROOT, {"VDD_GPU_SOC": 5139, "VDD_CPU_CV": 3268, "VIN_SYS_5V0": 5500}),
    ],
)
def test_tegrastats_tells_what_is_so_now_and_not_its_mean(line, rails):
    assert tegrastats.rails_mw(line) == rails


@pytest.mark.quick("*5.1.1", "*7.2.1")
@pytest.mark.parametrize("board", [AGX, AGX5, AGX7, NX, NANO])
def test_tegrastats_tells_the_same_power_as_the_sensors(board, board_tree):
    root = str(board_tree(board))
    direct, told = read_power(ina3221.Meter(root)), read_power(tegrastats.Meter(root))
    assert told["meter"] == "tegrastats"
    by_label = {name.partition("@")[0]: row for name, row in direct["rails"].items()}
    for name, row in told["rails"].items():
        assert row[0] == int(by_label[name][0])


def test_tegrastats_knows_the_total_by_its_labels(board_tree):
    power = read_power(tegrastats.Meter(str(board_tree(AGX)), AGX_TOTAL))
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
def test_a_tegrastats_that_tells_nothing_says_so(script, board_tree, monkeypatch):
    monkeypatch.setattr(tegrastats, "FIRST_LINE_S", 0.5)
    root = board_tree(NX)
    (root / "usr/bin/tegrastats").write_text(f"#!/bin/sh\n{script}\n")
    meter = tegrastats.Meter(str(root))
    assert (read_power(meter), meter.process.stdout.closed) == (None, True)
    assert tegrastats.why_not(str(root)) == "tegrastats prints no rails"


def test_a_tegrastats_whose_first_line_has_no_rails_is_not_waited_for(board_tree):
    root = board_tree(NX)
    (root / "usr/bin/tegrastats").write_text("#!/bin/sh\necho RAM 1282/62795MB\nexec sleep 60\n")
    began = time.monotonic()
    assert tegrastats.why_not(str(root)) == "tegrastats prints no rails"
    assert time.monotonic() - began < tegrastats.FIRST_LINE_S


def test_a_tegrastats_that_cannot_be_run_says_so(board_tree):
    root = board_tree(NX)
    (root / "usr/bin/tegrastats").write_text("#!/no/such/shell\n")
    assert tegrastats.why_not(str(root)) == "tegrastats prints no rails"
