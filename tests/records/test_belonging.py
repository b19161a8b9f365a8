from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from edgevit.records.belonging import file_fault, weights_fault


def test_a_file_is_the_one_that_its_record_states_or_both_hashes_are_named(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"a")
    digest, other = (hashlib.sha256(content).hexdigest() for content in (b"a", b"b"))
    assert file_fault(file, digest, tmp_path / "export.json") is None
    said = f"{file} was altered: its hash is {digest[:12]}, export.json states {other[:12]}"
    assert file_fault(file, other, tmp_path / "export.json") == said
    with pytest.raises(OSError):
        file_fault(tmp_path / "none", digest, file)


def test_a_record_of_other_weights_names_both() -> None:
    record, folder = Path("m/export/export.json"), Path("m")
    assert weights_fault(record, "a" * 64, folder, "a" * 64) is None
    said = f"{record} is of other weights ({'b' * 12}) than m has ({'a' * 12}): it belongs to another model"
    assert weights_fault(record, "b" * 64, folder, "a" * 64) == said
