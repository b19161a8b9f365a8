"""Temperatures, and what held the board back."""

import pytest

from edgevit.agent.meters import thermal


@pytest.fixture
def warm(board_tree):
    """A board, and a way to change one of its files of temperatures, of cooling devices or of over-current events."""
    root = board_tree("orin-nx-16gb-jetpack6.2")
    types = {path.read_text().strip(): path.parent for path in root.glob("sys/class/thermal/*/type")}
    [events] = root.glob("sys/class/hwmon/*/oc1_event_cnt")

    def write(name, value):
        kind, _, file = name.partition("/")
        (types.get(kind, events.parent) / file).write_text(f"{value}\n")

    return str(root), write


def test_temperatures_are_read_before_during_and_after(warm):
    root, write = warm
    with thermal.Meter(root) as meter:
        write("tj-thermal/temp", 71500)
        meter.read()
        assert meter.hottest_c() == 71.5
        write("tj-thermal/temp", 60000)
    figures = meter.figures()
    assert figures["temperatures_before_c"]["tj"] == 52.375
    assert [reading["tj"] for reading in figures["temperatures_during_c"]] == [71.5]
    assert figures["temperatures_after_c"]["tj"] == 60
    assert figures["throttled"] == ()


def test_what_was_held_back_during_the_window_is_named_even_if_it_is_over(warm):
    root, write = warm
    with thermal.Meter(root) as meter:
        write("gpu-throttle-alert/cur_state", 1)
        write("devfreq-17000000.gpu/cur_state", 3)
        write("pwm-fan/cur_state", 4)
        write("hot-surface-alert/cur_state", 1)
        meter.read()
        write("gpu-throttle-alert/cur_state", 0)
        write("events/oc1_event_cnt", 2)
        write("events/oc2_event_cnt", 1)
    assert set(meter.figures()["throttled"]) == {
        "gpu-throttle-alert at step 1",
        "devfreq-17000000.gpu at step 3",
        "under-voltage 2 times",
        "average over-current 1 times",
    }


@pytest.mark.parametrize(("events", "throttled"), [(4, ()), (4000, ("instantaneous over-current 4000 times",))])
def test_single_instantaneous_over_currents_are_an_orins_everyday_and_many_are_not(events, throttled, warm):
    root, write = warm
    with thermal.Meter(root) as meter:
        write("events/oc3_event_cnt", events)
        meter.started -= 1  # as if the window had lasted a second
    assert meter.figures()["throttled"] == throttled


def test_a_counter_that_appears_or_starts_anew_counts_nothing(warm):
    root, write = warm
    write("events/oc1_event_cnt", 9)
    write("events/oc2_event_cnt", "?")
    with thermal.Meter(root) as meter:
        write("events/oc1_event_cnt", 0)
        write("events/oc2_event_cnt", 5)
    assert meter.figures()["throttled"] == ()
