"""Whether an engine is right: it classifies on the board as ONNX Runtime does in fp32 here, image by image.

Both see the very same values, rounded to float16 once. What may differ is counted in images, so that the size of the
sample enters by itself. Rounding turns the odd image that lies on the edge between two classes, which says nothing of
an engine: two images may always differ, in a class or overall, and beyond that a share. An engine that guesses between
two classes is found out all the same: it gets at most 2 of 20 images wrong in 2 of 10 000 cases, and with more classes
or images in fewer. Below 20 images one may differ, below 10 there is no judgement that chance would not make as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from edgevit.engines.options import GateTolerances
from edgevit.errors import EngineError
from edgevit.exporting.images import Judging
from edgevit.exporting.session import OnnxModel
from edgevit.progress import Progress
from edgevit.records.engine import EngineAccuracy, EngineClassAccuracy
from edgevit.records.writing import file_sha256, writing

LEAST_IMAGES = 10
ALWAYS_ALLOWED = 2  # images
COARSE = 0.15  # a class gets a remark if it may lose a larger share than this before the gate fails
BATCH = 32


@dataclass(frozen=True)
class Sample:
    """Images as the board gets them, and what they are."""

    path: Path  # raw float16, [count, *shape], in the order of the labels
    sha256: str
    count: int
    shape: tuple[int, ...]
    columns: tuple[int, ...]  # of the target classes, in the logits
    class_names: tuple[str, ...]
    labels: tuple[int, ...]  # position in the classes; empty: images of nothing
    expected: tuple[int, ...]  # what fp32 on the host takes them for
    data: str
    part: str

    @property
    def judges(self) -> bool:
        """Whether more can be said of an engine than that its outputs are numbers."""
        return len(self.labels) >= LEAST_IMAGES


@dataclass(frozen=True)
class ClassResult:
    """Images of one class, and what became of them."""

    images: int
    host: int  # classified rightly in fp32 on the host
    board: int  # by the engine
    agreeing: int  # taken for the same by both, rightly or not

    @property
    def lost(self) -> int:
        return self.host - self.board


@dataclass(frozen=True)
class EngineVerdict:
    """An engine on the sample."""

    per_class: dict[str, ClassResult]  # classes without images are left out; empty: too few images to judge by
    failure: str | None  # why it fails, to be put behind the engine's name; None: it passes

    @property
    def images(self) -> int:
        return sum(c.images for c in self.per_class.values())

    def record(self, sample: Sample) -> EngineAccuracy | None:
        if not self.per_class:
            return None
        host, board, agreeing = (
            sum(getattr(c, field) for c in self.per_class.values()) / self.images
            for field in ("host", "board", "agreeing")
        )
        return EngineAccuracy(
            data=sample.data,
            part=sample.part,
            images=self.images,
            images_sha256=sample.sha256,
            host=host,
            board=board,
            agreement=agreeing,
            worst_class=max(self.per_class.items(), key=lambda item: item[1].lost / item[1].images)[0],
            per_class={
                name: EngineClassAccuracy(c.images, c.host / c.images, c.board / c.images)
                for name, c in self.per_class.items()
            },
        )


def allowed(share: float, images: int, always: int = ALWAYS_ALLOWED) -> int:
    """How many of the images may differ."""
    return max(always, math.floor(share * images + 1e-9))  # 0.29 * 100 is less than 29


def _failure(per_class: Mapping[str, ClassResult], tolerances: GateTolerances) -> str | None:
    def excess(item: tuple[str, ClassResult]) -> tuple[bool, float]:
        c = item[1]
        return c.lost > allowed(tolerances.class_drop, c.images), c.lost / c.images

    name, worst = max(per_class.items(), key=excess)
    images = sum(c.images for c in per_class.values())
    always = min(ALWAYS_ALLOWED, images // LEAST_IMAGES)
    told = f"{worst.lost / worst.images:.0%} on {name!r} (of {worst.images} images {worst.host} are right in fp32 here"
    told += f", {worst.board} on the board)"
    if worst.lost > allowed(tolerances.class_drop, worst.images):
        return f"loses {told}"
    if (lost := sum(c.lost for c in per_class.values())) > allowed(tolerances.drop, images, always):
        return f"loses {lost / images:.1%} of top-1 on {images} images, worst {told}"
    if images - (same := sum(c.agreeing for c in per_class.values())) > allowed(
        1 - tolerances.agreement, images, always
    ):
        name, worst = min(per_class.items(), key=lambda item: item[1].agreeing / item[1].images)
        return (
            f"agrees with fp32 on {same} of {images} images, {tolerances.agreement:.0%} is required; "
            f"least on {name!r}, {worst.agreeing} of {worst.images}"
        )
    return None


def judge(sample: Sample, predicted: Sequence[int], nonfinite: int, tolerances: GateTolerances) -> EngineVerdict:
    """Compare what the engine takes each image for with what fp32 on the host does."""
    if nonfinite:
        return EngineVerdict({}, f"gives NaN or infinity ({nonfinite} values)")
    if not sample.judges:
        return EngineVerdict({}, None)
    if len(predicted) != sample.count:
        raise EngineError(f"the board classified {len(predicted)} of {sample.count} images; run the command again")
    counts: dict[str, list[int]] = {}
    for label, host, board in zip(sample.labels, sample.expected, predicted, strict=True):
        seen = counts.setdefault(sample.class_names[label], [0, 0, 0, 0])
        for i, hit in enumerate((True, host == label, board == label, host == board)):
            seen[i] += hit
    per_class = {name: ClassResult(*seen) for name, seen in counts.items()}
    return EngineVerdict(per_class, _failure(per_class, tolerances))


def remarks(sample: Sample, tolerances: GateTolerances) -> list[str]:
    """Warn of losses that the sample is too small to show."""
    more = "give more with --data or --max-images"
    if not sample.judges:
        seen = f"only {len(sample.labels)} images" if sample.labels else "no images"
        return [f"ACCURACY ON THE BOARD NOT CHECKED: {seen} to judge by, {LEAST_IMAGES} are the least; {more}"]
    sizes = Counter(sample.class_names[label] for label in sample.labels)
    name, size = min(sizes.items(), key=lambda item: item[1])
    least = allowed(tolerances.class_drop, size) + 1
    if least <= COARSE * size:
        return []
    if least > size:
        return [f"class {name!r} has {size} images, too few to notice what an engine does to it; {more}"]
    return [f"class {name!r} has {size} images: an engine that gets {least - 1} of them wrong passes; {more}"]


def _rounded(batches: Iterable[tuple[Tensor, Tensor]], file: IO[bytes]) -> Iterator[tuple[Tensor, Tensor]]:
    """Write each batch as float16, and give it on as what was written."""
    for images, labels in batches:
        half = images.half()
        file.write(half.numpy().tobytes())
        yield half.float(), labels


def images_file(folder: Path, key: str) -> Path:
    """Where the sample of one engine lies, by the engine's key.

    The file is called so on the board, too, where who is done with it removes it: models that are judged on the same
    images at once have one each.
    """
    return folder / f"images.{key[:16]}"


def take_sample(judging: Judging, reference: Path, path: Path, progress: Progress, *, workers: int = 0) -> Sample:
    """Write the images as the board gets them, and classify them with ONNX Runtime in fp32 on the CPU."""
    model = OnnxModel(reference)
    columns = torch.as_tensor(judging.columns)
    labels, expected = list[int](), list[int]()
    with writing(path), path.open("wb") as file, progress.stage("classify here", len(judging.split), "image") as stage:
        for images, truth in _rounded(judging.split.batches(BATCH, workers), file):
            expected += model.predict(images)[:, columns].argmax(1).tolist()
            labels += truth.tolist()
            stage.update(len(labels))
    shape = tuple(judging.split.preprocessing["input_size"])
    return Sample(
        path, file_sha256(path), len(labels), shape, judging.columns, judging.class_names, tuple(labels),
        tuple(expected), judging.data, judging.part,
    )  # fmt: skip


def unlabelled_sample(images: Tensor, columns: Sequence[int], path: Path) -> Sample:
    """Images of unknown classes, such as random ones: they show whether an engine gives numbers, and which."""
    with writing(path):
        path.write_bytes(images.half().numpy().tobytes())
    shape = tuple(images.shape[1:])
    return Sample(path, file_sha256(path), len(images), shape, tuple(columns), (), (), (), "random", "none")
