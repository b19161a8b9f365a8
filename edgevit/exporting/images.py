"""The images that a model is judged on: its own task's, or other data's of the same classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgevit.data.classes import label_names
from edgevit.data.sources import open_source
from edgevit.data.task import Split, Task, open_task, reopen
from edgevit.errors import CheckpointError, DataError, OptionError, UnknownNameError
from edgevit.exporting.request import Part, check_part
from edgevit.progress import Progress
from edgevit.records.derivation import DataRecord
from edgevit.records.model import HINT, ModelSpec, Rejection
from edgevit.records.model_folder import ModelFolder
from edgevit.records.names import DERIVATION, SPEC
from edgevit.records.release import ReleaseFacts

NAMED = 4  # classes in a line


@dataclass(frozen=True)
class Subject:
    """The classes, preprocessing and images of a model, as its folder, its ONNX file or its timm name gives them."""

    class_names: tuple[str, ...]  # target classes; empty for a base
    class_columns: tuple[int, ...]  # for each, its column in the logits
    outputs: int
    preprocessing: dict[str, Any]
    seed: int = 42  # of the split it was derived with, so that what is called test here was not trained on there
    validation_fraction: float = 0.1
    group_by: str | None = None
    release: ReleaseFacts = field(default_factory=ReleaseFacts)  # of a base: what the files beside its weights say
    record: DataRecord | None = None  # of the images it was derived from, where they are known
    rejection: Rejection | None = None
    said_by: str = "the model"  # what gave the above, for messages


@dataclass(frozen=True)
class Judging:
    """Images of one part, with the model's own columns for their classes."""

    split: Split
    class_names: tuple[str, ...]
    columns: tuple[int, ...]
    data: str
    part: Part
    task: Task  # that the images are of

    @property
    def part_images(self) -> int:
        """All that the part has, of which `split` may be a sample."""
        return len(self.task.test if self.part == "test" else self.task.validation)

    def limited(self, count: int | None) -> Judging:
        """At most `count` images, spread evenly over the classes."""
        if count is None:
            return self
        return replace(self, split=self.split.subset(count))


def data_record(folder: Path) -> DataRecord | None:
    """Read what derivation.json says of the data; None where the folder is a base, or a slice that needed none.

    Raises:
        CheckpointError: the file is there and cannot be read.
    """
    derivation = ModelFolder(folder).derivation()
    return derivation.data if derivation else None


def subject_of(spec: ModelSpec, record: DataRecord | None = None) -> Subject:
    subject = Subject(
        class_names=tuple(spec.class_names),
        class_columns=tuple(spec.class_columns),
        outputs=spec.outputs,
        preprocessing=spec.preprocessing,
        record=record,
        rejection=spec.rejection,
    )
    if record is None:
        return subject
    split = {name: getattr(record, name) for name in ("seed", "validation_fraction", "group_by")}
    return replace(subject, **split)


def _open_data(
    subject: Subject,
    data: str | Path,
    classes: str | Path | Sequence[str | int] | None,
    base_classes: str | Path | Sequence[str] | None,
    seed: int | None,
    validation_fraction: float | None,
    group_by: str | None,
    skip_bad_images: bool,
    part: str,
    progress: Progress,
) -> Task:
    # A derived model's own classes are all it knows: to the data layer they are the base.
    names = subject.class_names or None
    if names is None and base_classes is None:
        labels, found = subject.release.labels, open_source(data).class_names
        base_classes = label_names(labels, found, subject.outputs, whole=classes is None)
    task = open_task(
        data,
        classes if classes is not None else names,
        preprocessing=subject.preprocessing,
        base_outputs=len(names) if names else subject.outputs,
        base_names=names or base_classes,
        validation_fraction=subject.validation_fraction if validation_fraction is None else validation_fraction,
        seed=subject.seed if seed is None else seed,
        group_by=subject.group_by if group_by is None else group_by,
        skip_bad_images=skip_bad_images,
        check=(part,),
        progress=progress,
    )
    foreign = [name for name in task.test.source.class_names if names and name not in names]
    if foreign and classes is None and subject.rejection is None:  # a model that rejects is judged on them, too
        what = "1 class" if len(foreign) == 1 else f"{len(foreign)} classes"
        few = f"{', '.join(map(repr, foreign[:NAMED]))}{', ...' if len(foreign) > NAMED else ''}"
        progress.note(f"not used: {what} of the data that the model does not have ({few})")
    return task


@contextmanager
def _told_by(whose: str) -> Iterator[None]:
    """Say which file it was, and not the user, that asked for images or classes which are not there."""
    try:
        yield
    except (DataError, UnknownNameError) as error:
        raise DataError(f"{error} ({whose})") from error


def open_judging(
    subject: Subject,
    data: str | Path | None,
    *,
    progress: Progress,
    classes: str | Path | Sequence[str | int] | None = None,
    base_classes: str | Path | Sequence[str] | None = None,
    part: str = "test",
    seed: int | None = None,
    validation_fraction: float | None = None,
    group_by: str | None = None,
    skip_bad_images: bool = False,
) -> Judging:
    """Open the images to judge a model on; with no data given, those of its own derivation.

    Raises:
        DataError: the images are missing or gone, or their classes cannot be matched with the model's.
        UnknownNameError, OptionError: a class, a part, or an option that does not fit.
    """
    check_part(part)
    parted_by = (seed, validation_fraction, group_by)
    if data is None and subject.record is None:
        raise DataError("the model does not say which images it was derived from; give them with --data")
    if data is None and classes is not None:
        raise OptionError("--classes chooses among the classes of --data; give that, too")
    if data is None:
        assert subject.record is not None
        with _told_by(f"{DERIVATION} of the model says that it was derived from {subject.record.data!r}"):
            task = reopen(subject.record, subject.preprocessing, progress, check=(part,))
    elif classes is None and subject.class_names:
        with _told_by(f"{subject.said_by} names the classes"):
            task = _open_data(subject, data, None, base_classes, *parted_by, skip_bad_images, part, progress)
    else:
        task = _open_data(subject, data, classes, base_classes, *parted_by, skip_bad_images, part, progress)
    column_of = dict(zip(subject.class_names, subject.class_columns, strict=True))
    if strange := [name for name in task.class_names if column_of and name not in column_of]:
        raise CheckpointError(f"{DERIVATION} of the model names the class {strange[0]!r}, and {SPEC} does not; {HINT}")
    columns = [column_of[name] for name in task.class_names] if column_of else task.base_columns
    chosen: Part = "test" if part == "test" else "validation"
    split = task.test if chosen == "test" else task.validation
    return Judging(split, tuple(task.class_names), tuple(columns), task.arguments["data"], chosen, task)
