"""Fashion-MNIST for the benchmarks: photographs of clothes, in ten classes, and a base that learnt from most of them.

The base learns from the first 54,000 training images. A user of it has the other 6,000, about 600 of a class, and the
10,000 test images, in a folder of IDX files as the set is published; the two share no image.

    sudo apt install dataset-fashion-mnist    # or any folder of its four files: --data DIR
    python benchmarks/fashion.py              # find the base, or train it; goes on where it was interrupted

`bases/` keeps the base that the records are of.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sys
from pathlib import Path

import base
import dataset
import torch
from long_training import LongRecipe, ensure_long_base

from edgevit.data.sources import Part
from edgevit.data.sources.idx import Idx, open_source
from edgevit.progress import Progress

PUBLISHED = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts it
FASHION_ARGS = {"img_size": 28, "patch_size": 4, "embed_dim": 128, "depth": 6, "num_heads": 2}  # 49 patches
# After the first course it is right on 90.2 % of the test images, after the second on 90.6, after the third on 91.5.
FASHION_COURSES = (
    LongRecipe(epochs=14, batch_size=64, lr=1e-3, shift_px=1),
    LongRecipe(epochs=6, batch_size=64, lr=3e-4, shift_px=1, mirrored=True, seed=1),
    LongRecipe(epochs=10, batch_size=64, lr=5e-4, shift_px=1, mirrored=True, seed=2),
)
LEARNT = 54_000  # training images that the base learns from; those behind them are its user's


def _idx(values: torch.Tensor) -> bytes:
    """The IDX file of a tensor of bytes."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.numpy().tobytes()


def _tensors(source: Idx, part: Part) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(source.images[part]), torch.tensor(source.labels[part])


def ensure_folder(source: Idx, learnt: int, cache_dir: Path | str) -> Path:
    """Return a folder of the training images behind the first `learnt`, and of the test part."""
    images, labels = _tensors(source, "train")
    parts = {"train": (images[learnt:], labels[learnt:]), "t10k": _tensors(source, "test")}
    files = {}
    for part, (pictures, answers) in parts.items():
        files[f"{part}-images-idx3-ubyte.gz"] = _idx(pictures)
        files[f"{part}-labels-idx1-ubyte.gz"] = _idx(answers)
    folder = Path(cache_dir) / f"fashion-{hashlib.sha256(b''.join(files.values())).hexdigest()[:16]}"
    if not folder.is_dir():
        with dataset.complete_folder(folder) as partial:
            for name, content in files.items():
                (partial / name).write_bytes(gzip.compress(content, mtime=0))
    return folder


def read_fashion(source: Idx, learnt: int) -> base.Images:
    """Read what the base learns from, and the test part as `val`."""

    def rgb(grey: torch.Tensor) -> torch.Tensor:
        return grey[:, None].repeat(1, 3, 1, 1)

    (images, labels), (val, val_labels) = _tensors(source, "train"), _tensors(source, "test")
    return base.Images(
        rgb(images[:learnt]), labels[:learnt].long(), rgb(val), val_labels.long(), tuple(source.class_names)
    )


def ensure_fashion_base(
    published: Path = PUBLISHED, *, cache_dir: Path | str = base.CACHE, progress: Progress | None = None
) -> tuple[Path, Path]:
    """Return the folder of images that a user has, and the base's, which was trained on others."""
    if not published.is_dir():
        sys.exit(f"Fashion-MNIST is not in {published}; try: sudo apt install dataset-fashion-mnist, or --data DIR")
    base.bring_kept(cache_dir)
    source = open_source(str(published))
    folder = ensure_folder(source, LEARNT, cache_dir)
    images = read_fashion(source, LEARNT)
    return folder, ensure_long_base(images, FASHION_ARGS, *FASHION_COURSES, cache_dir=cache_dir, progress=progress)


if __name__ == "__main__":
    from edgevit.cli.console import Console

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=PUBLISHED, help="folder of the four IDX files")
    data, trained = ensure_fashion_base(parser.parse_args().data, progress=Console().progress)
    card = json.loads((trained / "base.json").read_text())
    print(f"data  {data}\nbase  {trained}\ntop-1 {card['val_top1']:.1%} on {card['val_images']} test images")
