import json
import math
import re
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgevit.agent.records import RecordError, Run, comparable

MS = 1_000_000
QUIET = Run(
    label="t1",
    model="model.fp32.onnx",
    model_sha256="0" * 64,
    precision="fp32",
    runner="onnxruntime",
    provider="CPUExecutionProvider",
    batch=8,
    latencies_ns=(10 * MS, 11 * MS) * 100,
    wall_ns=2_100 * MS,
    load_ns=100 * MS,
    first_inference_ns=20 * MS,
    warmup=10,
    clock_step_ns=50,
    memory_peak_rss_bytes=2**27,
    memory_available_before_bytes=2**33,
    memory_available_min_bytes=2**33 - 2**26,
    memory_available_after_bytes=2**33,
    clocks_before_khz={"cpu0": 1_500_000, "cpu1": 700_000},
    clocks_during_khz=({"cpu0": 1_500_000, "cpu1": 1_500_000},),
    clocks_after_khz={"cpu0": 800_000, "cpu1": 1_500_000},
    load_average_before=0.5,
    cpu_busy_ns=2_200 * MS,
    cpu_own_ns=2_100 * MS,
    environment={"kernel": "Linux 5.15", "cores": "2", "threads": "2"},
    created="2026-01-01T00:00:00+00:00",
)

amounts = st.none() | st.integers(0, 2**40)
clocks = st.none() | st.dictionaries(st.text(max_size=4), st.integers(0, 4_000_000), max_size=3)
texts = st.text(max_size=12)
runs = st.builds(
    Run,
    latencies_ns=st.lists(st.integers(1, 2**40), min_size=1, max_size=30).map(tuple),
    wall_ns=st.integers(1, 2**50),
    label=texts,
    model=texts,
    precision=st.none() | texts,
    provider=st.none() | texts,
    memory_peak_rss_bytes=amounts,
    memory_available_before_bytes=amounts,
    memory_available_min_bytes=amounts,
    memory_available_after_bytes=amounts,
    clocks_before_khz=clocks,
    clocks_during_khz=st.none() | st.lists(clocks.filter(bool), max_size=3).map(tuple),
    clocks_after_khz=clocks,
    load_average_before=st.none() | st.floats(0, 1e3),
    cpu_busy_ns=amounts,
    cpu_own_ns=amounts,
    environment=st.dictionaries(texts, texts, max_size=3),
)


@given(runs)
def test_a_run_survives_a_json_line(run):
    line = run.to_json()
    assert "\n" not in line
    assert Run.from_json(line) == run


@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(1, 100))
def test_a_percentile_is_the_smallest_latency_that_enough_of_all_are_at_or_below(latencies, percentile):
    run = replace(QUIET, latencies_ns=tuple(latencies))
    enough = [x for x in latencies if 100 * sum(y <= x for y in latencies) >= percentile * len(latencies)]
    assert run.latency_ns(percentile) == min(enough)


def test_statistics_are_of_the_raw_samples():
    run = replace(QUIET, latencies_ns=tuple(MS * n for n in range(1, 201)), batch=4, wall_ns=25_000 * MS)
    assert (run.p50_ns(), run.p90_ns(), run.p99_ns()) == (100 * MS, 180 * MS, 198 * MS)
    assert run.mean_ns() == pytest.approx(100.5 * MS)
    assert run.stddev_ns() == pytest.approx(statistics.stdev(run.latencies_ns))
    assert run.images_per_second() == pytest.approx(32)
    assert run.memory_taken_bytes() == 2**26


def test_a_single_sample_has_no_spread():
    assert replace(QUIET, latencies_ns=(MS,)).stddev_ns() == 0


def test_what_was_not_measured_is_none_and_never_zero():
    assert replace(QUIET, memory_available_before_bytes=None).memory_taken_bytes() is None


def test_a_quiet_run_has_no_warnings():
    assert QUIET.warnings() == []


def test_a_run_on_a_machine_that_tells_nothing_has_no_warnings():
    silent = dict.fromkeys(["clocks_before_khz", "clocks_during_khz", "clocks_after_khz", "cpu_busy_ns", "cpu_own_ns"])
    assert replace(QUIET, load_average_before=None, **silent).warnings() == []


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"latencies_ns": (10 * MS,) * 99}, "p99 of 99 samples is just the slowest of them; try --samples 100"),
        ({"wall_ns": 400 * MS, "cpu_busy_ns": None}, "the window lasted 0.40 s, .* try --min-seconds"),
        ({"latencies_ns": (900,) * 200}, "takes 900 ns and the clock steps by 50 ns; try a larger --batch"),
        ({"latencies_ns": (5 * MS, 15 * MS) * 100}, "deviation is 50% of the mean; close other programs"),
        ({"latencies_ns": (10 * MS,) * 4999 + (60 * MS,)}, "slowest inference took 6 times the median; close"),
        (
            {"latencies_ns": (10 * MS,) * 100 + (11 * MS,) * 100},
            "second half .* was 10% slower .*; let the machine cool",
        ),
        (
            {"latencies_ns": (11 * MS,) * 100 + (10 * MS,) * 100},
            "second half .* was 9% faster .*; try a longer --warmup",
        ),
        ({"clocks_after_khz": {"cpu0": 1_000_000}}, "moved between 1000 and 1500 MHz; try the performance governor"),
        ({"load_average_before": 2.4}, "the load average was 2.4 on 2 cores; close other programs"),
        ({"cpu_busy_ns": 3_150 * MS}, "other programs took 25% of the processor .* close them"),
    ],
)
def test_a_doubtful_run_says_why_and_what_to_try(changes, warning):
    (text,) = replace(QUIET, **changes).warnings()
    assert re.search(warning, text)


def test_comparable_names_what_differs():
    other = replace(QUIET, environment={"kernel": "Linux 6.8", "cores": "2", "gpu": "Orin"})
    assert comparable(QUIET, QUIET) == []
    assert comparable(QUIET, other) == comparable(other, QUIET) == ["gpu", "kernel", "threads"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2, and this edgevit reads schema 1"),
        ({"schema": None}, "schema None"),
        ({"volts": 5}, "missing or unknown volts"),
        ({"latencies_ns": []}, "not a list of nanoseconds"),
        ({"latencies_ns": [1.5]}, "not a list of nanoseconds"),
        ({"latencies_ns": "12"}, "not a list of nanoseconds"),
    ],
)
def test_a_record_that_is_not_understood_is_refused(change, message):
    with pytest.raises(RecordError, match=message):
        Run.from_json(json.dumps({**QUIET.to_dict(), **change}))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3"])
def test_text_that_is_no_record_is_refused(text):
    with pytest.raises(RecordError):
        Run.from_json(text)


def test_a_missing_field_is_named():
    record = QUIET.to_dict()
    del record["wall_ns"]
    with pytest.raises(RecordError, match="missing or unknown wall_ns"):
        Run.from_dict(record)


@given(st.integers(1, 1000))
def test_percentile_ranks_do_not_suffer_from_rounding(count):
    run = replace(QUIET, latencies_ns=tuple(range(1, count + 1)))
    for percentile in range(1, 101):
        assert run.latency_ns(percentile) == -(-percentile * count // 100) == math.ceil(percentile * count / 100)
