"""Detect frames of one recording on both sides of a split: images that resemble only their neighbours by name.

A difference hash has a bit for each of 8 x 8 places of a small gray image: whether it gets brighter to the right. Few
bits differ between consecutive frames, and about half between two pictures of one class. If all pictures of a class are
alike, as in front of one machine, neighbours by name are not more alike than others, and there is no warning.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import PurePath

from PIL import Image

from edgevit.data.pairs import better_by_chance
from edgevit.data.sources import Part, Reference
from edgevit.progress import Progress
from edgevit.records.pictures import UNREADABLE, open_picture, to_rgb

_SIDE = 8
_NEAR = 6  # bits of 64 that may differ
_LOOKED_AT = 100  # held-out images at most, each compared with two: 1 s for JPEGs of 640 x 480, 9 s for 12 megapixels
SHARE, CHANCE = 0.1, 0.01  # share of these that must resemble a neighbour, and the significance level

_Parts = Mapping[Part, Sequence[Reference]]


@lru_cache(maxsize=4096)
def difference_hash(path: str) -> int | None:
    """Hash an image file; None: it cannot be read."""
    try:
        with open_picture(path) as image:
            image.draft("L", (64, 64))  # JPEG only: an eighth of the work
            image.load()
            small = to_rgb(image).convert("L").resize((_SIDE + 1, _SIDE), Image.Resampling.BOX)
    except UNREADABLE:
        return None
    values = small.tobytes()
    rows = [values[i : i + _SIDE + 1] for i in range(0, len(values), _SIDE + 1)]
    brighter = [a < b for row in rows for a, b in pairwise(row)]
    return sum(bit << place for place, bit in enumerate(brighter))


def _near(first: Reference, second: Reference) -> bool:
    a, b = difference_hash(str(first)), difference_hash(str(second))
    return a is not None and b is not None and (a ^ b).bit_count() <= _NEAR


def _by_number(reference: Reference) -> list[tuple[int, str]]:
    """A key that sorts frame9 before frame10."""
    return [(int(number or 0), text) for text, number in re.findall(r"(\D*)(\d*)", str(reference))]


def neighbours_across(
    classes: Sequence[_Parts], held_out: Sequence[Part]
) -> Iterator[tuple[Reference, Reference, Reference]]:
    """Yield held-out images, each with a training image next to it by name, and with another one of its class."""
    for parts in classes:
        train = set(parts["train"])
        ordered = sorted([*train, *(image for part in held_out for image in parts[part])], key=_by_number)
        for i, image in enumerate(ordered):
            if image in train:
                continue
            beside, folder = ordered[max(0, i - 1) : i + 2], PurePath(str(image)).parent
            adjacent = [near for near in beside if near in train and PurePath(str(near)).parent == folder]
            away = random.Random(i).randrange(len(ordered) // 4, len(ordered) * 3 // 4 + 1)  # half the class at most
            far = [ordered[(i + away + step) % len(ordered)] for step in range(len(ordered) // 8 + 1)]
            distant = [reference for reference in far if reference in train and reference not in adjacent]
            if adjacent and distant:
                yield image, adjacent[0], distant[0]


def warn_of_recordings(classes: Sequence[_Parts], held_out: Sequence[Part], progress: Progress) -> None:
    """Warn if images that were held out one by one resemble their neighbours by name, which are trained on."""
    candidates = list(neighbours_across(classes, held_out))
    if not candidates:
        return
    count = len(candidates)
    chosen = [candidates[i * count // _LOOKED_AT] for i in range(_LOOKED_AT)] if count > _LOOKED_AT else candidates
    alike = [(_near(image, adjacent), _near(image, distant), image, adjacent) for image, adjacent, distant in chosen]
    gained = [pair for near, chance, *pair in alike if near and not chance]
    lost = sum(chance and not near for near, chance, *_ in alike)
    if len(gained) - lost >= SHARE * len(alike) and better_by_chance(len(gained), lost) < CHANCE:
        image, adjacent = gained[0]
        progress.warn(
            f"{len(gained)} of {len(alike)} held-out images look like a training image beside them in name, and unlike "
            f"others of their class, such as {image} and {PurePath(str(adjacent)).name}: if these are frames of one "
            "recording, accuracy is too high; keep recordings together with --group-by"
        )
