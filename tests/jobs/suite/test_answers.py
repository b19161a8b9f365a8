"""The answers follow from the figures: what is faster by more than noise pays; what was not measured is not said."""

from dataclasses import replace

import pytest
from some_runs import DENSE, MS

from edgevit.jobs.suite.answers import against, answers
from edgevit.jobs.suite.record import Figure, MeasuredNetwork, SuiteRecord

TIMES_MS = {"base": 10.0, "base 0.8 paper": 4.0, "base 0.8 fused": 3.0, "base 0.8 padded": 4.2}


def run(name, number, ms):
    """One of several in one session, each a little slower than the one before, as a machine that grows warm."""
    latencies = tuple(round(ms * MS * (1 + 0.01 * number)) + 1000 * i for i in range(100))
    return replace(
        DENSE, label=name, model=f"{name}.onnx", model_sha256=f"{len(name):064d}", latencies_ns=latencies,
        wall_ns=sum(latencies), session="s", round=number + 1, turn=4 * number + len(name),
    )  # fmt: skip


def record_of(times=TIMES_MS, **found):
    runs = tuple(run(name, number, ms).to_dict() for number in range(6) for name, ms in times.items())
    return SuiteRecord("now", "0.1.0", {}, "orin", None, {}, 1.0, runs=runs, **found)


def measured(name, question="shapes at 0.8", fused=None, **figure):
    known = {"energy_mj": None, "ratio": None, "low": None, "high": None, "roofline_share": None}
    figures = (
        Figure(**{"batch": 1, "p50_ms": 1.0, "mean_ms": 1.0, "images_per_s": 1.0, "void": (), **known, **figure}),
    )
    return MeasuredNetwork(name, question, "base", "fp16", 197, 1, 1, (), 0, fused, None, None, figures)


def test_shapes_that_are_faster_at_equal_macs_pay() -> None:
    said = answers(record_of(), "base")
    assert said[0].startswith("Fused shapes pay with 0.8 of the MACs gone") and "0.75 (" in said[0]
    assert any(text.startswith("Padding the heads of paper shapes") and "1.05 (" in text for text in said)
    assert len(said) == 2, "nothing is said of what was not measured"


@pytest.mark.parametrize(("fused_ms", "says"), [(5.0, "do not pay"), (4.0, "make no clear difference")])
def test_shapes_that_are_slower_or_alike_do_not(fused_ms, says) -> None:
    assert says in answers(record_of({**TIMES_MS, "base 0.8 fused": fused_ms}), "base")[0]


def test_a_swin_has_an_answer_of_its_own() -> None:
    said = answers(record_of({"base": 10.0, "swin-tiny 0.6 paper": 4.0, "swin-tiny 0.6 fused": 3.0}), "base")
    assert len(said) == 1 and said[0].startswith("Fused shapes pay with 0.6 of the MACs of a Swin gone: against paper")


def test_runs_without_the_graph_that_was_asked_for_are_told() -> None:
    graph = {**DENSE.environment, "cuda_graph": "on"}
    found = record_of()
    runs = tuple(
        {**run, "environment": {**graph, "cuda_graph": told}} for told in ("on", "refused") for run in found.runs
    )
    assert [text for text in answers(replace(found, runs=runs), "base") if text.startswith("A CUDA graph was refused")]
    assert not [text for text in answers(found, "base") if "CUDA graph" in text]


def test_networks_of_different_sessions_are_not_set_against_each_other() -> None:
    runs = [run("base", number, 10.0) for number in range(6)]
    other = [replace(run("slim", number, 5.0), session="t") for number in range(6)]
    assert against([*runs, *other], "base", "slim") == []
    assert [round(c.ratio, 2) for c in against([*runs, *(replace(r, session="s") for r in other)], "base", "slim")] == [
        0.5
    ]


def test_fusion_mixes_and_the_roofline_are_told() -> None:
    found = (
        measured("base 0.8 fused", ratio=0.3, roofline_share=0.4),
        measured("base 0.8 few blocks", question="mixes at 0.8", ratio=0.2, roofline_share=0.5),
        measured("base heads of 16", question="head widths", fused=12),
        measured("base heads of 12", question="head widths", fused=0),
    )
    said = " ".join(answers(record_of({}, measured=found), "base"))
    assert "by the width of heads: 12: 0 of 0, 16: 12 of 0" in said
    assert "the fastest at batch 1 is base 0.8 few blocks: 0.20 of dense" in said
    assert "40% (base 0.8 fused) to 50% (base 0.8 few blocks) of what the board can do" in said


def test_what_narrow_heads_take_is_told_against_wider_ones_that_fuse() -> None:
    said = answers(record_of({"base": 10.0, "base heads of 16": 4.0, "base heads of 12": 6.0}), "base")
    assert len(said) == 1 and said[0].startswith("Heads of 12 take, of heads of 16: 1.49 (")
    assert said[0].endswith(") of its time at batch 1.")


def test_few_rounds_at_another_batch_size_may_speak_against_what_is_sure_at_the_first() -> None:
    times = {"base": 40.0, "base 0.8 paper": 16.0}
    found = record_of()

    def at_8(fused_ms: float) -> str:
        runs = [
            run(name, number, ms) for number in range(3) for name, ms in {**times, "base 0.8 fused": fused_ms}.items()
        ]
        more = tuple(replace(one, batch=8, turn=100 + one.turn).to_dict() for one in runs)
        return answers(replace(found, runs=(*found.runs, *more)), "base")[0]

    assert at_8(12.0).startswith("Fused shapes pay") and at_8(12.0).endswith("0.75 (3 rounds) of its time at batch 8.")
    assert at_8(20.0).startswith("Fused shapes make no clear difference")


def test_nothing_is_concluded_from_void_runs_or_from_too_few_rounds() -> None:
    whole = record_of(
        measured=(
            measured("base 0.8 fused", ratio=0.2, roofline_share=0.9, void=("the clocks moved",)),
            measured("base 0.8 paper", ratio=0.3, roofline_share=0.5),
            measured("base 0.8 padded", ratio=0.4, roofline_share=0.4),
        )
    )
    few = replace(whole, runs=tuple(run for run in whole.runs if run["round"] <= 3))
    assert answers(few, "base")[0].startswith(
        "Whether fused shapes pay with 0.8 of the MACs gone is not judged (too few"
    )
    slowed = [{**run, "throttled": ["gpu-throttle"]} if "fused" in run["label"] else run for run in whole.runs]
    pays, *others = answers(replace(whole, runs=tuple(slowed)), "base")
    assert "is not judged (the board held itself back" in pays and pays.endswith("at batch 1 (VOID).")
    said = " ".join(others)
    assert "the fastest at batch 1 is base 0.8 paper" in said and "40% (base 0.8 padded) to 50%" in said
