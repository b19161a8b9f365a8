"""What a request names by its path, by its content: the same path may hold something else the next time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgevit.errors import OptionError
from edgevit.folder.model_folder import ModelFolder
from edgevit.folder.writing import file_sha256

FILES, MODELS = ("checkpoint", "base_classes", "classes", "cost_table"), ("base", "supernet")


def contents(arguments: Mapping[str, Any]) -> dict[str, str]:
    """sha256 of the files that arguments, as plain values, name, and of models' weights: not of the images.

    Raises:
        OptionError: a file cannot be read.
    """
    named = {key: arguments.get(key) for key in FILES}
    # Path.is_file raises where a list of classes is longer than a name may be.
    there = {key: Path(path) for key, path in named.items() if isinstance(path, str) and os.path.isfile(path)}
    models = {key: ModelFolder(Path(path)).weights_file for key in MODELS if (path := arguments.get(key))}
    there |= {key: weights for key, weights in models.items() if weights.is_file()}
    try:
        return {key: _sha256(path, path.stat().st_mtime_ns) for key, path in there.items()}
    except OSError as error:
        raise OptionError(f"cannot read {error.filename}: {error.strerror}") from error


@lru_cache
def _sha256(file: Path, changed_ns: int) -> str:
    return file_sha256(file)  # a checkpoint that many derivations name is read once
