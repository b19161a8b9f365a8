"""The tables of the accuracy benchmark: what they compute, and that they bear missing rows."""

from __future__ import annotations

import re
import subprocess
import sys
from copy import deepcopy
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import accuracy
import accuracy_tables
import dimensions
import embedding
import first_base
import hostile
import line_plot
import older
import published
import pytest
import results
import summary
import tables
from places import ROOT

LEVELS = {"forge": 0.90, "forge, closed form": 0.88, "vulcan": 0.85, "vulcan + teacher": 0.91, "nuwa": 0.84}


def row(case: accuracy.Case, seconds: dict[str, float] | None = None, **changed: Any) -> tables.Row:
    """A row as the benchmark would store it, with an accuracy that only its variant decides."""
    level = LEVELS.get(case.variant, 0.80)
    finetuned = 0.95 if case.takes_finetuned_base else None
    return {
        **asdict(case),
        "base_sha256": "b",
        "base_top1": 0.9,
        "accuracy": {
            "base_full_head": 0.92,
            "base_restricted": 0.94,
            "base_finetuned": finetuned,
            "derived": level,
        },
        "facts": {},
        "images_seen": case.steps * case.batch_size,
        "test_images": 100 * case.task,
        "rate_reached": case.rate + 0.001,
        "seconds": seconds or {"baselines": 5.0, "statistics": 2.0, "training": 60.0 if case.steps else 0.0},
        **changed,
    }


ALL = [row(case) for case in accuracy.cases()]
MAIN = tables.picked(ALL, table="main")


def line_of(table: str, start: str) -> list[str]:
    line = next(line for line in table.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_target_says_by_how_much_it_is_met_or_missed() -> None:
    table = accuracy_tables.targets_table(MAIN, 9)
    assert line_of(table, "forge minus vulcan, 0.8")[1:] == ["at least +4.0", "9 of 9", "+5.00", "met by 1.00"]
    missed = line_of(table, "forge minus vulcan + teacher, 0.9")
    assert missed[1:] == ["above +0.0", "9 of 9", "-1.00", "missed by 1.00"]


def test_an_equal_number_meets_not_below_but_not_ahead_of() -> None:
    equal, ahead = (accuracy_tables.MeasurementTarget("a", "b", (0.8,), equal_will_do=e) for e in (True, False))
    assert accuracy_tables.verdict(0.0, equal) == "met by 0.00"
    assert accuracy_tables.verdict(0.0, ahead) == "missed by 0.00"


def test_a_target_without_rows_is_not_measured() -> None:
    table = accuracy_tables.targets_table(tables.picked(MAIN, method="vulcan"), 9)
    assert line_of(table, "forge minus vulcan, 0.8")[2:] == ["0 of 9", "", "not measured"]


def test_differences_are_of_the_same_sub_task_and_seed() -> None:
    some = [r for r in MAIN if r["variant"] != "forge" or r["task"] == 6]
    found = accuracy_tables.differences(some, "forge", "vulcan", 0.8)
    assert found == pytest.approx({(6, seed): 0.05 for seed in accuracy.SEEDS})


def test_the_time_of_a_method_is_of_derivations_that_found_nothing_cached() -> None:
    case = next(accuracy.cases())
    cold = row(case, {"statistics": 9.0, "closed_form": 1.0, "training": 50.0, "finetune_base": 70.0})
    warm = row(case, {"statistics": 0.1, "closed_form": 2.0}, facts={"reused": ["baselines", "statistics"]})
    assert accuracy_tables.preparation_s([cold, warm]) == 10.0
    cold["facts"] = {"reused": ["spectra"]}
    assert accuracy_tables.preparation_s([cold, warm]) == 11.0  # each stage where it was paid


def test_a_step_of_forge_is_compared_within_its_shape() -> None:
    rows = accuracy_tables.forge_rows(deepcopy(ALL))
    uniform = tables.picked(rows, variant="allocation=uniform", rate=0.9, task=12, steps=0)
    assert [r["shape"] for r in uniform] == ["paper"]
    for r in tables.picked(rows, variant="shape=paper"):
        r["accuracy"]["derived"] = 0.77
    assert accuracy_tables.against_forge(rows, uniform) == [pytest.approx(0.80 - 0.77)]


def test_the_mean_over_sub_tasks_leaves_out_a_seed_that_lacks_one() -> None:
    rows = tables.picked(MAIN, rate=0.8, variant="vulcan")
    partial = [r for r in rows if (r["task"], r["seed"]) != (6, 43)]
    assert len(accuracy_tables.mean_per_seed(rows, (6, 12, 18))) == 3
    assert len(accuracy_tables.mean_per_seed(partial, (6, 12, 18))) == 2


def test_rows_of_an_older_base_are_not_mixed_in() -> None:
    case = next(accuracy.cases())
    old, new = row(case, base_sha256="old"), row(case, base_sha256="new")
    assert accuracy_tables.of_newest_base([old, new]) == [new]


@pytest.mark.parametrize("count", [0, 1, 5, 60, 100, 150, 200, len(ALL)])
def test_tables_bear_missing_rows(count: int) -> None:
    for rows in (ALL[:count], ALL[len(ALL) - count :]):
        data = {"rows": {str(i): r for i, r in enumerate(rows)}}
        assert "nan" not in accuracy_tables.section(data, None)


def test_no_row_of_the_first_base_is_lost() -> None:
    record = tables.load("accuracy_first_base")
    assert record is not None
    assert len(record["rows"]) == 211
    assert first_base.section().count("\n| as published") == 5


def test_the_plot_is_xml_with_every_point_inside() -> None:
    lines = {"a < b": [(0.0, 40.0), (9600.0, 91.5)], "c": [(480.0, 17.3), (9600.0, 88.0)]}
    panels = [line_plot.Panel("images", lines), line_plot.Panel("seconds", lines)]
    root = ElementTree.fromstring(line_plot.line_plot(panels, "top-1"))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    circles = root.findall("{*}circle")
    assert len(circles) == 8
    assert all(0 < float(c.attrib["cx"]) < width and 0 < float(c.attrib["cy"]) < height for c in circles)


@pytest.mark.parametrize(("low", "high"), [(0.0, 9600.0), (17.3, 91.5), (0.2, 0.7), (80.0, 80.0)])
def test_ticks_span_the_numbers(low: float, high: float) -> None:
    found = line_plot.ticks(low, high)
    assert found[0] <= low <= high <= found[-1]
    assert 1 <= len(found) <= 8


def test_the_table_of_hostile_use_has_a_line_per_case() -> None:
    case = hostile.Case(rounds=20, same_weights=19, tracebacks=1)
    case.exit_codes.update({"0 1": 18, "1 1": 2})
    told = results.hostile({"cases": {"two derivations of one output": vars(case)}})
    cells = line_of(told, "two derivations of one output, 20 times")
    assert cells[1:] == ["0 1: 18 times, 1 1: 2 times", "1, 0", "0, 0", "19 of 20"]
    assert results.hostile(None) == ""


def test_a_session_s_processes_are_found_until_they_end() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        assert hostile.session(process.pid) == [process.pid]
        process.kill()
        process.wait()
        assert hostile.session(process.pid) == []


def test_figures_of_older_code_say_so_by_what_their_record_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(older, "base_today", lambda: "b")
    forge, vulcan = {"method": "forge", "base_sha256": "b"}, {"method": "vulcan", "base_sha256": "b"}
    assert older.rows_told([{**forge, "embed": 64}, {"base_sha256": "b", "embed": None}, vulcan]) == ""
    assert "no row has an `embed`" in older.rows_told([forge, vulcan])
    assert "1 of 2 rows lack an `embed`" in older.rows_told([forge, {**forge, "embed": 64}])
    assert "another base (c; now b)" in older.rows_told([{**forge, "embed": 64, "base_sha256": "c"}])
    assert "another base" not in older.rows_told([{**forge, "base_sha256": "c"}], "digits")
    assert older.stages_told([{"seconds": {"embedding": 1.0}}, {"seconds": {}}]) == ""
    assert "no stage `embedding`" in older.stages_told([{"seconds": {"sequential": 1.0}}])


def test_links_to_the_newest_figures_lead_to_their_sections() -> None:
    made = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    for title in older.TITLES.values():
        assert f"\n## {title}\n" in made
    assert f"The newest rows of forge are in {older.NEWEST}.\n" in made and older.LINKS in made


def test_targets_say_what_is_left_of_a_difference_at_published_length() -> None:
    def at_length(variant: str, derived: float, seed: int = 42) -> tables.Row:
        more = {"table": "published", "data": "demo", "rate": 0.9, "task": 4, "steps": 1828, "test_images": 600}
        return {**ALL[0], **more, "variant": variant, "seed": seed, "accuracy": {"derived": derived}}

    pair = [at_length("forge", 0.94), at_length("vulcan, as published", 0.945)]
    alone = at_length("forge", 0.5, seed=43)  # of no use: Vulcan was not trained with that seed
    told = accuracy_tables.at_length_told({"rows": dict(enumerate([*pair, alone]))}).replace("\n", " ")
    assert "After the 1828 steps" in told and "reaches 94.5 and forge 94.0: n = 1 seed, of 600 test images" in told
    assert "Vulcan gets 3 more right" in told
    assert accuracy_tables.at_length_told({"rows": {"a": alone}}) == accuracy_tables.at_length_told(None) == ""


def test_every_section_is_of_a_record_that_make_benchmark_measures() -> None:
    script = Path(results.__file__).read_text()
    target = (ROOT / "Makefile").read_text().partition("\nbenchmark:")[2].partition("\n\n")[0]
    run = {name: (ROOT / "benchmarks" / name).read_text() for name in re.findall(r"benchmarks/(\w+\.py)", target)}
    assert [*run][-1] == "results.py"
    loaded = {"accuracy", *re.findall(r'load\("(\w+)"\)', script)}
    for name in (name for name in loaded if not name.endswith("_before")):  # kept beside what was measured since
        writes = re.compile(rf'["/]{name}\.json')
        assert any(writes.search(text) for of, text in run.items() if of != "results.py"), name
    of_bases = [re.fullmatch(r"([a-z]+)_(fine|fashion)", path.stem) for path in (ROOT / "benchmarks/results").iterdir()]
    for name, base in (found.groups() for found in of_bases if found):
        assert f"benchmarks/{name}.py --base {base}\n" in target.replace("  #", "\n"), f"{name}, {base}"
    assert "it cannot be made again" in first_base.ACCURACY


def test_every_step_of_forge_is_taken_away_at_every_rate_where_it_may_matter() -> None:
    cases = dimensions.cases()
    without = {(case.variant, case.rate) for case in cases["without"]}
    steps = {f"{name}=false" for name in ("cut_embedding", "fit_decoders", "align", "refit_head", "drop_sites")}
    assert without == {(step, rate) for step in (*steps, "cut_tokens=never") for rate in (0.8, 0.9, 0.95)}
    assert {case.rate for case in cases["closed"]} == set(dimensions.RATES) >= {0.4, 0.6}
    keys = [case.key("base") for of in cases.values() for case in of]
    assert len(keys) == len(set(keys))


def test_targets_are_of_forge_itself_and_say_by_how_much_they_are_missed() -> None:
    made = [
        {**row(case, facts={}, embed=64), "versions": {"edgevit": "0.1.0 (abc)"}}
        for case in dimensions.cases()["closed"] if case.task == 6 and case.rate in (0.9, 0.95)
    ]  # fmt: skip
    for one in made:
        below = 0.5 if one["options"] else 0.03 if one["rate"] == 0.9 else 0.01
        one["accuracy"] = {**one["accuracy"], "derived": 0.9 - below, "base_restricted": 0.9}
    text = dimensions._targets(made)
    assert line_of(text, "0.9 of the MACs gone, nothing trained")[1:] == ["1", "3.00", "3", "missed by 2.00"]
    assert line_of(text, "0.95 of the MACs gone, nothing trained")[1:] == ["4", "1.00", "3", "met"]
    assert "distilled" not in text and "abc (12)" in older.code_told(row["versions"]["edgevit"] for row in made)


def test_a_width_that_was_chosen_is_judged_against_the_best_by_validation() -> None:
    rows = {}
    for case in embedding.cases("rendered", (42,), (0.9,)):
        if case.task != 6:
            continue
        width = int(case.options.get("embed_width", 80))
        if width <= 96:  # wider ones cannot be had
            seen = 0.9 if width == 96 else 0.8
            facts = {"accuracy_validation_closed_form": seen, "predicted_nats": 0.1}
            of = row(case, facts=facts, embed=width)
            rows[case.key("b")] = {**of, "accuracy": {**of["accuracy"], "derived": seen + 0.05}}
    text = embedding.section({"rows": rows})
    assert line_of(text, "6 classes, 0.9")[1:] == ["85.0", *[""] * 6, "95.0", *["85.0"] * 4]
    assert "| 6 classes, 0.9 | 80 | 96 | -10.0 |" in text and embedding.section(None) == ""
    assert embedding.widths("fashion")[:2] == [128, 112]


def test_each_base_s_section_is_titled_by_its_base() -> None:
    data = {"rows": {str(i): {**r, "data": "fine"} for i, r in enumerate(MAIN)}}
    told = accuracy_tables.other_base_section(data, "the harder base")
    assert told.startswith("### The papers' methods on the harder base\n") and "| 0.8 | vulcan | fused |" in told
    assert accuracy_tables.other_base_section(None, "photographs") == ""


def test_what_the_scripts_write_of_any_base_is_shown_and_contents_link_to_every_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()

    def load(name: str) -> Any:
        asked.add(name)
        return tables.load(name)

    monkeypatch.setattr(results, "load", load)
    monkeypatch.setattr(sys, "argv", ["results.py", "--out", str(tmp_path / "RESULTS.md")])
    results.main()
    for name in ("ablations", "accuracy", "attention", "dropout"):
        of = (f"{name}_fine", *([] if name == "accuracy" else [f"{name}_demo"]))
        assert asked.issuperset(of), of
    told = (tmp_path / "RESULTS.md").read_text()
    headings = re.findall(r"^## (.+)$", told, re.MULTILINE)
    links = re.findall(r"^- \[.+\]\(#(.+)\)$", told, re.MULTILINE)
    assert links == [older.anchor(name) for name in headings if name not in ("In short", "Contents")]
    assert headings[:3] == ["In short", "Contents", "What the papers claim, at this scale"]


def test_the_summary_names_the_rival_that_comes_nearest_over_pairs_of_both() -> None:
    def made(variant: str, seed: int, derived: float) -> tables.Row:
        return {"variant": variant, "task": 6, "seed": seed, "accuracy": {"derived": derived}}

    rows = [made("forge", 42, 0.9), made("forge", 43, 0.8), made("near", 42, 0.88), made("far", 42, 0.5)]
    rows += [made("far", 43, 0.6), made("far", 44, 0.99), made("alone", 44, 0.99)]
    pairs = summary.leads(rows)
    assert pairs == {"near": [pytest.approx(0.02)], "far": [pytest.approx(0.4), pytest.approx(0.2)]}
    assert summary._told(pairs) == "+2.0, near; n = 1; of 2"
    assert summary._told({}) == ""


def test_a_lead_at_published_length_is_told_with_the_sub_tasks_that_both_were_run_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(variant: str, task: int, derived: float) -> tables.Row:
        case = accuracy.Case(published.FULL, task, published.PUBLISHED_RATE, 42, variant, "forge", data="fashion")
        told = row(case)
        return {**told, "accuracy": {**told["accuracy"], "derived": derived}}

    rows = [made("forge", 3, 0.9), made("forge", 5, 0.8), made("near", 5, 0.79), made("near", 10, 0.99)]
    data = {"rows": dict(enumerate(rows))}
    monkeypatch.setattr(summary, "load", lambda name: data if name == "published_fashion" else None)
    assert list(summary._at_length()) == [["photographs of clothes", "forge", "5 classes", "near", "+1.0; n = 1"]]


def test_the_summary_is_of_the_means_that_the_sections_have(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = row(accuracy.Case("dimensions", 6, 0.9, 42, "forge, closed form", "forge", {}, steps=0))
    worse = {**lost, "seed": 43, "accuracy": {**lost["accuracy"], "derived": 0.86}}
    monkeypatch.setattr(
        summary, "load", lambda name: {"rows": {"a": lost, "b": worse}} if name == "dimensions" else None
    )
    told = summary.section()
    assert line_of(told, "24 rendered classes, closed form")[1:] == ["", "7.00; n = 2", "", ""]
    assert "comes nearest" not in told
    monkeypatch.setattr(summary, "load", lambda name: None)
    assert summary.section() == ""


def test_shapes_without_their_dense_base_are_told_without_its_latency() -> None:
    record = tables.load("shapes")
    assert record is not None
    fused = next(row for row in record["rows"] if row["shape"] == "fused")
    told = results._shapes(results.SHAPES, {**record, "rows": [fused]})
    assert line_of(told, "deit_tiny")[1:5] == [f"{fused['rate']}", "", "", ""]
    assert record["environment"]["cpu"] in told


@pytest.mark.parametrize(("name", "rows"), [("a", 1), ("0.8 gone, what is left", 2)])
def test_names_above_a_plot_do_not_run_into_each_other(name: str, rows: int) -> None:
    lines = {f"{name} {i}": [(0.0, 1.0), (1.0, 2.0)] for i in range(4)}
    texts = ElementTree.fromstring(line_plot.line_plot([line_plot.Panel("step", lines)], "top-1")).findall("{*}text")
    at = {text.text: (float(text.attrib["x"]), float(text.attrib["y"])) for text in texts}
    places = [at[name] for name in lines]
    assert len({y for _, y in places}) == rows
    for (x, y), (following, below) in pairwise(places):
        assert below > y or following - x > 6 * len(name)
