"""Accuracy of a base, a model folder or an ONNX file on images of its classes.

Outputs without classes are compared with those of the model folder, in torch or by the file that was imported, on
images of any classes, and maps with their targets where the data has them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgevit.data.assumptions import CHECK, Sureness, assumptions
from edgevit.data.loading import workers_for
from edgevit.data.rejection import count_rejected, foreign_images
from edgevit.data.shares import constant_text
from edgevit.data.sources.coco import CocoImages
from edgevit.data.splitting import PARTS
from edgevit.data.task import Split
from edgevit.errors import CheckpointError, DataError, ModelError, OptionError
from edgevit.exporting.images import Judging, Subject, data_record, open_judging, subject_of
from edgevit.exporting.imported.source import open_imported
from edgevit.exporting.probes import Labelled, probe_features, read_features
from edgevit.exporting.request import ONNX, JudgeRequest, Part
from edgevit.exporting.session import OUTPUT_KIND, OnnxModel
from edgevit.exporting.source import Predict
from edgevit.exporting.targets import Targets, find_targets, judge_maps
from edgevit.network.accuracy import measure_accuracy
from edgevit.network.classifier import with_features
from edgevit.network.device import find_device
from edgevit.network.folder import load
from edgevit.network.likeness import Likeness
from edgevit.network.model import Headless, tensors_sha256
from edgevit.network.network import Network
from edgevit.network.opening import open_network
from edgevit.network.output import Levels, Logits, Map, Output
from edgevit.progress import Progress, Silent
from edgevit.records.class_names import ClassName
from edgevit.records.derivation import (
    DetectionRecord,
    Fraction,
    MapScore,
    RejectedRecord,
    Seed,
    SimilarityRecord,
)
from edgevit.records.model import Index, OutputKind, Preprocessing, Rejection, TextPreprocessing
from edgevit.records.model_folder import ModelFolder
from edgevit.records.names import EXPORT, suffix_of
from edgevit.train.detections import find_objects


@dataclass(frozen=True)
class Evaluation:
    """Top-1 accuracy on one part of the data, or agreement with the model folder."""

    model: str
    form: str  # form of the model: "torch", "onnx" or "engine"
    data: str
    part: Part
    images: int
    top1: float | None = None  # top-1 among the target classes; None: the outputs are not logits
    top1_full: float | None = None  # top-1 among all outputs of the classifier; None: the outputs are not logits
    outputs: int = 0  # number of the classifier's outputs; 0: there is no classifier
    # Top-1 among the target classes by class; None: the class has no images.
    per_class: dict[str, float | None] = field(default_factory=dict)
    images_per_class: dict[str, int] = field(default_factory=dict)
    rejected: RejectedRecord | None = None  # number of images classified as `other`; None: the model has no such rule
    # Mean score with the model folder's answers as targets; None: not compared, as for logits.
    agreement: float | None = None
    # Top-1 of each classifier that was fitted to the features, by name; None: none was requested.
    probes: dict[str, float] | None = None
    targets: MapScore | None = None  # score of maps against their targets; None: there are none
    similarity: SimilarityRecord | None = None  # of features to those of the base; None: not compared
    # What a detector finds in images with annotations; None: no detector, or no annotations.
    detections: DetectionRecord | None = None


@dataclass(frozen=True)
class _Split:
    """The split of the images that an exported model was derived from."""

    seed: Seed
    validation_fraction: Fraction
    group_by: str | None = None


@dataclass(frozen=True)
class ModelUnderTest:
    """A model to be evaluated: a base, a model folder, an ONNX file or an engine."""

    form: str  # form of the model: "torch", "onnx" or "engine"
    predict: Predict  # on any device
    subject: Subject
    folder: ModelFolder | None = None  # model folder from which a file or engine was made; None: there is none
    network: Network | None = None  # network of a model in torch; None: a file or an engine


def open_onnx(path: Path, device: str) -> ModelUnderTest:
    """Open a file that edgevit wrote, with its metadata.

    Raises:
        CheckpointError: the file or its metadata is damaged, or edgevit did not write it.
    """
    model = OnnxModel(path, device=device)
    of_texts = model.input.type == "tensor(int64)"
    images: Preprocessing | TextPreprocessing
    if of_texts:
        images = model.described("preprocessing", TextPreprocessing)
    else:
        images = model.described("preprocessing", Preprocessing)
    split = model.described("split", _Split)
    kind: OutputKind = "logits"
    if OUTPUT_KIND in model.metadata:
        kind = model.described(OUTPUT_KIND, OutputKind)  # type: ignore[arg-type]
    subject = Subject(
        origin=str(path),
        class_names=model.described("class_names", tuple[ClassName, ...]),
        class_columns=model.described("class_columns", tuple[Index, ...]),
        outputs=model.output.shape[1] if kind == "logits" else 0,
        preprocessing=images.plain(),
        rejection=model.described("rejection", Rejection) if "rejection" in model.metadata else None,
        seed=split.seed,
        validation_fraction=split.validation_fraction,
        group_by=split.group_by,
        output_kind=kind,
    )
    names, columns = subject.class_names, subject.class_columns
    fits = max(columns, default=-1) < subject.outputs and list(images.input_size) == list(model.input.shape[1:])
    if not fits or not len(names) == len(columns) == len(set(names)) == len(set(columns)):
        raise CheckpointError(f"{path} has metadata that contradicts its input or output; export the model again")
    return ModelUnderTest("onnx", model.predict, subject, ModelFolder(path.absolute().parent.parent))


def _open_torch(model: str | Path, device: str, progress: Progress, **options: Any) -> ModelUnderTest:
    opened = open_network(model, progress=progress, **options)
    opened = opened.described() if isinstance(opened, Headless) else opened
    target = find_device(device)
    network = opened.to(target)
    record = data_record(Path(model)) if Path(model).is_dir() else None
    subject = replace(subject_of(opened.spec, record), release=opened.release)
    return ModelUnderTest("torch", lambda images: network(images.to(target)), subject, network=network)


def _images(subject: Subject, request: JudgeRequest, **options: Any) -> Judging:
    return open_judging(
        subject, request.data, classes=request.classes, part=request.part, seed=request.seed,
        validation_fraction=request.validation_fraction, group_by=request.group_by,
        skip_bad_images=request.skip_bad_images, **options,
    ).limited(request.max_images)  # fmt: skip


def _open_judging(subject: Subject, request: JudgeRequest, progress: Progress) -> Judging:
    """Open the images of an evaluation; note the assumptions about the outputs of a base.

    Raises:
        OptionError: --base-classes is given for a model that names its classes.
    """
    if subject.class_names and request.base_classes is not None:
        raise OptionError(f"{request.model} names its classes itself; leave --base-classes out")
    judging = _images(subject, request, base_classes=request.base_classes, progress=progress)
    if not subject.class_names and subject.output_kind == "logits":
        assumed = assumptions(
            request.model,
            judging.task,
            pretrained=request.pretrained,
            base_classes=request.base_classes,
            overridden=request.preprocessing,
            release=subject.release,
        )
        for line in assumed.lines():
            progress.note(line)
    return judging


def _foreign_images(subject: Subject, judging: Judging, max_images: int | None, progress: Progress) -> Split | None:
    """Images of other classes, for a model that classifies images as `other`."""
    if subject.rejection is None:
        return None
    images = foreign_images(judging.task, judging.part, subject.class_names, progress)
    return images if max_images is None else images.subset(max_images)


def _rejected(subject: Subject, judging: Judging, batches: list[Tensor]) -> RejectedRecord | None:
    """Count the images classified as `other`; the logits [B, C] are of target images, then of foreign ones."""
    if subject.rejection is None:
        return None
    logits, count = torch.cat(batches), len(judging.split)
    position = [subject.class_names.index(name) for name in judging.class_names]
    labels = [position[label] for label in judging.split.labels]
    return count_rejected(subject.rejection.rejects, logits[:count], labels, logits[count:])


def evaluate_files(request: JudgeRequest, progress: Progress | None = None) -> Evaluation:
    """Evaluate a model on this machine; raises as `edgevit.evaluate` does."""
    request.check()
    progress, model = progress or Silent(), request.model
    find_device(request.device)
    if ModelFolder(Path(model)).is_imported:
        source = open_imported(Path(model))
        if source.document.assumed:
            progress.note(source.document.assumed_text)
        candidate = ModelUnderTest("onnx", source.predictor(request.device), source.subject)
    elif suffix_of(model) == ONNX:
        candidate = open_onnx(Path(model), request.device)
    else:
        candidate = _open_torch(model, request.device, progress, **request.opening())
    return evaluate_opened(candidate, request, progress)


def _finite(candidate: ModelUnderTest, output: Output, request: JudgeRequest, images: Tensor) -> Tensor:
    """The outputs of some images.

    Raises:
        ModelError: one is not finite.
    """
    outputs = candidate.predict(images)
    if not bool(torch.isfinite(outputs).all()):
        raise ModelError(
            f"{request.model}: its {output.noun} of {request.part} images are not finite; derive or export it again"
        )
    return outputs


def _probed(candidate: ModelUnderTest, request: JudgeRequest, progress: Progress) -> Evaluation:
    """Fit classifiers to the features of labelled images, and judge them on the held-out ones.

    Raises:
        OptionError: the model puts out no features.
    """
    subject = candidate.subject
    if subject.output_kind != "features":
        does = {"logits": "classifies images itself", "boxes": "gives boxes"}.get(subject.output_kind, "gives maps")
        raise OptionError(f"--probe is for features, and {request.model} {does}; leave it out")
    judging = _images(subject, request, check=PARTS, labelled=True, progress=progress)
    workers = workers_for(request.workers, find_device(request.device).type, request.batch_size)

    def read(images: Split) -> Labelled:
        with progress.stage("features", len(images), "image") as stage:
            return read_features(candidate.predict, images, request.batch_size, workers, stage.update)

    shares = probe_features(request.probe, judging.task, judging.split, read)
    return _evaluation(candidate, judging, request, len(judging.split), probes=shares)


def _evaluation(
    candidate: ModelUnderTest, judging: Judging, request: JudgeRequest, images: int, **figures: Any
) -> Evaluation:
    return Evaluation(str(request.model), candidate.form, judging.data, judging.part, images, **figures)


def _of_folder(candidate: ModelUnderTest, judging: Judging, request: JudgeRequest) -> Network:
    """The network of the model folder of a file or an engine.

    Raises:
        CheckpointError: it is in none.
    """
    if candidate.folder is None or not candidate.folder.is_model:
        raise CheckpointError(
            f"{request.model} gives {judging.output.noun}, to be compared with those of its model folder, and is in "
            "none; leave it in MODEL/export"
        )
    return load(candidate.folder.path).to(find_device(request.device))


def _reference(candidate: ModelUnderTest, judging: Judging, request: JudgeRequest) -> Predict:
    """The function of the model folder of a file or an engine; raises as `_of_folder` does."""
    if candidate.folder is not None and candidate.folder.is_imported:
        return open_imported(candidate.folder.path).predictor(request.device)
    network, device = _of_folder(candidate, judging, request), find_device(request.device)
    return lambda images: network(images.to(device))


def _base_of(folder: ModelFolder) -> Network | None:
    """The base of a derived backbone, which puts out the same features; None: it is not at hand.

    It is the folder `base` beside it or the one it names, if that has the weights that the model states: its own, or
    those from which it was written with other features.
    """
    record, spec = folder.derivation(), folder.document().spec
    places = () if record is None else (folder.path.absolute().with_name("base"), Path(record.base))
    for place in places:
        if not ModelFolder(place).is_model:
            continue
        base = load(place)
        of_base, is_bare = base.spec, base.spec.output_kind == "features"
        hashes = [tensors_sha256(base.state_dict()), *([of_base.base.weights_sha256] if is_bare else [])]
        blocks = len(spec.base.blocks)
        if spec.base.weights_sha256 not in hashes or of_base.blocks[:blocks] != spec.base.blocks:
            continue
        if not is_bare or not (of_base.outputs or of_base.depths):
            return with_features(base, spec.tokens, (blocks,) if spec.tokens is None else spec.depths)
        if (of_base.tokens, of_base.depths, len(of_base.blocks)) == (spec.tokens, spec.depths, blocks):
            return base
    return None


def _likeness(
    candidate: ModelUnderTest, base: Network, judging: Judging, request: JudgeRequest, progress: Progress
) -> Evaluation:
    """Compare the features of a model folder with those of its base."""
    device, likeness = find_device(request.device), Likeness()
    base.to(device)
    workers = workers_for(request.workers, device.type, request.batch_size)
    with progress.stage("compare features", len(judging.split), "image") as stage, torch.inference_mode():
        for images, _ in judging.split.batches(request.batch_size, workers):
            likeness.add(base(images.to(device)), _finite(candidate, judging.output, request, images))
            stage.update(sum(map(len, likeness.cosines)))
    record = likeness.record()
    return _evaluation(candidate, judging, request, record.images, similarity=record)


def _compared(candidate: ModelUnderTest, judging: Judging, request: JudgeRequest, progress: Progress) -> Evaluation:
    """Compare outputs without classes with those of the model folder, or features of the folder with its base's.

    Raises:
        CheckpointError: the file is in no model folder.
        OptionError: it is the model folder itself, and no base of its features is at hand.
    """
    if candidate.folder is None:
        folder = ModelFolder(Path(request.model))
        if judging.output.kind == "features" and folder.is_model and (base := _base_of(folder)) is not None:
            return _likeness(candidate, base, judging, request, progress)
        noun, tried = "features", "--probe knn,linear tells what they are worth on labelled images"
        if folder.is_model and folder.derivation() is not None:
            place = folder.path.with_name("base")
            note = ", where another model is," if place.is_dir() else ""
            tried += f", and with its base in {place}{note} they are compared with the base's"
        if isinstance(judging.output, Levels):
            noun, tried = "boxes", "give --data with annotated images in COCO's format, such as instances.json"
        if isinstance(judging.output, Map):
            noun, tried = "maps", "give --data with images/, and their targets in masks/ by the same names"
        if candidate.form == "onnx":
            tried += f"; files and engines of {request.model}/{EXPORT} are compared with it"
        raise OptionError(f"{request.model} has no classifier, and gives {noun}: {tried}")
    reference, output, done, agreement = _reference(candidate, judging, request), judging.output, 0, 0.0
    workers = workers_for(request.workers, find_device(request.device).type, request.batch_size)
    with progress.stage("evaluate", len(judging.split), "image") as stage, torch.inference_mode():
        for images, _ in judging.split.batches(request.batch_size, workers):
            expected = reference(images).float().cpu()
            outputs = _finite(candidate, output, request, images).float().cpu().reshape(expected.shape)
            agreement += float(output.score(outputs, output.answers(expected)).sum())
            done += len(images)
            stage.update(done)
    return _evaluation(candidate, judging, request, done, agreement=agreement / done)


def _judged_by_targets(
    candidate: ModelUnderTest, output: Map, targets: Targets, request: JudgeRequest, progress: Progress
) -> Evaluation:
    """Compare maps with those that the data has, by the `score` of the user's module if it has one."""
    network = candidate.network
    if network is None and candidate.folder is not None and candidate.folder.is_model:
        with suppress(CheckpointError):  # a folder from elsewhere, whose code is not run unasked
            network = load(candidate.folder.path)
    module = network.module if network is not None and hasattr(network.module, "score") else None
    count = len(targets.images) if request.max_images is None else min(request.max_images, len(targets.images))
    judged = judge_maps(
        candidate.predict, output, targets, module, owner=str(request.model), batch_size=request.batch_size,
        count=count, progress=progress,
    )  # fmt: skip
    return Evaluation(str(request.model), candidate.form, str(request.data), "test", count, targets=judged)


def _detected(candidate: ModelUnderTest, judging: Judging, request: JudgeRequest, progress: Progress) -> Evaluation:
    """Compare what a detector finds with what is annotated; of a file, the rest of the detector is its model folder's.

    Raises:
        CheckpointError: the file is in no model folder.
        DataError: there is no object of a class that is to be judged.
    """
    network, source = candidate.network or _of_folder(candidate, judging, request), judging.split.source
    assert isinstance(source, CocoImages)
    record = candidate.subject.record
    categories = source.chosen(request.classes or (record.showing if record else None))
    shown = {entry.category for r in judging.split.references for entry in source.objects(r)}
    if request.classes is not None and (absent := [name for i, name in categories.items() if i not in shown]):
        raise DataError(
            f"none of the {len(judging.split)} {judging.part} images shows an object of {absent[0]!r}; leave it out"
        )
    levels = None if candidate.network is not None else candidate.predict
    detections = find_objects(
        network, judging.split, categories, levels=levels, at_once=request.batch_size, progress=progress
    ).record()
    return _evaluation(candidate, judging, request, detections.images, detections=detections)


def evaluate_opened(candidate: ModelUnderTest, request: JudgeRequest, progress: Progress) -> Evaluation:
    """Evaluate an opened model; raises as `edgevit.evaluate` does."""
    model = request.model
    if request.probe:
        return _probed(candidate, request, progress)
    if isinstance(candidate.subject.output, Map):
        targets = find_targets(request.data, candidate.subject.preprocessing)
        if targets is not None:
            return _judged_by_targets(candidate, candidate.subject.output, targets, request, progress)
    judging = _open_judging(candidate.subject, request, progress)
    if isinstance(judging.output, Levels) and isinstance(judging.split.source, CocoImages):
        return _detected(candidate, judging, request, progress)
    if not isinstance(judging.output, Logits):
        return _compared(candidate, judging, request, progress)
    foreign = _foreign_images(candidate.subject, judging, request.max_images, progress)
    workers = workers_for(request.workers, find_device(request.device).type, request.batch_size)
    target_logits: list[Tensor] = []  # by batch, if the model classifies images as `other`
    with progress.stage("evaluate", len(judging.split) + len(foreign or ()), "image") as stage:
        done = 0

        def predict(images: Tensor) -> Tensor:
            nonlocal done
            logits = _finite(candidate, judging.output, request, images)
            done += len(images)
            stage.update(done)
            if foreign is not None:
                target_logits.append(logits[:, list(candidate.subject.class_columns)].float().cpu())
            return logits

        batches = judging.split.batches(request.batch_size, workers)
        accuracy = measure_accuracy(predict, batches, judging.output, judging.class_names)
        if foreign is not None and len(foreign):
            with torch.inference_mode():
                for images, _ in foreign.batches(request.batch_size, workers):
                    predict(images)
    sureness = Sureness(
        judging.part,
        accuracy.images,
        sum(accuracy.full),
        sum(accuracy.restricted),
        candidate.subject.outputs,
        len(judging.class_names),
    )
    if sureness.near_chance:
        progress.warn(f"{model} is {sureness.text()}; {CHECK}")
    images_per_class = dict(zip(accuracy.class_names, accuracy.total, strict=True))
    if (constant := constant_text(images_per_class, accuracy.top1)) is not None:
        progress.warn(constant)
    return _evaluation(
        candidate,
        judging,
        request,
        accuracy.images,
        top1=accuracy.top1,
        top1_full=accuracy.top1_full,
        outputs=candidate.subject.outputs,
        per_class=accuracy.per_class(),
        images_per_class=images_per_class,
        rejected=_rejected(candidate.subject, judging, target_logits),
    )
