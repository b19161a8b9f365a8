"""What is given as a model, checked before torch is imported: by paths alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgevit.errors import CheckpointError, OptionError
from edgevit.folder.model_folder import ModelFolder


def check_model_folder(folder: str | Path) -> None:
    """Refuse a model folder that is not there, is not whole, or says of itself what cannot be.

    Raises:
        CheckpointError: it is.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "is a file, not a model folder" if folder.exists() else "does not exist"
        raise CheckpointError(f"{folder} {what}; check the path of the model folder")
    files = ModelFolder(folder)
    for file in (files.spec_file, files.weights_file):
        if not file.is_file():
            raise CheckpointError(f"{folder} is not a complete model folder: {file.name} is missing; derive it again")
    files.document()


def check_base(
    base: str | Path,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
    model_args: Mapping[str, Any] | None = None,
) -> None:
    """Refuse a base that cannot be opened. Whether timm knows its name takes timm, and that imports torch.

    Raises:
        CheckpointError: no such model folder or weights, or no weights are given at all.
        OptionError: options that exclude each other.
    """
    if Path(base).is_dir():
        if checkpoint or pretrained or model_args:
            raise OptionError(
                f"{base} is a model folder and brings its own weights and arguments; leave those options out"
            )
        check_model_folder(base)
        return
    if os.sep in str(base):
        raise CheckpointError(f"no model folder at {base}; check the path")
    if checkpoint is not None:
        if pretrained:
            raise OptionError("--checkpoint and --pretrained exclude each other; give one of them")
        if not Path(checkpoint).is_file():
            raise CheckpointError(f"no weights at {checkpoint}; check the path")
    elif pretrained and (model_args or {}).get("num_classes"):  # 0 leaves it out
        raise OptionError(
            "--pretrained weights bring their own classifier; leave num_classes out, or give --checkpoint"
        )
    elif not pretrained:
        raise CheckpointError(f"{base} needs weights: give --checkpoint FILE, or --pretrained where there is a network")
