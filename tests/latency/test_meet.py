"""What becomes of an unfinished search; tests/jobs/budgets/test_run.py carries searches out."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgevit.errors import ConnectionLostError, DataError, Interrupted
from edgevit.latency.meet import remove_without_models


@pytest.mark.parametrize(
    ("error", "model", "stays"),
    [
        (DataError, False, False),
        (DataError, True, True),
        (ConnectionLostError, False, True),
        (Interrupted, False, True),
    ],
)
def test_a_search_that_failed_before_its_first_model_does_not_refuse_the_corrected_command(
    tmp_path: Path, error: type[Exception], model: bool, stays: bool
) -> None:
    work = tmp_path / "m.partial"
    (work / "tables").mkdir(parents=True)
    (work / "rounds" / "a").mkdir(parents=True)
    if model:
        (work / "rounds" / "a" / "model.json").write_text("{}")
    with pytest.raises(error), remove_without_models(work):
        raise error("a bad image")
    assert work.is_dir() is stays
