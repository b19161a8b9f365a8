"""Tensors of an unfinished derivation are there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edgevit.errors import UnfinishedError
from edgevit.train.state import load_tensors, reading_state, save_tensors


def test_what_was_written_is_read(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3).mT, "b": torch.tensor(True)}
    save_tensors(tmp_path / "x.safetensors", tensors)
    found = load_tensors(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 100])
def test_damage_is_one_line_that_says_how_to_go_on(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(
        UnfinishedError, match=r"x\.safetensors is damaged, or of another edgevit .*without --resume"
    ) as told:
        load_tensors(tmp_path / "x.safetensors")
    assert "\n" not in str(told.value)


def test_tensors_that_do_not_fit_are_one_line_too(tmp_path: Path) -> None:
    with pytest.raises(UnfinishedError, match="is damaged") as told, reading_state(tmp_path):
        torch.nn.Linear(2, 2).load_state_dict({"weight": torch.zeros(3, 3)})
    assert "\n" not in str(told.value)
