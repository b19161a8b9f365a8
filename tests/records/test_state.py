from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgevit.errors import UnfinishedError
from edgevit.records.derivation import AccuracyRecord
from edgevit.records.plan import AttentionRecord, BlockRecord, StepRecord
from edgevit.records.state import BASELINES_KIND, DECIDED_KIND, Baselines, DecidedStep

TAKEN = AccuracyRecord(0.5, 8, {"3": 0.5})
STEP = StepRecord("vulcan", (BlockRecord(0, AttentionRecord("0-1", 16, 16), None),))
RECORDS = [
    (BASELINES_KIND, Baselines(TAKEN, TAKEN, 4, edgevit="0.1.0")),
    (DECIDED_KIND, DecidedStep(STEP.method, STEP.blocks, edgevit="0.1.0")),
]


@pytest.mark.parametrize(("kind", "record"), RECORDS, ids=lambda kind: getattr(kind, "name", ""))
def test_what_was_decided_is_read_back_from_files_that_say_who_wrote_them(kind, record, tmp_path: Path) -> None:
    file, content = tmp_path / "x.json", kind.content(record)
    file.write_text(kind.text(record))
    assert content["schema"] == 1 and content["edgevit"] == "0.1.0" and kind.read(file) == record
    file.write_text(json.dumps({**content, "schema": 3}))
    with pytest.raises(UnfinishedError, match=r"has schema 3, written by edgevit 0\.1\.0; edgevit .* reads schema 1: "):
        kind.read(file)
