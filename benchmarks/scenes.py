"""Render pictures with objects, annotated as COCO annotates: boxes and masks of six shapes, which overlap.

    python -m benchmarks.scenes OUT

Shapes and textures are those of `benchmarks.images`; a class is a shape. Later objects cover earlier ones, and boxes
and masks are of what is visible. Each picture has its own random generator, seeded with (seed, part, index).
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.images import SHAPES, TEXTURES, Array, Picture, _Canvas, code_of, complete_folder

PARTS = ("train", "val")
CLASSES = ("cross", "disc", "ring", "square", "star", "triangle")
Mask = NDArray[np.bool_]  # [size, size]


@dataclass(frozen=True)
class Crowd:
    """How hard a picture is. Lengths are in half image sides."""

    objects: tuple[int, int] = (2, 5)
    radius: tuple[float, float] = (0.12, 0.42)
    visible: float = 0.5  # share of an object that is not covered, at least
    contrast: float = 0.25  # of an object's first colour to the background, at least
    noise: float = 0.04  # standard deviation, at most


CROWD = Crowd()


def draw(rng: np.random.Generator, *, size: int, crowd: Crowd = CROWD) -> tuple[Picture, list[tuple[int, Mask]]]:
    """Draw a picture; return it with the class and the visible mask of each object."""
    canvas = _Canvas(size, rng)
    behind = rng.uniform(0.1, 0.9, 3)
    canvas.picture += behind + canvas.ramp() * rng.uniform(-0.1, 0.1, 3)
    placed: list[tuple[int, Mask, int]] = []  # class, visible mask, and the pixels of the whole
    for _ in range(rng.integers(crowd.objects[0], crowd.objects[1] + 1)):
        number, radius = int(rng.integers(len(CLASSES))), rng.uniform(*crowd.radius)
        centre = rng.uniform(radius - 1, 1 - radius, 2)
        x, y = canvas.turned(rng.uniform(0, 2 * np.pi), centre)
        distance = SHAPES[CLASSES[number]](x / radius, y / radius) * radius
        mask = distance < 0
        remaining = [(other & ~mask).sum() / whole for _, other, whole in placed]
        if mask.sum() < 12 or any(share < crowd.visible for share in remaining):
            continue
        canvas.paint(distance, _colours(rng, behind, crowd, x, y, radius))
        placed = [(other, seen & ~mask, whole) for other, seen, whole in placed]
        placed.append((number, mask, int(mask.sum())))
    noise = rng.normal(0, rng.uniform(0, crowd.noise), canvas.picture.shape)
    picture = np.asarray(np.clip(canvas.picture + noise, 0, 1) * 255 + 0.5, dtype=np.uint8)
    return picture, [(number, mask) for number, mask, _ in placed]


def _colours(rng: np.random.Generator, behind: Array, crowd: Crowd, x: Array, y: Array, radius: float) -> Array:
    """The colour of each pixel of an object: [size, size, 3]."""
    first = rng.uniform(0, 1, 3)
    while abs(first - behind).mean() < crowd.contrast:
        first = rng.uniform(0, 1, 3)
    texture = TEXTURES[str(rng.choice(sorted(TEXTURES)))]
    frequency = 2 * np.pi / (radius * rng.uniform(0.5, 0.9))
    mix = np.clip(0.5 + 1.2 * texture(frequency * x, frequency * y), 0, 1)[..., None]
    return np.asarray(first + 0.6 * mix * (rng.uniform(0, 1, 3) - first))


def run_lengths(mask: Mask) -> dict[str, Any]:
    """A mask as COCO writes regions: the lengths of runs of pixels column by column, beginning with those outside."""
    values = mask.flatten(order="F").tolist()
    runs = [len(list(of_value)) for _, of_value in groupby(values)]
    return {"size": list(mask.shape), "counts": [0] * values[0] + runs}


def box_of(mask: Mask) -> list[int]:
    """Left, top, width and height."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    left, top = int(columns[0]), int(rows[0])
    return [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1]


def _cropped(
    rng: np.random.Generator, picture: Picture, objects: list[tuple[int, Mask]], least: float
) -> tuple[Picture, list[tuple[int, Mask]]]:
    """Crop one side of a picture to a random share of at least `least`; objects that are mostly outside go."""
    sides = [slice(None), slice(None)]
    axis, size = int(rng.integers(2)), len(picture)
    length = round(size * rng.uniform(least, 1))
    first = int(rng.integers(size - length + 1))
    sides[axis] = slice(first, first + length)
    crops = [(number, mask, mask[tuple(sides)]) for number, mask in objects]
    return picture[tuple(sides)], [(n, inside) for n, mask, inside in crops if 2 * inside.sum() >= mask.sum()]


def render(
    root: Path, *, train: int, val: int, size: int, seed: int = 0, crowd: Crowd = CROWD, least: float = 1.0
) -> None:
    """Write `root`/images/train/00001.png and so on, `root`/annotations/instances_train.json, and the same of val.

    Args:
        least: the shorter side of a picture is a random share of `size`, at least this one.
    """
    (root / "annotations").mkdir(parents=True)
    for part, count in zip(PARTS, (train, val), strict=True):
        (root / "images" / part).mkdir(parents=True)
        images, annotations = list[dict[str, Any]](), list[dict[str, Any]]()
        for index in range(1, count + 1):
            rng = np.random.default_rng([seed, PARTS.index(part), index])
            picture, objects = draw(rng, size=size, crowd=crowd)
            if least < 1:
                picture, objects = _cropped(rng, picture, objects, least)
            name, (height, width) = f"{index:05d}.png", picture.shape[:2]
            Image.fromarray(picture).save(root / "images" / part / name)
            images.append({"id": index, "file_name": name, "width": width, "height": height})
            for number, mask in objects:
                annotations.append({
                    "id": len(annotations) + 1, "image_id": index, "category_id": number + 1, "bbox": box_of(mask),
                    "area": int(mask.sum()), "iscrowd": 0, "segmentation": run_lengths(mask),
                })  # fmt: skip
        content = {
            "images": images, "annotations": annotations,
            "categories": [{"id": i, "name": name} for i, name in enumerate(CLASSES, 1)],
        }  # fmt: skip
        (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))


def ensure(cache: Path, *, train: int, val: int, size: int, seed: int = 0) -> Path:
    """Render into a folder of `cache` named by the parameters and by this file, unless it is there already."""
    parameters: dict[str, Any] = {"train": train, "val": val, "size": size, "seed": seed, "crowd": asdict(CROWD)}
    key = hashlib.sha256((json.dumps(parameters) + code_of(__file__)).encode()).hexdigest()[:16]
    folder = cache / f"scenes-{key}"
    if not folder.is_dir():
        with complete_folder(folder) as partial:
            render(partial, train=train, val=val, size=size, seed=seed)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.scenes OUT")
    render(Path(sys.argv[1]), train=2000, val=400, size=96)
