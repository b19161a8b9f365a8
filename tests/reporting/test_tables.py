"""The same tables as text, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
from some_report import write_everything

from edgevit.board.gates import parse_gate
from edgevit.reporting.choice import Entry, Panel
from edgevit.reporting.gather import Evidence, Skipped, gather
from edgevit.reporting.panels import panels
from edgevit.reporting.tables import (
    COLUMNS,
    answer,
    as_csv,
    as_json,
    as_markdown,
    columns,
    figures,
    heading,
    notes,
    split_reasons,
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return gather([write_everything(tmp_path_factory.mktemp("everything"))])


@pytest.fixture(scope="module")
def made(found: Evidence) -> list[Panel]:
    return panels(found)


def test_the_answer_names_the_model_and_why(made: list[Panel]) -> None:
    assert [heading(panel) for panel in made] == ["Take t1", "Take t1", "Measured, but not found"]
    assert answer(made[0]).startswith("Of 2 models the fastest whose accuracy is not below that of the base")
    told = {figure.name: figure.value for figure in figures(made[0])}
    assert (
        told["top-1"] == "94.50 %" and told["of the base's latency"] == "0.376" and told["of the base's MACs"] == "25 %"
    )
    assert "are gone, cannot be read, or hold other files by now, so their accuracy is not known" in answer(made[2])


def test_the_answer_holds_a_model_against_those_alone_whose_cost_is_known(made: list[Panel]) -> None:
    nano = made[0]
    t1, t2 = nano.models
    unknown = replace(t2, title="t3", p50_ms=None, runs=())
    for models, told in (
        ((t1,), "The only model, whose"),
        ((t1, unknown), "Of 2 models the only one with a figure for latency, p50, whose"),
        ((t1, t2), "Of 2 models the fastest whose"),
        ((t1, t2, unknown), "Of 3 models, of which 2 have a figure for latency, p50, the fastest whose"),
    ):
        assert answer(replace(nano, entries=(*nano.baselines, *models))).startswith(f"{told} accuracy is not below")


def test_where_no_model_will_do_that_is_said(found: Evidence, made: list[Panel]) -> None:
    failing = panels(found, [parse_gate("p99<1ms")])[0]
    assert heading(failing) == "No model that is as accurate as the base passes the gates"
    assert "t1 fails p99<1ms: 3.019 ms in the worst of 6 runs" in notes(failing)
    poor = replace(made[0], entries=tuple(e for e in made[0].entries if e.title != "t1"))
    assert heading(poor) == "No model is as accurate as the base"
    assert "The most accurate is t2 with 69.50 %" in answer(poor)
    unknown = replace(made[0], entries=(Entry(kind="model", title="x", model="x", macs=3),))
    assert heading(unknown) == "How accurate these models are is not known" and "Derive models" in answer(unknown)
    baseless = replace(made[0], entries=tuple(made[0].models))
    assert heading(baseless) == "t2 is the fastest" and "no base to set it against" in answer(baseless)


def test_a_gate_that_only_the_worst_run_fails_is_told_with_what_that_took(found: Evidence) -> None:
    slow = [
        replace(run, latencies_ns=(*run.latencies_ns[:-4], *[8_200_000] * 4)) if run.round == 3 else run
        for run in found.runs
    ]
    nano = panels(replace(found, runs=slow), [parse_gate("p99<8ms")])[0]
    t1 = next(entry for entry in nano.entries if entry.title == "t1")
    assert t1.p99_ms is not None and t1.p99_ms < 4
    assert "t1 fails p99<8ms: 8.2 ms in the worst of 6 runs" in notes(nano)
    alone = replace(found, runs=[run for run in slow if run.round == 3])
    assert "t1 fails p99<8ms: 8.2 ms" in notes(panels(alone, [parse_gate("p99<8ms")])[0])


def test_what_to_know_before_believing_it_is_told(made: list[Panel], found: Evidence) -> None:
    task = made[0].task
    assert task is not None and task.data is not None
    copied = replace(made[0], task=replace(task, data=replace(task.data, copies={"test": 3})))
    assert notes(copied)[0].startswith(f"Of the {task.data.images.test} test images 3 are training images, too, byte")
    assert "Not measured here: t2." in notes(made[1])
    busy = panels(replace(found, runs=[replace(r, cpu_busy_ns=30 * 10**9, cpu_own_ns=10**9) for r in found.runs]))[0]
    assert "when base, restricted to the classes; t1; t2 were measured" in notes(busy)[0]
    assert notes(busy)[0].endswith("; ratios to the base are of rounds (of means), and hold.")
    assert notes(replace(made[0], place=None))[0].startswith("Nothing was measured: `edgevit bench")
    lost = replace(made[2], entries=tuple(replace(entry, busy=True) for entry in made[2].entries))
    assert notes(lost) == ["Other programs were busy when lost was measured: milliseconds are a busy machine's."]
    many = replace(made[0], entries=made[0].entries * 4)
    assert "more of its accuracy may be luck" in notes(many)[-1]
    validated = replace(many, entries=tuple(replace(entry, validation=(90, 100)) for entry in many.entries))
    assert validated.part == "validation" and not any("luck" in note for note in notes(validated))
    assert answer(replace(made[0], entries=made[0].entries[:4])).startswith("The only model, whose accuracy is not")


def test_columns_without_a_figure_are_left_out(made: list[Panel]) -> None:
    assert [c.title for c in columns(made[2])] == ["model", "p50 ms", "p99 ms", "images/s", "memory MiB"]
    assert len(columns(made[0])) == len(COLUMNS) - 9  # no gates, no features or probes, no maps and no boxes
    wide = replace(made[0], entries=tuple(e for e in made[0].entries if e.title != "t1"))
    assert "embedding" not in [c.title for c in columns(wide)], "one width tells nothing"


def test_markdown_has_each_panel_and_what_was_left_out(made: list[Panel], found: Evidence) -> None:
    text = as_markdown(made, [Skipped("a.jsonl, line 3", "is not JSON")])
    assert text.count("## ") == 3 and "| **t1** | 94.50 % (90.4 to 96.9) | 3.01 | 0.376" in text
    assert "power mode (25W, 15W)" in text and "- a.jsonl, line 3: is not JSON" in text
    odd = replace(made[0], entries=(replace(made[0].entries[3], title="a|b\nc"),))
    assert "a\\|b c" in as_markdown([odd], [])
    named = replace(made[0], entries=(*made[0].baselines, replace(made[0].entries[3], title="<img src=x>")))
    text = as_markdown([named], [Skipped("runs/</b>", "failed")])
    assert "## Take &lt;img src=x>" in text and "| **&lt;img src=x>** |" in text and "- runs/&lt;/b>: failed" in text
    assert "t1 fails p99<1ms" in as_markdown(panels(found, [parse_gate("p99<1ms")]), [])


def test_csv_and_json_have_every_entry_with_its_place(made: list[Panel]) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(made))))
    assert len(rows) == sum(len(panel.entries) for panel in made) == 11
    assert [row["title"] for row in rows if row["take"]] == ["t1", "t1"]
    assert [row["embed"] for row in rows[:5]] == ["32", "32", "32", "24", "32"]
    assert rows[3]["place"].startswith("Nano") and float(rows[3]["p50_ms"]) == pytest.approx(3.009)
    told = json.loads(as_json(made, []))
    assert [panel["take"] for panel in told["panels"]] == ["t1", "t1", None]
    assert (
        told["panels"][0]["models"][3]["top1"] == pytest.approx(0.945) and "runs" not in told["panels"][0]["models"][3]
    )
    assert told["split_reasons"] == split_reasons(made) and told["report"] == "edgevit"


def test_a_spreadsheet_runs_nothing_of_a_csv(made: list[Panel]) -> None:
    names = (
        "=cmd|' /C calc'!A0",
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        " =1",
        "\n=1",
        "\N{FULLWIDTH EQUALS SIGN}1",
        "t1",
        "a=b",
        'a,b\n"c"',
    )
    odd = replace(made[0], entries=tuple(replace(made[0].entries[3], title=name, ratio=-0.5) for name in names))
    rows = list(csv.DictReader(io.StringIO(as_csv([odd]))))
    assert [row["title"] for row in rows] == [f"'{name}" for name in names[:8]] + list(names[8:])
    assert {row["ratio"] for row in rows} == {"-0.5"}, "numbers are numbers"
    odd = replace(odd, entries=(replace(made[0].entries[3], title="\x1b[2J\u202e"),))
    for text in (as_csv([odd]), as_markdown([odd], [])):
        assert "\\x1b[2J\\u202e" in text and not {"\x1b", "\u202e"} & set(text)
