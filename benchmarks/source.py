"""A base and its images for a figure: the project's rendered ones, or a user's own by a path.

    --base rendered                                       # 24 rendered classes, the default
    --base demo                                           # the demo's six, whose base takes minutes
    --base fine                                           # 48 finer classes, whose base the repository keeps
    --base fashion                                        # photographs of clothes, whose base it keeps, too
    --data IMAGES --base vit_small_patch16_224 --checkpoint FILE [--base-classes FILE]

Sub-tasks are of so many classes, drawn once by a seed that is their number (`accuracy.task_classes`), or of the classes
that are named. Rows of a user's images go into results/NAME_FOLDER.json, beside the project's own; a script that has
made such rows prints its tables of them, and RESULTS.md has those of the project's images alone.

The papers' COCO tables are of detection, which edgevit does not do: of COCO a folder of crops by class works as any.
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

from accuracy import OTHER_SIZES, TASK_SIZES, Case, Place, add_device, load, open_places, task_classes

from edgevit.data.classes import listed
from edgevit.data.sources import class_names
from edgevit.data.task import Task, open_task
from edgevit.errors import DataError, EdgeVitError, OptionError, UnknownNameError
from edgevit.network.checkpoint import Model, open_base, tensors_sha256
from edgevit.progress import Progress
from edgevit.records.writing import write_whole

RESULTS = Path(__file__).parent / "results"
OURS = ("rendered", "demo", "fine", "fashion")
KEPT = ("fine", "fashion")  # bases that the repository keeps, and no smaller model beside them
ACCEPTING = ("accept_weak_base", "accept_preprocessing")  # options of whatever checks the base
SMALL = 96  # width of the embedding of our small model; the bases have 192
SIZES = {"rendered": TASK_SIZES, **OTHER_SIZES}  # of the sub-tasks on the project's bases, where nobody chooses
SHARES = (0.25, 0.5, 0.75)  # of the classes, of the sub-tasks that nobody chose


@dataclass(frozen=True)
class Source:
    """Images by class, and a base that knows these classes."""

    title: str
    data: Path
    start: dict[str, Any]  # of `edgevit.derive`: base, checkpoint, model_args, preprocessing, base_classes
    classes: tuple[str, ...]  # those that the folder has
    cache: Path | None = None  # of derivations; None: the user's own

    @cached_property
    def base(self) -> Model:
        """The base itself.

        Raises:
            CheckpointError, UnknownNameError, UnsupportedModelError: as `open_base` says.
        """
        how = {name: value for name, value in self.start.items() if name not in ("base_classes", *ACCEPTING)}
        return open_base(how.pop("base"), **how)

    @cached_property
    def sha256(self) -> str:
        """Of the base's weights."""
        return tensors_sha256(self.base.network.state_dict())

    def task(self, classes: Sequence[str] | None = None, *, seed: int = 42) -> Task:
        """The images of these classes; None: of all that the folder has."""
        names = self.start.get("base_classes") or self.base.spec.output_names
        return open_task(
            self.data, list(classes or self.classes), preprocessing=self.base.preprocessing,
            base_outputs=self.base.spec.outputs, base_names=names, seed=seed,
        )  # fmt: skip

    def sub_tasks(self, sizes: Sequence[int] | None, named: str | None, most: int | None = None) -> list[list[str]]:
        """The classes of every sub-task: those that are named, or so many of the folder's.

        Args:
            most: the largest sub-task that the figure can be of, where that is not all of the classes.

        Raises:
            UnknownNameError: the folder has no class of a name.
            DataError: it has fewer classes than a sub-task takes.
        """
        chosen = None if named is None else sorted(listed(named, self.classes) or [])
        if unknown := [name for name in chosen or () if name not in self.classes]:
            raise UnknownNameError(f"class in {self.data}", unknown[0], self.classes)
        wanted = sizes or sorted({max(round(share * len(self.classes)), 2) for share in SHARES})
        limit = len(self.classes) if most is None else most
        for size in wanted if chosen is None else [len(chosen)]:
            if size > limit:
                raise DataError(self._too_few(size, limit))
        return [task_classes(self.classes, size) for size in wanted] if chosen is None else [chosen]

    def _too_few(self, size: int, limit: int) -> str:
        return (
            f"this figure takes sub-tasks of up to {limit} of the {len(self.classes)} classes in {self.data}, and one "
            f"of {size} was asked for; give --tasks up to {limit}, or a folder of more classes"
        )


@dataclass(frozen=True)
class Chosen:
    """What rows of accuracy.py are of: images and their base, and the sub-tasks."""

    name: str  # `data` of the rows
    source: Source
    place: Place
    sizes: tuple[int, ...]  # of the sub-tasks
    classes: tuple[str, ...] | None  # of the one sub-task, where they are named

    def of(self, cases: Iterable[Case]) -> Iterator[Case]:
        """The cases on these images, whose `task` is one of the sizes."""
        return (replace(case, data=self.name, classes=self.classes) for case in cases)

    def rows(self, file: Path) -> dict[str, dict[str, Any]]:
        """Those of a file that are of these sub-tasks."""
        named = None if self.classes is None else list(self.classes)
        rows = load(file).items()
        return {key: row for key, row in rows if row["task"] in self.sizes and row.get("classes") == named}

    def train_images(self) -> dict[int, int]:
        """How many images each sub-task trains on."""
        tasks = {size: self.classes or task_classes(self.place.classes, size) for size in self.sizes}
        return {size: len(self.source.task(classes).train) for size, classes in tasks.items()}


def add_source(parser: argparse.ArgumentParser, ours: Sequence[str] = OURS) -> None:
    """Give a script the options by which a source is chosen; the first of the project's bases is the default."""
    parser.set_defaults(ours=tuple(ours))
    parser.add_argument("--data", type=Path, help="an image folder of yours, in place of the project's images")
    told = f"{', '.join(ours)}; with --data a timm name or a model folder"
    parser.add_argument("--base", default=ours[0], help=told)
    parser.add_argument("--checkpoint", type=Path, help="weights of --base")
    parser.add_argument("--base-classes", help="class of each output of --base: a file, or names between commas")
    parser.add_argument("--tasks", type=int, nargs="+", help="numbers of classes of the sub-tasks")
    parser.add_argument("--classes", help="the one sub-task by its classes: a file, or names between commas")
    parser.add_argument("--accept-weak-base", action="store_true", help="as of edgevit derive")
    parser.add_argument("--accept-preprocessing", action="store_true", help="as of edgevit derive")
    parser.add_argument("--results", type=Path, help="file of the rows")
    parser.add_argument("--rows", type=int, help="so many of the first rows alone: for a trial")
    add_device(parser)


def source_from(given: argparse.Namespace, progress: Progress) -> Source:
    """Open what was chosen; the project's own is made where it is not there yet.

    Raises:
        OptionError: options contradict one another.
        DataError: there are no images.
    """
    if given.data is None:
        if given.base not in given.ours:
            raise OptionError(f"--base {given.base} is a base of yours, and its images are missing; give --data FOLDER")
        if given.checkpoint or given.base_classes:
            raise OptionError(f"--checkpoint and --base-classes are of a base of yours, not of {given.base}")
        return own(given.base, progress)
    if given.base in given.ours:
        raise OptionError(f"--data has images of yours, and --base {given.base} does not know them; give --base NAME")
    found = class_names(given.data)
    start = {"base": given.base, "checkpoint": given.checkpoint, "base_classes": listed(given.base_classes, found)}
    start |= {name: getattr(given, name) or None for name in ACCEPTING}
    known = {name: value for name, value in start.items() if value is not None}
    return Source(f"{given.data.name}, {given.base}", given.data, known, tuple(found))


def chosen_from(given: argparse.Namespace, progress: Progress) -> Chosen:
    """What was chosen, for rows of accuracy.py.

    Raises:
        OptionError, DataError: as `source_from` says; or a user's folder has the name of one of the project's.
        UnknownNameError, DataError: as `sub_tasks` says.
    """
    if given.data is None and given.classes is not None:
        raise OptionError("sub-tasks of the project's images are drawn by their size here; --classes goes with --data")
    if given.data is not None and given.data.name in (*OURS, "digits"):
        raise OptionError(
            f"rows of {given.data} would be called {given.data.name}, as those of the project's own images; "
            "give the folder another name, or a link to it"
        )
    source = source_from(given, progress)
    asked = given.tasks or (SIZES.get(given.base) if given.data is None else None)
    tasks = source.sub_tasks(asked, given.classes)
    classes = None if given.classes is None else tuple(tasks[0])
    if given.data is None:
        place = open_places([given.base], progress, given.device)[given.base]
        name = given.base
    else:
        from base import CACHE

        name = given.data.name
        place = Place(source.data, source.start, source.classes, source.sha256, None, CACHE, given.device)
    return Chosen(name, source, place, tuple(map(len, tasks)), classes)


def own(base: str, progress: Progress, **changed: Any) -> Source:
    """The project's images and base, or one of that recipe whose timm arguments are changed, but for those of KEPT."""
    import base as rendered
    import demo
    from fashion import ensure_fashion_base
    from fine import ensure_fine_base

    if base in KEPT:
        made = (ensure_fine_base if base == "fine" else ensure_fashion_base)(progress=progress)
    elif base == "rendered":
        made = rendered.ensure_rendered_base(model_args={**rendered.RENDERED_ARGS, **changed}, progress=progress)
    else:
        made = demo.ensure_data(model_args={**demo.BASE_ARGS, **changed}, progress=progress)
    data, folder = made
    facts = json.loads((folder / "base.json").read_text())
    start = {
        "base": facts["timm_name"],
        "checkpoint": folder / "base.safetensors",
        "model_args": facts["model_args"],
        "preprocessing": {"mean": facts["mean"], "std": facts["std"], "crop_pct": 1.0},
        "base_classes": facts["classes"],
    }
    return Source(base, data, start, tuple(facts["classes"]), folder.parent / "shared" / "figures")


def small_from(given: argparse.Namespace, progress: Progress) -> Source | None:
    """A smaller model that knows the same images: the project's base at half its width, or a user's --small.

    None: there is no --small, or no such model of the project's.
    """
    if given.data is None and given.base in KEPT:
        return None
    if given.data is None:
        return own(given.base, progress, embed_dim=SMALL)
    if given.small is None:
        return None
    return source_from(
        argparse.Namespace(**{**vars(given), "base": given.small, "checkpoint": given.small_checkpoint}), progress
    )


def predictor(network: Any, device: str) -> Callable[[Any], Any]:
    """What turns images into logits on that device. The network itself stays where it is: others share its weights."""
    there = network if device == "cpu" else deepcopy(network).to(device)
    return lambda images: there(images.to(device))


def results_file(given: argparse.Namespace, name: str, unnamed: Sequence[str] = OURS) -> Path:
    """Where rows go: results/NAME.json for the bases `unnamed`; NAME_BASE.json, NAME_FOLDER.json for all others."""
    of = given.base if given.data is None else given.data.name
    first = given.data is None and of in unnamed
    own: Path = given.results or RESULTS / (f"{name}.json" if first else f"{name}_{of}.json")
    return own


def load_rows(file: Path) -> list[dict[str, Any]]:
    return list(json.loads(file.read_text())["rows"]) if file.is_file() else []


def store_rows(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    write_whole(file, json.dumps({"schema": 1, "rows": list(rows)}, indent=1) + "\n")


@contextmanager
def refusals() -> Iterator[None]:
    """Say in one line what edgevit refuses, and exit 1."""
    try:
        yield
    except EdgeVitError as error:
        sys.exit(str(error))
