"""`edgevit.compare`: two files of runs, or the models of one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from some_runs import DENSE

import edgevit
from edgevit.errors import RunsError


def test_of_two_files_or_of_one_each_model_is_set_against_the_first(tmp_path: Path) -> None:
    slim = replace(DENSE, label="slim", model="slim.onnx", latencies_ns=tuple(n // 2 for n in DENSE.latencies_ns))
    first, second, both = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "both.jsonl"))
    for file, runs in ((first, [DENSE]), (second, [slim]), (both, [DENSE, slim])):
        file.write_text("".join(run.to_json() + "\n" for run in runs))
    of_two = next(c for c in edgevit.compare(first, after=second, force=True) if c.figure == "p50")
    of_one = next(c for c in edgevit.compare(edgevit.CompareRequest(before=both, force=True)) if c.figure == "p50")
    assert of_two.ratio == of_one.ratio == pytest.approx(0.5, rel=1e-3)
    with pytest.raises(RunsError, match=r"there is no .*none\.jsonl"):
        edgevit.compare(tmp_path / "none.jsonl")
