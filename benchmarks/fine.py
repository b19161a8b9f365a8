"""The harder base of the benchmarks: 48 rendered classes with little between them, in 65 tokens.

The base learns from images of its own; a user of it has 200 others per class, and 100 to judge on.

    python benchmarks/fine.py    # find the base, or train it; goes on where it was interrupted

`bases/` keeps the base that the records are of.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import base
import dataset
from long_training import LongRecipe, ensure_long_base

from edgevit.progress import Progress

FINE_ARGS = {"img_size": 48, "patch_size": 6, "embed_dim": 192, "depth": 6, "num_heads": 3}  # 64 patches
FINE_PER_CLASS = 1200  # images the base learns from
FINE_COURSES = (LongRecipe(epochs=8, batch_size=64, lr=1e-3, shift_px=3),)


def ensure_fine_base(*, cache_dir: Path | str = base.CACHE, progress: Progress | None = None) -> tuple[Path, Path]:
    """Return the folder of images that a user has, and the base's, which was trained on others."""
    base.bring_kept(cache_dir)
    names: dict[str, Any] = {"classes": dataset.FINE_CLASSES, "vocabulary": dataset.FINE_CLASSES, "progress": progress}
    root = dataset.ensure(cache_dir, train_per_class=200, **names)
    more = dataset.ensure(cache_dir, train_per_class=FINE_PER_CLASS, val_per_class=1, seed=1, **names)
    images, test = base.read_folder(more), base.read_folder(root)
    images = replace(images, val=test.val, val_labels=test.val_labels)
    return root, ensure_long_base(images, FINE_ARGS, *FINE_COURSES, cache_dir=cache_dir, progress=progress)


if __name__ == "__main__":
    from edgevit.cli.console import Console

    data, trained = ensure_fine_base(progress=Console().progress)
    card = json.loads((trained / "base.json").read_text())
    print(f"data  {data}\nbase  {trained}\ntop-1 {card['val_top1']:.1%} on val")
