"""The tables of rivals: a reader finds a rival by the name that another paper gives it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import older
import pytest
import rivals


def row(part: str, name: str, **changed: Any) -> dict[str, Any]:
    case = next(case for of, case in rivals.cases() if (of, case.variant) == (part, name))
    baselines = dict.fromkeys(("base_full_head", "base_restricted", "base_finetuned"), 0.9)
    more = {"base_sha256": "b", "base_top1": 0.9, "test_images": 600, "accuracy": {**baselines, "derived": 0.8}}
    return {**asdict(case), **more, "rate_reached": case.rate + 0.001, **changed}


def test_nuwa_s_numerical_is_found_where_nothing_is_trained_and_there_alone() -> None:
    rows = [row(part, name) for part in ("cut", "distilled") for name in ("forge", "magnitude")]
    text = rivals.section({"rows": dict(enumerate(rows))}, rivals.FASHION)
    cut, distilled = text.split("### Distilled")
    assert '| 6 classes, magnitude (NuWa\'s "numerical") | 80.0 |' in cut and "rival that trains nothing" in cut
    assert "numerical" not in distilled and "| 6 classes, magnitude |" in distilled
    options = {case.variant: (case.method, case.options) for part, case in rivals.cases() if part == "cut"}
    assert options["magnitude"] == ("magnitude", {}), "magnitude as it is by default, as its docstring says"


def section(*rows: dict[str, Any]) -> str:
    return rivals.section({"rows": dict(enumerate(rows))}, rivals.RENDERED)


def test_what_is_trained_is_said_to_be_short_and_with_rules_of_its_own() -> None:
    text = section(*(row("distilled", name) for name in ("forge", "corp", "nvit"))).replace("\n", " ")
    assert "200 steps at one learning rate, 0.0003, which was tuned for none of them" in text and "alike" not in text
    assert "corp and forge warm up for a tenth of the steps" in text
    assert "forge warms up" in section(row("distilled", "forge")) and "none warms" in section(row("labels", "nvit"))
    assert "warm" not in section(row("cut", "forge"))


def test_a_method_that_cuts_more_than_was_asked_is_named() -> None:
    beyond = [row("cut", "dcvit", rate_reached=rivals.RATES[0] + more) for more in (0.007, 0.0065)]
    told = section(*beyond, row("cut", "forge"))
    assert "equal MACs (dcvit cuts up to 0.007 of the base's MACs more): mean" in told.replace("\n", " ")
    assert "equal MACs: mean" in section(row("cut", "forge")).replace("\n", " ")


def test_rows_of_forge_of_another_commit_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(older, "commit_today", lambda: "bbb")
    old, new = ({"versions": {"edgevit": f"0.1.0 ({commit})"}} for commit in ("aaa+", "bbb"))
    told = section(row("cut", "forge", **old), row("cut", "nvit", **new))
    assert "**Forge's rows here are of other code (aaa) than the newest of [Photographs] (bbb).**" in told
    assert "**Some of forge's rows here are" in section(row("cut", "forge", **old), row("cut", "forge", **new))
    assert "of other code" not in section(row("cut", "nvit", **old), row("cut", "forge", **new))
    assert "of other code" not in section(row("cut", "forge"), row("cut", "nvit", **new)), "nothing is known of forge's"
