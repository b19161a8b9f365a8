"""The page as text: one file, whole, and safe whatever models are called."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import pytest
from some_report import write_everything

from edgevit.reporting.details import MATRIX
from edgevit.reporting.gather import gather
from edgevit.reporting.page import LIMIT_BYTES, SHIPPED, as_html
from edgevit.reporting.panels import panels


def test_the_page_is_one_file_that_asks_the_network_for_nothing(tmp_path: Path) -> None:
    found = gather([write_everything(tmp_path)])
    text = as_html(panels(found), found)
    assert len(text.encode()) < LIMIT_BYTES and "default-src 'none'" in text
    assert not re.search(r'\b(src|href)="(https?:|//|(?!#|data:)[^"]*\.)', text)
    assert all((SHIPPED / "vendor" / name).read_text() in text for name in ("d3.min.js", "plot.umd.min.js"))
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)[0])
    assert [len(panel["entries"]) for panel in data["panels"]] == [5, 5, 1] and set(data["models"]) == {
        "m0",
        "m1",
        "m2",
    }
    assert "4 left out: what could not be read, or left no model" in text and 'role="tab"' in text


def test_the_parts_of_many_models_are_packed_and_hold_what_a_small_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = gather([write_everything(tmp_path)])
    plain = as_html(panels(found), found)
    monkeypatch.setattr("edgevit.reporting.page.PACKED_CHARACTERS", 1000)
    text = as_html(panels(found), found)
    packed = [json.loads(zlib.decompress(b64decode(one))) for one in re.findall(r'data-packed="([^"]*)"', text)]
    assert len(packed) == 3 and all(one["html"] in plain for one in packed)
    assert packed[1]["drawn"]["embed"] == {"now": 24, "base": 32}
    assert json.loads(re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)[0])["models"] == {}


def test_what_is_no_interval_of_95_percent_is_not_called_one(tmp_path: Path) -> None:
    found = gather([write_everything(tmp_path)])
    ms = 10**6
    found.runs = [
        replace(run, latencies_ns=(*run.latencies_ns[:-1], 20 * ms) if run.round == 1 else run.latencies_ns[:20])
        for run in found.runs
        if run.label == "base" and run.session == "s1" and (run.round or 0) < 3
    ]
    text = as_html(panels(found), found)
    assert "Intervals are of 95 %; what stands below a p50 is the range of its runs." in text
    assert "; 1 was slower than shown, the slowest took 20.0 ms" in text


@pytest.mark.slow
def test_twenty_models_of_forty_classes_that_are_all_confused_are_no_page_that_mail_refuses(tmp_path: Path) -> None:
    found = gather([write_everything(tmp_path)])
    model = found.models[1]
    assert model.derivation is not None and model.derivation.accuracy.derived is not None
    names = [f"a class with a long name, {i}" for i in range(MATRIX)]
    confused = {a: {b: 2 for b in names if b != a} for a in names}
    taken = replace(
        model.derivation.accuracy.derived, confused=confused, images_per_class=dict.fromkeys(names, 100),
        per_class=dict.fromkeys(names, 0.2),
    )  # fmt: skip
    accuracies = replace(model.derivation.accuracy, derived=taken)
    crowded = replace(model, derivation=replace(model.derivation, accuracy=accuracies))
    found.models = [replace(crowded, name=f"t{i}") for i in range(20)]
    text = as_html(panels(found), found)
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)[0])
    assert len(data["models"]["m19"]["confusion"]["cells"]) == MATRIX**2
    assert len(text.encode()) < LIMIT_BYTES


def test_names_are_shown_and_never_run(tmp_path: Path) -> None:
    found = gather([write_everything(tmp_path)])
    odd = "</script><script>alert(1)</script><b>"
    found.models[1] = replace(found.models[1], name=odd)
    text = as_html(panels(found), found)
    assert odd not in text and "&lt;b&gt;" in text and "\\u003c/script\\u003e" in text


def test_the_libraries_are_those_that_are_named() -> None:
    table = (SHIPPED / "vendor" / "README.md").read_text()
    for name, mark in (("d3.min.js", "d3js.org v"), ("plot.umd.min.js", "plot v")):
        begins = (SHIPPED / "vendor" / name).read_text()[:200]
        version = re.findall(re.escape(mark) + r"([\d.]+)", begins)[0]
        assert f"`{name}`" in table and f" {version} " in table
