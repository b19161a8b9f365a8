"""Nine tasks on ImageNet-1K as lists of classes, in imagenet_tasks/: three draws each of 25, 50 and 100 classes.

    python benchmarks/imagenet_tasks.py        # writes them again
    edgevit derive deit_base_patch16_224 --pretrained --data imagenet --classes benchmarks/imagenet_tasks/t1_25.txt ...

Vulcan and NuWa report means over such tasks, drawn at random, and do not print them; so these are of their sizes, and
not theirs. Draw j of n classes is what numpy's generator with seed (j, n) takes of the 1000, in ImageNet's order. A
class is written as its WordNet id, which is the name of its folder in ImageNet's own layout.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from timm.data import ImageNetInfo

FOLDER = Path(__file__).parent / "imagenet_tasks"
DRAWS, SIZES = (1, 2, 3), (25, 50, 100)


def lists() -> dict[str, str]:
    """The text of each file by its name."""
    known = ImageNetInfo()
    names = known.label_names()
    found = {}
    for draw in DRAWS:
        for size in SIZES:
            indices = sorted(np.random.default_rng((draw, size)).choice(len(names), size, replace=False).tolist())
            lines = [f"{names[i]}  # {known.index_to_description(i)}" for i in indices]
            head = f"# Draw {draw} of {size} of ImageNet-1K's classes (benchmarks/imagenet_tasks.py)."
            found[f"t{draw}_{size}.txt"] = "\n".join([head, *lines]) + "\n"
    return found


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in lists().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
