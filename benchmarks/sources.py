"""The base and the images of a table: the project's, or a user's own.

    --base rendered                                       # 24 rendered classes, the default
    --base demo                                           # the demo's six, whose base trains in minutes
    --base fine                                           # 48 finer rendered classes
    --base fashion                                        # photographs of clothes
    --data IMAGES --base vit_small_patch16_224 --checkpoint FILE [--base-classes FILE]

Sub-tasks are drawn by their number of classes (`derivations.task_classes`), or named by --classes. Rows of a user's
images go into records/NAME_FOLDER.json; the script prints their tables, and the committed pages do not have them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks import bases
from benchmarks.derivations import SIZES, Case, Place, load, task_classes
from benchmarks.markdown import RECORDS, Row
from edgevit.data.classes import listed
from edgevit.data.sources import class_names
from edgevit.data.task import Task, open_task
from edgevit.errors import DataError, EdgeVitError, OptionError, UnknownNameError, UnsupportedModelError
from edgevit.network.model import Headless, Model, tensors_sha256
from edgevit.network.opening import open_network
from edgevit.progress import Progress, Silent
from edgevit.records.writing import write_whole

OURS = ("rendered", "demo", "fine", "fashion")
SWIN = "swin"  # the small Swin of product/swin.py, which knows the 24 rendered classes
ACCEPTING = ("accept_weak_base", "accept_preprocessing")  # options of whatever checks the base
HALF_WIDTH = 96  # of the embedding of our smaller model; the bases have 192
SHARES = (0.25, 0.5, 0.75)  # of the classes of a user's folder: sub-tasks by default


def open_base(base: str | Path, **options: Any) -> Model:
    """Open a base by `edgevit.network.opening.open_network` and its options; refuse one without a classifier."""
    opened = open_network(base, **options)
    if isinstance(opened, Headless):
        raise UnsupportedModelError(f"{base} has no classifier; `edgevit base` fits one to the images of --data")
    return opened


@dataclass(frozen=True)
class Source:
    """Images by class, and a base that knows these classes."""

    name: str  # `data` of the rows
    data: Path
    start: dict[str, Any]  # of `edgevit.derive`: base, checkpoint, model_args, preprocessing, base_classes
    classes: tuple[str, ...]  # those that the folder has
    base_top1: float | None = None  # on all classes; None for a user's base
    cache: Path = bases.CACHE
    title: str = ""  # in tables; the name, unless given

    @cached_property
    def base(self) -> Model:
        """Open the base.

        Raises:
            CheckpointError, UnknownNameError, UnsupportedModelError: as `open_base`.
        """
        options = {name: value for name, value in self.start.items() if name not in ("base_classes", *ACCEPTING)}
        return open_base(options.pop("base"), **options)

    @cached_property
    def sha256(self) -> str:
        """Hash of the base's weights."""
        return tensors_sha256(self.base.state_dict())

    @property
    def label(self) -> str:
        return self.title or self.name

    def place(self, device: str = "cpu") -> Place:
        """What derivations of this source need."""
        return Place(self.data, self.start, self.classes, self.sha256, self.base_top1, self.cache, device)

    def task(self, classes: Sequence[str] | None = None, *, seed: int = 42) -> Task:
        """The images of these classes; of all that the folder has by default."""
        names = self.start.get("base_classes") or self.base.spec.output_names
        return open_task(
            self.data, list(classes or self.classes), preprocessing=self.base.preprocessing,
            base_outputs=self.base.spec.outputs, base_names=names, seed=seed,
        )  # fmt: skip

    def sub_tasks(self, sizes: Sequence[int] | None, named: str | None, most: int | None = None) -> list[list[str]]:
        """The classes of every sub-task: those that are named, or so many of the folder's.

        Args:
            most: the largest sub-task that the table can have, where that is not all of the classes.

        Raises:
            UnknownNameError: the folder has no class of a name.
            DataError: it has fewer classes than a sub-task takes.
        """
        classes = None if named is None else sorted(listed(named, self.classes) or [])
        if unknown := [name for name in classes or () if name not in self.classes]:
            raise UnknownNameError(f"class in {self.data}", unknown[0], self.classes)
        counts = sizes or sorted({max(round(share * len(self.classes)), 2) for share in SHARES})
        limit = len(self.classes) if most is None else most
        for size in counts if classes is None else [len(classes)]:
            if size > limit:
                raise DataError(
                    f"this table takes sub-tasks of up to {limit} of the {len(self.classes)} classes in {self.data}, "
                    f"not of {size}; give --tasks up to {limit}, or a folder of more classes"
                )
        return [task_classes(self.classes, size) for size in counts] if classes is None else [classes]


@dataclass(frozen=True)
class Selection:
    """A source with its sub-tasks, for rows of derivations."""

    source: Source
    place: Place
    sizes: tuple[int, ...]  # of the sub-tasks
    classes: tuple[str, ...] | None  # of the only sub-task, where they are named

    @property
    def name(self) -> str:
        return self.source.name

    def of(self, cases: Iterable[Case]) -> Iterator[Case]:
        """Move cases, whose `task` is one of the sizes, to these images."""
        return (replace(case, data=self.name, classes=self.classes) for case in cases)

    def rows(self, file: Path) -> dict[str, Row]:
        """The rows of a file that are of these sub-tasks."""
        named = None if self.classes is None else list(self.classes)
        rows = load(file).items()
        return {key: row for key, row in rows if row["task"] in self.sizes and row.get("classes") == named}

    def train_images(self) -> dict[int, int]:
        """How many images each sub-task trains on."""
        tasks = {size: self.classes or task_classes(self.place.classes, size) for size in self.sizes}
        return {size: len(self.source.task(classes).train) for size, classes in tasks.items()}


# -- the command line --------------------------------------------------------------------------------------------------


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where torch computes")


def add_source(parser: argparse.ArgumentParser, ours: Sequence[str] = OURS) -> None:
    """Give a script the options that select a source; the first of the project's bases is the default."""
    parser.set_defaults(ours=tuple(ours))
    parser.add_argument("--data", type=Path, help="an image folder of yours, in place of the project's images")
    names = f"{', '.join(ours)}; with --data a timm name or a model folder"
    parser.add_argument("--base", default=ours[0], help=names)
    parser.add_argument("--checkpoint", type=Path, help="weights of --base")
    parser.add_argument("--base-classes", help="class of each output of --base: a file, or names between commas")
    parser.add_argument("--tasks", type=int, nargs="+", help="numbers of classes of the sub-tasks")
    parser.add_argument("--classes", help="the one sub-task by its classes: a file, or names between commas")
    parser.add_argument("--accept-weak-base", action="store_true", help="as of edgevit derive")
    parser.add_argument("--accept-preprocessing", action="store_true", help="as of edgevit derive")
    parser.add_argument("--results", type=Path, help="file of the rows")
    parser.add_argument("--rows", type=int, help="so many of the first rows alone: for a trial")
    add_device(parser)


def source_from(options: argparse.Namespace, progress: Progress) -> Source:
    """Open the selected source; the project's own is made where it is not in the cache.

    Raises:
        OptionError: options contradict one another.
        DataError: there are no images.
    """
    if options.data is None:
        if options.base not in options.ours:
            raise OptionError(f"--base {options.base} is a base of yours and has no images; give --data FOLDER")
        if options.checkpoint or options.base_classes:
            raise OptionError(f"--checkpoint and --base-classes are of a base of yours, not of {options.base}")
        return project_source(options.base, progress)
    if options.base in options.ours:
        raise OptionError(f"--base {options.base} does not know the images of --data; give --base NAME")
    names = class_names(options.data)
    start = {
        "base": options.base, "checkpoint": options.checkpoint, "base_classes": listed(options.base_classes, names),
        **{name: getattr(options, name) or None for name in ACCEPTING},
    }  # fmt: skip
    return Source(
        options.data.name, options.data, {name: value for name, value in start.items() if value is not None},
        tuple(names), title=f"{options.data.name}, {options.base}",
    )  # fmt: skip


def select(options: argparse.Namespace, progress: Progress) -> Selection:
    """Open the selected source and its sub-tasks, for rows of derivations.

    Raises:
        OptionError, DataError: as `source_from` says; or a user's folder has the name of one of the project's.
        UnknownNameError, DataError: as `Source.sub_tasks` says.
    """
    if options.data is None and options.classes is not None:
        raise OptionError("sub-tasks of the project's images are drawn by their size; --classes goes with --data")
    if options.data is not None and options.data.name in (*OURS, "digits"):
        raise OptionError(
            f"rows of {options.data} would be called {options.data.name}, as those of the project's own images; "
            "give the folder another name, or a link to it"
        )
    source = source_from(options, progress)
    sizes = options.tasks or (SIZES[options.base] if options.data is None else None)
    tasks = source.sub_tasks(sizes, options.classes)
    classes = None if options.classes is None else tuple(tasks[0])
    return Selection(source, source.place(options.device), tuple(map(len, tasks)), classes)


def start_of(base: Path) -> dict[str, Any]:
    """The options of `edgevit.derive` that open a base of bases.py."""
    card = json.loads((base / "base.json").read_text())
    return {
        "base": card["timm_name"],
        "checkpoint": base / "base.safetensors",
        "model_args": card["model_args"],
        "preprocessing": {"mean": card["mean"], "std": card["std"], "crop_pct": 1.0},
    }


def project_source(name: str, progress: Progress | None = None, **model_args: Any) -> Source:
    """One of the project's bases and its images; or one of that recipe with other timm arguments (rendered, demo)."""
    if name == SWIN:
        from benchmarks.product.swin import place

        of = place(progress or Silent())
        return Source(name, of.data, {**of.start, "base_classes": list(of.classes)}, of.classes, of.base_top1)
    if model_args:
        whole = {"rendered": bases.RENDERED_ARGS, "demo": bases.DEMO_ARGS}[name]
        ensure = {"rendered": bases.ensure_rendered, "demo": bases.ensure_demo}[name]
        data, base = ensure(progress, {**whole, **model_args})
    else:
        data, base = bases.ENSURE[name](progress)
    card = json.loads((base / "base.json").read_text())
    classes = tuple(card["classes"])
    return Source(name, data, {**start_of(base), "base_classes": list(classes)}, classes, card["val_top1"])


def smaller(options: argparse.Namespace, progress: Progress) -> Source | None:
    """Open a smaller model for the same images: the project's base at half its width, or a user's --small.

    None where there is none.
    """
    if options.data is None and options.base in ("rendered", "demo"):
        return project_source(options.base, progress, embed_dim=HALF_WIDTH)
    if options.data is None or options.small is None:
        return None
    return source_from(
        argparse.Namespace(**{**vars(options), "base": options.small, "checkpoint": options.small_checkpoint}), progress
    )


# -- rows and predictions ----------------------------------------------------------------------------------------------


def predictor(network: Any, device: str) -> Callable[[Any], Any]:
    """Return a function from images to logits on that device; `network` itself is not moved, as it may be shared."""
    local = network if device == "cpu" else deepcopy(network).to(device)
    return lambda images: local(images.to(device))


def record_file(options: argparse.Namespace, name: str, unnamed: Sequence[str] = OURS) -> Path:
    """The file of the rows: NAME.json for the bases `unnamed`, NAME_BASE.json or NAME_FOLDER.json for all others."""
    if options.results:
        return Path(options.results)
    if options.data is None and options.base in unnamed:
        return RECORDS / f"{name}.json"
    return RECORDS / f"{name}_{options.base if options.data is None else options.data.name}.json"


def load_rows(file: Path) -> list[Row]:
    return list(json.loads(file.read_text())["rows"]) if file.is_file() else []


def store_rows(file: Path, rows: Sequence[Row]) -> None:
    write_whole(file, json.dumps({"schema": 1, "rows": list(rows)}, indent=1) + "\n")


@contextmanager
def refusals() -> Iterator[None]:
    """Print what edgevit refuses in one line, and exit 1."""
    try:
        yield
    except EdgeVitError as error:
        sys.exit(str(error))
