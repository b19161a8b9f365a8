"""Hashes of the files that a request names: the same path may have another content the next time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgevit.errors import OptionError
from edgevit.records.model_folder import ModelFolder
from edgevit.records.release import is_release, release_sha256
from edgevit.records.writing import file_sha256

FILES, MODELS = ("base_classes", "classes", "cost_table"), ("base", "supernet")


def contents(arguments: Mapping[str, Any]) -> dict[str, str]:
    """sha256 of the files that arguments, as plain values, name, and of models' weights: not of the images.

    Raises:
        OptionError: a file cannot be read.
    """
    named = {key: arguments.get(key) for key in FILES}
    # Path.is_file raises where a list of classes is longer than a name may be.
    files = {key: Path(path) for key, path in named.items() if isinstance(path, str) and os.path.isfile(path)}
    models = {key: ModelFolder(Path(path)).weights_file for key in MODELS if (path := arguments.get(key))}
    files |= {key: weights for key, weights in models.items() if weights.is_file()}
    weights = {key: Path(path) for key in ("base", "checkpoint") if (path := arguments.get(key))}
    releases = {
        key: path for key, path in weights.items() if is_release(path) or (key == "checkpoint" and os.path.exists(path))
    }
    try:
        hashes = {key: _hash(path) for key, path in files.items()}
        return hashes | {key: release_sha256(path, _hash) for key, path in releases.items()}
    except OSError as error:
        raise OptionError(f"cannot read {error.filename}: {error.strerror}") from error


def _hash(file: Path) -> str:
    return _sha256(file, file.stat().st_mtime_ns)


@lru_cache
def _sha256(file: Path, changed_ns: int) -> str:
    return file_sha256(file)  # a checkpoint that many derivations name is read once
