"""A whole detector as one file: images to boxes, for ONNX Runtime.

Proposals and their suppression depend on the image, which torch's newer exporter refuses; the older one traces them.
The file takes one image of the size of the network, as its transform has it before it is normalised.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor
from torchvision.ops import box_iou

from edgevit.data.sources.coco import CocoImages
from edgevit.errors import ExportError
from edgevit.exporting.images import Judging
from edgevit.exporting.losses import ALWAYS_ALLOWED
from edgevit.exporting.session import open_session, runtime_boundary
from edgevit.network.detector import Pyramid
from edgevit.network.network import Network
from edgevit.network.plain_detector import DETECTIONS
from edgevit.progress import Progress
from edgevit.records.export import WholeDetector
from edgevit.train.detections import find_objects

IMAGE = "image"
COMPARED_IMAGES = 16
# Limits: share of boxes, overlap of one with torch's, its score, loss of AP.
LEAST_SAME, LEAST_OVERLAP, SCORE_ERROR, DROP = 0.99, 0.95, 0.01, 0.01
_OPSET = 17  # the newest that the older exporter is tested with
_FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, torch.onnx.OnnxExporterError)

Detect = Callable[[Sequence[Tensor]], list[dict[str, Tensor]]]  # what is in each image [3, H, W], from 0 to 1


def write_detector(pyramid: Pyramid, path: Path, input_size: Sequence[int], metadata: Mapping[str, str]) -> None:
    """Write the detector as a file.

    Raises:
        ExportError: torch's exporter cannot trace it.
    """
    detector, image = pyramid.detector.eval(), torch.rand(*input_size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        names = [*detector([image])[0]]
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                detector, ([image],), str(path), dynamo=False, opset_version=_OPSET, input_names=[IMAGE],
                output_names=names,
            )  # fmt: skip
    except _FAILURES as error:
        module, reason = getattr(detector, "module", detector), " ".join(str(error).split())[:200]
        raise ExportError(
            f"torch's exporter cannot write the whole {type(module).__name__} ({reason}); leave --whole out, and "
            "combine the levels of model.fp32.onnx with heads of your own"
        ) from error
    model = onnx.load(path)
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.save(model, path)


def open_detector(path: Path) -> Detect:
    """Run the file, image by image.

    Raises:
        ExportError: ONNX Runtime cannot run it.
    """
    with runtime_boundary(path, ExportError):
        session = open_session(path)
    names = [output.name for output in session.get_outputs()]

    def detect(images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        with runtime_boundary(path, ExportError):
            outputs = [session.run(None, {IMAGE: image.numpy()}) for image in images]
        return [
            {name: torch.from_numpy(value) for name, value in zip(names, of_image, strict=True)} for of_image in outputs
        ]

    return detect


def _same(expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> int:
    """The number of boxes that both find, with the same label and nearly the same place and score."""
    if not len(expected["boxes"]) or not len(actual["boxes"]):
        return 0
    fits = box_iou(expected["boxes"], actual["boxes"]) >= LEAST_OVERLAP
    fits &= expected["labels"][:, None] == actual["labels"]
    fits &= (expected["scores"][:, None] - actual["scores"]).abs() <= SCORE_ERROR
    return int(fits.any(1).sum())


def _whole_images(pyramid: Pyramid, detect: Detect) -> Detect:
    """What a file finds in images of any size: they are resized as the detector's transform does."""
    transform: Any = pyramid.detector.transform
    mean, std = (torch.tensor(pyramid.preprocessing[name])[:, None, None] for name in ("mean", "std"))

    def resized(images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        prepared = transform([*images])[0]
        detections = detect([image * std + mean for image in prepared.tensors])
        boxes = [{name: of_image[name] for name in DETECTIONS} for of_image in detections]
        whole: list[dict[str, Tensor]] = transform.postprocess(
            boxes, prepared.image_sizes, [(image.shape[1], image.shape[2]) for image in images]
        )
        return whole

    return resized


@torch.inference_mode()
def compare_detector(
    network: Network,
    path: Path,
    images: Tensor,
    judging: Judging | None,
    showing: Sequence[str] | None,
    progress: Progress,
) -> WholeDetector:
    """Compare what the file and torch find: in some normalised images [B, C, H, W], and in those with annotations.

    Raises:
        ExportError: they differ too much.
    """
    pyramid = network.eval().module
    assert isinstance(pyramid, Pyramid)
    detector: Any = pyramid.detector
    detect = open_detector(path)
    mean, std = (torch.tensor(pyramid.preprocessing[name])[:, None, None] for name in ("mean", "std"))
    boxes = matching = extra = 0
    for image in images[:COMPARED_IMAGES] * std + mean:
        (expected,), (actual,) = detector([image]), detect([image])
        boxes += len(expected["boxes"])
        extra += abs(len(actual["boxes"]) - len(expected["boxes"]))
        matching += _same(expected, actual)
    if matching < LEAST_SAME * (boxes + extra):
        raise ExportError(
            f"{path.name} finds {matching} of the {boxes} boxes that torch finds in {len(images)} images, and {extra} "
            f"more or fewer; {LEAST_SAME:.0%} are required; leave --whole out, and report the detector"
        )
    record = WholeDetector(path.name, len(images[:COMPARED_IMAGES]), boxes, matching)
    source = None if judging is None else judging.split.source
    if judging is None or not isinstance(source, CocoImages):
        return record
    categories, split = source.chosen(showing), judging.split
    if not {entry.category for r in split.references for entry in source.objects(r)} & {*categories}:
        return record
    of_torch = find_objects(network, split, categories, progress=progress).record()
    of_file = find_objects(
        network, split, categories, detect=_whole_images(pyramid, detect), progress=progress
    ).record()
    lost = of_torch.boxes.ap - of_file.boxes.ap
    if lost > max(DROP, ALWAYS_ALLOWED / of_torch.objects):
        raise ExportError(
            f"{path.name} has an AP of boxes of {of_file.boxes.ap:.1%} on {len(split)} images, and torch "
            f"{of_torch.boxes.ap:.1%}; leave --whole out, and report the detector"
        )
    return WholeDetector(record.file, record.images, boxes, matching, of_torch.boxes.ap, of_file.boxes.ap, len(split))
