"""Which engine of a model folder a board gets, and what is said where it gets none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model_folders import some_spec, spec_text
from some_engines import ORIN, WEIGHTS, add, facts

from edgevit.board.store import find_engine
from edgevit.errors import CheckpointError, EngineError, OutputError
from edgevit.records.engine import store_engine, stored_engine
from edgevit.records.model_folder import ModelFolder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "model.json").write_text(spec_text(some_spec(), WEIGHTS))
    return folder


def test_the_engine_for_this_board_is_found(model: Path) -> None:
    record = add(model)
    add(model, board="orin-nano-8gb-l4t36.4.3-trt10.3.0-8sm", created="2026-02-01")
    assert find_engine(model, facts(), 1) == record == find_engine(model, facts(), [1, 8], "fp16")


def test_the_one_whose_kernels_were_chosen_for_the_batch_comes_first_then_the_newest(model: Path) -> None:
    add(model, batches=(1, 1, 8))
    eight = add(model, batches=(1, 8, 8))
    newer = add(model, batches=(1, 8, 16), created="2026-03-01")
    assert find_engine(model, facts(), 8) == newer and find_engine(model, facts(), 1).batches == (1, 1, 8)
    assert eight in ModelFolder(model).export.engines() and ModelFolder(model).export.engines()[0] == newer


@pytest.mark.parametrize(
    ("stored", "asked", "said"),
    [
        (None, {}, r"has no engine; run `edgevit export '/\S+ model' --trt --board orin`"),
        ({"board": "orin-nano-8gb-x"}, {}, rf"was built for orin-nano-8gb-x, and this is {ORIN}; run"),
        ({"weights_sha256": "b" * 64}, {}, "from other weights than the model has now"),
        ({"precision": "mixed"}, {"precision": "fp16"}, "is mixed, and fp16 was asked for"),
        ({}, {"batch": [1, 32]}, r"takes 1 to 8 images, and 1, 32 were asked for.*--batches 1,1,32"),
        ({"batches": (4, 4, 4)}, {"batch": 1}, r"takes 4 to 4 images, and 1 were.*--batches 1,1,4"),
    ],
)
def test_where_there_is_none_it_says_what_there_is_and_what_to_do(
    model: Path, stored: dict[str, Any] | None, asked: dict[str, Any], said: str
) -> None:
    if stored is not None:
        add(model, **stored)
    with pytest.raises(EngineError, match=said) as raised:
        find_engine(model, facts(), **{"batch": 1, **asked})
    assert "\n" not in str(raised.value)


def test_a_folder_that_lost_its_model_is_one_line(model: Path) -> None:
    add(model)
    (model / "model.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"model\.json has no schema"):
        find_engine(model, facts(), 1)


def test_an_engine_that_was_altered_is_refused_and_is_built_again(model: Path) -> None:
    record = add(model)
    assert stored_engine(record.path, record.key) == record
    record.path.write_bytes(b"altered")
    with pytest.raises(EngineError, match="was altered: its hash is"):
        find_engine(model, facts(), 1)
    assert stored_engine(record.path, record.key) is None
    assert stored_engine(record.path, "0" * 64) is None, "the same file name by chance is not the same engine"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 3}', '{"schema": 1, "batches": 3}'])
def test_a_record_that_is_none_is_one_line(model: Path, text: str) -> None:
    record = add(model)
    record.path.with_suffix(".json").write_text(text)
    with pytest.raises(EngineError, match=r"--rebuild|write it again with this version") as raised:
        find_engine(model, facts(), 1)
    assert "\n" not in str(raised.value)


def test_an_engine_without_its_record_does_not_exist(model: Path) -> None:
    record = add(model)
    record.path.with_suffix(".json").unlink()
    assert stored_engine(record.path, record.key) is None and ModelFolder(model).export.engines() == []


def test_a_place_that_cannot_be_written_is_named(model: Path, tmp_path: Path) -> None:
    record = add(model)
    with pytest.raises(OutputError, match="cannot write"):
        store_engine(tmp_path / "nothing was fetched", record, [])
