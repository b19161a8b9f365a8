from dataclasses import replace

import pytest

from edgevit.agent.records import Run
from edgevit.report.runs import RunsError, compare_runs, load_runs, make_row, three_digits

MS = 1_000_000
DENSE = Run(
    label="dense",
    model="dense.onnx",
    model_sha256="d" * 64,
    precision="fp32",
    runner="onnxruntime",
    provider="CPUExecutionProvider",
    batch=1,
    latencies_ns=tuple(10 * MS + 1000 * n for n in range(200)),
    wall_ns=2_100 * MS,
    load_ns=123 * MS,
    first_inference_ns=45 * MS,
    warmup=10,
    clock_step_ns=50,
    memory_peak_rss_bytes=96 * 2**20,
    memory_available_before_bytes=None,
    memory_available_min_bytes=None,
    memory_available_after_bytes=None,
    clocks_before_khz=None,
    clocks_during_khz=None,
    clocks_after_khz=None,
    load_average_before=None,
    cpu_busy_ns=None,
    cpu_own_ns=None,
    environment={"cpu": "ARMv8", "cores": "6"},
    created="2026-01-01T00:00:00+00:00",
)
SLIM = replace(
    DENSE,
    label="slim",
    model_sha256="5" * 64,
    latencies_ns=tuple(5 * MS + 1000 * n for n in range(200)),
    wall_ns=1050 * MS,
)


def test_a_row_has_the_figures_in_the_units_of_a_table():
    row = make_row(DENSE)
    assert (row.label, row.batch, row.samples, row.load_ms, row.first_inference_ms) == ("dense", 1, 200, 123.0, 45.0)
    assert (row.p50_ms, row.p90_ms, row.p99_ms) == pytest.approx((10.099, 10.179, 10.197))
    assert row.images_per_s == pytest.approx(200 / 2.1)
    assert row.memory_peak_mib == 96
    assert row.memory_taken_mib is None
    assert row.warnings == ()


def test_runs_are_read_back_from_json_lines(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{DENSE.to_json()}\n\n{SLIM.to_json()}\n")
    assert load_runs(path) == [DENSE, SLIM]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read runs from .*runs.jsonl"),
        ("\n", "no runs in .*; write some with `edgevit bench"),
        (DENSE.to_json() + "\n" + DENSE.to_json()[:50], "runs.jsonl, line 2: not JSON"),
        ('{"schema": 9}', "line 1: schema 9, and this edgevit reads schema 1"),
        ("\xff", "cannot read runs"),
    ],
)
def test_a_file_that_is_not_runs_is_named_with_the_line(tmp_path, text, message):
    path = tmp_path / "runs.jsonl"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    with pytest.raises(RunsError, match=message):
        load_runs(path)


def test_a_comparison_is_the_ratio_of_medians_with_its_quartiles():
    (comparison,) = compare_runs([DENSE], [SLIM])
    assert (comparison.before, comparison.after, comparison.batch) == ("dense fp32", "slim fp32", 1)
    assert comparison.ratio == pytest.approx(5.099 / 10.099)
    assert comparison.low == pytest.approx(5.049 / 10.149)
    assert comparison.high == pytest.approx(5.149 / 10.049)
    assert not comparison.within_spread()
    assert comparison.differing == ()


def test_a_run_cannot_be_told_from_itself():
    (comparison,) = compare_runs([DENSE], [DENSE])
    assert comparison.ratio == 1
    assert comparison.within_spread()


def test_runs_of_one_model_are_pooled_so_that_the_spread_between_processes_counts():
    slow_process = replace(DENSE, latencies_ns=tuple(2 * x for x in DENSE.latencies_ns))
    (comparison,) = compare_runs([DENSE, slow_process], [DENSE])
    assert comparison.low < 0.55
    assert comparison.high > 1


def test_each_model_is_set_against_each_earlier_one_at_the_same_batch():
    eight = replace(DENSE, batch=8)
    pairs = [(c.before, c.after, c.batch) for c in compare_runs([DENSE, SLIM, eight], [SLIM, eight])]
    assert pairs == [("dense fp32", "slim fp32", 1), ("slim fp32", "slim fp32", 1), ("dense fp32", "dense fp32", 8)]


def test_no_batch_in_common_says_which_there_are():
    with pytest.raises(RunsError, match="no batch size in common: 8 before, 1 after"):
        compare_runs([replace(DENSE, batch=8)], [SLIM])


def test_different_environments_are_refused_and_marked_when_forced():
    elsewhere = replace(SLIM, environment={"cpu": "Xeon", "cores": "6", "gpu": "H100"})
    with pytest.raises(RunsError, match=r"cpu was 'ARMv8', now 'Xeon'; gpu was 'unknown', now 'H100'\. .*--force"):
        compare_runs([DENSE], [elsewhere])
    (comparison,) = compare_runs([DENSE], [elsewhere], force=True)
    assert comparison.differing == ("cpu", "gpu")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.0123456, "0.0123"),
        (1.0, "1.00"),
        (9.999, "10.0"),
        (12.345, "12.3"),
        (99.96, "100"),
        (123.4, "123"),
        (1234.5, "1,230"),
        (999_999, "1,000,000"),
        (-3.14159, "-3.14"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_have_three_significant_digits(value, text):
    assert three_digits(value) == text
