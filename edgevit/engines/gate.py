"""The gate of an engine: compare its outputs on the board with those of ONNX Runtime in fp32 on the host, by image.

Both get the same values, rounded to float16 once. Outputs without classes must agree on average. For classes,
tolerances are counted in images, so that the size of the sample matters by itself. Rounding changes the class of the
odd image near a decision boundary, which is no fault of an engine: two images may always differ, per class and overall,
and beyond that a share. An engine that guesses between two classes is still rejected: it classifies at most 2 of 20
images wrong in 2 of 10 000 cases, and with more classes or images more rarely. Below 20 images only one may differ;
below 10 images the gate does not decide. Engines in INT8 are judged by what they surely lose (`proven_loss`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import torch
from torch import Tensor

from edgevit.exporting.images import Judging
from edgevit.exporting.losses import (
    LEAST_IMAGES,
    ClassResult,
    allowed,
    by_class,
    expected_losses,
    least_mean,
    loss,
    proven_loss,
)
from edgevit.exporting.request import GateTolerances
from edgevit.exporting.session import OnnxModel
from edgevit.network.output import Logits, Output
from edgevit.progress import Progress
from edgevit.records.derivation import DetectionRecord
from edgevit.records.engine import EngineAccuracy, EngineClassAccuracy
from edgevit.records.writing import file_sha256, writing

_COARSE = 0.15  # classes that may lose a larger share before the gate fails are reported
_BATCH = 32


class JudgingImages(Protocol):
    """The images that judge an engine."""

    @property
    def sha256(self) -> str:
        """The hash of the images as the board receives them."""

    @property
    def count(self) -> int:
        """The number of images."""

    @property
    def data(self) -> str: ...

    @property
    def part(self) -> str: ...


@dataclass(frozen=True)
class Sample:
    """Images as the board receives them, with their classes."""

    path: Path  # file of the images in raw float16, [count, *shape], in the order of the labels
    sha256: str
    count: int
    shape: tuple[int, ...]
    columns: tuple[int, ...] | None  # columns of the outputs that the board sends; None: all
    output: Output  # kind of the outputs that the board sends
    class_names: tuple[str, ...]
    labels: tuple[int, ...]  # index of each image's class; empty: there is nothing to judge by
    expected: Tensor  # the fp32 answers of the host
    data: str
    part: str
    # [images, classes] fp32 probabilities of the host; None: the outputs have no classes.
    probabilities: Tensor | None = None

    @property
    def judges(self) -> bool:
        """Whether there are enough images to decide."""
        return len(self.labels) >= LEAST_IMAGES

    @property
    def has_pictures(self) -> bool:
        """Whether its images are pictures, and not texts."""
        return len(self.shape) > 1

    def images(self) -> Tensor:
        """All images [count, *shape] of the file."""
        values = np.fromfile(self.path, np.float16 if self.has_pictures else np.int64)
        return torch.from_numpy(values).reshape(self.count, *self.shape)


@dataclass(frozen=True)
class EngineVerdict:
    """The result of an engine on the sample."""

    # Right answers by class, for classes that have images; empty: the outputs have no classes.
    per_class: dict[str, ClassResult]
    failure: str | None  # end of a message that begins with the engine's name; None: the engine passes
    # Mean score of the engine with the host's answers as targets; None: too few images to decide.
    agreement: float | None = None
    # What the detector finds in annotated images on the host; None: no objects are judged.
    host_detections: DetectionRecord | None = None
    board_detections: DetectionRecord | None = None

    def record(self, sample: JudgingImages) -> EngineAccuracy | None:
        if self.agreement is None:
            return None
        counted = self.per_class.values()
        return EngineAccuracy(
            data=sample.data,
            part=sample.part,
            images=sample.count,
            images_sha256=sample.sha256,
            host=sum(c.host for c in counted) / sample.count if counted else None,
            board=sum(c.board for c in counted) / sample.count if counted else None,
            agreement=self.agreement,
            worst_class=max(
                self.per_class, key=lambda name: self.per_class[name].lost / self.per_class[name].images, default=None
            ),
            per_class={
                name: EngineClassAccuracy(c.images, c.host / c.images, c.board / c.images)
                for name, c in self.per_class.items()
            },
            host_detections=self.host_detections,
            board_detections=self.board_detections,
        )


def judge(
    sample: Sample, outputs: Tensor, nonfinite: int, tolerances: GateTolerances, *, rounds: bool = False
) -> EngineVerdict:
    """Compare the outputs of the engine with those in fp32 on the host.

    `rounds`: it is in INT8, and fails where it surely loses more than is allowed.
    """
    if nonfinite:
        return EngineVerdict({}, f"gives NaN or infinity ({nonfinite} values)")
    if not sample.judges:
        return EngineVerdict({}, None)
    agreeing = sample.output.score(outputs, sample.expected)
    agreement = float(agreeing.sum()) / sample.count
    if not isinstance(sample.output, Logits):
        least = tolerances.agreement
        text = f"agrees with fp32 to {agreement:.2%} on {sample.count} images, {least:.0%} is required"
        passes = least_mean(1 - agreeing) <= 1 - least if rounds else agreement >= least
        return EngineVerdict({}, None if passes else text, agreement)
    labels = torch.tensor(sample.labels)
    right = sample.output.score(outputs, labels)
    before, place = (sample.expected == labels).float(), "on the board"
    per_class = by_class(sample.class_names, labels, before, right, agreeing)
    if rounds and sample.probabilities is not None:
        expected = expected_losses(sample.probabilities, sample.output.answers(outputs))
        failure = proven_loss(sample.class_names, labels, before - right, expected, tolerances, place)
    else:
        failure = loss(per_class, tolerances, place)
    return EngineVerdict(per_class, failure, agreement)


def remarks(sample: Sample, tolerances: GateTolerances) -> list[str]:
    """Warn of losses that the sample is too small to detect."""
    more = "give more with --data or --max-images"
    if not sample.judges:
        available = f"only {len(sample.labels)} images" if sample.labels else "no images"
        return [f"ACCURACY ON THE BOARD NOT CHECKED: {available} to judge by, {LEAST_IMAGES} are the least; {more}"]
    if not isinstance(sample.output, Logits):
        return []
    sizes = Counter(sample.class_names[label] for label in sample.labels)
    name, size = min(sizes.items(), key=lambda item: item[1])
    least = allowed(tolerances.class_drop, size) + 1
    if least <= _COARSE * size:
        return []
    if least > size:
        return [f"class {name!r} has {size} images, too few to notice what an engine does to it; {more}"]
    return [f"class {name!r} has {size} images: an engine that gets {least - 1} of them wrong passes; {more}"]


def _rounded(batches: Iterable[tuple[Tensor, Tensor]], file: IO[bytes]) -> Iterator[tuple[Tensor, Tensor]]:
    """Write each batch as float16, and yield the rounded values; ids as they are."""
    for images, labels in batches:
        if not images.is_floating_point():
            file.write(images.numpy().tobytes())
            yield images, labels
            continue
        half = images.half()
        file.write(half.numpy().tobytes())
        yield half.float(), labels


def images_file(folder: Path, key: str) -> Path:
    """The file of the sample of one engine, named by the key of the engine.

    It has the same name on the board, where it is removed after use: engines that are checked at once on the same
    images need one each.
    """
    return folder / f"images.{key[:16]}"


def take_sample(judging: Judging, reference: Path, path: Path, progress: Progress, *, workers: int = 0) -> Sample:
    """Write the images for the board, and run ONNX Runtime on them in fp32 on the CPU."""
    model, output = OnnxModel(reference), judging.output
    labels, expected, probabilities = list[int](), list[Tensor](), list[Tensor]()
    with writing(path), path.open("wb") as file, progress.stage("classify here", len(judging.split), "image") as stage:
        for images, truth in _rounded(judging.split.batches(_BATCH, workers), file):
            outputs = model.predict(images)
            expected.append(output.answers(outputs))
            if isinstance(output, Logits):
                probabilities.append(output.of(outputs).softmax(1))
            labels += truth.tolist()
            stage.update(len(labels))
    shape = tuple(judging.split.preprocessing["input_size"])
    columns = None
    if isinstance(output, Logits):
        columns, output = output.columns, Logits(tuple(range(len(output.columns))))
    return Sample(
        path, file_sha256(path), len(labels), shape, columns, output, judging.class_names, tuple(labels),
        torch.cat(expected), judging.data, judging.part, torch.cat(probabilities) if probabilities else None,
    )  # fmt: skip


def unlabelled_sample(images: Tensor, output: Output, path: Path) -> Sample:
    """Write images of unknown classes, such as random ones, to see all outputs of an engine."""
    with writing(path):
        path.write_bytes((images.half() if images.is_floating_point() else images).numpy().tobytes())
    shape = tuple(images.shape[1:])
    return Sample(path, file_sha256(path), len(images), shape, None, output, (), (), torch.empty(0), "random", "none")
