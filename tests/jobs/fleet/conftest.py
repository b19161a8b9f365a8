from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from small_base import ARGS, NAME, PLAN, PREPROCESSING, write_checkpoint

QUICK_BENCH = {"samples": 3, "duration_s": 0.01, "warmup": 1, "warmup_seconds": 0.01, "threads": 1}


@pytest.fixture(scope="session")
def base_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("fleet_base"))


@pytest.fixture
def fleet_plan(tmp_path: Path, base_weights: Path) -> Any:
    """Write a plan of one task, base and budget on this machine, with some keys changed; None leaves one out."""

    def write(**changed: Any) -> Path:
        base = {"base": NAME, "checkpoint": str(base_weights), "model_args": ARGS, "preprocessing": PREPROCESSING}
        shared = {key: PLAN[key] for key in ("data", "accept_weak_base", "training", "methods")}
        content = {
            **shared,
            "out": str(tmp_path / "fleet"),
            "bases": [{"name": "tiny", **base}],
            "tasks": [{"name": "odd", "classes": ["3", "7", "9"]}],
            "budgets": [{"name": "half", "rate": 0.5}],
            "boards": [{"name": "here"}],
            "gates": ["p99<100s"],
            "export": {"accuracy": False},
            "bench": QUICK_BENCH,
            "workers": 1,
            "threads": 1,
            **changed,
        }
        if not content["boards"] and "gates" not in changed:
            del content["gates"]  # nothing would judge them
        file = tmp_path / "plan.yaml"
        file.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
        return file

    return write
