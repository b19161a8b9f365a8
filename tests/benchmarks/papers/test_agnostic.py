"""For the sub-task or for all classes: which models there are, and what the tables set beside each other."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks.papers import agnostic
from benchmarks.papers.agnostic import KNOWING, SCRATCH, SCRATCH_LONG, ModelCase, model_cases

TASKS = [["a", "b"], ["a", "b", "c"]]


def test_each_specific_model_has_one_for_all_classes_beside_it() -> None:
    rows = list(model_cases(TASKS, [42], 60, 0.73, ["vulcan"]))
    specific = [(w.rate, w.classes) for w in rows if w.kind == "specific"]
    assert {(w.rate, w.classes) for w in rows if w.kind == "agnostic"} == {p for p in specific if p[0] != 0.73}
    assert {w.steps for w in rows if w.kind == SCRATCH_LONG} == {300} and sum(w.kind == KNOWING for w in rows) == 2
    assert {w.kind for w in model_cases(TASKS, [42], 60, None, ["vulcan"])} == {"specific", "agnostic"}
    assert len({str(w.key("base")) for w in rows}) == len(rows)


def test_tables_set_the_specific_beside_the_others() -> None:
    def row(kind: str, top1: float, **more: Any) -> dict[str, Any]:
        one = ModelCase(kind, "" if kind in (SCRATCH, KNOWING) else "vulcan", 0.6, ("a", "b"), 42, 60)
        of = {"source": "demo", "all_classes": 6, "task": 2, "images": 300, "macs": 2e6, "base_sha256": "b"}
        return {**asdict(one), **of, "top1": top1, **more}

    rows = [
        row("specific", 0.9, base_restricted=0.95, base_full_head=0.8), row("agnostic", 0.7, top1_full=0.6),
        row(SCRATCH, 0.5), row(KNOWING, 0.85),
    ]  # fmt: skip
    text = agnostic.section({"rows": rows})
    assert "| 2 classes, Vulcan, 0.6 | 80.0 | 95.0 | 60.0 | 70.0 | 90.0 | +20.0 |" in text
    assert "| Vulcan, derived from the base | 2.0 | 90.0 |" in text and f"| {KNOWING} | 2.0 | 85.0 |" in text
    assert agnostic.section(None) == ""
