"""Open the images of an evaluation: those of the model's derivation, or other data of the same classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgevit.data.classes import label_names
from edgevit.data.sources import open_source
from edgevit.data.task import Split, Task, open_task, open_unlabelled_task, reopen
from edgevit.errors import CheckpointError, DataError, OptionError, UnknownNameError
from edgevit.exporting.request import Part, check_part
from edgevit.network.output import Levels, Map, Output, output_of
from edgevit.progress import Progress
from edgevit.records.derivation import DataRecord
from edgevit.records.model import HINT, ModelSpec, OutputKind, PreprocessingFields, Rejection
from edgevit.records.model_folder import ModelFolder
from edgevit.records.names import DERIVATION, SPEC
from edgevit.records.release import ReleaseFacts

_NAMED = 4  # classes in a message


@dataclass(frozen=True)
class Subject:
    """The classes, preprocessing and images of a model, from its folder, its ONNX file or its timm name."""

    class_names: tuple[str, ...]  # target classes; empty for a base
    class_columns: tuple[int, ...]  # columns of the target classes in the logits
    outputs: int  # number of the classifier's outputs; 0: there is no classifier
    preprocessing: PreprocessingFields
    seed: int = 42  # seed of the split of its derivation, so that the test part was not used for training
    validation_fraction: float = 0.1
    group_by: str | None = None
    # Files published with the weights of a base; empty: it is none, or has none.
    release: ReleaseFacts = field(default_factory=ReleaseFacts)
    record: DataRecord | None = None  # record of the images of its derivation; None: not known
    rejection: Rejection | None = None
    output_kind: OutputKind = "logits"
    origin: str = "the model"  # where these facts are from, as a noun for messages

    @property
    def output(self) -> Output:
        return output_of(self.output_kind, self.class_columns)


@dataclass(frozen=True)
class Judging:
    """Images of one part, and the output of the model: logits have columns of their classes."""

    split: Split
    class_names: tuple[str, ...]
    output: Output
    data: str
    part: Part
    task: Task

    @property
    def part_images(self) -> int:
        """The number of images of the part, of which `split` may be a sample."""
        return len(self.task.test if self.part == "test" else self.task.validation)

    def limited(self, count: int | None) -> Judging:
        """A sample of at most `count` images, spread evenly over the classes."""
        if count is None:
            return self
        return replace(self, split=self.split.subset(count))


def data_record(folder: Path) -> DataRecord | None:
    """Read the data of derivation.json; None: the folder is a base, or a slice that needed no images.

    Raises:
        CheckpointError: the file cannot be read.
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
        output_kind=spec.output_kind,
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
    check: Sequence[str],
    labelled: bool,
    progress: Progress,
) -> Task:
    options: dict[str, Any] = {
        "preprocessing": subject.preprocessing,
        "validation_fraction": subject.validation_fraction if validation_fraction is None else validation_fraction,
        "seed": subject.seed if seed is None else seed,
        "group_by": subject.group_by if group_by is None else group_by,
        "skip_bad_images": skip_bad_images,
        "check": check,
        "progress": progress,
    }
    is_of_features = subject.output_kind == "features"
    if isinstance(subject.output, (Levels, Map)) or (is_of_features and not labelled and classes is None):
        return open_unlabelled_task(data, outputs=max(subject.outputs, 1), **options)  # split as derivations split it
    # For the data, the classes of a derived model are those of the base.
    names = subject.class_names or None
    if is_of_features:  # which are judged on images of any classes
        names = tuple(open_source(data).class_names)
    elif names is None and base_classes is None:
        labels, names_of_data = subject.release.labels, open_source(data).class_names
        base_classes = label_names(labels, names_of_data, subject.outputs, whole=classes is None)
    task = open_task(
        data,
        classes if classes is not None else names,
        base_outputs=len(names) if names else subject.outputs,
        base_names=names or base_classes,
        **options,
    )
    foreign = [name for name in task.test.source.class_names if names and name not in names]
    if (
        foreign and classes is None and subject.rejection is None
    ):  # a model with a rejection rule is evaluated on them, too
        number = "1 class" if len(foreign) == 1 else f"{len(foreign)} classes"
        few = f"{', '.join(map(repr, foreign[:_NAMED]))}{', ...' if len(foreign) > _NAMED else ''}"
        progress.note(f"not used: {number} of the data that the model does not have ({few})")
    return task


@contextmanager
def _naming_origin(origin: str) -> Iterator[None]:
    """Add to an error about images or classes the file that names them, as the user did not."""
    try:
        yield
    except (DataError, UnknownNameError) as error:
        raise DataError(f"{error} ({origin})") from error


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
    check: Sequence[str] | None = None,
    labelled: bool = False,
) -> Judging:
    """Open the images of an evaluation; without data, those of the derivation of the model.

    Args:
        check: parts whose images must be readable; None: the one that is evaluated.
        labelled: whether the classes of the images matter although the model puts out features.

    Raises:
        DataError: the images are missing, or their classes do not match those of the model.
        UnknownNameError, OptionError: a class, a part or an option is wrong.
    """
    check_part(part)
    check = check or (part,)
    parted_by = (seed, validation_fraction, group_by)
    if data is None and subject.record is None:
        raise DataError("the model does not state the images that it was derived from; give them with --data")
    if data is None and classes is not None:
        raise OptionError("--classes selects classes of --data; give that, too")
    if data is None:
        assert subject.record is not None
        with _naming_origin(f"{DERIVATION} of the model says that it was derived from {subject.record.data!r}"):
            task = reopen(subject.record, subject.preprocessing, progress, check=check)
    elif classes is None and subject.class_names:
        with _naming_origin(f"{subject.origin} names the classes"):
            task = _open_data(subject, data, None, base_classes, *parted_by, skip_bad_images, check, labelled, progress)
    else:
        task = _open_data(subject, data, classes, base_classes, *parted_by, skip_bad_images, check, labelled, progress)
    column_of = dict(zip(subject.class_names, subject.class_columns, strict=True))
    if strange := [name for name in task.class_names if column_of and name not in column_of]:
        raise CheckpointError(f"{DERIVATION} of the model names the class {strange[0]!r}, and {SPEC} does not; {HINT}")
    columns = [column_of[name] for name in task.class_names] if column_of else task.base_columns
    chosen: Part = "test" if part == "test" else "validation"
    split = task.test if chosen == "test" else task.validation
    output = output_of(subject.output_kind, columns)
    return Judging(split, tuple(task.class_names), output, task.arguments["data"], chosen, task)
