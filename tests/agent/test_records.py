import json
import math
import statistics
from dataclasses import fields, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from quiet_runs import BOARD, MS, QUIET, S, power

from edgevit.agent.records import Power, RecordError, Run, comparable

integers = st.integers(-(2**62), 2**62)
counts = st.integers(1, 2**40)
amounts = st.none() | st.integers(0, 2**40)
figures = st.floats(-1e6, 1e6)
texts = st.text(max_size=12)
clocks = st.none() | st.dictionaries(texts, st.integers(0, 4_000_000), max_size=3)
degrees = st.none() | st.dictionaries(texts, figures, max_size=3)


@st.composite
def powers(draw):
    times = sorted(draw(st.lists(integers, max_size=5)))
    rails = draw(st.dictionaries(texts, st.lists(figures, min_size=len(times), max_size=len(times)).map(tuple)))
    total = draw(st.lists(st.sampled_from(sorted(rails)), unique=True)) if rails else []
    ticks = draw(st.lists(integers, max_size=2).filter(lambda ticks: len(ticks) != 1).map(sorted).map(tuple))
    interval_ms = draw(st.none() | figures)
    return Power(draw(texts), rails, tuple(times), tuple(total), interval_ms, draw(integers), draw(integers), ticks)


runs = st.builds(
    Run,
    **{name: texts for name in ("label", "model", "model_sha256", "runner", "created")},
    **{name: st.none() | texts for name in ("precision", "provider", "power_mode_before", "power_mode_after")},
    session=st.none() | texts,
    **{name: st.none() | counts for name in ("round", "turn")},
    **{name: counts for name in ("batch", "streams", "wall_ns", "load_ns", "first_inference_ns", "warmup")},
    **{field.name: amounts for field in fields(Run) if field.name.startswith(("memory_", "cpu_"))},
    **{name: clocks for name in ("clocks_before_khz", "clocks_after_khz")},
    **{name: degrees for name in ("temperatures_before_c", "temperatures_after_c")},
    **{name: st.none() | powers() for name in ("power", "idle_power")},
    latencies_ns=st.lists(counts, min_size=1, max_size=30).map(tuple),
    gpu_ns=st.none() | st.lists(counts, min_size=1, max_size=30).map(tuple),
    clock_step_ns=counts,
    clocks_during_khz=st.none() | st.lists(clocks.filter(bool), max_size=3).map(tuple),
    temperatures_during_c=st.none() | st.lists(degrees.filter(bool), max_size=3).map(tuple),
    gpu_load_permille=st.none() | st.lists(st.integers(0, 1000), max_size=3).map(tuple),
    throttled=st.none() | st.lists(texts, max_size=3).map(tuple),
    load_average_before=st.none() | st.floats(0, 1e3),
    environment=st.dictionaries(texts, texts, max_size=3),
)


def use(run):
    """Ask a run for everything that it can tell."""
    (
        run.visit_p50s_ns(),
        run.warnings(),
        run.void(),
        run.mean_ns(),
        run.gpu_percentile_ns(99),
        run.gpu_load(),
        run.temperature_max_c(),
    )
    return run.energy_per_image_mj(), run.net_energy_per_image_mj(), run.memory_drop_bytes()


@given(runs)
def test_a_run_survives_a_json_line(run):
    line = run.to_json()
    assert "\n" not in line
    assert Run.from_json(line) == run
    use(run)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(1, 100))
def test_a_percentile_is_the_smallest_latency_that_enough_of_all_are_at_or_below(latencies, percentile):
    run = replace(QUIET, gpu_ns=tuple(latencies))
    enough = [x for x in latencies if 100 * sum(y <= x for y in latencies) >= percentile * len(latencies)]
    assert run.gpu_percentile_ns(percentile) == min(enough)


def test_statistics_are_of_the_raw_samples():
    run = replace(QUIET, latencies_ns=tuple(MS * n for n in range(1, 201)), batch=4, wall_ns=25_000 * MS)
    assert (run.p50_ns(), run.p90_ns(), run.p99_ns()) == (100 * MS, 180 * MS, 198 * MS)
    assert run.latency_ms == 100.0
    assert run.mean_ns() == pytest.approx(100.5 * MS)
    assert run.stddev_ns() == pytest.approx(statistics.stdev(run.latencies_ns))
    assert run.images_per_second() == pytest.approx(32)
    assert run.memory_drop_bytes() == 2**26


def test_a_single_sample_has_no_spread():
    assert replace(QUIET, latencies_ns=(MS,)).stddev_ns() == 0


def test_what_was_not_measured_is_none_and_never_zero():
    assert replace(QUIET, memory_available_before_bytes=None).memory_drop_bytes() is None


def test_comparable_names_what_differs():
    other = replace(QUIET, environment={"kernel": "Linux 6.8", "cores": "2", "gpu": "Orin"})
    assert comparable(QUIET, QUIET) == []
    assert comparable(QUIET, other) == comparable(other, QUIET) == ["gpu", "kernel", "threads"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"schema": 8, "edgevit": "0.4.2"},
            "schema 8, written by edgevit 0.4.2; this edgevit reads schema 1: measure again with this version",
        ),
        ({"visit": 7}, "the latencies are not those of whole visits"),
        ({"visit": 0}, "visit is empty, or not above 0"),
        ({"period_ns": 0}, "period_ns is empty, or not above 0"),
        ({"parts_ns": {"decode": [1]}}, "parts_ns does not have one time for each inference"),
        ({"schema": 0}, "schema 0"),
        ({"schema": True}, "schema True"),
        ({"schema": None}, "schema None"),
        ({"round": "1"}, "round is not of type"),
        ({"volts": 5}, "missing or unknown volts"),
        ({"latencies_ns": []}, "latencies_ns is empty, or not above 0"),
        ({"latencies_ns": [5, 0]}, "latencies_ns is empty, or not above 0"),
        ({"latencies_ns": [1.5]}, "latencies_ns is not of type"),
        ({"latencies_ns": "12"}, "latencies_ns is not of type"),
        ({"gpu_ns": []}, "gpu_ns is empty"),
        ({"gpu_ns": [True]}, "gpu_ns is not of type"),
        ({"wall_ns": 0}, "wall_ns is empty, or not above 0"),
        ({"streams": 0}, "streams is empty, or not above 0"),
        ({"batch": 10**400}, "batch is not of type int"),
        ({"label": None}, "label is not of type str"),
        ({"environment": {"cores": 2}}, "environment is not of type"),
        ({"environment": []}, "environment is not of type"),
        ({"clocks_during_khz": [{"cpu0": None}]}, "clocks_during_khz is not of type"),
        ({"temperatures_after_c": {"cpu": float("nan")}}, "temperatures_after_c is not of type"),
        ({"load_average_before": float("inf")}, "load_average_before is not of type"),
        ({"power": {"meter": "ina3221"}}, "power is not meter, rails, times_ns"),
        ({"power": 5}, "power is not meter"),
        ({"idle_power": {**BOARD.to_dict()["power"], "times_ns": [1]}}, "rails without a reading at each time"),
        ({"power": {**BOARD.to_dict()["power"], "total": ["VDD"]}}, "a total of rails that are not there"),
        ({"power": {**BOARD.to_dict()["power"], "times_ns": [S] * 12 + [0]}}, "times that do not ascend"),
        (
            {"power": {**BOARD.to_dict()["power"], "ticks_ns": [S]}},
            "times that do not ascend, or a tick without an end",
        ),
        ({"power": {**BOARD.to_dict()["power"], "interval_ms": "430"}}, "interval_ms is not of type"),
    ],
)
def test_a_record_that_is_not_understood_is_refused(change, message):
    with pytest.raises(RecordError, match=message):
        Run.from_json(json.dumps({**QUIET.to_dict(), **change}))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "3", '{"schema": 2}', "9" * 5000, "[" * 100_000, '{"schema": ' + "[" * 900 + "]" * 900 + "}"],
)
def test_text_that_is_no_record_is_refused(text):
    with pytest.raises(RecordError):
        Run.from_json(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from([*BOARD.to_dict(), *(f"power.{field.name}" for field in fields(Power))])


@given(st.dictionaries(names, json_values, min_size=1, max_size=3))
@example({"power.rails": {"VDD_IN@40": [None] * 13}})
@example({"power.times_ns": [10**30] * 13})
def test_a_record_with_anything_in_it_is_refused_or_can_be_used(changes):
    record = json.loads(BOARD.to_json())
    for name, value in changes.items():
        outer, _, inner = name.partition(".")
        if not inner:
            record[outer] = value
        elif isinstance(record["power"], dict):
            record["power"][inner] = value
    try:
        run = Run.from_json(json.dumps(record))
    except RecordError as error:
        assert str(error)
    else:
        use(run)


@given(st.text() | json_values.map(json.dumps))
def test_any_text_is_a_record_or_refused(text):
    with pytest.raises(RecordError):
        Run.from_json(text)


def test_a_missing_field_is_named():
    record = QUIET.to_dict()
    del record["wall_ns"]
    with pytest.raises(RecordError, match="missing or unknown wall_ns"):
        Run.from_dict(record)


@pytest.mark.parametrize(
    ("change", "use"),
    [
        ({"period_ns": 33 * MS, "missed": 0}, "one per 33 ms"),
        ({"period_ns": 16_670_000, "missed": 0}, "one per 16.67 ms"),
        ({"parts_ns": {"decode": QUIET.latencies_ns}}, "end to end"),
        ({"period_ns": 33 * MS, "parts_ns": {"decode": QUIET.latencies_ns}}, "end to end, one per 33 ms"),
    ],
)
def test_a_run_says_how_the_model_was_used_and_keeps_it(change, use):
    run = replace(QUIET, **change)
    assert run.use() == use
    assert Run.from_json(run.to_json()) == run


def test_processor_time_is_told_of_one_thread_of_a_processor_alone():
    alone = replace(QUIET, environment={**QUIET.environment, "threads": "1"}, provider="CPUExecutionProvider")
    alone = replace(alone, cpu_own_ns=5 * MS * len(QUIET.latencies_ns))
    assert alone.processor_ms() == 5
    for other in (
        {"provider": "TensorRT"},
        {"cpu_own_ns": None},
        {"environment": {**alone.environment, "threads": "2"}},
    ):
        assert replace(alone, **other).processor_ms() is None


def test_power_that_does_not_change_is_its_own_mean():
    steady = power([5000] * 4, [0, S, 2 * S, 3 * S], window=(S // 2, 5 * S // 2))
    assert steady.mean_mw() == pytest.approx(5000)
    assert steady.energy_mj() == pytest.approx(10_000)


def test_the_integral_of_a_ramp_is_exact_however_irregular_the_readings():
    times = [0, 130 * MS, 700 * MS, 710 * MS, 1900 * MS, 2500 * MS, 3000 * MS]
    ramp = power([2000 + 4 * t / MS for t in times], times, window=(250 * MS, 2750 * MS))
    assert ramp.mean_mw() == pytest.approx(2000 + 4 * 1500)
    assert ramp.energy_mj() == pytest.approx(8000 * 2.5)


def running_mean(drawn, times, interval_ns, step_ns=MS):
    """What a sensor shows whose register moves by the same share of the way to each new value."""
    shown, value = {}, drawn(-S)
    for t in range(-S, max(times) + step_ns, step_ns):
        value += (drawn(t) - value) * (1 - math.exp(-step_ns / interval_ns))
        shown[t] = value
    return [shown[t] for t in times]


@pytest.mark.parametrize("seconds", [3, 5, 10])
def test_what_a_lagging_sensor_still_owes_is_in_the_energy(seconds):
    """Idle, a warm-up of half a second, the window, and idle again: as a board is measured."""

    def drawn(t):
        return 15_000 if S // 2 <= t < (seconds + 1) * S else 5000

    times = range(0, (seconds + 2) * S, 200 * MS)
    window = (S, (seconds + 1) * S)
    readings = running_mean(drawn, times, 430 * MS)
    seen = power(readings, times, window=window, interval_ms=430.0)
    assert seen.energy_mj() == pytest.approx(15_000 * seconds, rel=0.003)
    taken_at_its_word = power(readings, times, window=window)
    assert taken_at_its_word.energy_mj() < 15_000 * seconds * (1 - 0.08 / seconds), "the correction is needed"


def test_a_pulse_inside_the_window_is_recovered_through_a_lagging_sensor():
    def drawn(t):
        return 12_000 if 3 * S <= t < 7 * S else 4000

    times = range(0, 11 * S, 200 * MS)
    seen = power(running_mean(drawn, times, 430 * MS), times, window=(S, 10 * S), interval_ms=430.0)
    assert seen.energy_mj() == pytest.approx(12_000 * 4 + 4000 * 5, rel=0.003)


def test_the_total_is_the_sum_of_its_rails_and_unknown_without_them():
    rails = {"VDD_GPU_SOC@40": (3000.0, 3000.0), "VDD_CPU_CV@40": (1000.0, 2000.0), "VIN_SYS_5V0@41": (4000.0, 4000.0)}
    of_all = Power("ina3221", rails, (0, S), tuple(rails), None, 0, S)
    assert of_all.total_mw() == (8000, 9000)
    assert of_all.mean_mw() == pytest.approx(8500)
    unknown = replace(of_all, total=())
    assert (unknown.total_mw(), unknown.mean_mw(), unknown.energy_mj()) == (None, None, None)


@pytest.mark.parametrize(
    ("times", "window"),
    [([], (0, S)), ([0], (0, S)), ([0, S], (S, S)), ([0, S], (2 * S, 3 * S)), ([5 * S, 6 * S], (S, 2 * S))],
    ids=["no readings", "one", "no window", "all before it", "all after it"],
)
def test_readings_that_say_nothing_of_the_window_give_no_power(times, window):
    nothing = power([5000] * len(times), times, window=window)
    assert (nothing.mean_mw(), nothing.energy_mj()) == (None, None)


def test_energy_per_image_is_power_over_throughput_gross_and_net():
    idle = power([4000] * 3, [0, S, 2 * S], window=(0, 2 * S))
    run = replace(BOARD, latencies_ns=(10 * MS,) * 1200, batch=4, idle_power=idle)  # 400 images/s
    assert (run.power_mw(), run.idle_power_mw()) == pytest.approx((10_000, 4000))
    assert (run.energy_per_image_mj(), run.net_energy_per_image_mj()) == pytest.approx((25, 15))


def ticking(mean_of_tick_mw, *, tick_ns=30 * MS, interval_ms=430.0, readings_per_tick=2):
    """Ten seconds at 12 W, but for a tick every 200 ms, seen through a lagging sensor with a resolution of 40 mW."""
    starts = range(S + 200 * MS, 11 * S, 200 * MS + tick_ns)

    def drawn(t):
        return mean_of_tick_mw if any(start <= t < start + tick_ns for start in starts) else 12_000

    places = (5 * MS, tick_ns - 3 * MS)[:readings_per_tick]
    times = [S, *(start + place for start in starts for place in places), 11 * S]
    readings = [40 * round(mw / 40) for mw in running_mean(drawn, times, round(interval_ms * MS))]
    ticks = tuple(t for start in starts for t in (start, start + tick_ns))
    seen = replace(power(readings, times, window=(S, 11 * S), interval_ms=interval_ms), ticks_ns=ticks)
    return replace(BOARD, power=seen, wall_ns=10 * S - len(starts) * tick_ns)


@pytest.mark.parametrize("tick_mw", [4000, 12_000, 14_000])
def test_the_power_of_inferences_is_without_that_of_the_ticks_between_them(tick_mw):
    run = ticking(tick_mw)
    assert run.power_mw() == pytest.approx(12_000, rel=0.005)
    assert run.energy_per_image_mj() == pytest.approx(run.power_mw() / run.images_per_second())
    assert run.ticks_ns() / (run.ticks_ns() + run.wall_ns) == pytest.approx(0.13, abs=0.005)
    if tick_mw != 12_000:
        assert abs(run.power.mean_mw() / 12_000 - 1) > 0.02, "the ticks matter"


def test_ticks_whose_power_is_not_known_count_with_the_mean_power():
    run = ticking(4000, readings_per_tick=1)
    assert (run.power.tick_mw(), run.power_mw()) == (None, run.power.mean_mw())
    noisy = replace(run, power=replace(ticking(4000).power, interval_ms=20_000.0))
    assert noisy.power.tick_mw() < 0 and noisy.power_mw() == noisy.power.mean_mw()


def test_the_pauses_of_a_period_are_part_of_its_energy():
    run = replace(ticking(4000), period_ns=20 * MS)
    assert (run.ticks_ns(), run.power_mw()) == (0, run.power.mean_mw())
