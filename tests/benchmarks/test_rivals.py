"""The tables of rivals: a reader finds a rival by the name that another paper gives it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import rivals


def row(part: str, name: str) -> dict[str, Any]:
    case = next(case for of, case in rivals.cases() if (of, case.variant) == (part, name))
    baselines = dict.fromkeys(("base_full_head", "base_restricted", "base_finetuned"), 0.9)
    more = {"base_sha256": "b", "base_top1": 0.9, "test_images": 600, "accuracy": {**baselines, "derived": 0.8}}
    return {**asdict(case), **more}


def test_nuwa_s_numerical_is_found_where_nothing_is_trained_and_there_alone() -> None:
    rows = [row(part, name) for part in ("cut", "distilled") for name in ("forge", "magnitude")]
    text = rivals.section({"rows": dict(enumerate(rows))}, rivals.FASHION)
    cut, distilled = text.split("### Distilled alike")
    assert '| 6 classes, magnitude (NuWa\'s "numerical") | 80.0 |' in cut and "rival that trains nothing" in cut
    assert "numerical" not in distilled and "| 6 classes, magnitude |" in distilled
    options = {case.variant: (case.method, case.options) for part, case in rivals.cases() if part == "cut"}
    assert options["magnitude"] == ("magnitude", {}), "magnitude as it is by default, as its docstring says"
