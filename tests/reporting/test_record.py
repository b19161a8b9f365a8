"""A report as JSON is the record that its schema is made from."""

from __future__ import annotations

import json
from math import inf

from edgevit.reporting.choice import Entry, Panel
from edgevit.reporting.gather import Skipped
from edgevit.reporting.record import REPORT_KIND
from edgevit.reporting.tables import as_csv, as_json
from edgevit.version import written_by


def test_a_report_as_json_says_all_that_its_record_has() -> None:
    entry = Entry(kind="model", title="x", model="x", macs=3, validation=(8, 10), power_w=inf, void=("throttled",))
    panels = [Panel(None, None, (entry,))]
    told = json.loads(as_json(panels, [Skipped("runs.jsonl", "is empty")]))
    made = REPORT_KIND.checked(told, "the report")
    assert (made.report, made.edgevit, made.skipped) == ("edgevit", written_by(), (Skipped("runs.jsonl", "is empty"),))
    (model,) = made.panels[0].models
    assert (model.macs, model.validation, model.power_w, model.void) == (3, (8, 10), None, ("throttled",))
    assert "8; 10" in as_csv(panels) and set(told) == {
        "schema",
        "report",
        "edgevit",
        "panels",
        "split_reasons",
        "skipped",
        "costs",
    }
