"""Meters read a captured tree through `root`, and give None for what a tree does not tell."""

from pathlib import Path

import pytest

from edgevit.agent.meters import clocks, gpu, ina3221, jtop, load, memory, nvpmodel, tegrastats, thermal

FILES_OF_METERS = (clocks, gpu, ina3221, jtop, load, memory, nvpmodel, tegrastats, thermal)
METERS = {file.__name__.rpartition(".")[2]: file.Meter for file in FILES_OF_METERS}


def test_every_meter_file_is_tested_here():
    files = {path.stem for path in Path(memory.__file__).parent.glob("*.py")}
    assert files - {"__init__"} == set(METERS)


@pytest.mark.parametrize("name", METERS)
def test_a_machine_that_tells_nothing_gives_none(name, tmp_path):
    with METERS[name](str(tmp_path)) as meter:
        meter.read()
    told = {figure: value for figure, value in meter.figures().items() if figure != "cpu_own_ns"}
    assert set(told.values()) == {None}  # of its own time a process knows without the machine


@pytest.mark.parametrize("name", METERS)
def test_a_meter_works_on_this_machine_whatever_it_tells(name):
    with METERS[name]("/") as meter:
        meter.read()
    assert meter.figures()
