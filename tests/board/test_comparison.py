import json
from dataclasses import replace

import numpy as np
import pytest
from counting import calls
from some_runs import DENSE, MS, ON_A_BOARD, SLIM, S, watts

from edgevit.board.comparison import (
    UNITS,
    RunsError,
    compare_runs,
    compare_within,
    decisive,
    load_runs,
    make_row,
    three_digits,
)
from edgevit.board.intervals import Side, ratios
from edgevit.records import documents
from edgevit.reporting.gather import gather


def test_a_row_has_the_figures_in_the_units_of_a_table():
    row = make_row(DENSE)
    assert (row.label, row.batch, row.samples, row.load_ms, row.first_inference_ms) == ("dense", 1, 200, 123.0, 45.0)
    assert (row.p50_ms, row.p90_ms, row.p99_ms) == pytest.approx((10.099, 10.179, 10.197))
    assert row.images_per_s == pytest.approx(200 / 2.1)
    assert row.memory_peak_mib == row.memory_mib == 96
    assert row.memory_drop_mib is None
    assert row.warnings == ()


def test_a_row_from_a_board_has_gpu_times_power_and_what_it_is_made_of():
    row = make_row(ON_A_BOARD)
    assert (row.p50_ms, row.p95_ms, row.gpu_p50_ms, row.gpu_p99_ms, row.streams) == (8, 10, 7, 9, 1)
    assert (row.memory_drop_mib, row.memory_engine_mib, row.gpu_load) == (300, 48, pytest.approx(0.95))
    assert row.memory_mib == 300
    assert (row.power_w, row.idle_power_w) == pytest.approx((10, 4))
    assert (row.energy_mj, row.energy_net_mj) == pytest.approx((100, 60))  # 100 images/s
    assert (row.rails, row.power_window_s, row.ticks_share) == (("VDD_IN@40",), 12, 0)
    assert (row.temperature_max_c, row.power_mode, row.void) == (52.5, "MAXN_SUPER", ())


def test_what_was_not_measured_is_none_in_a_row():
    row = make_row(DENSE)
    nothing = (row.gpu_p50_ms, row.memory_engine_mib, row.power_w, row.energy_mj, row.power_window_s, row.gpu_load)
    assert nothing == (None,) * 6
    assert (row.temperature_max_c, row.power_mode, row.roofline_share, row.rails) == (None, None, None, ())
    no_total = make_row(replace(ON_A_BOARD, power=watts(*(10.0,) * 61, total=())))
    assert (no_total.power_w, no_total.energy_mj, no_total.rails) == (None, None, ())


def test_the_share_of_the_roofline_is_of_the_gpus_time_or_of_throughput_with_several_streams():
    assert make_row(DENSE, least_s=0.0010099).roofline_share == pytest.approx(0.1)
    assert make_row(ON_A_BOARD, least_s=0.0014).roofline_share == pytest.approx(0.2)
    lanes = replace(ON_A_BOARD, gpu_ns=None, streams=2, wall_ns=6 * S)
    assert make_row(lanes, least_s=0.0014).roofline_share == pytest.approx(0.28)  # 5 ms each


def test_an_inference_faster_than_the_board_can_be_is_not_believed():
    (warning,) = make_row(DENSE, least_s=0.011).warnings
    assert "cannot be believed; check" in warning


def test_a_folder_in_place_of_a_file_of_runs_is_told_what_writes_one(tmp_path):
    folder = tmp_path / "a model"
    folder.mkdir()
    with pytest.raises(
        RunsError, match=r"is a folder, and runs are lines of a file; `edgevit bench '/.*' OTHER .* writes one"
    ):
        load_runs(folder)


def test_a_void_run_says_why_in_its_row():
    assert make_row(replace(ON_A_BOARD, throttled=("gpu-throttle",))).void[0].startswith("the board held itself back")


def test_runs_are_read_back_from_json_lines(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{DENSE.to_json()}\n\n{SLIM.to_json()}\n")
    assert load_runs(path) == [DENSE, SLIM]


def test_runs_are_read_line_by_line_whatever_is_in_a_label_and_share_what_they_have_in_common(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LIMIT_BYTES", 5000)  # of a line; the file is longer
    odd = replace(ON_A_BOARD, label="a\u2028b\u0085c", latencies_ns=(8 * MS,) * 100, gpu_ns=None, power=None)
    line = json.dumps(replace(odd, idle_power=None).to_dict(), ensure_ascii=False)
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{line}\n" * 3)
    runs = load_runs(path)
    assert [run.label for run in runs] == [odd.label] * 3
    assert [one.label for one in gather([path, tmp_path / "runs.jsonl"]).runs] == [odd.label]
    for name in ("environment", "clocks_before_khz", "model_sha256"):
        assert getattr(runs[0], name) is getattr(runs[2], name)
    assert runs[0].clocks_during_khz[0] is runs[2].clocks_during_khz[49]


@pytest.mark.parametrize("bad", ["a\\u0000b", "\\ud800"])
def test_a_string_that_is_no_text_is_refused_in_a_run(tmp_path, bad):
    path = tmp_path / "runs.jsonl"
    path.write_text(DENSE.to_json().replace('"dense"', f'"{bad}"'))
    with pytest.raises(RunsError, match="line 1"):
        load_runs(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no .*some runs.jsonl; check the path"),
        ("\n", "no runs in .*; write some with `edgevit bench MODEL --output '/.*'`"),
        (DENSE.to_json() + "\n" + DENSE.to_json()[:50], "runs.jsonl, line 2 is not JSON"),
        (
            '{"schema": 9}',
            "line 1: schema 9, written by an unknown version; this edgevit reads schema 1",
        ),
        ("\xff", "is not text in UTF-8"),
    ],
)
def test_a_file_that_is_not_runs_is_named_with_the_line(tmp_path, text, message):
    path = tmp_path / "some runs.jsonl"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    with pytest.raises(RunsError, match=message):
        load_runs(path)


def many(models, repeats, in_turns):
    """Runs of as many models; with `in_turns` each repeat is a round of one session, else each is alone."""
    few = replace(DENSE, latencies_ns=DENSE.latencies_ns[:20])
    of = [{"session": "s", "round": i} if in_turns else {"session": f"s{i}"} for i in range(1, repeats + 1)]
    return [replace(few, label=f"m{n}", model_sha256=f"{n:064}", **one) for one in of for n in range(models)]


@pytest.mark.parametrize(("models", "repeats"), [(2, 30), (10, 2)])
@pytest.mark.parametrize("in_turns", [True, False])
def test_comparing_twice_as_many_runs_takes_twice_the_work(models, repeats, in_turns):
    def within(models, repeats):
        runs = many(models, repeats, in_turns)
        return calls(lambda: compare_within(runs))

    def between(models, repeats):
        sides = [many(models, repeats, in_turns) for _ in range(2)]
        return calls(lambda: compare_runs(*sides))

    within(2, 2)  # what is computed once per process
    assert within(models, 2 * repeats) < 2.3 * within(models, repeats)
    assert between(2 * models, repeats) < 2.3 * between(models, repeats)


def p50(comparisons):
    (comparison,) = [c for c in comparisons if c.figure == "p50"]
    return comparison


def test_a_comparison_is_the_ratio_of_medians_with_its_interval():
    comparison = p50(compare_runs([DENSE], [SLIM]))
    assert (comparison.before, comparison.after, comparison.batch) == ("dense fp32", "slim fp32", 1)
    assert (comparison.before_value, comparison.after_value, comparison.unit) == pytest.approx((10.099, 5.099, "ms"))
    assert comparison.ratio == pytest.approx(5.099 / 10.099)
    assert 0.49 < comparison.low < comparison.ratio < comparison.high < 0.53
    assert comparison.outcome == "better"
    assert comparison.differing == comparison.void == ()
    assert comparison.runs == (1, 1)


def test_every_figure_that_both_sides_have_is_compared():
    plain = compare_runs([DENSE], [SLIM])
    assert [c.figure for c in plain] == ["p50", "p99", "mean", "throughput"]
    assert [c.outcome for c in plain] == ["better"] * 4
    assert [c.outcome for c in compare_runs([SLIM], [DENSE])] == ["worse"] * 4
    frugal = replace(ON_A_BOARD, power=watts(*(4.9, 5.1) * 30, 4.9))
    energy = compare_runs([ON_A_BOARD], [frugal])[-1]
    assert (energy.figure, energy.outcome, set(UNITS)) == (
        "energy",
        "better",
        {c.figure for c in plain} | {"energy", "processor"},
    )
    assert energy.low < 0.5 < energy.high


def test_a_run_cannot_be_told_from_itself():
    for comparison in compare_runs([DENSE], [DENSE]):
        assert comparison.ratio == 1
        assert comparison.outcome == "cannot be told apart"


def test_the_spread_between_processes_counts():
    slow_process = replace(DENSE, latencies_ns=tuple(2 * x for x in DENSE.latencies_ns))
    comparison = p50(compare_runs([DENSE, slow_process], [DENSE]))
    assert comparison.runs == (2, 1)
    assert comparison.low < 0.55
    assert comparison.high > 1


def test_too_few_samples_give_a_ratio_and_no_interval():
    few = replace(DENSE, latencies_ns=(10 * MS,) * 19)
    assert {c.outcome for c in compare_runs([few], [DENSE])} == {"too few samples"}
    some = {c.figure: c.outcome for c in compare_runs([replace(DENSE, latencies_ns=(8 * MS,) * 99)], [DENSE])}
    assert (some["p99"], some["p50"]) == ("too few samples", "worse")


def test_a_void_run_is_shown_and_not_judged_unless_forced():
    void = replace(SLIM, throttled=("gpu-throttle at step 2",))
    comparison = p50(compare_runs([DENSE], [void]))
    assert (comparison.outcome, comparison.low, comparison.blocks) == ("void", None, None)
    assert "gpu-throttle at step 2" in comparison.void[0]
    forced = p50(compare_runs([DENSE], [void], force=True))
    assert (forced.outcome, forced.void) == ("better", comparison.void)


def test_models_of_one_file_are_set_against_the_first():
    eight = replace(DENSE, batch=8)
    other = replace(SLIM, label="other", precision="fp16")
    found = compare_within([DENSE, eight, SLIM, other])
    assert [(c.before, c.after, c.batch) for c in found if c.figure == "p50"] == [
        ("dense fp32", "slim fp32", 1),
        ("dense fp32", "other fp16", 1),
    ]
    assert p50(compare_within([DENSE, SLIM])) == p50(compare_runs([DENSE], [SLIM]))


def test_one_model_has_nothing_to_be_set_against():
    with pytest.raises(RunsError, match="all runs are of dense fp32: there is nothing to set against each other"):
        compare_within([DENSE, DENSE])
    with pytest.raises(RunsError, match="no batch size in common: 1 before, 8 after"):
        compare_within([DENSE, replace(SLIM, batch=8)])


def test_models_of_one_session_may_differ_in_what_they_run_on():
    """Such as in a setting of the runner that one model alone has."""
    rounds = [replace(DENSE, session="5e55", round=n, turn=2 * n) for n in range(1, 7)]
    others = [replace(run, label="b", environment={**run.environment, "cuda_graph": "no"}) for run in rounds]
    found = p50(compare_within([*rounds, *others]))
    assert (found.outcome, found.rounds, found.differing) == ("cannot be told apart", 6, ("cuda_graph",))
    assert p50(compare_within([*rounds[:5], *others[:5]])).outcome == "too few rounds"
    again = [replace(run, session="a9a1", round=run.round) for run in (*rounds, *others)]
    assert p50(compare_within([*rounds, *others, *again])).rounds == 12


def test_of_several_sessions_each_model_is_to_have_met_the_same_machine():
    pair = [DENSE, replace(SLIM, environment={**SLIM.environment, "cuda_graph": "no"})]
    first = [replace(run, session="5e55", round=n) for n in range(1, 7) for run in pair]
    slower = [replace(run, session="a9a1", environment={**run.environment, "power_mode": "15W"}) for run in first]
    with pytest.raises(RunsError, match="power_mode was 'unknown', now '15W'"):
        compare_within([*first, *slower])


def busy(run, share=0.6):
    """Other programs had that much of the processor during the window."""
    cores = int(run.environment["cores"])
    return replace(run, cpu_own_ns=run.wall_ns, cpu_busy_ns=run.wall_ns + round(share * cores * run.wall_ns))


def uneven(seed, quiet_ms, share):
    """Latencies of a machine that had other work for `share` of the time, in stretches: 6 times longer then."""
    random = np.random.default_rng(seed)
    stretches = np.repeat(random.random(30) < share, 10)
    return tuple(int(ns) for ns in quiet_ms * MS * np.where(stretches, 6, 1) * random.uniform(0.9, 1.2, 300))


def test_a_busy_machine_is_not_judged_though_the_interval_is_far_from_1():
    """As in a first hour: 0.16, 0.10 to 0.43, where a minute earlier the same two models had 0.68."""
    slow = replace(DENSE, latencies_ns=uneven(2, 1, share=0.62), wall_ns=S)
    slim = replace(slow, label="slim", latencies_ns=uneven(0, 0.8, share=0.2))
    quiet = p50(compare_runs([slow], [slim]))
    assert quiet.ratio < 0.2 and quiet.low < 0.14 and 0.4 < quiet.high < 0.68 and quiet.outcome == "better"
    for sides in ((busy(slow), slim), (slow, busy(slim))):
        comparisons = compare_runs(*([side] for side in sides))
        assert {c.outcome for c in comparisons} == {"not judged: the machine was busy"}
        assert {(c.low, c.high, c.blocks) for c in comparisons} == {(None, None, None)}
        assert comparisons[0].ratio == quiet.ratio
    (warning,) = [text for text in comparisons[0].warnings if "programs took" in text]
    assert warning.startswith("slim fp32, batch 1: other programs took 60% of the processor during the window; close")
    assert p50(compare_runs([busy(slow)], [slim], force=True)).outcome == "better"


def test_runs_that_carry_no_warning_have_none_in_their_comparison():
    assert p50(compare_runs([DENSE], [SLIM])).warnings == ()
    assert p50(compare_runs([DENSE], [SLIM])).widened == 1


def test_a_machine_whose_speed_moved_within_a_run_has_a_wider_interval():
    slower = tuple(round(x * (1 if n < 100 else 1.08)) for n, x in enumerate(SLIM.latencies_ns))
    drifting = p50(compare_runs([DENSE], [replace(SLIM, latencies_ns=slower)]))
    assert drifting.widened == pytest.approx(1.10, abs=0.01) and drifting.outcome == "better"
    plain = ratios(Side([DENSE]), Side([replace(SLIM, latencies_ns=slower)]))[0]
    assert (drifting.low, drifting.high) == (plain.low / drifting.widened, plain.high * drifting.widened)
    clocks = replace(SLIM, clocks_before_khz={"cpu0": 2_000_000}, clocks_after_khz={"cpu0": 1_000_000})
    assert p50(compare_runs([DENSE], [clocks])).widened == 2
    assert p50(compare_runs([DENSE], [clocks])).outcome == "cannot be told apart"
    assert p50(compare_runs([DENSE] * 3, [clocks] * 3)).widened == 1


def test_a_model_that_alternated_with_others_is_not_compared_with_one_that_had_its_process_for_itself():
    beside = replace(SLIM, beside=("dense",), visit=100)
    with pytest.raises(RunsError, match=r"of slim fp32 alternately; measure both with .* and --alternate"):
        compare_runs([SLIM], [beside], force=True)
    assert p50(compare_runs([beside], [beside])).ratio == 1


def test_the_warnings_of_repeats_are_gathered_by_kind():
    runs = [busy(SLIM, share) for share in (0.5, 0.6)] + [SLIM]
    (warning,) = p50(compare_runs([DENSE], runs)).warnings
    assert warning.startswith("slim fp32, batch 1: 2 of 3 runs, such as: other programs took 50% of the processor")


def test_of_models_in_turns_the_means_are_judged_where_other_programs_were_busy():
    """They interrupt a long inference more often than a short one, so that the medians are no measure of the models."""
    long = [replace(DENSE, session="5e55", round=n, latencies_ns=(3 * MS, *(15 * MS,) * 2) * 7) for n in range(1, 7)]
    short = [replace(run, label="short", latencies_ns=(*(2 * MS,) * 2, 13 * MS) * 7) for run in long]
    (quiet,) = decisive(compare_within([*long, *short]))
    assert (quiet.figure, quiet.ratio, quiet.outcome) == ("p50", pytest.approx(2 / 15), "better")
    told = compare_within([*map(busy, long), *map(busy, short)])
    assert {c.figure: c.outcome for c in told} == {
        "p50": "not judged: the machine was busy",
        "p99": "not judged: the machine was busy",
        "mean": "better",
        "throughput": "cannot be told apart",  # the windows are those of DENSE
    }
    (found,) = decisive(told)
    assert (found.figure, found.ratio, found.rounds) == ("mean", pytest.approx(17 / 33), 6)


def test_of_models_in_turns_on_one_thread_it_is_the_time_that_they_computed():
    """Other programs were busier for one model than for the other, and made it wait: that is in its mean alone."""
    one_thread = {**DENSE.environment, "cores": "2", "threads": "1"}
    whole = [replace(DENSE, session="5e55", round=n, environment=one_thread) for n in range(1, 7)]
    half = [replace(run, label="half", wall_ns=3 * run.wall_ns, latencies_ns=(30 * MS,) * 200) for run in whole]
    told = compare_within(
        [replace(busy(run), cpu_own_ns=2 * S + n, environment=one_thread) for n, run in enumerate(whole)]
        + [replace(busy(run), cpu_own_ns=1 * S - n, environment=one_thread) for n, run in enumerate(half)]
    )
    (found,) = decisive(told)
    assert (found.figure, found.outcome) == ("processor", "better")
    assert found.ratio == pytest.approx(0.5, rel=1e-3) and (found.before_value, found.after_value) == pytest.approx(
        (10, 5)
    )


def pairs(before, after):
    return list(dict.fromkeys((c.before, c.after, c.batch, c.streams) for c in compare_runs(before, after)))


def test_each_model_is_set_against_itself_or_else_against_each_earlier_one():
    eight = replace(DENSE, batch=8)
    assert pairs([DENSE, SLIM, eight], [SLIM, eight]) == [
        ("slim fp32", "slim fp32", 1, 1),
        ("dense fp32", "dense fp32", 8, 1),
    ]
    new = replace(SLIM, label="new")
    assert pairs([DENSE, SLIM, eight], [new]) == [("dense fp32", "new fp32", 1, 1), ("slim fp32", "new fp32", 1, 1)]
    half = replace(DENSE, precision="fp16")
    assert pairs([DENSE], [half]) == [("dense fp32", "dense fp16", 1, 1)]


def test_runs_with_different_numbers_of_streams_are_not_set_against_each_other():
    two = replace(DENSE, streams=2)
    assert pairs([DENSE, two], [two]) == [("dense fp32", "dense fp32", 1, 2)]
    with pytest.raises(RunsError, match="no batch size in common: 1 before, 1 with 2 streams after"):
        compare_runs([DENSE], [two])


def test_no_batch_in_common_says_which_there_are():
    with pytest.raises(RunsError, match="no batch size in common: 8 before, 1 after"):
        compare_runs([replace(DENSE, batch=8)], [SLIM])


def test_different_environments_are_refused_and_marked_when_forced():
    elsewhere = replace(SLIM, environment={"cpu": "Xeon", "cores": "6", "gpu": "H100"})
    with pytest.raises(RunsError, match=r"cpu was 'ARMv8', now 'Xeon'; gpu was 'unknown', now 'H100'\. .*--force"):
        compare_runs([DENSE], [elsewhere])
    assert p50(compare_runs([DENSE], [elsewhere], force=True)).differing == ("cpu", "gpu")


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


PACED = {"period_ns": 33 * MS, "missed": 2}


def test_runs_of_different_use_are_not_set_against_each_other_even_by_force():
    message = (
        r"not comparable: inferences of dense fp32 were one after another, and of slim fp32 one per 33 ms; measure"
    )
    for force in (False, True):
        with pytest.raises(RunsError, match=message):
            compare_runs([DENSE], [replace(SLIM, **PACED)], force=force)
        with pytest.raises(RunsError, match=message):
            compare_within([DENSE, replace(SLIM, **PACED)], force=force)


def test_of_a_file_with_several_uses_each_is_set_against_its_own():
    both = [run for one in (DENSE, SLIM) for run in (one, replace(one, **PACED))]
    found = compare_within(both)
    assert {c.use for c in found} == {"one after another", "one per 33 ms"}
    assert {c.runs for c in found} == {(1, 1)}
    assert {c.use for c in compare_runs(both, [replace(SLIM, **PACED)])} == {"one per 33 ms"}


def test_a_row_says_how_the_model_was_used():
    row = make_row(replace(DENSE, **PACED, parts_ns={"decode": (2 * MS,) * 200}), least_s=1e-3)
    assert (row.use, row.period_ms, row.missed) == ("end to end, one per 33 ms", 33, 2)
    assert row.parts_ms == {"decode": 2} and row.roofline_share is None
    assert (make_row(DENSE).use, make_row(DENSE).parts_ms) == ("one after another", None)
