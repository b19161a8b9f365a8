"""The page in a real browser: it draws, answers, sorts and leads on, and complains of nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import Opened, open_browser
from some_report import DATA, GOOD, derived, write_everything, write_folder

from edgevit.board.comparison import three_digits
from edgevit.board.gates import parse_gate
from edgevit.data.shares import share_text
from edgevit.reporting.run import report
from edgevit.text import format_count


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Path:
    root = tmp_path_factory.mktemp("page")
    (root / "in").mkdir()
    return (
        report([write_everything(root / "in")], output=root / "page.html", gates=[str(parse_gate("p99<9ms"))]).file
        or root
    )


@pytest.mark.parametrize("width", [1280, 800, 390])
def test_at_every_width_all_is_drawn_and_nothing_sticks_out(browser: Any, file: Path, width: int) -> None:
    for part in ("", "#m1"):
        seen = Opened(browser, file, width=width, part=part, dark=width == 800)
        assert seen.complaints == [] and len(seen.asked) == 1
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        drawn = seen.page.locator(f"{'article' if part else 'section'}.open figure .plot svg[aria-label]")
        assert drawn.count() == (9 if part else 1)
        if part:
            assert "24 of 32 channels" in seen.texts("article.open figcaption")[0]
            bars = seen.page.locator("article.open figure[data-chart=blocks] g[aria-label=bar] rect")
            outline, *_, neurons = (float(bar.get_attribute("width") or 0) for bar in bars.all())
            assert neurons == pytest.approx(0.75 * outline, abs=1.5)
            assert all(
                cell.evaluate("cell => cell.scrollWidth <= cell.clientWidth")
                for cell in seen.page.locator("article.open .scroll td:first-child").all()
            ), "a name or place is cut off"
        seen.page.close()


def test_on_a_phone_the_answer_is_in_the_first_screen_however_many_settings_there_are(
    browser: Any, tmp_path: Path
) -> None:
    for seed in range(12):
        write_folder(tmp_path / f"m{seed}", derivation=derived(GOOD, data=replace(DATA, seed=seed)))
    file = report([tmp_path], output=tmp_path / "page.html").file or tmp_path
    seen = Opened(browser, file, width=390)
    answer = seen.page.locator("section.open h1").bounding_box()
    assert answer is not None and answer["y"] < 300 and seen.texts("nav.tabs button")[0] == "seed 0"
    seen.page.locator("nav.tabs button").first.press("ArrowLeft")
    last = seen.page.locator("nav.tabs button").last
    assert last.evaluate("b => b.getBoundingClientRect().top") < 300
    assert seen.page.evaluate("document.querySelector('nav.tabs').scrollHeight") < 60, "one row, and none cut off"
    assert last.evaluate("b => b.getBoundingClientRect().right") <= 390, "what is chosen is in view"
    seen.page.close()


def test_what_is_packed_opens_when_a_reader_asks_for_it(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgevit.reporting.page.PACKED_CHARACTERS", 1000)
    file = report([write_everything(tmp_path)], output=tmp_path / "page.html").file or tmp_path
    seen = Opened(browser, file, part="#m1")
    seen.page.wait_for_selector("article.open figure[data-chart=blocks] svg")
    assert "24 of 32 channels" in seen.texts("article.open figcaption")[0]
    assert seen.page.evaluate("getComputedStyle(document.querySelector('article.open h1')).outlineStyle") == "none"
    assert seen.page.locator("article[data-packed]").count() == 2 and seen.complaints == [] and len(seen.asked) == 1
    seen.page.close()


def test_the_script_chooses_what_the_table_marks_and_follows_the_readers_limits(browser: Any, file: Path) -> None:
    seen = Opened(browser, file)
    page = seen.page
    assert seen.texts("section.open h1") == ["Take t1"] and seen.texts("section.open tr.take td:first-child") == ["t1"]
    assert page.locator("section.open .own-answer").is_hidden()
    page.fill("section.open input[name=top1]", "60")
    assert seen.texts("section.open tr.take td:first-child") == ["t2"]
    assert seen.texts("section.open .own-answer")[0].startswith(
        "t2: top-1 69.50 % at latency, p50 2.01 ms, the cheapest"
    )
    page.fill("section.open input[name=cost]", "1")
    assert seen.texts("section.open .own-answer") == ["No model keeps to these limits."]
    page.fill("section.open input[name=top1]", "")
    page.select_option("section.open select", "energy_mj")
    assert "18.4 mJ" in seen.texts("section.open .own-answer")[0] and seen.complaints == []
    page.close()


def test_a_model_that_fails_a_gate_is_crossed_out_and_the_legend_says_so(browser: Any, tmp_path: Path) -> None:
    """Of t1, which takes 3.01 ms, and t2, which takes 2.01 ms."""
    (tmp_path / "in").mkdir()
    gates = [str(parse_gate("p99<2.5ms"))]
    file = report([write_everything(tmp_path / "in")], output=tmp_path / "page.html", gates=gates).file or tmp_path
    seen = Opened(browser, file)
    plot = "section.open figure.pareto .plot"
    crosses = seen.page.locator(f"{plot} svg[aria-label] g[stroke='var(--bad)'] path")
    assert seen.texts(f"{plot} .fails") == ["✕ fails a gate"] and crosses.count() == 1
    cross = crosses.first.bounding_box()
    dot = seen.page.locator(f"{plot} svg[aria-label] a path[aria-label=t1]").bounding_box()
    assert (
        cross is not None
        and dot is not None
        and cross["x"] < dot["x"]
        and cross["x"] + cross["width"] > dot["x"] + dot["width"]
    )
    assert seen.page.evaluate(
        "tooltip(data.panels[0].entries.find(e => e.title === 't1'), data.panels[0].axes[0])"
    ).endswith("✕ fails a gate")
    assert seen.complaints == []
    seen.page.close()


def test_where_all_pass_no_legend_speaks_of_gates(browser: Any, file: Path) -> None:
    seen = Opened(browser, file)
    assert seen.page.locator(".fails").count() == 0
    seen.page.close()


def test_numbers_are_rounded_in_tips_as_in_tables(browser: Any, file: Path) -> None:
    seen = Opened(browser, file)
    ties = [2.125, 2.135, 2.375, 0.0625, 12.25, 12.35, 1225.0, 1235.0, 9.995, 0.5, 3.0, 0.0, 1e-3, 123.5, 124.5, 999.5]
    assert seen.page.evaluate("ties => ties.map(number)", ties) == [
        f"{float(three_digits(value).replace(',', '')):.12g}" for value in ties
    ]
    counts = [12345000.0, 12355000.0, 12.345e9, 10005.0, 10015.0, 86_567_656.0]
    assert seen.page.evaluate("counts => counts.map(number)", counts) == [format_count(count) for count in counts]
    shares = [0.90625, 0.91875, 0.950625, 0.00125, 0.99995, 1.0, 1 / 3, 0.28125]
    assert seen.page.evaluate("shares => shares.map(percent)", shares) == [
        share_text(share, 100).partition(" (")[0] for share in shares
    ]
    seen.page.close()


def test_a_model_keeps_to_the_accuracy_that_its_own_row_shows(browser: Any, file: Path) -> None:
    seen = Opened(browser, file)
    told = "section.open .own-answer"
    for shown, share in (("94.50", 0.945), ("91.88", 0.91875), ("95.67", 287 / 300)):
        seen.page.evaluate("share => data.panels[0].entries.find(e => e.title === 't1').top1 = share", share)
        seen.page.fill("section.open input[name=top1]", shown)
        assert seen.texts(told)[0].startswith(f"t1: top-1 {shown} %")
    seen.page.fill("section.open input[name=top1]", "95.68")
    assert seen.texts(told) == ["No model keeps to these limits."]
    seen.page.close()


def test_what_is_said_of_limits_is_so_of_the_models_within_them(browser: Any, file: Path) -> None:
    """t1 is as accurate as the base and takes 3.01 ms, t2 is not and takes 2.01 ms."""
    seen = Opened(browser, file)
    page, told = seen.page, "section.open .own-answer"

    def ask(top1: str, cost: str) -> str:
        page.fill("section.open input[name=top1]", top1)
        page.fill("section.open input[name=cost]", cost)
        return seen.texts(told)[0]

    as_accurate = "the cheapest within these limits that is as accurate as the base."
    assert ask("", "5") == f"t1: top-1 94.50 % at latency, p50 3.01 ms, {as_accurate}"
    assert ask("90", "5").endswith(", the cheapest within these limits.")
    assert ask("", "2.5") == (
        "No model within these limits is as accurate as the base; "
        "the most accurate is t2 with top-1 69.50 % at latency, p50 2.01 ms."
    )
    assert ask("", "1") == ask("99", "") == "No model keeps to these limits."
    page.evaluate("data.panels[0].entries.filter(e => !e.baseline).forEach(e => { e.free = e.reaching = false; })")
    assert ask("60", "5") == "What speaks against every model within these limits is stated below the table."
    page.evaluate("data.panels[0].entries.forEach(e => delete e.energy_mj)")
    page.select_option("section.open select", "energy_mj")
    assert ask("60", "") == "No model within these limits has a figure for energy of an image."
    page.evaluate("data.panels[0].entries.filter(e => !e.baseline).forEach(e => { e.free = e.reaching = true; })")
    page.evaluate("delete data.panels[0].goal")
    page.select_option("section.open select", "macs")
    assert ask("", "").endswith(", the cheapest by this axis.")
    page.close()


def test_heading_and_figures_are_of_no_other_model_than_the_readers_answer(browser: Any, file: Path) -> None:
    seen = Opened(browser, file)
    figures, heading = seen.page.locator("section.open dl.figures"), "section.open h1"
    for top1, told, shown in (
        ("", "Take t1", True), ("60", "Take t2", False), ("94", "Take t1", True), ("99", "None to take", False),
        ("", "Take t1", True),
    ):  # fmt: skip
        seen.page.fill("section.open input[name=top1]", top1)
        assert seen.texts(heading) == [told] and figures.is_visible() == shown
    seen.page.close()


def test_on_an_axis_that_lacks_the_accurate_models_the_script_does_not_call_all_inaccurate(
    browser: Any, file: Path
) -> None:
    seen = Opened(browser, file)
    seen.page.evaluate("data.panels[0].entries.filter(e => e.reaching).forEach(e => delete e.energy_mj)")
    seen.page.select_option("section.open select", "energy_mj")
    assert seen.texts("section.open .own-answer") == [
        "No model that is as accurate as the base has a figure for energy of an image."
    ]
    seen.page.close()


def test_of_models_that_cost_the_same_as_far_as_runs_can_tell_the_script_takes_the_most_accurate(
    browser: Any, file: Path
) -> None:
    seen = Opened(browser, file)
    fast = {"title": "fast", "p50_ms": 3.0, "ratio": 0.30, "ratio_low": 0.29, "ratio_high": 0.32, "merit": 0.91}
    level = {"title": "level", "p50_ms": 3.1, "ratio": 0.31, "ratio_low": 0.305, "ratio_high": 0.32, "merit": 0.92}
    slow = {"title": "slow", "p50_ms": 3.4, "ratio": 0.34, "ratio_low": 0.33, "ratio_high": 0.36, "merit": 0.93}
    alone = {"title": "not in turns", "p50_ms": 3.05, "merit": 0.94}
    for entries, by_ratio, best in (
        ([slow, level, fast], True, "level"), ([slow, fast], True, "fast"), ([fast, alone], True, "fast"),
        ([slow, level, fast], False, "fast"), ([], True, None),
    ):  # fmt: skip
        panel = {"entries": [{**entry, "free": True, "reaching": True} for entry in entries]}
        axis = {"name": "p50_ms", "title": "latency, p50", "unit": "ms", "by_ratio": by_ratio}
        told = seen.page.evaluate("([panel, axis]) => choose(panel, axis, {}).chosen?.title ?? null", [panel, axis])
        assert told == best
    why = seen.page.evaluate("([a, b, axis]) => beside(a, b, axis, '')", [level, fast, axis])
    assert why == " fast is less accurate, and what it costs less (3 against 3.1 ms) is within what runs differ by."
    seen.page.close()


@pytest.mark.parametrize(("least", "logarithmic"), [(0, False), (-3, False), (9, True)])
def test_a_model_that_costs_nothing_has_its_dot_too(browser: Any, file: Path, least: float, logarithmic: bool) -> None:
    """The memory of a machine need not fall while a small model runs."""
    seen = Opened(browser, file)
    seen.page.evaluate("least => data.panels[0].entries.find(e => e.title === 't2').memory_mib = least", least)
    seen.page.select_option("section.open select", "memory_mib")
    assert seen.page.locator("section.open figure.pareto a[*|href='#m2']").count() == 1
    assert ("(logarithmic)" in seen.texts("section.open figure.pareto .plot")[0]) == logarithmic
    assert seen.complaints == []
    seen.page.close()


def test_methods_differ_by_their_marks_and_not_by_colour_alone(browser: Any, file: Path) -> None:
    seen = Opened(browser, file)
    outlines = seen.page.evaluate(
        "[...document.querySelectorAll('section.open g[aria-label=dot] path')].map(mark => mark.getAttribute('d'))"
    )
    assert len(set(outlines)) >= 3, "two methods and the baselines"
    assert seen.page.locator("section.open figure .plot [class*=swatch] svg").count() == 2
    seen.page.close()


def test_marks_and_colours_together_tell_more_methods_apart_than_there_are_colours(browser: Any, file: Path) -> None:
    seen = Opened(browser, file)
    pairs = seen.page.evaluate("d3.range(64).map(i => `${colour(i)} ${shape(i)}`)")
    assert len(set(pairs)) == 64
    seen.page.close()


def test_curves_and_layers_have_marks_beside_their_colours(browser: Any, file: Path) -> None:
    seen = Opened(browser, file, part="#m1")
    for chart in ("layers", "history"):
        marks = seen.page.locator(f"article.open figure[data-chart={chart}] .plot g[aria-label=dot] path")
        assert marks.count() > 0, chart
    legend = seen.page.locator("article.open figure[data-chart=layers] [class*=swatch] svg")
    painted = "mark => getComputedStyle(mark).stroke !== 'none'"  # plus and times are strokes alone
    assert legend.count() > 6 and all(mark.locator("path").evaluate(painted) for mark in legend.all())
    assert seen.complaints == []
    seen.page.close()


@pytest.mark.parametrize("width", [360, 1280])
def test_long_names_of_classes_lie_over_nothing_beside_the_confusion_matrix(
    browser: Any, file: Path, width: int
) -> None:
    seen = Opened(browser, file, part="#m1", width=width)
    names = [f"{i}th great white shark, Carcharodon carcharias" for i in range(12)]
    told = {"classes": [{"name": name, "images": 9} for name in names], "cells": [[i, i, 9] for i in range(12)]}
    seen.page.evaluate("told => { data.models.m1.confusion = told; redraw(); }", told)
    figure = seen.page.locator("article.open figure[data-chart=confusion]")
    plot, caption = (figure.locator(part).bounding_box() for part in (".plot", "figcaption"))
    assert plot is not None and caption is not None
    for axis in "xy":
        shown = figure.locator(f"g[aria-label='{axis}-axis tick label'] text")
        assert shown.count() == 12 and len(set(shown.all_text_contents())) == 12
        for box in (one.bounding_box() for one in shown.all()):
            assert box is not None and box["x"] > plot["x"] - 12 and box["y"] + box["height"] < caption["y"] + 4
    seen.page.close()


def test_numbers_of_twelve_blocks_do_not_lie_over_one_another_on_a_phone(browser: Any, file: Path) -> None:
    seen = Opened(browser, file, part="#m1", width=360)
    places = [{"place": {"block": i, "part": "FFN"}, "ms": 0.2, "layers": 1} for i in [*range(12), None]]
    seen.page.evaluate("spent => { data.models.m1.layers[0].spent = spent; redraw(); }", places)
    ticks = "article.open figure[data-chart=layers] g[aria-label='x-axis tick label'] text"
    boxes = [box for one in seen.page.locator(ticks).all() if (box := one.bounding_box()) is not None]
    assert len(boxes) == 13
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            apart = other["x"] + other["width"] <= one["x"] or other["y"] + other["height"] <= one["y"] + 4
            assert apart, (one, other)
    seen.page.close()


def test_the_number_of_a_curve_that_does_not_move_is_whole_on_a_phone(browser: Any, file: Path) -> None:
    seen = Opened(browser, file, part="#m1", width=360)
    still = [{"stage": "distil", "name": "accuracy_trained", "points": [[0, 0.91667], [5, 0.91667]]}]
    seen.page.evaluate("still => { data.models.m1.history = still; redraw(); }", still)
    number = seen.page.locator("article.open figure[data-chart=history] g[aria-label='y-axis tick label'] text")
    box = number.bounding_box()
    assert number.all_text_contents() == ["91.667"] and box is not None and box["x"] > 0
    seen.page.close()


def test_a_click_sorts_the_models_and_leaves_the_baselines(browser: Any, file: Path) -> None:
    seen = Opened(browser, file)
    names = "section.open tbody.models td:first-child"
    button = seen.page.locator("section.open th button", has_text="p50 ms")
    button.click()
    assert seen.texts(names) == ["t2", "t1"]
    button.press("Enter")
    assert seen.texts(names) == ["t1", "t2"]
    assert seen.page.locator("section.open th[aria-sort=descending]").inner_text().startswith("p50 ms")
    assert seen.texts("section.open tbody.baselines td:first-child")[0] == "base, full head"
    seen.page.close()


def test_names_are_sorted_as_names_and_shown_to_their_ends(browser: Any, tmp_path: Path) -> None:
    long = "a_task_with_a_long_name-of-a-method-that-has-one-rate0.9-seed42"
    for name in ("9", "b", "10", long, "7"):
        write_folder(tmp_path / name, derivation=derived(GOOD))
    for width in (1280, 390):
        seen = Opened(browser, report([tmp_path], output=tmp_path / "page.html").file or tmp_path, width=width)
        seen.page.locator("section.open th button").first.click()
        names = "section.open tbody.models td:first-child"
        assert [name.removeprefix("★ ") for name in seen.texts(names)] == ["10", "7", "9", long, "b"]
        cell = seen.page.locator(names).nth(3)
        assert cell.evaluate("cell => cell.scrollWidth <= cell.clientWidth")
        seen.page.close()


@pytest.mark.parametrize("dark", [False, True])
def test_what_a_dot_tells_is_read_on_the_page_s_own_colour(browser: Any, file: Path, dark: bool) -> None:
    seen = Opened(browser, file, dark=dark)
    seen.page.locator("section.open figure.pareto a[*|href='#m1']").first.hover()
    tip = seen.page.locator("section.open figure.pareto g[aria-label=tip] path").first
    paper = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert tip.evaluate("path => getComputedStyle(path).fill") == paper
    seen.page.close()


def test_a_dot_tells_more_when_pointed_at_and_leads_to_its_model_and_back(browser: Any, file: Path) -> None:
    seen = Opened(browser, file)
    page = seen.page
    dot = page.locator("section.open figure.pareto a[*|href='#m1']").first
    dot.hover()
    tip = page.locator("section.open figure.pareto g[aria-label=tip]")
    assert re.search(r"t1.*top-1 94\.50 %.*p50 3\.01 ms", tip.text_content() or "")
    dot.click()
    assert page.url.endswith("#m1") and seen.texts("article.open h1") == ["t1"]
    assert page.locator("#overview").is_hidden() and page.title() == "t1 - edgevit report"
    page.locator("article.open .back a").first.click()
    page.locator("#overview").wait_for(state="visible")
    assert seen.complaints == []
    page.close()


def test_the_keyboard_reaches_settings_and_dots(browser: Any, file: Path) -> None:
    seen = Opened(browser, file)
    page = seen.page
    page.locator("nav.tabs button").first.focus()
    page.keyboard.press("ArrowRight")
    assert "NX" in seen.texts("section.open .eyebrow")[0] and len(seen.texts("section.open h1")) == 1
    page.locator("section.open figure.pareto a").first.focus()
    page.keyboard.press("Enter")
    assert "#m" in page.url and seen.complaints == []
    page.close()


def test_names_of_percentiles_do_not_lie_over_one_another(browser: Any, file: Path) -> None:
    seen = Opened(browser, file, part="#m1")
    for percentiles, names in (((3, 3.001, 3.019), ["p50, p90", "p99"]), ((3, 3.01, 3.019), ["p50", "p90", "p99"])):
        told = seen.page.evaluate(
            "p => { const seen = data.models.m1.latency[0]; seen.percentiles_ms = { p50: p[0], p90: p[1], p99: p[2] };"
            "return [...histogram(seen, 390).querySelectorAll('g[aria-label=text] text')].map(t => t.textContent) }",
            percentiles,
        )
        assert told == names
    seen.page.close()


def test_print_shows_every_setting_in_the_colours_of_paper(browser: Any, file: Path) -> None:
    seen = Opened(browser, file, dark=True)
    seen.page.emulate_media(media="print")
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert [seen.page.locator(f"#panel{i}").is_visible() for i in range(3)] == [True] * 3
    plots = seen.page.locator("section.panel figure.pareto svg[aria-label]").all()
    assert len({plot.get_attribute("width") for plot in plots}) == 1 and len(plots) == 2 and seen.complaints == []
    assert seen.page.locator("details.note td").first.is_visible(), "what was left out"
    colour = "getComputedStyle(document.documentElement).getPropertyValue('--c0')"
    assert seen.page.evaluate(colour).strip() == "#0072b2"
    seen.page.close()
