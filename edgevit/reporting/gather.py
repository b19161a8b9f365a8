"""Everything below some folders that can be told of: models, runs, profiled layers, and what could not be read.

A file that cannot be read, or a line of it, hides nothing of the rest: it is left out, and named with the reason.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from edgevit.agent.records import RecordError, Run
from edgevit.board.comparison import RunReader
from edgevit.board.layers import LAYERS_KIND, LayerProfile
from edgevit.errors import EdgeVitError, OptionError, RunsError
from edgevit.jobs.jobs_file import RESULTS
from edgevit.jobs.jobs_table import TABLE_KIND
from edgevit.records.derivation import DerivationRecord
from edgevit.records.documents import Reader
from edgevit.records.engine import EngineRecord
from edgevit.records.export import ExportRecord
from edgevit.records.imported import ImportedDocument
from edgevit.records.kinds import content_sha256
from edgevit.records.model import ModelDocument
from edgevit.records.model_folder import ModelFolder
from edgevit.records.names import HISTORY, SWEEP

T = TypeVar("T")
LINES = ".jsonl"
BEGINS = (b'{"batch"', b'{"schema"')  # lines of runs, whose keys are sorted, and of profiled layers
NEAR = 16  # bytes
FOREIGN = 1000  # lines, after which a file that nobody asked for and that has none of ours is read no further
READER = Reader(RunsError, mend="remove the line if it was cut off")
TABLES = (RESULTS[0], SWEEP)
SWEPT = Reader(RunsError, mend="remove it to sweep again: models that are there stay")


@dataclass(frozen=True)
class Skipped:
    """What is left out, and why."""

    where: str
    why: str


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """What a model folder says. None: it does not say, or cannot be read."""

    name: str  # of its folder; with those above it, where several have one name
    folder: ModelFolder
    document: ModelDocument | None  # None: it came as an ONNX file
    imported: ImportedDocument | None
    derivation: DerivationRecord | None = None
    export: ExportRecord | None = None
    engines: tuple[EngineRecord, ...] = ()
    history: tuple[dict[str, Any], ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        known = self.document or self.imported
        return tuple(c.name for c in known.classes) if known else ()

    @cached_property
    def files(self) -> dict[str, int]:
        """Bytes of every file that a run may be of, by the file's sha256."""
        exported = {} if self.export is None else {one.sha256: one.bytes for one in self.export.files.values()}
        return exported | {engine.sha256: engine.bytes for engine in self.engines}


@dataclass
class Found:
    """All that was found."""

    models: list[FoundModel] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    profiles: list[LayerProfile] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    lines: set[str] = field(default_factory=set)  # hashes of those read: a copy of a file tells nothing new
    reader: RunReader = field(default_factory=lambda: RunReader(READER))
    _notes: set[Skipped] = field(default_factory=set)  # all that ever was in `skipped`

    def read(self, where: Path | str, read: Callable[[], T]) -> T | None:
        """What a file says; None where it cannot be read, which is noted."""
        try:
            return read()
        except EdgeVitError as error:
            self.skip(where, str(error))
            return None

    def skip(self, where: Path | str, why: str) -> None:
        """Note it once, without saying twice where it is."""
        said = str(where)
        note = Skipped(said, why.removeprefix(said).removeprefix(":").removeprefix(",").strip())
        if note not in self._notes:
            self._notes.add(note)
            self.skipped.append(note)


def gather(paths: Sequence[Path]) -> Found:
    """Read all that there is.

    Args:
        paths: folders, which are searched with all below them, and JSON-lines files of runs or of profiled layers.

    Raises:
        OptionError: one does not exist, or is another kind of file, or nothing at all was found.
    """
    for path in paths:
        if not path.exists():
            raise OptionError(f"no {path}; give folders of models, and files that `edgevit bench --output` wrote")
        if not path.is_dir() and not (path.is_file() and path.suffix == LINES):
            raise OptionError(
                f"{path} is neither a folder nor a {LINES} file; give a model's folder, or a file of runs"
            )
    found, seen = Found(), set[Path]()
    for path in paths:
        for one in _below(path) if path.is_dir() else (path,):
            if (real := one.resolve()) not in seen:
                seen.add(real)
                _take(found, one, asked=one == path)
    if not found.models and not found.runs and not found.profiles:
        left = (
            f"; {len(found.skipped)} left out, such as {found.skipped[0].where}: {found.skipped[0].why}"
            if found.skipped
            else ""
        )
        raise OptionError(f"nothing to report in {', '.join(map(str, paths))}: no model folder and no run{left}")
    found.models = _told_apart(found.models)
    return found


def _below(root: Path) -> Iterator[Path]:
    """Model folders, files of lines, and tables of jobs and sweeps; a model folder itself is not searched.

    A link to a model's folder is one, too; other links to folders are not followed, as they may lead in a circle.
    """
    for folder, inner, files in os.walk(root):
        inner.sort()
        here = Path(folder)
        if _holds_model(here):
            yield here
            inner.clear()
            continue
        inner[:] = [name for name in inner if not name.startswith(".") and not name.endswith(".partial")]
        yield from (here / name for name in inner if (here / name).is_symlink() and _holds_model(here / name))
        yield from (here / name for name in sorted(files) if name.endswith(LINES) or name in TABLES)


def _holds_model(folder: Path) -> bool:
    return ModelFolder(folder).is_model or ModelFolder(folder).is_imported


def _take(found: Found, path: Path, *, asked: bool) -> None:
    if path.is_dir():
        _take_model(found, path)
    elif path.suffix == LINES:
        _take_lines(found, path, asked=asked)
    elif path.name == SWEEP:
        _take_sweep(found, path)
    else:
        _take_jobs(found, path)


def _take_model(found: Found, path: Path) -> None:
    folder = ModelFolder(path)
    document = imported = None
    if folder.is_imported:
        imported = found.read(folder.imported_file, folder.imported)
    else:
        document = found.read(folder.spec_file, folder.document)
    if document is None and imported is None:
        return
    derivation = found.read(folder.derivation_file, folder.derivation)
    if derivation is not None and document is not None and (fault := derivation.fault(document)):
        found.skip(folder.derivation_file, fault)
        derivation = None
    export = folder.export
    engines = [found.read(file, lambda file=file: folder.engine_record(file)) for file in export.engine_files()]  # type: ignore[misc]
    found.models.append(
        FoundModel(
            name=path.absolute().name,
            folder=folder,
            document=document,
            imported=imported,
            derivation=derivation,
            export=found.read(export.record_file, folder.export_record) if export.record_file.is_file() else None,
            engines=tuple(engine for engine in engines if engine is not None),
            history=tuple(line for _, line in _lines(found, folder.history_file)),
        )
    )


def _lines(found: Found, file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines of a file, each after the words that name it, but for those that are no JSON objects."""
    if not file.is_file():
        return
    lines = READER.lines(file)
    while (line := found.read(file, lambda: next(lines, None))) is not None:
        where, text = line
        content = found.read(where, lambda text=text, where=where: found.reader.content(text, where))  # type: ignore[misc]
        if content is not None:
            yield where, content


def _take_lines(found: Found, file: Path, *, asked: bool) -> None:
    """Runs and profiles of a file; one that nobody asked for, and that has none, is somebody else's."""
    before, read, ours = len(found.skipped), 0, False
    for where, content in () if file.name == HISTORY else _lines(found, file):
        read, ours = read + 1, ours or "schema" in content
        if read == FOREIGN and not asked and not ours:
            break
        if (digest := content_sha256(content, "")) in found.lines:
            continue
        found.lines.add(digest)
        try:
            if "profiled" in content:
                found.profiles.append(LAYERS_KIND.checked(content, where))
            else:
                found.runs.append(found.reader.run(content))
        except (RecordError, EdgeVitError) as error:
            found.skip(where, str(error))
    if not asked and not ours and (read or not _begins_as_a_run(file)):
        del found.skipped[before:]
    elif not read and len(found.skipped) == before:
        found.skip(file, "holds no run")


def _begins_as_a_run(file: Path) -> bool:
    """Whether a file of which no line can be read begins as one of runs does, whose only line was cut off."""
    if not file.is_file():
        return False
    try:
        with file.open("rb") as opened:
            return opened.read(NEAR).startswith(BEGINS)
    except OSError:
        return False


def _take_jobs(found: Found, file: Path) -> None:
    """The jobs of a jobs file that left no model: why they failed, or that their folder is gone."""
    table = found.read(file, lambda: TABLE_KIND.read(file))
    for row in table.rows if table is not None else ():
        if row.state == "failed":
            found.skip(f"{file}, job {row.job}", f"failed: {row.error or 'nobody knows why'}")
        elif row.state == "done" and not any(at.is_dir() for at in (Path(row.out), file.parent / Path(row.out).name)):
            found.skip(f"{file}, job {row.job}", f"its folder {row.out} is gone")


def _take_sweep(found: Found, file: Path) -> None:
    """The models of a sweep whose folders are gone; a file of that name that says no such thing is somebody else's."""
    told = found.read(file, lambda: SWEPT.json(file, dict[str, Any])) or {}
    points = told.get("points") if "asked" in told else None
    for point in points if isinstance(points, list) else ():
        name = point.get("folder") if isinstance(point, dict) else None
        if isinstance(name, str) and not (file.parent / name).is_dir():
            found.skip(f"{file}, {name}", f"its folder {file.parent / name} is gone")


def _told_apart(models: Iterable[FoundModel]) -> list[FoundModel]:
    """The models by names of their own: a/m and b/m are not both m."""
    models = list(models)
    parts = [model.folder.path.absolute().parts for model in models]
    ends: Counter[tuple[str, ...]] = Counter(
        end for mine in parts for end in (mine[-length:] for length in range(1, len(mine) + 1))
    )
    named = []
    for model, mine in zip(models, parts, strict=True):
        length = 1
        while length < len(mine) and ends[mine[-length:]] > 1:
            length += 1
        named.append(replace(model, name="/".join(mine[-length:])))
    return named
