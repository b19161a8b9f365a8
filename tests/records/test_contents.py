"""What a request names is known by its content, and not by its path."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from edgevit.errors import OptionError
from edgevit.records import contents as module
from edgevit.records.contents import contents


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_files_and_the_weights_of_models_are_told_by_their_hashes(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    files = {"checkpoint": tmp_path / "a.pt", "classes": tmp_path / "odd.txt", "base": tmp_path / "base"}
    named = {name: str(path) for name, path in files.items()} | {"data": str(tmp_path), "supernet": None}
    assert contents(named) == {}
    files["checkpoint"].write_text("weights")
    files["classes"].write_text("3, 7")
    (tmp_path / "base" / "model.safetensors").write_text("of the base")
    assert contents(named) == {
        "checkpoint": sha256("weights"),
        "classes": sha256("3, 7"),
        "base": sha256("of the base"),
    }
    files["checkpoint"].write_text("other weights")
    assert contents(named)["checkpoint"] == sha256("other weights")
    (tmp_path / "config.json").write_text("{}")
    assert contents(named)["checkpoint"] == sha256(sha256("other weights") + sha256("{}"))
    assert contents({"classes": "3, 7, " * 1000, "base": "vit_tiny_patch16_224"}) == {}


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: Path, changed_ns: int) -> str:
        raise PermissionError(13, "Permission denied", str(file))

    (tmp_path / "a.pt").touch()
    monkeypatch.setattr(module, "_sha256", refused)
    with pytest.raises(OptionError, match=r"cannot read .*a\.pt: Permission denied"):
        contents({"checkpoint": str(tmp_path / "a.pt")})
