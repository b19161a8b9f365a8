"""What a detector finds in annotated images, by COCO's rules: average precision of boxes, and of masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.transforms.functional import to_tensor

from edgevit.data.objects import LearntObjects, Targets
from edgevit.data.sources.coco import CocoImages, CocoObject
from edgevit.data.task import Split, Task
from edgevit.errors import DataError, ModelError, OptionError, UnsupportedModelError
from edgevit.network.detector import Pyramid
from edgevit.network.network import Network
from edgevit.progress import Progress, Silent
from edgevit.records.derivation import DetectionRecord, PrecisionRecord

Kind = Literal["bbox", "segm"]
_Entries = list[dict[str, Any]]  # images, objects or answers, as COCO has them
ComputeLevels = Callable[[Tensor], Tensor]  # all levels [B, values] of prepared images [B, C, H, W]
BATCH = 4  # images at once, each of which may have a hundred masks
LEAST = 0.5  # probability of a pixel that is in a mask


def refuse_no_pycocotools() -> None:
    """Refuse to score boxes without the package that has COCO's rules.

    Raises:
        OptionError: it is not installed.
    """
    try:
        import pycocotools.mask  # noqa: F401
    except ImportError as error:
        raise OptionError(
            "average precision needs pycocotools: pip install 'edgevit[detection]', or give images without annotations"
        ) from error


def label_categories(detector: nn.Module, categories: Sequence[int]) -> dict[int, int]:
    """The category of each label of a detector: the label itself, or where ids have gaps that of this rank, from 1.

    Raises:
        UnsupportedModelError: the detector has another number of classes.
    """
    outputs = _class_outputs(detector)
    if outputs is None or max(categories) < outputs:
        return {category: category for category in categories}
    if len(categories) + 1 == outputs:
        return dict(enumerate(sorted(categories), 1))
    raise UnsupportedModelError(
        f"the detector has {outputs} classes with the background, and the data {len(categories)} categories with ids "
        f"up to {max(categories)}; its labels are to be these ids, or their ranks from 1"
    )


def _class_outputs(detector: Any) -> int | None:
    """The number of classes that a detector of torchvision's kind distinguishes, background included."""
    for path in ("roi_heads.box_predictor.cls_score", "head.classification_head"):
        try:
            part: Any = detector.get_submodule(path)
        except AttributeError:
            continue
        outputs = getattr(part, "out_features", None) or getattr(part, "num_classes", None)
        if isinstance(outputs, int):
            return outputs
    return None


def check_objects(network: Network, images: Split, categories: Mapping[int, str], progress: Progress) -> None:
    """Check, before a detector runs, that what it finds in annotated images can be judged.

    Raises:
        OptionError: pycocotools is not installed.
        UnsupportedModelError: its labels are not those of the data.
        DataError: none of the images shows one of the categories.
    """
    refuse_no_pycocotools()
    assert isinstance(network.module, Pyramid) and isinstance(images.source, CocoImages)
    label_categories(network.module.detector, [*images.source.categories])
    if images.source.dropped:
        progress.warn(f"left out {images.source.dropped} annotated objects whose boxes have no area")
    shown = {entry.category for r in images.references for entry in images.source.objects(r) if not entry.crowd}
    if not shown & {*categories}:
        names = ", ".join([*categories.values()][:8])
        raise DataError(f"none of the {len(images)} images to be judged shows an object of {names}; give others")


@dataclass(frozen=True)
class Findings:
    """The matches of what was found with what is annotated, by image and class."""

    evaluated: Mapping[str, Any]  # evaluations of pycocotools, by "boxes" and "masks"
    categories: Mapping[int, str]
    images: int
    objects: int

    def record(self, positions: Sequence[int] | None = None) -> DetectionRecord:
        """The average precision on all images, or on those at these positions, which may be repeated."""
        records = {name: self._precision(evaluated, positions) for name, evaluated in self.evaluated.items()}
        return DetectionRecord(self.images, self.objects, records["boxes"], records.get("masks"))

    def _precision(self, evaluated: Any, positions: Sequence[int] | None) -> PrecisionRecord:
        every = evaluated.evalImgs
        chosen = range(self.images) if positions is None else positions
        evaluated.evalImgs = [every[first + i] for first in range(0, len(every), self.images) for i in chosen]
        evaluated.params.imgIds = evaluated._paramsEval.imgIds = list(range(len(chosen)))
        with redirect_stdout(StringIO()):
            evaluated.accumulate()
        evaluated.evalImgs = every
        # Shape: overlaps, recalls, classes, areas (the first: all), numbers of boxes (the last: 100).
        precision = evaluated.eval["precision"][:, :, :, 0, -1]
        of_class = {name: precision[:, :, k] for k, name in enumerate(self.categories.values())}
        per_class = {name: min(float(p.mean()), 1.0) if p.max() >= 0 else None for name, p in of_class.items()}
        judged = [of_class[name] for name, ap in per_class.items() if ap is not None]
        mean = np.stack(judged).mean((0, 2)) if judged else np.zeros(1)
        return PrecisionRecord(min(float(mean.mean()), 1.0), min(float(mean[0]), 1.0), per_class)


def _coco(images: _Entries, objects: _Entries, categories: Mapping[int, str]) -> Any:
    from pycocotools.coco import COCO

    coco = COCO()
    coco.dataset = {
        "images": images, "annotations": objects,
        "categories": [{"id": category, "name": name} for category, name in categories.items()],
    }  # fmt: skip
    with redirect_stdout(StringIO()):
        coco.createIndex()
    return coco


def _annotated(objects: Sequence[CocoObject], image: int) -> _Entries:
    """The objects of one image, as COCO has them."""
    return [
        {
            "image_id": image, "category_id": entry.category, "bbox": list(entry.box),
            "area": entry.box[2] * entry.box[3], "iscrowd": int(entry.crowd), "segmentation": entry.mask,
        }
        for entry in objects
    ]  # fmt: skip


def _answers(detections: Mapping[str, Tensor], image: int, category_of: Mapping[int, int]) -> _Entries:
    """What was found in one image, as COCO has it."""
    from pycocotools.mask import encode

    boxes, labels, scores = (detections[name].cpu() for name in ("boxes", "labels", "scores"))
    boxes = torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)
    entries = []
    for i, (box, label, score) in enumerate(zip(boxes.tolist(), labels.tolist(), scores.tolist(), strict=True)):
        if label in category_of:
            entry = {"image_id": image, "category_id": category_of[label], "bbox": box, "score": score, "iscrowd": 0}
            entry["area"] = box[2] * box[3]
            if "masks" in detections:
                mask = (detections["masks"][i].reshape(detections["masks"].shape[-2:]) > LEAST).cpu().numpy()
                entry["segmentation"] = encode(np.asfortranarray(mask.astype(np.uint8)))
            entries.append(entry)
    return entries


def _detections(
    pyramid: Pyramid,
    images: Split,
    levels: ComputeLevels | None,
    detect: Callable[[list[Tensor]], Any] | None,
    at_once: int,
    device: torch.device,
) -> Iterator[tuple[int, Mapping[str, Tensor], tuple[int, int]]]:
    """Run a detector on the images; yield the position of each, what is found in it, and its height and width."""
    detector: Any = pyramid.detector
    given: list[Tensor] = []  # the levels of the next batches

    def read(batch: Sequence[int]) -> list[Tensor]:
        return [to_tensor(images.picture(i)).to(device) for i in batch]

    with ExitStack() as stack:
        for start in range(0, len(images), at_once):
            positions = range(start, min(start + at_once, len(images)))
            batches = [positions[i : i + BATCH] for i in range(0, len(positions), BATCH)]
            if levels is not None:
                prepared = torch.cat([detector.transform(read(batch))[0].tensors for batch in batches])
                if start == 0:  # once, as it runs the backbone
                    stack.enter_context(pyramid.reading(lambda _: given.pop(0), prepared[:1]))
                given.extend(torch.split(levels(prepared), BATCH))
            for batch in batches:
                pictures = read(batch)
                for i, picture, of_image in zip(batch, pictures, (detect or detector)(pictures), strict=True):
                    yield i, of_image, (picture.shape[1], picture.shape[2])


@torch.inference_mode()
def find_objects(
    network: Network,
    images: Split,
    categories: Mapping[int, str],
    *,
    levels: ComputeLevels | None = None,
    detect: Callable[[list[Tensor]], Any] | None = None,
    at_once: int = BATCH,
    progress: Progress | None = None,
) -> Findings:
    """Run a detector on images of COCO's format, as they are on disk: its own transform prepares them.

    Args:
        levels: gives the levels of the pyramid for at most `at_once` images, as in a file; None: the detector's own.
        detect: gives boxes, labels and scores of pictures [3, H, W], as the detector does; None: the detector itself.

    Raises:
        ModelError: a box or a score is not finite.
        others as `check_objects`.
    """
    progress = progress or Silent()
    check_objects(network, images, categories, progress)
    from pycocotools.cocoeval import COCOeval

    assert isinstance(network.module, Pyramid) and isinstance(images.source, CocoImages)
    device = next(network.parameters()).device
    category_of = label_categories(network.module.detector.eval(), [*images.source.categories])
    listed, annotated, answers, strange = _Entries(), _Entries(), _Entries(), Counter[int]()
    with progress.stage("find objects", len(images), "image") as stage:
        found = _detections(network.module, images, levels, detect, at_once, device)
        for i, of_image, (height, width) in found:
            listed.append({"id": i, "width": width, "height": height})
            annotated += _annotated(images.source.objects(images.references[i]), i)
            if not all(bool(of_image[name].isfinite().all()) for name in ("boxes", "scores")):
                raise ModelError(
                    f"the detector gives boxes or scores of {images.references[i]} that are not finite; check "
                    "its weights, and the preprocessing"
                )
            answers += _answers(of_image, i, category_of)
            strange.update(label for label in of_image["labels"].tolist() if label not in category_of)
            stage.update(i + 1)
    if strange and not answers:  # a detector of more categories than the data has finds others, too
        shown = f"{min(strange)} to {max(strange)}" if len(strange) > 1 else f"{min(strange)}"
        progress.warn(
            f"all {strange.total()} boxes have labels ({shown}) that are no category, and count as none: the data has "
            f"{min(category_of)} to {max(category_of)}"
        )
    annotated = [entry for entry in annotated if entry["category_id"] in categories]
    for number, entry in enumerate([*annotated, *answers], 1):  # COCO's rules take 0 for no object
        entry["id"] = number
    kinds: dict[str, Kind] = {"boxes": "bbox"}
    if "masks" in of_image and all(entry["segmentation"] is not None for entry in annotated):
        kinds["masks"] = "segm"
    categories = dict(sorted(categories.items()))  # as COCO's rules order them
    evaluated = {}
    for name, kind in kinds.items():
        whole, answered = (_coco(listed, [dict(o) for o in objects], categories) for objects in (annotated, answers))
        if kind == "segm":
            _measure_areas(whole)
            _measure_areas(answered)
        evaluated[name] = COCOeval(whole, answered, kind)
        evaluated[name].params.imgIds, evaluated[name].params.catIds = list(range(len(images))), list(categories)
        with redirect_stdout(StringIO()):
            evaluated[name].evaluate()
    return Findings(evaluated, categories, len(images), sum(not entry["iscrowd"] for entry in annotated))


def detector_loss(model: nn.Module, images: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """The outputs of a detector in training mode, and the sum of its own losses of these images."""
    moved = [{name: value.to(images.device) for name, value in target.items()} for target in targets]
    outputs, losses = model(images, moved)
    return outputs, torch.stack([*losses.values()]).sum()


def box_precision(network: Network, task: Task) -> float:
    """The average precision of a detector's boxes on the validation part, of the categories that it learns."""
    assert task.objects is not None and isinstance(task.validation.source, CocoImages)
    categories = {i: name for i, name in task.validation.source.categories.items() if i in task.objects.label_of}
    was_training = network.training
    detections = find_objects(network.eval(), task.validation, categories)
    network.train(was_training)
    return detections.record().boxes.ap


def learnt_objects(network: Network, task: Task, untrained: str | None = None) -> LearntObjects:
    """What a detector can learn from the annotations of a task's images.

    Args:
        untrained: says which part of it has no weights, so that it must learn; None: all of it has some.

    Raises:
        OptionError: they have none, or pycocotools is not installed.
        UnsupportedModelError: its labels are not those of the data, or it has no losses.
        DataError: there is no object in a part, or one has no mask, and the detector learns masks.
    """
    data, source = task.arguments["data"], task.train.source
    must = "" if untrained is None else f"{untrained}, so it is to be trained: "
    otherwise = "imitate the base alone by --method forge --teacher restricted --teacher-weight 1"
    if must:
        otherwise = "give the weights of all"
    if not isinstance(source, CocoImages):
        raise OptionError(
            f"{must}this derivation learns from the objects in the images, and {data} has no instances.json; give "
            f"annotated images, or {otherwise}"
        )
    if task.unlabelled is not None:
        raise OptionError("a detector that learns from objects takes no unlabelled images; leave --unlabelled out")
    assert isinstance(network.module, Pyramid)
    chosen = source.chosen(task.arguments.get("showing"))
    for images in (task.train, task.validation):
        check_objects(network, images, chosen, Silent())
    categories = label_categories(network.module.detector, [*source.categories])
    if fault := network.module.loss_fault(network.input_size, max(categories)):
        raise UnsupportedModelError(
            f"{must}this derivation needs a detector's own losses, and {fault}; give it such, or {otherwise}"
        )
    objects = LearntObjects({c: label for label, c in categories.items() if c in chosen}, network.module.has_masks)
    for reference in task.train.references if objects.masks else ():
        if any(entry.mask is None for entry in objects.of(source, reference)):
            raise DataError(
                f"the detector learns masks, and an object in {reference} has none; add it, or leave it out"
            )
    return objects


def _measure_areas(coco: Any) -> None:
    """Set the areas of objects to those of their masks."""
    from pycocotools.mask import area

    for entry in coco.dataset["annotations"]:
        entry["area"] = float(area(coco.annToRLE(entry)))
