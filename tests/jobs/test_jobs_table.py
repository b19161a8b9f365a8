"""results.json is read as it was written, and what is wrong with it is a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgevit.errors import JobsError
from edgevit.jobs.jobs_table import TABLE_KIND, JobRow, JobsTable
from edgevit.records.kinds import plain

DONE = JobRow(
    "odd-half-nuwa", "odd", "half", "nuwa", "out/odd", "a" * 64, "done", 1.5, None, 0.9, 0.95, 10, 20, 0.5, ("x",)
)
FAILED = JobRow("even-half-nuwa", "even", "half", "nuwa", "out/even", "b" * 64, "failed", 0.0, "no such class")
TOLD = plain(DONE)
TABLE = JobsTable((DONE, FAILED), versions={"edgevit": "0.1.0"})


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(TABLE_KIND.text(TABLE))
    assert TABLE_KIND.read(tmp_path / "results.json") == TABLE


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"versions": {}}, "does not state which edgevit wrote"),
        ({"schema": 5}, "has schema 5"),
        ({"rows": [{"job": "a"}]}, "lacks rows.0.task"),
        ({"rows": [{**TOLD, "top1": 90.0}]}, "has 90.0 as rows.0.top1"),
        ({"rows": [{**TOLD, "state": "gone"}]}, "has 'gone' as rows.0.state"),
    ],
)
def test_what_no_derive_many_writes_is_one_line_that_names_it(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(JobsError) as error:
        TABLE_KIND.checked({**TABLE_KIND.content(TABLE), **changed}, "results.json")
    assert said in str(error.value) and "results.json" in str(error.value) and "\n" not in str(error.value)
