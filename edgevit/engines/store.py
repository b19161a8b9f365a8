"""Put an engine into a model folder, whole or not at all; `edgevit.board.store` reads it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgevit.board.store import EngineRecord, engines_folder, read_record
from edgevit.folder.writing import file_sha256, writing

KEY_DIGITS = 16


def key_of(asked: Mapping[str, Any]) -> str:
    """Hash all that decides what is built."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def engine_path(model: Path, fingerprint: str, key: str) -> Path:
    return engines_folder(model) / fingerprint / f"{key[:KEY_DIGITS]}.engine"


def stored_engine(path: Path, key: str) -> EngineRecord | None:
    """The engine that lies there, if it was built as is asked now and is still what it was.

    Raises:
        EngineError: its record cannot be read.
    """
    described = path.with_suffix(".json")
    if not (path.is_file() and described.is_file()):
        return None
    record = read_record(described)
    return record if record.key == key and file_sha256(path) == record.sha256 else None


def store_engine(fetched: Path, record: EngineRecord, layers: list[Any]) -> None:
    """Move an engine in and write what is known of it beside it; last the record, without which it does not exist.

    Raises:
        OutputError: the disk is full, or may not be written to.
    """
    with writing(record.path):
        texts = {record.layers_path: json.dumps(layers, indent=1), record.path.with_suffix(".json"): record.to_json()}
        record.path.with_suffix(".json").unlink(missing_ok=True)
        fetched.replace(record.path)
        for path, text in texts.items():
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
