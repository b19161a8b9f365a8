import operator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_runs import DENSE, MS, ON_A_BOARD, SLIM, S, watts

from edgevit.board.facts import read_facts
from edgevit.board.gates import (
    METRICS,
    UNITS,
    check_measurable,
    check_paced,
    exit_code,
    measurable,
    parse_gate,
    verdicts_of,
)
from edgevit.errors import GateError

VOID_RUN = replace(ON_A_BOARD, throttled=("gpu-throttle-alert at step 1",))


@pytest.mark.parametrize(
    ("text", "metric", "comparison", "limit", "batch"),
    [
        ("p99<8ms", "p99", "<", 8e6, None),
        ("  p99 <= 8.5 ms ", "p99", "<=", 8.5e6, None),
        ("p50<750us", "p50", "<", 750e3, None),
        ("gpu_p99<7ms", "gpu_p99", "<", 7e6, None),
        ("load < 1.5s", "load", "<", 1.5e9, None),
        ("p99@8<20ms", "p99", "<", 20e6, 8),
        ("p99 @ 16 < 20 ms", "p99", "<", 20e6, 16),
        ("throughput>=200/s", "throughput", ">=", 200, None),
        ("throughput>200 images/s", "throughput", ">", 200, None),
        ("throughput>30fps", "throughput", ">", 30, None),
        ("throughput<200/s", "throughput", "<", 200, None),
        ("memory<1GiB", "memory", "<", 2**30, None),
        ("rss<.5GB", "rss", "<", 5e8, None),
        ("power<15W", "power", "<", 15e3, None),
        ("energy<40mJ", "energy", "<", 40e3, None),
        ("energy<40mJ/image", "energy", "<", 40e3, None),
        ("net_energy<2e-2J", "net_energy", "<", 20e3, None),
        ("temperature<70C", "temperature", "<", 70, None),
        ("spread<5%", "spread", "<", 5, None),
        ("p99<4.35ms", "p99", "<", 4_350_000, None),
    ],
)
def test_a_gate_is_a_metric_a_comparison_and_a_value_with_its_unit(text, metric, comparison, limit, batch):
    gate = parse_gate(text)
    assert (gate.metric, gate.comparison, gate.limit, gate.batch) == (metric, comparison, limit, batch)
    assert gate.text == text.strip()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "gate '' is not of the form METRIC<VALUE or METRIC@BATCH<VALUE; try 'p99<8ms'"),
        ("p99", "is not of the form"),
        ("p99=8ms", "is not of the form"),
        ("p99<ms", "is not of the form"),
        ("p99@x<8ms", "is not of the form"),
        ("p99<\uff18ms", "is not of the form"),
        ("p98<8ms", "no metric 'p98'; did you mean"),
        ("jitter<8ms", "no metric 'jitter'; known: p50, p90"),
        ("energi<8mJ", "did you mean 'energy'"),
        ("p99<8", "the unit is missing; try 'p99<8ms', or one of ms, us, ns, s"),
        ("p99<8mJ", "'mJ' is no unit of p99; try 'p99<8ms'"),
        ("p99<8MS", "'MS' is no unit of p99"),
        ("energy<40W", "'W' is no unit of energy; try 'energy<40mJ', or one of mJ, uJ, J"),
        ("memory<1gib", "'gib' is no unit of memory; try 'memory<1MiB'"),
        ("p99<8,5ms", "',5ms' is no unit of p99"),
        ("p99<8ms p50<6ms", "is no unit"),
        ("p99<-8ms", "-8 is not a bound of anything measured; try a number from 0 on"),
        ("p99<nanms", "nan is not a bound"),
        ("p99<inf ms", "inf is not a bound"),
        ("p99<1e999ms", "1e999 is not a bound"),
        ("p99@0<8ms", "no batch has 0 images; try 'p99@1<8ms'"),
    ],
)
def test_what_is_no_gate_is_refused_with_what_to_try(text, said):
    with pytest.raises(GateError) as refused:
        parse_gate(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_gate_says_who_asked_for_it():
    assert str(parse_gate("p99<33ms", "profile orin-nx-16gb")) == "p99<33ms (profile orin-nx-16gb)"
    with pytest.raises(GateError, match="gate 'p99<33' of profile mine: the unit is missing"):
        parse_gate("p99<33", "profile mine")


@given(st.text(max_size=20) | st.from_regex(r"[a-z_0-9]{2,10}@?[0-9]{0,3}[<>]=?[-+.0-9einfa]{1,8}[A-Za-z/%]{0,8}"))
def test_any_text_is_a_gate_or_refused_in_one_sentence(text):
    try:
        gate = parse_gate(text)
    except GateError as error:
        assert "gate " in str(error)
    else:
        assert gate.limit >= 0 and gate.metric in METRICS


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_can_be_bound_in_each_of_its_units_and_read_from_a_run(metric):
    for unit in UNITS[METRICS[metric].quantity]:
        for comparison, compare in (("<", operator.lt), (">=", operator.ge)):
            gate = parse_gate(f"{metric}{comparison}5{unit}")
            (verdict,) = verdicts_of([gate], [ON_A_BOARD])
            assert verdict.state == ("pass" if compare(verdict.value, 5) else "fail")
            assert (verdict.margin >= 0) == (verdict.state == "pass")


def test_figures_are_those_of_the_run_in_the_gates_own_unit():
    asked = {
        "p99<8ms": 10,
        "gpu_p50<8us": 7000,
        "throughput>1fps": 100,
        "memory<1MiB": 300,
        "engine<1MiB": 48,
        "nvmap<1MiB": 150,
        "rss<1MiB": 96,
        "power<1W": 10,
        "idle<1W": 4,
        "energy<1mJ": 100,
        "net_energy<1mJ": 60,
        "temperature<1C": 52.5,
        "first<1ms": 45,
        "load<1ms": 123,
        "max<1ms": 10,
        "mean<1ms": 9,
        "spread<1%": pytest.approx(100 / 9, rel=1e-3),
    }
    verdicts = verdicts_of(map(parse_gate, asked), [ON_A_BOARD])
    assert [verdict.value for verdict in verdicts] == pytest.approx(list(asked.values()))


def test_the_margin_is_what_is_left_to_the_limit_as_a_share_of_it():
    under, over, enough, short = verdicts_of(
        map(parse_gate, ["p99<12.5ms", "p99<8ms", "throughput>80/s", "throughput>125/s"]), [ON_A_BOARD]
    )
    assert [v.state for v in (under, over, enough, short)] == ["pass", "fail", "pass", "fail"]
    assert [v.margin for v in (under, over, enough, short)] == pytest.approx([0.2, -0.25, 0.25, -0.2])
    assert verdicts_of([parse_gate("throughput>0/s")], [ON_A_BOARD])[0].margin is None


def test_a_limit_is_met_to_the_nanosecond():
    run = replace(DENSE, latencies_ns=(4_350_000,) * 200)
    states = [verdicts_of([parse_gate(f"p99{how}4.35ms")], [run])[0].state for how in ("<", "<=", ">", ">=")]
    assert states == ["fail", "pass", "fail", "pass"]


def test_a_gate_holds_at_each_batch_size_and_number_of_streams_unless_it_names_a_batch():
    runs = [DENSE, replace(DENSE, batch=8), replace(DENSE, batch=8, streams=2), SLIM]
    every = verdicts_of([parse_gate("p99<8ms")], runs)
    assert [(v.label, v.batch, v.streams, v.state) for v in every] == [
        ("dense", 1, 1, "fail"),
        ("dense", 8, 1, "fail"),
        ("dense", 8, 2, "fail"),
        ("slim", 1, 1, "pass"),
    ]
    assert [(v.batch, v.streams) for v in verdicts_of([parse_gate("p99@8<8ms")], runs)] == [(8, 1), (8, 2)]


def test_the_worst_of_several_repeats_counts():
    slow = replace(SLIM, latencies_ns=(9 * MS,) * 200)
    (verdict,) = verdicts_of([parse_gate("p99<8ms")], [SLIM, slow, SLIM])
    assert (verdict.state, verdict.value, verdict.repeats) == ("fail", 9, 3)
    (verdict,) = verdicts_of([parse_gate("throughput>150/s")], [SLIM, replace(SLIM, wall_ns=2 * S), SLIM])
    assert (verdict.state, verdict.value) == ("fail", 100)


def test_a_void_run_is_shown_and_not_judged_and_wins_over_a_failure():
    gates = [parse_gate("p99<1ms")]
    verdicts = verdicts_of(gates, [VOID_RUN, DENSE])
    assert [v.state for v in verdicts] == ["void", "fail"]
    assert verdicts[0].value == 10
    assert "gpu-throttle-alert at step 1" in verdicts[0].reasons[0]
    assert exit_code(verdicts, [VOID_RUN, DENSE]) == 4
    assert exit_code(verdicts[1:], [DENSE]) == 3
    assert verdicts_of(gates, [ON_A_BOARD, VOID_RUN])[0].state == "void"  # one of its repeats is


def test_the_exit_code_of_a_run_without_gates_says_whether_it_is_void():
    assert exit_code((), [ON_A_BOARD]) == 0
    assert exit_code((), [ON_A_BOARD, VOID_RUN]) == 4


def test_a_figure_that_turned_out_not_to_be_measured_is_an_error_that_says_what_to_try():
    gates = [parse_gate("energy<40mJ")]
    for power in (None, watts(*(10.0,) * 61, total=())):
        run = replace(ON_A_BOARD, power=power)
        (verdict,) = verdicts = verdicts_of(gates, [run])
        assert (verdict.state, verdict.value, verdict.margin) == ("not measured", None, None)
        assert "`edgevit board` says what is missing" in verdict.reasons[0]
        assert exit_code(verdicts, [run]) == 1
        assert exit_code((*verdicts, *verdicts_of([parse_gate("p99<1ms")], [run])), [run]) == 3
    (one_missing,) = verdicts_of(gates, [ON_A_BOARD, replace(ON_A_BOARD, power=None)])
    assert one_missing.state == "not measured"


def test_a_gate_about_nothing_that_was_measured_does_not_pass_in_silence():
    with pytest.raises(GateError, match="gate p99@4<8ms is about none of the runs"):
        verdicts_of([parse_gate("p99@4<8ms")], [DENSE])


FACTS = read_facts(
    {
        "meters": {"ina3221": None, "tegrastats": None, "jtop": "no module named jtop"},
        "memory": {"available_bytes": 2**33},
        "module": {"part": "p3767-0000"},
        "root": True,
        "temperatures_c": {"cpu": 48.1},
    },
    "orin",
)
NO_JETSON = read_facts(
    {
        "meters": {"ina3221": "no sensor", "tegrastats": "no program", "jtop": "no module"},
        "memory": {"available_bytes": None},
        "module": {"part": None},
        "root": True,
        "temperatures_c": {},
    },
    "here",
)


def test_what_can_be_measured_follows_from_the_board_and_the_runner():
    assert measurable(FACTS, "tensorrt") == set(METRICS)
    assert set(METRICS) - measurable(FACTS, "onnxruntime") == {"gpu_p50", "gpu_p90", "gpu_p99", "engine"}
    assert set(METRICS) - measurable(FACTS, "tensorrt", streams=2) == {"gpu_p50", "gpu_p90", "gpu_p99"}
    assert set(METRICS) - measurable(replace(FACTS, root=False), "tensorrt") == {"nvmap"}
    assert set(METRICS) - measurable(FACTS, "tensorrt", idle=False) == {"idle", "net_energy"}
    no_total = measurable(FACTS, "tensorrt", total_rails=False)
    assert set(METRICS) - no_total == {"power", "energy", "idle", "net_energy"}
    assert measurable(NO_JETSON, "fake") == {
        *("p50", "p90", "p95", "p99", "mean", "max", "first", "load", "throughput", "spread"),
    }


def test_a_gate_that_this_board_cannot_answer_is_refused_before_anything_is_measured():
    check_measurable([parse_gate("p99<8ms"), parse_gate("energy<1J")], measurable(FACTS, "tensorrt"))
    available = measurable(NO_JETSON, "fake")
    for metric in set(METRICS) - available:
        gate = parse_gate(f"{metric}<1{next(iter(UNITS[METRICS[metric].quantity]))}", "profile mine")
        with pytest.raises(GateError, match=rf"\(profile mine\): {metric} cannot be measured there: \w+"):
            check_measurable([gate], available)
    with pytest.raises(GateError, match="gate p99@8<9ms is about batch 8, and 1, 4 are measured; add --batch 8"):
        check_measurable([parse_gate("p99@8<9ms")], available, batches=(4, 1))
    check_measurable([parse_gate("p99@8<9ms")], available, batches=(8,))


def test_a_gate_is_about_one_use_of_a_model():
    paced = replace(DENSE, period_ns=33 * MS, missed=0)
    (verdict,) = verdicts_of([parse_gate("p99<33ms")], [paced])
    assert (verdict.state, verdict.use) == ("pass", "one per 33 ms")
    with pytest.raises(
        GateError, match="about one use of a model, and these inferences were one after another and one"
    ):
        verdicts_of([parse_gate("p99<33ms")], [DENSE, paced])


def test_images_per_second_are_no_gate_where_a_camera_gives_them():
    check_paced([parse_gate("p99<33ms")])
    with pytest.raises(GateError, match="with --period-ms images per second are given; try p99 below the period"):
        check_paced([parse_gate("throughput>10/s")])
