"""Tables of a bench: the rounds of a model as one row, and models in turns."""

from dataclasses import replace

from some_layers import PROFILE
from some_runs import DENSE, MS

from edgevit.agent.records import PARTS
from edgevit.board.comparison import compare_within, make_row
from edgevit.reporting.bench import (
    block_times_table,
    breakdown_text,
    modules_table,
    over_rounds,
    trtexec_table,
    turns_table,
    use_table,
)
from edgevit.reporting.layers import break_down


def test_rounds_are_combined_by_medians_and_sums() -> None:
    row = make_row(DENSE, None)
    rows = [
        replace(row, p50_ms=ms, samples=10, missed=1, period_ms=33.0, parts_ms={PARTS[0]: ms / 2})
        for ms in (1.0, 2.0, 9.0)
    ]
    combined = over_rounds(rows)
    assert (combined.p50_ms, combined.parts_ms, combined.missed, combined.samples) == (2.0, {PARTS[0]: 1.0}, 3, 30)
    assert over_rounds([row]).missed is None
    cells = [next(iter(column.cells)) for column in use_table([combined]).columns]
    assert cells[1:4] == ["33.0", "3", "33"] and cells[-2:] == ["1.00", "2.00"], "what no part names is the rest"


def test_models_in_turns_have_a_row_each_below_the_first() -> None:
    runs = [
        replace(
            DENSE,
            label=label,
            model=f"{label}.onnx",
            model_sha256=label * 64,
            latencies_ns=(ms * MS,) * 30,
            wall_ns=30 * ms * MS,
            session="s",
            round=number + 1,
            turn=2 * number + i,
        )
        for number in range(2)
        for i, (label, ms) in enumerate((("a", 4), ("b", 2)))
    ]
    table = turns_table(compare_within(runs))
    assert [list(column.cells) for column in table.columns][:3] == [["a fp32", "b fp32"], ["1", "1"], ["4.00", "2.00"]]
    assert "ratio to a fp32" in [column.header for column in table.columns]


def test_trtexec_has_a_row_for_each_engine() -> None:
    check = {"label": "a", "batch": 1, "streams": 2, "throughput_qps": 498.03}
    check |= {"latency_ms": {"median": 2.0}, "gpu_ms": {"median": 1.9}}
    (row,) = zip(*(column.cells for column in trtexec_table([check]).columns), strict=True)
    assert row == ("a", "1", "2", "498", "2.00", "1.90", "-")


def test_profiled_layers_of_two_models_are_side_by_side() -> None:
    breakdowns = [break_down(PROFILE), break_down(replace(PROFILE, label="slim"))]
    table = modules_table(breakdowns)
    headings = [str(column.header) for column in table.columns]
    assert headings[1] == f"{PROFILE.label}\nms" and headings[-1] == f"slim over {PROFILE.label}"
    assert "the profiler made an inference 1.29 times as long" in breakdown_text(breakdowns[0])
    assert list(block_times_table(breakdowns).columns[0].cells) == ["1"]
