from __future__ import annotations

import json
from pathlib import Path

import pytest
from some_engines import add

from edgevit.errors import EngineError
from edgevit.records.engine import (
    ENGINE_KIND,
    EngineAccuracy,
    EngineClassAccuracy,
    key_of,
    read_engine,
    stored_engine,
)


def test_a_record_reads_back_as_it_was_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    record = add(tmp_path)
    assert read_engine(record.path) == record
    assert json.loads(record.layers_path.read_text()) == [{"Name": "layer"}]
    names = {path.name for path in record.path.parent.iterdir()}
    assert names == {f"{record.key[:16]}.engine", f"{record.key[:16]}.json", f"{record.key[:16]}.layers.json"}
    written = json.loads(record.path.with_suffix(".json").read_text())
    assert written["schema"] == ENGINE_KIND.schema and written["file"] == record.path.name and "path" not in written


def test_an_engine_is_the_one_that_was_asked_for_and_unaltered() -> None:
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1}) != key_of({"a": 1, "b": 3})


def test_an_altered_engine_or_one_of_other_options_is_none(tmp_path: Path) -> None:
    record = add(tmp_path)
    assert stored_engine(record.path, record.key) == record
    assert stored_engine(record.path, "0" * 64) is None and stored_engine(tmp_path / "none.engine", record.key) is None
    record.path.write_bytes(b"altered")
    assert stored_engine(record.path, record.key) is None


def test_a_record_that_contradicts_itself_is_one_line(tmp_path: Path) -> None:
    accuracy = EngineAccuracy("d", "test", 2, "0" * 64, 0.5, 0.5, 1.0, "3", {"3": EngineClassAccuracy(2, 0.5, 0.5)})
    described = add(tmp_path, accuracy=accuracy).path.with_suffix(".json")
    described.write_text(described.read_text().replace('"worst_class": "3"', '"worst_class": "4"'))
    with pytest.raises(
        EngineError, match=r"is wrong in accuracy: worst_class is '4', which is not in per_class; build the"
    ):
        read_engine(described.with_suffix(".engine"))
