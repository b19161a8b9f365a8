"""`edgevit derive-many` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forks
import pytest
import yaml
from small_base import ARGS, NAME

from edgevit.jobs import workers


@pytest.mark.slow
def test_a_plan_may_accept_a_weak_base(
    edgevit_main: Any, digits_checkpoint: Path, reversed_names: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_SPAWN", forks.server())  # a worker need not import torch anew for this
    plan = {
        "base": NAME, "checkpoint": str(digits_checkpoint), "model_args": ARGS, "base_classes": str(reversed_names),
        "data": "digits", "out": str(tmp_path / "fleet"), "tasks": [{"name": "few", "classes": ["3", "5", "8"]}],
        "budgets": [{"name": "r", "rate": 0.4}], "methods": [{"name": "nuwa", "options": {"purification": "none"}}],
        "training": {"device": "cpu"},
    }  # fmt: skip
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump(plan))
    stopped = edgevit_main("derive-many", file, "--json")
    (row,) = json.loads(stopped.out)["rows"]
    assert (stopped.code, row["state"]) == (1, "failed") and "the base is right on" in row["error"]
    file.write_text(yaml.safe_dump({**plan, "accept_weak_base": True}))
    done = edgevit_main("derive-many", file)
    assert done.code == 0
    assert done.out.splitlines()[-1] == f"One page of it all: edgevit report {tmp_path / 'fleet'}"
