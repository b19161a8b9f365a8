"""A task: the images of the target classes, and which of them are for what.

Three parts are kept apart: `train`; `validation`, for all choices; and `test`, which is only reported. If the data does
not have one of the last two, it is split off the training data by seed. A task may also have unlabelled images, of any
class, for a teacher.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from PIL.Image import Image
from torch import Tensor
from torch.utils.data import Dataset

from edgevit.data.batches import make_loader
from edgevit.data.classes import base_list, base_order, listed, refuse_unnamed, resolve
from edgevit.data.examine import FEW, copies, find_unreadable, image_sha256
from edgevit.data.objects import LearntObjects
from edgevit.data.request import Augment
from edgevit.data.similar import warn_of_recordings
from edgevit.data.sources import ImageSource, Part, Reference, open_pictures, open_source, open_unlabelled
from edgevit.data.sources.coco import CocoImages
from edgevit.data.sources.documents import Documents
from edgevit.data.sources.folder import Folder, Images
from edgevit.data.splitting import PARTS, Splitting
from edgevit.data.transforms import (
    JoinedImages,
    TransformedImages,
    VariedImages,
    evaluation_transform,
    training_transform,
    varying_transform,
)
from edgevit.errors import DataError, OptionError
from edgevit.progress import Progress, Silent
from edgevit.records.derivation import DataRecord, ImageCounts, UnlabelledRecord
from edgevit.records.model import TargetClass, reads_texts
from edgevit.records.reading import Reading

UNLABELLED = -1  # the label of images of no known class
VARIANTS = 4  # most varied copies of an image


@dataclass(frozen=True)
class Split:
    """Images of one part, in a fixed order."""

    source: ImageSource
    references: tuple[Reference, ...]
    labels: tuple[int, ...]  # for each image, the position of its class among the task's, or UNLABELLED
    preprocessing: Mapping[str, Any]
    seeds: tuple[int | None, ...] | None = None  # for each image, by which it is varied, or None; None: no image is

    def __len__(self) -> int:
        return len(self.references)

    def name(self, position: int) -> tuple[Reference, int | None]:
        """What an image is known by: its reference, and the seed by which it is varied."""
        return self.references[position], None if self.seeds is None else self.seeds[position]

    def picture(self, position: int) -> Image:
        """Read one image in RGB, without the transform."""
        return self.source.read(self.references[position], Reading.of(self.preprocessing))

    def _images(self, transform: Any) -> TransformedImages:
        return TransformedImages(self.source, self.references, self.labels, transform, Reading.of(self.preprocessing))

    def batches(self, batch_size: int, workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every image once: (images float32 [B, C, H, W], labels int64 [B])."""
        starts = range(0, len(self), batch_size)
        yield from self.read([range(i, min(i + batch_size, len(self))) for i in starts], workers)

    def read(self, positions: Sequence[Sequence[int]], workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images at these positions in batches: (images float32 [B, C, H, W], labels int64 [B])."""
        images: Dataset[tuple[Tensor, int]]
        images = plain = self._images(evaluation_transform(self.preprocessing))
        if self.seeds is not None:
            images = VariedImages(plain, self._images(varying_transform(self.preprocessing)), self.seeds)
        yield from make_loader(images, positions, workers)

    def training_batches(
        self,
        order: Iterable[Sequence[tuple[int, int]]],
        augment: Augment,
        workers: int = 0,
        unlabelled: Split | None = None,
        objects: LearntObjects | None = None,
    ) -> Iterator[tuple[Tensor, Any]]:
        """Yield augmented batches; `order` has for each batch the positions and the augmentation seeds of its images.

        Positions from `len(self)` on are of the unlabelled images. With `objects` images have these in place of labels.
        """
        if objects is not None:
            yield from objects.batches(self.source, self.references, self.preprocessing, order, augment, workers)
            return
        transform = training_transform(self.preprocessing, augment)
        images: Dataset[tuple[Tensor, int]]
        images = labelled = self._images(transform)
        if unlabelled is not None:
            images = JoinedImages(labelled, unlabelled._images(transform))
        yield from make_loader(images, order, workers)

    def subset(self, count: int) -> Split:
        """Choose at most `count` images, spread evenly over all of them and so over the classes."""
        n = len(self)
        if count >= n:
            return self
        return self.at([i * n // count for i in range(count)])

    def at(self, positions: Sequence[int]) -> Split:
        """Select the images at these positions, in this order."""
        references, labels = tuple(self.references[i] for i in positions), tuple(self.labels[i] for i in positions)
        seeds = None if self.seeds is None else tuple(self.seeds[i] for i in positions)
        return Split(self.source, references, labels, self.preprocessing, seeds)

    def with_variants(self, count: int) -> Split:
        """Add varied copies until there are `count` images, at most `VARIANTS` of each, which follow it.

        Texts are not varied.
        """
        n = len(self)
        total = min(count, (1 + VARIANTS) * n)
        if total <= n or reads_texts(self.preprocessing):
            return self
        positions = [i for i in range(n) for _ in range(i * total // n, (i + 1) * total // n)]
        before = zip(positions, [-1, *positions[:-1]], strict=True)
        seeds = (place if i == previous else None for place, (i, previous) in enumerate(before))
        return replace(self.at(positions), seeds=tuple(seeds))

    def content_sha256(self) -> str:
        """Hash the images, their labels and the seeds by which they are varied, in order."""
        digest = hashlib.sha256()
        for i, label in enumerate(self.labels):
            reference, seed = self.name(i)
            digest.update(f"{label} ".encode() if seed is None else f"{label} {seed} ".encode())
            digest.update(_image_sha256(self.source, reference))
        return digest.hexdigest()

    def listing(self) -> Iterator[str]:
        """Yield a line per image: its label, name and, for files, size."""
        for reference, label in zip(self.references, self.labels, strict=True):
            path = Path(str(reference)) if self.source.files else None
            size = path.stat().st_size if path and path.is_file() else 0  # a link to nothing was a file once
            name = f"{path.parent.name}/{path.name} {size}" if path else str(reference)
            yield f"{label} {name}\n"

    def fingerprint(self) -> str:
        """Hash the names and, for files, sizes of the images."""
        digest = hashlib.sha256()
        for line in self.listing():
            digest.update(_bytes(line))
        return digest.hexdigest()

    def part(self, index: int, count: int) -> Split:
        """Select the `index`-th of `count` interleaved shares, for one of several processes."""
        return self.at(range(index, len(self), count))


@dataclass(frozen=True)
class Task:
    """Images by their parts, and their classes: there may be no images (`edgevit.data.in_memory`), or no classes."""

    classes: tuple[TargetClass, ...]
    train: Split
    validation: Split
    test: Split
    arguments: dict[str, Any] = field(repr=False)  # arguments of `open_task`, for `reopen`
    skipped: int = 0  # number of images left out because they could not be read
    checked: tuple[Part, ...] = PARTS  # parts of which every image was read
    # Number of images of a part that the training part contains, too, by part.
    copies: Mapping[Part, int] = field(default_factory=dict)
    unlabelled: Split | None = None  # images of any class for a teacher, none of them held out; None: there are none
    objects: LearntObjects | None = None  # objects that a detector learns from; None: no annotation is read

    @property
    def has_images(self) -> bool:
        return bool(self.train.references)

    def part(self, name: Part) -> Split:
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]

    def calibration(self, count: int) -> Split:
        """Choose at most `count` images for what needs no labels: of the training part, and then unlabelled ones."""
        chosen, more = self.train.subset(count), self.unlabelled
        if more is None or len(chosen) == count or not (self.train.source.files and more.source.files):
            return chosen
        trained = set(chosen.references)
        more = more.at([i for i, reference in enumerate(more.references) if reference not in trained])
        more = more.subset(count - len(chosen))
        return replace(chosen, references=chosen.references + more.references, labels=chosen.labels + more.labels)

    @property
    def class_names(self) -> list[str]:
        return [c.name for c in self.classes]

    @property
    def base_columns(self) -> list[int]:
        """For each target class, its column in the base's logits."""
        return [c.base_index for c in self.classes]

    def record(self) -> DataRecord:
        """Make the record for derivation.json, which `reopen` reads."""
        arguments, unlabelled = dict(self.arguments), None
        names, extra = arguments.pop("base_names"), arguments.pop("unlabelled")
        if (more := self.unlabelled) is not None:
            unlabelled = UnlabelledRecord(extra, len(more), more.fingerprint())
        return DataRecord(
            **arguments,
            base_names=None if names is None else tuple(names),
            classes=self.classes,
            images=ImageCounts(len(self.train), len(self.validation), len(self.test)),
            skipped_images=self.skipped,
            fingerprint=self.fingerprint(),
            contents={part: self.part(part).content_sha256() for part in self.checked},
            copies=dict(self.copies),
            unlabelled=unlabelled,
        )

    def content_sha256(self) -> str:
        """Hash the images, their labels and parts."""
        parts = " ".join(self.part(name).content_sha256() for name in PARTS)
        return hashlib.sha256(parts.encode()).hexdigest()

    def fingerprint(self) -> str:
        """Hash the names and, for files, sizes of the images by part."""
        digest = hashlib.sha256()
        for name, split in (("train", self.train), ("validation", self.validation), ("test", self.test)):
            for line in split.listing():
                digest.update(_bytes(f"{name} {line}"))
        return digest.hexdigest()


def _bytes(line: str) -> bytes:
    return line.encode("utf-8", "surrogateescape")  # the name of a file may be no UTF-8


_hashes: WeakKeyDictionary[ImageSource, dict[Reference, bytes]] = WeakKeyDictionary()  # a derivation asks often


def _image_sha256(source: ImageSource, reference: Reference) -> bytes:
    if source.files:
        return image_sha256(str(reference))
    hashes = _hashes.setdefault(source, {})
    if reference not in hashes:
        hashes[reference] = hashlib.sha256(source.read(reference).tobytes()).digest()
    return hashes[reference]


def _resolved(data: str | Path) -> str:
    return str(Path(data).resolve()) if Path(data).exists() else str(data)


def _open_unlabelled(
    data: str | Path, held_out: Sequence[Split], skip_bad_images: bool, progress: Progress
) -> tuple[Split, set[Reference]]:
    """Open unlabelled images, without those that are held out of training; also return those that cannot be read.

    Raises:
        DataError: there are none, or one cannot be read and bad images are not to be skipped.
    """
    source, references = open_unlabelled(data)
    bad = set[Reference]()
    if source.files:
        reading = Reading.of(held_out[0].preprocessing)
        bad = find_unreadable(references, skip_bad_images, progress, reading)
    readable = tuple(r for r in references if r not in bad)
    split = Split(source, readable, (UNLABELLED,) * len(readable), held_out[0].preprocessing)
    if not readable:
        raise DataError(f"none of the {len(references)} unlabelled images in {data} can be read; add others")
    return without(split, held_out, progress), bad


def without(unlabelled: Split, held_out: Sequence[Split], progress: Progress) -> Split:
    """Remove the images that are held out of training, by content; only files of the same sizes are read.

    Raises:
        DataError: none would remain.
    """
    source = unlabelled.source
    held = {
        _image_sha256(split.source, r)
        for split in held_out
        if split.source.files == source.files
        for r in split.references
    }
    sizes = {Path(str(r)).stat().st_size for split in held_out if split.source.files for r in split.references}

    def is_training_image(reference: Reference) -> bool:
        if source.files and Path(str(reference)).stat().st_size not in sizes:
            return True
        return _image_sha256(source, reference) not in held

    remaining = tuple(r for r in unlabelled.references if is_training_image(r))
    if not remaining:
        raise DataError(f"all {len(unlabelled)} unlabelled images are held out for validation or test; add others")
    if removed := len(unlabelled) - len(remaining):
        progress.note(f"left out {removed} unlabelled images that are held out of training")
    return Split(source, remaining, (UNLABELLED,) * len(remaining), unlabelled.preprocessing)


def _report_annotations(sources: Sequence[object], progress: Progress) -> None:
    files = set[str]().union(*(source.annotations for source in sources if isinstance(source, Images)))
    if files:
        count = "1 annotation" if len(files) == 1 else f"{len(files)} annotations"
        progress.note(f"passed over {count} beside the images, such as {min(files)}")


def _in_place(files: Iterable[Reference], data: str | Path) -> list[str]:
    """List files by the resolved path of their data folder, so that they do not depend on how it is given."""
    return sorted(os.path.join(_resolved(data), os.path.relpath(str(file), data)) for file in files)


def _first_few(paths: Sequence[object]) -> str:
    more = f" and {len(paths) - FEW} more" if len(paths) > FEW else ""
    return f"{', '.join(map(str, paths[:FEW]))}{more}"


def open_task(
    data: str | Path,
    classes: str | Path | Sequence[str | int] | None,
    *,
    preprocessing: Mapping[str, Any],
    base_outputs: int,
    base_names: str | Path | Sequence[str] | None = None,
    validation_fraction: float = 0.1,
    seed: int = 42,
    group_by: str | None = None,
    skip_bad_images: bool = False,
    check: Sequence[str] = PARTS,
    unlabelled: str | Path | None = None,
    progress: Progress | None = None,
) -> Task:
    """Find the images of the target classes, and split them into parts.

    Args:
        classes: names, indices in the base, a file or comma-separated text of either; None for every class.
        base_names: the base's classes in the order of its outputs, if known: a list, or a file or text.
        group_by: the rule that groups images: see `Splitting`.
        check: parts whose images must be readable; all parts if bad images are skipped.
        unlabelled: more images, of any class, at any depth of a folder.

    Raises:
        DataError, UnknownNameError: as `edgevit.data.classes` and `edgevit.data.sources` say.
        OptionError: the validation fraction is not between 0 and 1.
    """
    _check_fraction(validation_fraction)
    source, progress = open_source(data), progress or Silent()
    names = base_list(base_names, source.class_names, base_outputs)
    order = base_order(source.class_names, names, base_outputs)
    if classes is None:
        refuse_unnamed(source.class_names, order)
        if isinstance(source, Folder) and (untrained := source.untrained()):
            progress.warn(
                f"{_first_few(untrained)} has no folder of the same class in {source.folders['train']}, and is not used"
            )
    targets = resolve(listed(classes, {*source.class_names, *order}), source.class_names, order)
    named = {"base_outputs": base_outputs, "base_names": names}
    splitting = Splitting(source, validation_fraction, seed, group_by)
    return _gathered(splitting, data, targets, preprocessing, named, skip_bad_images, check, unlabelled, progress)


def open_unlabelled_task(
    data: str | Path,
    *,
    preprocessing: Mapping[str, Any],
    outputs: int,
    validation_fraction: float = 0.1,
    seed: int = 42,
    group_by: str | None = None,
    skip_bad_images: bool = False,
    check: Sequence[str] = PARTS,
    unlabelled: str | Path | None = None,
    showing: str | Path | Sequence[str | int] | None = None,
    by_class: bool = False,
    progress: Progress | None = None,
) -> Task:
    """Split images into parts without their classes: those in a folder at any depth, or of another kind of data.

    Args:
        outputs: features of the base.
        group_by, check, unlabelled: as for `open_task`.
        showing: classes of annotated objects; images that show none of them are left out of all parts but the test
            part, where nothing is to be taken for one.
        by_class: whether the images of each class are split as for `open_task`, so that each part has all classes.

    Raises:
        DataError: there are no images, or too few, or none that shows a class; or, by class, they are not sorted.
        OptionError: as for `open_task`.
    """
    _check_fraction(validation_fraction)
    data = _resolved(data)  # names of images and the split are then those of `reopen` and `with_labels`
    source = open_source(data) if by_class else open_pictures(data)
    splitting = Splitting(source, validation_fraction, seed, group_by)
    named = {"base_outputs": outputs, "base_names": None}
    task = _gathered(
        splitting, data, (), preprocessing, named, skip_bad_images, check, unlabelled, progress or Silent()
    )
    unknown: dict[str, Any] = {
        part: replace(task.part(part), labels=(UNLABELLED,) * len(task.part(part))) for part in PARTS
    }
    arguments = {**task.arguments, "by_class": True} if by_class else task.arguments
    task = replace(task, arguments=arguments, **unknown)
    return task if showing is None else _showing(task, showing)


def _showing(task: Task, classes: str | Path | Sequence[str | int]) -> Task:
    """Leave out the images that show no object of these classes, except from the test part.

    Raises:
        OptionError: the images have no annotations.
        DataError: a part has no image that shows one, or the training part none of a class.
        UnknownNameError: there is no such class.
    """
    source, data = task.train.source, task.arguments["data"]
    if not isinstance(source, CocoImages):
        raise OptionError(f"--classes are those of annotated objects, and {data} has no instances.json; leave it out")
    categories = source.chosen(classes)
    parts: dict[str, Any] = {}
    for name in ("train", "validation"):
        split = task.part(name)
        shown = [{o.category for o in source.objects(r)} & categories.keys() for r in split.references]
        absent = [of_class for i, of_class in categories.items() if i not in set().union(*shown)]
        if absent and (name == "train" or len(absent) == len(categories)):
            raise DataError(f"none of the {len(split)} {name} images shows an object of {absent[0]!r}; leave it out")
        parts[name] = split.at([i for i, of_image in enumerate(shown) if of_image])
    return replace(task, arguments={**task.arguments, "showing": tuple(categories.values())}, **parts)


def with_labels(task: Task) -> Task:
    """The images of a task without classes in the same parts, each of the class that the data says.

    Images of no class are left out.

    Raises:
        DataError: the data is not sorted by class, or a part has no image of a class.
    """
    data = task.arguments["data"]
    source = open_source(data)
    parts = [part for part in PARTS if part in source.parts]
    label_of = {
        reference: label
        for label, name in enumerate(source.class_names)
        for part in parts
        for reference in source.references(part, name)
    }
    labelled: dict[str, Any] = {}
    without = "" if task.arguments.get("by_class") else ", split without labels,"
    for part in PARTS:
        split = task.part(part)
        split = split.at([i for i, reference in enumerate(split.references) if reference in label_of])
        labelled[part] = replace(split, labels=tuple(label_of[reference] for reference in split.references))
        if lacking := [name for i, name in enumerate(source.class_names) if i not in labelled[part].labels]:
            raise DataError(
                f"the {part} part of {data}{without} has no image of class {lacking[0]!r}; add some, give a larger "
                "--validation-fraction, or give train/, val/ and test/"
            )
    classes = tuple(TargetClass(name, i) for i, name in enumerate(source.class_names))
    return replace(task, classes=classes, **labelled)


def _check_fraction(validation_fraction: float) -> None:
    if not 0 < validation_fraction < 1:
        raise OptionError(f"validation fraction {validation_fraction} is not between 0 and 1; try 0.1")


def _gathered(
    splitting: Splitting,
    data: str | Path,
    targets: tuple[TargetClass, ...],
    preprocessing: Mapping[str, Any],
    named: Mapping[str, Any],
    skip_bad_images: bool,
    check: Sequence[str],
    unlabelled: str | Path | None,
    progress: Progress,
) -> Task:
    """Split the images of these classes, or of all where there are none, and look at the files.

    Args:
        named: the outputs of the base, and their names.
    """
    source = splitting.source
    if isinstance(source, Documents) != reads_texts(preprocessing):
        kinds = ("texts", "images") if reads_texts(preprocessing) else ("images", "texts")
        raise DataError(f"the base reads {kinds[0]}, and {data} has {kinds[1]}; give --data with {kinds[0]}")
    class_names = [target.name for target in targets] or list(source.class_names)
    parts = [splitting.parts(name) for name in class_names]
    bad: set[Reference] = set()
    checked: tuple[Part, ...] = tuple(part for part in PARTS if skip_bad_images or part in check)
    if source.files:
        everything = [r for part in parts for name in checked for r in part[name]]
        bad = find_unreadable(everything, skip_bad_images, progress, Reading.of(preprocessing))
        parts = [{k: [r for r in v if r not in bad] for k, v in part.items()} for part in parts]
        if splitting.group_by is None:
            warn_of_recordings(parts, [part for part in splitting.missing if part in checked], progress)
        else:
            _warn_of_groups(splitting, class_names, checked, progress)
    splits: dict[Part, Split] = {}
    for name in PARTS:
        if bare := [of_class for of_class, part in zip(class_names, parts, strict=True) if not part[name]]:
            of_class = f" of class {bare[0]!r}" if targets else ""
            raise DataError(f"no readable {name} images{of_class} in {data}; add some")
        pairs = [(reference, label) for label, part in enumerate(parts) for reference in part[name]]
        splits[name] = Split(source, tuple(r for r, _ in pairs), tuple(label for _, label in pairs), preprocessing)
    more, skipped = None, _in_place(bad, data)
    if unlabelled is not None:
        held_out = (splits["validation"], splits["test"])
        more, unreadable = _open_unlabelled(unlabelled, held_out, skip_bad_images, progress)
        skipped += _in_place(unreadable, unlabelled)
    if skipped:
        count = "1 image" if len(skipped) == 1 else f"{len(skipped)} images"
        progress.warn(f"left out {count} that cannot be read: {_first_few(skipped)}")
    _report_annotations([source, *([more.source] if more else [])], progress)
    arguments = {
        "data": _resolved(data),
        **named,
        "validation_fraction": splitting.validation_fraction,
        "seed": splitting.seed,
        "group_by": splitting.group_by,
        "skip_bad_images": skip_bad_images,
        "unlabelled": _resolved(unlabelled) if unlabelled is not None else None,
    }
    return Task(
        targets, splits["train"], splits["validation"], splits["test"], arguments, len(skipped), checked,
        _copies(splits, checked, progress), more,
    )  # fmt: skip


def _warn_of_groups(splitting: Splitting, names: Sequence[str], checked: Sequence[Part], progress: Progress) -> None:
    """Warn of groups that the data itself has on both sides, where --group-by cannot keep them together."""
    for part in checked:
        if part == "train" or part not in splitting.source.parts:
            continue
        groups = splitting.groups_in(part, names)
        if both := sorted(groups & splitting.groups_in("train", names)):
            progress.warn(
                f"{len(both)} of {len(groups)} groups of the {part} part are in the training part, too, such as "
                f"{both[0]}: the data brings both parts, and --group-by {splitting.group_by} moves no image between "
                "them, so accuracy is too high; move each group to one part, or all images to one folder of class "
                "folders"
            )


def _copies(splits: Mapping[Part, Split], checked: Sequence[Part], progress: Progress) -> dict[Part, int]:
    """Count the images of each part that the training part has, too, and warn of them."""
    counts: dict[Part, int] = {}
    train = splits["train"]
    for name in checked:
        if name == "train" or not train.source.files:
            continue
        if duplicates := copies(splits[name].references, train.references):
            count = len(duplicates)
            progress.warn(
                f"{count} of {len(splits[name])} {name} images {'is' if count == 1 else 'are'} in the training part, "
                f"too, byte for byte, such as {duplicates[0]}: accuracy on such images does not tell how new ones do; "
                "remove them from one part"
            )
        counts[name] = len(duplicates)
    return counts


def reopen(
    record: DataRecord,
    preprocessing: Mapping[str, Any],
    progress: Progress | None = None,
    check: Sequence[str] = PARTS,
) -> Task:
    """Open a task again from its record, with the same images in the same parts.

    Raises:
        DataError: the images are missing or have changed.
    """
    parting: dict[str, Any] = {
        "preprocessing": preprocessing,
        "validation_fraction": record.validation_fraction,
        "seed": record.seed,
        "group_by": record.group_by,
        "skip_bad_images": record.skip_bad_images,
        "check": check,
        "progress": progress,
    }
    if record.classes:
        names = [c.name for c in record.classes]
        outputs: dict[str, Any] = {"base_outputs": record.base_outputs, "base_names": record.base_names}
        task = open_task(record.data, names, **outputs, **parting)
    else:
        task = open_unlabelled_task(
            record.data, outputs=record.base_outputs, showing=record.showing, by_class=record.by_class, **parting
        )
    if task.fingerprint() != record.fingerprint:
        raise DataError(
            f"the images in {record.data} are not those the model was derived from; give others with --data"
        )
    for part, expected in record.contents.items():
        if part in task.checked and task.part(part).content_sha256() != expected:
            raise DataError(
                f"the {part} images in {record.data} have the names and sizes of those the model was derived from, and "
                "another content; give others with --data"
            )
    return task
