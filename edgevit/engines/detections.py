"""The gate of a detector's engine: what the detector finds on the host in levels that the board computed.

The engine is backbone and pyramid; proposals, heads and what follows them run in torch. Average precision of annotated
images is compared with that of levels in fp32, computed by ONNX Runtime from the same images, rounded to float16. Two
objects may always differ, per class and overall, and beyond that a share, as images of a classifier.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from edgevit.data.sources.coco import CocoImages
from edgevit.data.task import Split
from edgevit.engines.gate import EngineVerdict
from edgevit.exporting.images import Judging
from edgevit.exporting.losses import ALWAYS_ALLOWED, LEAST_IMAGES
from edgevit.exporting.request import GateTolerances
from edgevit.exporting.session import OnnxModel
from edgevit.network.network import Network
from edgevit.network.output import Levels
from edgevit.progress import Progress
from edgevit.records.derivation import DetectionRecord
from edgevit.train.detections import find_objects

_FEW = 100  # objects, of which two are two points


@dataclass(frozen=True)
class Annotated:
    """Images with objects, and the detector that is to find them."""

    network: Network
    images: Split
    categories: Mapping[int, str]  # names of the categories that are judged, by id
    reference: OnnxModel  # the pyramid as an fp32 ONNX file, run on the host
    at_once: int  # number of images whose levels are held at once
    data: str
    part: str
    host: DetectionRecord  # what the detector finds with its pyramid in fp32 on the host
    sha256: str  # hash of all images, as the board receives them
    progress: Progress

    @property
    def count(self) -> int:
        return len(self.images)

    @property
    def judges(self) -> bool:
        """Whether there are enough images to decide."""
        return self.count >= LEAST_IMAGES

    @property
    def objects(self) -> Counter[str]:
        """The number of objects of each class."""
        source = self.images.source
        assert isinstance(source, CocoImages)
        entries = [entry for reference in self.images.references for entry in source.objects(reference)]
        return Counter(self.categories[e.category] for e in entries if e.category in self.categories and not e.crowd)

    def judge(
        self, compute: Callable[[Tensor], Tensor], tolerances: GateTolerances, *, batch: int, rounds: bool = False
    ) -> EngineVerdict:
        """Compare what is found in levels [B, values] that an engine computes of images with what is found in fp32.

        Args:
            batch: its images per inference; fewer would take it as long.
            rounds: it is in INT8, of which the levels need not be those in fp32.
        """
        agreement, nonfinite, output = 0.0, 0, Levels()

        def levels(images: Tensor) -> Tensor:
            nonlocal agreement, nonfinite
            values = compute(images)
            nonfinite += int((~values.isfinite()).sum())
            agreement += float(output.score(values, self.reference.predict(images.half().float())).sum())
            return values.nan_to_num()

        at_once = batch * max(self.at_once // batch, 1)
        board = find_objects(
            self.network, self.images, self.categories, levels=levels, at_once=at_once, progress=self.progress
        ).record()
        if nonfinite:
            return EngineVerdict({}, f"gives NaN or infinity ({nonfinite} values)")
        if not self.judges:
            return EngineVerdict({}, None)
        agreement = min(agreement / self.count, 1.0)
        failure = next(_losses(self.host, board, self.objects, tolerances), None)
        if failure is None and not rounds and agreement < tolerances.agreement:
            least = f"{tolerances.agreement:.0%} is required"
            failure = f"agrees with fp32 to {agreement:.2%} on {self.count} images, {least}"
        return EngineVerdict({}, failure, agreement, self.host, board)

    def remarks(self) -> list[str]:
        """Warn of losses that the images are too few to detect."""
        objects, more = self.objects.total(), "give more with --data or --max-images"
        if not self.judges:
            few = f"only {self.count} images to judge by, {LEAST_IMAGES} are the least"
            return [f"PRECISION ON THE BOARD NOT CHECKED: {few}; {more}"]
        if objects >= _FEW:
            return []
        points = 100 * ALWAYS_ALLOWED / objects
        return [f"{objects} objects: an engine that loses {points:.0f} points of average precision passes; {more}"]


def _losses(
    host: DetectionRecord, board: DetectionRecord, objects: Counter[str], tolerances: GateTolerances
) -> Iterator[str]:
    """Describe losses of average precision beyond the tolerances."""
    for kind, on_host, on_board in (("boxes", host.boxes, board.boxes), ("masks", host.masks, board.masks)):
        if on_host is None or on_board is None:
            continue
        if (lost := on_host.ap - on_board.ap) > max(tolerances.drop, ALWAYS_ALLOWED / objects.total()):
            shares = f"{on_host.ap:.1%} in fp32 here, {on_board.ap:.1%} on the board"
            yield f"loses {100 * lost:.1f} points of AP of {kind} on {host.images} images ({shares})"
        for name, before in on_host.per_class.items():
            after = on_board.per_class[name]
            if before is None or after is None:
                continue
            if before - after > max(tolerances.class_drop, ALWAYS_ALLOWED / objects[name]):
                shares = f"{before:.1%} in fp32 here, {after:.1%} on the board"
                yield f"loses {100 * (before - after):.1f} points of AP of {kind} of {name!r} ({shares})"


def annotated(
    judging: Judging,
    network: Network,
    showing: Sequence[str] | None,
    *,
    reference: Path,
    at_once: int,
    progress: Progress,
) -> Annotated | None:
    """Images whose objects a detector finds by levels of the file in fp32; None: nothing is annotated in them.

    Args:
        showing: the classes that the detector is for; None: all.
        at_once: images whose levels are held at once.

    Raises:
        OptionError: pycocotools is not installed.
        UnsupportedModelError: the detector's labels are not those of the data.
    """
    images, source = judging.split, judging.split.source
    if not isinstance(source, CocoImages):
        return None
    categories = source.chosen(showing)
    shown = {e.category for r in images.references for e in source.objects(r) if not e.crowd}
    if not shown & {*categories}:
        return None
    model, digest = OnnxModel(reference), hashlib.sha256()

    def levels(prepared: Tensor) -> Tensor:
        halves = prepared.cpu().half()
        digest.update(halves.numpy().tobytes())
        return model.predict(halves.float())

    host = find_objects(network, images, categories, levels=levels, at_once=at_once, progress=progress).record()
    return Annotated(
        network, images, categories, model, at_once, judging.data, judging.part, host, digest.hexdigest(),
        progress,
    )  # fmt: skip
