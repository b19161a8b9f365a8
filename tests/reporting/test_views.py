"""What the template of the page is filled with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from some_report import GOOD, derived, write_everything, write_folder

from edgevit.board.gates import parse_gate
from edgevit.records.derivation import RejectedRecord
from edgevit.records.model_folder import ModelFolder
from edgevit.reporting.gather import Evidence, gather
from edgevit.reporting.page import as_html
from edgevit.reporting.panels import panels
from edgevit.reporting.views import model_view, panel_data, panel_view, tabs

IDS = {"base": "m0", "t1": "m1", "t2": "m2"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return gather([write_everything(tmp_path_factory.mktemp("everything"))])


def test_a_panel_has_rows_that_lead_to_models(found: Evidence) -> None:
    panel = panels(found)[0]
    view, data = panel_view(panel, IDS), panel_data(panel, IDS)
    assert [row["id"] for row in view["baselines"]] == [None, "m0", None]
    assert [(row["id"], row["take"]) for row in view["models"]] == [("m1", True), ("m2", False)]
    assert [(e["title"], e["reaching"], e["free"]) for e in data["entries"][3:]] == [
        ("t1", True, True),
        ("t2", False, True),
    ]
    assert data["entries"][3]["low"] == pytest.approx(0.904, abs=1e-3) and data["goal"] == 0.96


def test_a_panel_without_a_base_has_no_dashed_line_and_tells_of_none(found: Evidence) -> None:
    panel = panels(found)[0]
    baseless = replace(panel, entries=tuple(panel.models))
    assert "The dashed line is the base restricted to the classes." in as_html([panel], found)
    assert panel_data(baseless, IDS)["goal"] is None and "The dashed line" not in as_html([baseless], found)


def test_tabs_say_what_tells_panels_apart(found: Evidence) -> None:
    nano, nx, gone = panels(found)
    assert tabs([nano, nx, gone]) == ["Nano, 25W", "NX, 15W", "not found · NX, 15W"]
    assert tabs([nx, gone]) == ["2 classes: cat, dog", "not found"]
    assert nano.task is not None and nano.task.data is not None
    other = replace(nano, task=replace(nano.task, data=replace(nano.task.data, seed=7)), place=None)
    assert tabs([nano, other]) == ["seed 42", "seed 7 · not measured"]
    wider = replace(nano, task=replace(nano.task, classes=(*"abcd", "cat", "dog")))
    assert tabs([nano, wider]) == ["2 classes: cat, dog", "6 classes: a, b, ..."]
    unnamed = replace(nano, task=replace(nano.task, classes=()))
    assert tabs([nano, unnamed]) == ["2 classes: cat, dog", "no named classes"]
    copied = replace(nano, task=replace(nano.task, data=replace(nano.task.data, fingerprint="e" * 64)))
    assert tabs([nano, copied]) == ["images ffffff", "images eeeeee"]
    busier = replace(nano, place=replace(nano.place, title="Nano, 25W, TensorRT 10.3.0, batch 1, 2 streams"))
    assert tabs([nano, busier]) == ["Nano, 25W, TensorRT 10.3.0, batch 1", "2 streams"]


def test_a_model_has_all_that_its_records_say(found: Evidence) -> None:
    view = model_view(found.models[1], "m1", found, panels(found, [parse_gate("p99<4ms")]))
    assert view["summary"].startswith(
        "vit_tiny_patch16_224 without 75.0 % of its MACs, by nuwa for rate 0.5. top-1 95.00 %"
    )
    assert " in torch on 200 test images. " in view["summary"], "the table has that of the file, 94.50 %"
    assert view["summary"].endswith(" 5 k parameters. The embedding has 24 of 32 channels.")
    assert view["drawn"]["embed"] == {"now": 24, "base": 32}
    assert view["blocks"]["head"] == ["block", "heads", "QK", "VO", "FFN", "tokens"]
    assert view["blocks"]["rows"][0] == ["0", "2 of 2", "12 of 16", "12 of 16", "32 of 64", "9, merged"]
    assert view["blocks"]["rows"][1] == ["1", "1 of 2", "12 of 16", "12 of 16", "8 of 64", "-"]
    assert view["classes"][0] == ["cat", "92.0 %", "95.0 %", "-3.0"] and view["confused"][0] == ["cat", "dog", "8"]
    assert [row[3:] for row in view["gates"]] == [["+24.5%", "pass"], ["+49.5%", "pass"]]
    assert view["engines"][0][0] == "fp16" and view["attempts"] == [["fp16", "fp16", "2 s", "loses 31% on 'heron'"]]
    assert view["exported"][0][0] == "model.fp32.onnx" and len(view["measured"]["rows"]) == 12
    said = dict(view["provenance"])
    assert said["data"] == "/data/pets" and said["images"].endswith("200 test images, seed 42")
    short = ": 6 of 6 runs, such as: the window lasted 0."
    assert [text.partition(short)[0] for text in view["warnings"]] == [
        "Nano, 25W, TensorRT 10.3.0, batch 1, dense.onnx", "NX, 15W, TensorRT 10.3.0, batch 1, dense.onnx",
    ]  # fmt: skip


def test_of_a_model_that_may_answer_other_it_is_told_how_often_it_does(tmp_path: Path) -> None:
    told = "It may answer other, which top-1 leaves aside: on 6 of 160 test images of its classes, so that 141 "
    for name, foreign, more in (
        ("a", (80, 68), "are right, and on 68 of 80 of others. "),
        ("b", (0, 0), "are right. "),
    ):
        taken = replace(GOOD, rejection={"test": RejectedRecord(160, 6, 141, *foreign)})
        write_folder(tmp_path / name, derivation=derived(taken))
        found = gather([tmp_path / name])
        assert told + more in model_view(found.models[0], "m0", found, [])["summary"]


def test_a_super_network_is_not_called_a_base(tmp_path: Path) -> None:
    write_folder(tmp_path / "net")
    ModelFolder(tmp_path / "net").supernet_file.write_text("{}")
    net = gather([tmp_path])
    assert "2 outputs, a super-network: `edgevit show` lists its" in model_view(net.models[0], "m0", net, [])["summary"]


def test_a_base_says_that_it_is_one(found: Evidence) -> None:
    view = model_view(found.models[0], "m0", found, panels(found))
    assert view["summary"] == "vit_tiny_patch16_224 with 2 outputs, nothing else removed: a base."
    assert (view["classes"], view["gates"], view["engines"], view["attempts"]) == ([], [], [], [])
    assert view["drawn"]["embed"] is None and view["blocks"]["head"][-1] == "FFN"
