"""Render image-folder data sets: 24 classes, six shapes in four textures, made to be hard; or 48 finer classes.

    python -m benchmarks.images OUT

Every image has one large object and distractors: random colours, small objects of any class, bars across the object,
uneven light, noise. The shape needs the whole image, the texture only a few patches, so classes are confused with those
of the same shape and those of the same texture. `FINE_CLASSES` adds two polygons and two textures. Each image has its
own random generator, seeded with (seed, part, class, index), so it does not depend on the other images.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgevit.errors import UnknownNameError
from edgevit.progress import Progress, Silent

Array = NDArray[np.float64]
Picture = NDArray[np.uint8]  # [size, size, 3]

PARTS = ("train", "val")


def _polygon(corners: int) -> Callable[[Array, Array], Array]:
    sector = 2 * np.pi / corners

    def distance(x: Array, y: Array) -> Array:
        angle = np.arctan2(y, x) % sector - sector / 2  # 0 towards the middle of a side
        return np.asarray(np.hypot(x, y) * np.cos(angle) - np.cos(sector / 2))

    return distance


def _star(x: Array, y: Array) -> Array:
    half, inner = np.pi / 5, 0.45  # five points; `inner` is the radius of the corners between them
    angle = np.abs(np.arctan2(y, x) % (2 * half) - half)  # 0 towards a corner between points, `half` towards a point
    outline = inner * np.sin(half) / (np.sin(half - angle) + inner * np.sin(angle))
    return np.asarray(np.hypot(x, y) - outline)


def _cross(x: Array, y: Array) -> Array:
    long, short = np.maximum(abs(x), abs(y)), np.minimum(abs(x), abs(y))
    return np.asarray(np.maximum(long - 0.95, short - 0.32))


# Distance to the outline, negative inside, of a shape that fits the unit circle; near the outline is where it matters.
SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    "cross": _cross,
    "disc": lambda x, y: np.hypot(x, y) - 0.9,
    "hexagon": _polygon(6),
    "pentagon": _polygon(5),
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.7) - 0.28,
    "square": _polygon(4),
    "star": _star,
    "triangle": _polygon(3),
}

# Positive where the second colour goes; `u` and `v` are the phases of the pattern along its two directions.
TEXTURES: dict[str, Callable[[Array, Array], Array]] = {
    "checkered": lambda u, v: np.sin(u) * np.sin(v),
    "crossed": lambda u, v: np.maximum(np.sin(u), np.sin(v)) - 0.6,
    "dotted": lambda u, v: (np.sin(u) + np.sin(v)) / 2 - 0.3,
    "plain": lambda u, v: np.full_like(u, -1.0),
    "striped": lambda u, v: np.sin(u),
    "waved": lambda u, v: np.sin(u + 1.5 * np.sin(v)),
}

FINE_CLASSES = tuple(f"{texture}_{shape}" for texture in sorted(TEXTURES) for shape in sorted(SHAPES))
_FINE_PARTS = {"hexagon", "pentagon", "crossed", "waved"}
CLASSES = tuple(name for name in FINE_CLASSES if not _FINE_PARTS & set(name.split("_")))


@dataclass(frozen=True)
class Scene:
    """How hard an image is. Lengths are in half image sides, angles in radians, brightness from 0 to 1."""

    radius: tuple[float, float] = (0.6, 0.85)  # of the object
    offset: float = 0.2  # of its centre from the middle of the image, at most, each way
    tilt: float = 0.5  # of shape and texture, at most, either way
    period: tuple[float, float] = (0.2, 0.38)  # of the texture: 5 to 9 pixels at 48
    contrast: float = 0.15  # brightness between background, second and first colour, at least
    tint: float = 0.3  # of a colour channel from the brightness, at most
    neighbours: int = 2  # small objects, at most
    neighbour_radius: tuple[float, float] = (0.14, 0.26)
    bars: int = 2  # across the object, at most
    bar_half_width: tuple[float, float] = (0.05, 0.12)
    shade: float = 0.35  # share of light lost on the darkest side, at most
    noise: float = 0.05  # standard deviation, at most


SCENE = Scene()


class _Canvas:
    """A picture that is being painted; later strokes cover earlier ones."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.rng = rng
        self.pixel = 2 / size  # the image spans -1 to 1
        line = (np.arange(size) + 0.5) * self.pixel - 1
        self.x, self.y = np.meshgrid(line, line)
        self.picture = np.zeros((size, size, 3))

    def turned(self, angle: float, centre: Array) -> tuple[Array, Array]:
        x, y = self.x - centre[0], self.y - centre[1]
        return np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x

    def ramp(self) -> Array:
        """Return values that rise from -1 to at most 1 across the image in a random direction, [size, size, 1]."""
        along, _ = self.turned(self.rng.uniform(0, 2 * np.pi), np.zeros(2))
        return np.asarray(along[..., None] / np.sqrt(2))

    def paint(self, distance: Array, colour: Array) -> None:
        # Coverage from the distance to the outline smooths the edges as supersampling would, at one sample per pixel.
        coverage = np.clip(0.5 - distance / self.pixel, 0, 1)[..., None]
        self.picture += coverage * (colour - self.picture)

    def paint_object(self, name: str, scene: Scene, centre: Array, radius: float, colours: Array) -> None:
        texture, shape = name.split("_")
        x, y = self.turned(self.rng.uniform(-scene.tilt, scene.tilt), centre)
        u, v = self.turned(self.rng.uniform(-scene.tilt, scene.tilt), centre)
        frequency = 2 * np.pi / self.rng.uniform(*scene.period)
        phase = self.rng.uniform(0, 2 * np.pi, 2)
        pattern = TEXTURES[texture](frequency * u + phase[0], frequency * v + phase[1])
        mix = np.clip(0.5 + 1.2 * pattern, 0, 1)[..., None]
        self.paint(SHAPES[shape](x / radius, y / radius) * radius, colours[0] + mix * (colours[1] - colours[0]))

    def paint_bar(self, scene: Scene, centre: Array, radius: float) -> None:
        across = self.turned(self.rng.uniform(0, np.pi), centre)[0] - self.rng.uniform(-0.8, 0.8) * radius
        self.paint(abs(across) - self.rng.uniform(*scene.bar_half_width), self.rng.uniform(0, 1, 3))


def _colours(rng: np.random.Generator, scene: Scene) -> Array:
    """Draw the first and second colour of the object and the one behind it, in falling brightness, [3, channel]."""
    room = 0.8 - 2 * scene.contrast
    brightness = 0.1 + np.sort(rng.uniform(0, room, 3)) + scene.contrast * np.arange(3)
    tint = rng.uniform(-scene.tint, scene.tint, (3, 3))
    return np.asarray(brightness[::-1, None] + tint - tint.mean(axis=1, keepdims=True))


def draw(
    name: str,
    rng: np.random.Generator,
    *,
    size: int = 48,
    scene: Scene = SCENE,
    vocabulary: Sequence[str] = CLASSES,
) -> Picture:
    """Draw one image of the class `name`; the objects around are of any class of the vocabulary."""
    canvas = _Canvas(size, rng)
    first, second, behind = _colours(rng, scene)
    canvas.picture += behind + canvas.ramp() * rng.uniform(-0.2, 0.2, 3)
    for _ in range(rng.integers(scene.neighbours + 1)):
        centre, radius = rng.uniform(-0.95, 0.95, 2), rng.uniform(*scene.neighbour_radius)
        canvas.paint_object(str(rng.choice(vocabulary)), scene, centre, radius, rng.uniform(0, 1, (2, 3)))
    centre, radius = rng.uniform(-scene.offset, scene.offset, 2), rng.uniform(*scene.radius)
    canvas.paint_object(name, scene, centre, radius, np.stack([first, second]))
    for _ in range(rng.integers(scene.bars + 1)):
        canvas.paint_bar(scene, centre, radius)
    light = 1 - rng.uniform(0, scene.shade) * (1 - canvas.ramp()) / 2
    noise = rng.normal(0, rng.uniform(0, scene.noise), canvas.picture.shape)
    return np.asarray(np.clip(canvas.picture * light + noise, 0, 1) * 255 + 0.5, dtype=np.uint8)


def render(
    root: Path | str,
    *,
    classes: Sequence[str] = CLASSES,
    train_per_class: int = 400,
    val_per_class: int = 100,
    size: int = 48,
    seed: int = 0,
    scene: Scene = SCENE,
    vocabulary: Sequence[str] = CLASSES,
    progress: Progress | None = None,
) -> str:
    """Write `root`/train/<class>/00001.png and so on, and the same under val.

    Returns a SHA-256 over the files' names and pixels, which no version of the PNG encoder changes.
    """
    digest = hashlib.sha256()
    counts = {"train": train_per_class, "val": val_per_class}
    for name in classes:
        if name not in vocabulary:
            raise UnknownNameError("class", name, vocabulary)
    with (progress or Silent()).stage("render", len(classes) * sum(counts.values()), "image") as stage:
        done = 0
        for part in PARTS:
            for name in classes:
                folder = Path(root) / part / name
                folder.mkdir(parents=True)
                for index in range(1, counts[part] + 1):
                    rng = np.random.default_rng([seed, PARTS.index(part), vocabulary.index(name), index])
                    picture = draw(name, rng, size=size, scene=scene, vocabulary=vocabulary)
                    Image.fromarray(picture).save(folder / f"{index:05d}.png")
                    digest.update(f"{part}/{name}/{index:05d}".encode() + picture.tobytes())
                done += counts[part]
                stage.update(done)
    return digest.hexdigest()


def code_of(file: str) -> str:
    """Read a source file without its comments and layout, which change no result."""
    return ast.unparse(ast.parse(Path(file).read_text()))


@contextmanager
def complete_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the name `folder` when the block ends well, and vanishes when it does not."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as scratch:
        partial = Path(scratch) / folder.name
        partial.mkdir()
        yield partial
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process finished the same work first
                raise


def ensure(
    cache_dir: Path | str,
    *,
    classes: Sequence[str] = CLASSES,
    train_per_class: int = 400,
    val_per_class: int = 100,
    size: int = 48,
    seed: int = 0,
    scene: Scene = SCENE,
    vocabulary: Sequence[str] = CLASSES,
    progress: Progress | None = None,
) -> Path:
    """Render into a folder of `cache_dir` named by the parameters and by this file, unless it is there already."""
    counts: dict[str, Any] = {"train_per_class": train_per_class, "val_per_class": val_per_class}
    parameters = {"classes": list(classes), **counts, "size": size, "seed": seed, "scene": asdict(scene)}
    parameters["vocabulary"] = list(vocabulary)
    key = hashlib.sha256((json.dumps(parameters) + code_of(__file__)).encode()).hexdigest()[:16]
    folder = Path(cache_dir) / f"dataset-{key}"
    if not folder.is_dir():
        with complete_folder(folder) as partial:
            options: dict[str, Any] = {"size": size, "seed": seed, "scene": scene, "vocabulary": vocabulary}
            content = render(partial, classes=classes, **counts, **options, progress=progress)
            (partial / "dataset.json").write_text(json.dumps({"sha256": content, **parameters}, indent=2) + "\n")
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.images OUT")
    print(render(sys.argv[1]))
