"""Read all models, runs and profiles below some folders.

A file or line that cannot be read is skipped and listed with the reason; the rest is read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from edgevit.agent.records import RecordError, Run
from edgevit.board.comparison import RunReader
from edgevit.board.layers import LAYERS_KIND, LayerProfile
from edgevit.errors import EdgeVitError, OptionError, RunsError
from edgevit.jobs.fleet.costs import FleetCost, cost_of
from edgevit.jobs.fleet.plan import read_plan
from edgevit.jobs.fleet.states import JOB_KIND, states_of
from edgevit.jobs.fleet.states import RECORD as JOB
from edgevit.jobs.jobs_file import JOBS
from edgevit.jobs.sweep.record import read_sweep
from edgevit.records.answers import RightImages
from edgevit.records.derivation import DerivationRecord, JudgedPart, MapScore
from edgevit.records.documents import Reader
from edgevit.records.engine import EngineRecord
from edgevit.records.export import ExportRecord
from edgevit.records.imported import ImportedDocument
from edgevit.records.kinds import content_sha256
from edgevit.records.model import ModelDocument
from edgevit.records.model_folder import ModelFolder
from edgevit.records.names import HISTORY, SWEEP

T = TypeVar("T")
_LINES = ".jsonl"
_BEGINS = (b'{"batch"', b'{"schema"')  # lines of runs, whose keys are sorted, and of profiled layers
_NEAR = 16  # bytes
_FOREIGN = 1000  # lines; a file that is not named explicitly and has no run in so many is read no further
_READER = Reader(RunsError, hint="remove the line if it was cut off")
_PLANS = (".yaml", ".yml")  # suffixes of plans, of a fleet or of many derivations
_TABLES = (SWEEP, JOB)
_PLAN = Reader(RunsError, hint="`edgevit fleet --example` prints a plan")
_SWEPT = Reader(RunsError, hint="remove it to sweep again: models that are there stay")


@dataclass(frozen=True)
class Skipped:
    """A file or line that was skipped, and the reason."""

    source: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class GatheredModel:
    """The content of a model folder; None for parts that are missing or cannot be read."""

    name: str  # name of the folder, with those of its parents where several folders have one name
    folder: ModelFolder
    document: ModelDocument | None  # content of model.json; None: the model came as an ONNX file
    imported: ImportedDocument | None
    derivation: DerivationRecord | None = None
    export: ExportRecord | None = None
    engines: tuple[EngineRecord, ...] = ()
    history: tuple[dict[str, object], ...] = ()
    # Top-1 of each probe of its features, as a sweep recorded it; empty: no sweep did.
    probes: Mapping[str, float] = field(default_factory=dict)
    targets: MapScore | None = None  # score of its maps against masks, as a sweep recorded it; None: no sweep did

    @property
    def class_names(self) -> tuple[str, ...]:
        document = self.document or self.imported
        return tuple(c.name for c in document.classes) if document else ()

    @property
    def weights_sha256(self) -> str:
        return "" if self.document is None else self.document.weights_sha256

    @property
    def answers(self) -> dict[JudgedPart, RightImages | None]:
        """Which images the model classifies correctly, by part."""
        if self.imported is not None:
            return dict(self.imported.answers)
        by_part = (self.derivation.answers if self.derivation is not None else None) or {}
        return {part: answers.derived for part, answers in by_part.items()}

    @cached_property
    def files(self) -> dict[str, int]:
        """Bytes of every file that can be measured, by its sha256."""
        exported = {} if self.export is None else {file.sha256: file.bytes for file in self.export.files.values()}
        return exported | {engine.sha256: engine.bytes for engine in self.engines}


@dataclass
class Evidence:
    """All models, runs and profiles that were read."""

    models: list[GatheredModel] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    profiles: list[LayerProfile] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    # Hashes of the run lines read so far, so that a copy of a file adds no runs.
    lines: set[str] = field(default_factory=set)
    reader: RunReader = field(default_factory=lambda: RunReader(_READER))
    # Top-1 of each probe of features, by the hash of the model's weights.
    probes: dict[str, dict[str, float]] = field(default_factory=dict)
    targets: dict[str, MapScore] = field(default_factory=dict)  # scores of maps, by the hash of the model's weights
    costs: list[FleetCost] = field(default_factory=list)  # costs of the fleets whose plans were given
    fleets: set[Path] = field(default_factory=set)  # job folders of these fleets
    _notes: set[Skipped] = field(default_factory=set)  # everything that was ever added to `skipped`

    def read(self, source: Path | str, read: Callable[[], T]) -> T | None:
        """Read a file; if that fails, list it as skipped and return None."""
        try:
            return read()
        except EdgeVitError as error:
            self.skip(source, str(error))
            return None

    def skip(self, source: Path | str, reason: str) -> None:
        """List a skipped file once, without repeating its name in the reason."""
        name = str(source)
        note = Skipped(name, reason.removeprefix(name).removeprefix(":").removeprefix(",").strip())
        if note not in self._notes:
            self._notes.add(note)
            self.skipped.append(note)


def gather(paths: Sequence[Path]) -> Evidence:
    """Read everything below some paths.

    Args:
        paths: folders, which are searched with all below them, JSON-lines files of runs or of profiled layers, and
            plans of `edgevit fleet` and `edgevit derive-many`, which stand for their folders.

    Raises:
        OptionError: a path does not exist or is another kind of file, or there is nothing to report.
    """
    evidence, visited = Evidence(), set[Path]()
    paths = [_folder_of(path, evidence) if path.suffix in _PLANS and path.is_file() else path for path in paths]
    for path in paths:
        if not path.exists():
            raise OptionError(f"no {path}; give folders of models, and files that `edgevit bench --output` wrote")
        if not path.is_dir() and not (path.is_file() and path.suffix == _LINES):
            raise OptionError(
                f"{path} is neither a folder nor a {_LINES} file; give a model's folder, or a file of runs"
            )
    for path in paths:
        for file in _below(path) if path.is_dir() else (path,):
            if (real := file.resolve()) not in visited:
                visited.add(real)
                _take(evidence, file, named=file == path)
    if not evidence.models and not evidence.runs and not evidence.profiles:
        skipped_note = (
            f"; {len(evidence.skipped)} left out, such as {evidence.skipped[0].source}: {evidence.skipped[0].reason}"
            if evidence.skipped
            else ""
        )
        raise OptionError(
            f"nothing to report in {', '.join(map(str, paths))}: no model folder and no run{skipped_note}"
        )
    evidence.models = _with_own_names(_with_worth(model, evidence) for model in evidence.models)
    return evidence


def _with_worth(model: GatheredModel, evidence: Evidence) -> GatheredModel:
    """Add what features or maps are worth: as a sweep recorded it, or of a ready-made model as its own record says."""
    if (imported := model.imported) is not None:
        return replace(model, probes=_on_test(imported.probes), targets=imported.targets)
    sha256 = model.weights_sha256
    return replace(model, probes=evidence.probes.get(sha256, {}), targets=evidence.targets.get(sha256))


def _on_test(probes: Mapping[str, Mapping[JudgedPart, RightImages]]) -> dict[str, float]:
    """The share of right test images of each probe."""
    return {name: right["test"].right / right["test"].images for name, right in probes.items()}


def _folder_of(plan: Path, evidence: Evidence) -> Path:
    """The folder of the models of a plan. The jobs of a fleet that failed are listed, and what all of them took."""
    content = _PLAN.yaml(plan, dict[str, object])
    out = content.get("out")
    if not isinstance(out, str):
        raise RunsError(f"{plan} has no out, the folder of its models; {_PLAN.hint}")
    fleet = evidence.read(plan, lambda: read_plan(plan)) if "bases" in content else None
    if fleet is not None:
        states = states_of(fleet.jobs)
        evidence.fleets.add((fleet.out / JOBS).resolve())
        evidence.costs.append(cost_of(out, states, fleet.layout.prices))
        for state in states:
            if state.state == "failed":
                evidence.skip(f"{plan}, job {state.job}", f"failed: {state.reason}")
    return Path(out)


def _below(root: Path) -> Iterator[Path]:
    """Yield model folders, JSON-lines files, and records of jobs and sweeps; model folders are not searched.

    A link to a model folder counts; other links to folders are not followed, as they may form a circle.
    """
    for folder, inner, files in os.walk(root):
        inner.sort()
        current = Path(folder)
        if _is_model(current):
            yield current
            inner.clear()
            continue
        inner[:] = [name for name in inner if not name.startswith(".") and not name.endswith(".partial")]
        yield from (current / name for name in inner if (current / name).is_symlink() and _is_model(current / name))
        yield from (current / name for name in sorted(files) if name.endswith(_LINES) or name in _TABLES)


def _is_model(folder: Path) -> bool:
    return ModelFolder(folder).is_model or ModelFolder(folder).is_imported


def _take(evidence: Evidence, path: Path, *, named: bool) -> None:
    if path.is_dir():
        _take_model(evidence, path)
    elif path.suffix == _LINES:
        _take_lines(evidence, path, named=named)
    elif path.name == SWEEP:
        _take_sweep(evidence, path)
    else:
        _take_job(evidence, path)


def _take_model(evidence: Evidence, path: Path) -> None:
    folder = ModelFolder(path)
    document = imported = None
    if folder.is_imported:
        imported = evidence.read(folder.imported_file, folder.imported)
    else:
        document = evidence.read(folder.spec_file, folder.document)
    if document is None and imported is None:
        return
    derivation = evidence.read(folder.derivation_file, folder.derivation)
    if derivation is not None and document is not None and (fault := derivation.fault(document)):
        evidence.skip(folder.derivation_file, fault)
        derivation = None
    export = folder.export
    engines = [evidence.read(file, lambda file=file: folder.engine_record(file)) for file in export.engine_files()]  # type: ignore[misc]
    evidence.models.append(
        GatheredModel(
            name=path.absolute().name,
            folder=folder,
            document=document,
            imported=imported,
            derivation=derivation,
            export=evidence.read(export.record_file, folder.export_record) if export.record_file.is_file() else None,
            engines=tuple(engine for engine in engines if engine is not None),
            history=tuple(line for _, line in _lines(evidence, folder.history_file)),
        )
    )


def _lines(evidence: Evidence, file: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the JSON objects of a file, each with the words that name its line."""
    if not file.is_file():
        return
    lines = _READER.lines(file)
    while (line := evidence.read(file, lambda: next(lines, None))) is not None:
        source, text = line
        content = evidence.read(source, lambda text=text, source=source: evidence.reader.content(text, source))  # type: ignore[misc]
        if content is not None:
            yield source, content


def _take_lines(evidence: Evidence, file: Path, *, named: bool) -> None:
    """Parse runs and profiles; ignore files that contain neither unless named explicitly."""
    before, read, is_own = len(evidence.skipped), 0, False
    for source, content in () if file.name == HISTORY else _lines(evidence, file):
        read, is_own = read + 1, is_own or "schema" in content
        if read == _FOREIGN and not named and not is_own:
            break
        if (digest := content_sha256(content)) in evidence.lines:
            continue
        evidence.lines.add(digest)
        try:
            if "profiled" in content:
                evidence.profiles.append(LAYERS_KIND.checked(content, source))
            else:
                evidence.runs.append(evidence.reader.run(content))
        except (RecordError, EdgeVitError) as error:
            evidence.skip(source, str(error))
    if not named and not is_own and (read or not _begins_as_a_run(file)):
        del evidence.skipped[before:]
    elif not read and len(evidence.skipped) == before:
        evidence.skip(file, "holds no run")


def _begins_as_a_run(file: Path) -> bool:
    """Whether an unreadable file begins like a run whose line was cut off."""
    if not file.is_file():
        return False
    try:
        with file.open("rb") as opened:
            return opened.read(_NEAR).startswith(_BEGINS)
    except OSError:
        return False


def _take_job(evidence: Evidence, file: Path) -> None:
    """List a job of a fleet that failed; ignore other files of that name, and jobs whose plan was named."""
    if file.resolve().parent.parent in evidence.fleets:
        return
    content = evidence.read(file, lambda: _SWEPT.json(file, dict[str, object])) or {}
    if content.get("record") != JOB_KIND.name:
        return
    job = evidence.read(file, lambda: JOB_KIND.checked(content, str(file)))
    if job is not None and job.state == "failed":
        evidence.skip(f"{file}, job {job.job}", f"failed: {job.reason}")


def _take_sweep(evidence: Evidence, file: Path) -> None:
    """List the models of a sweep whose folders are missing, and take what others are worth; ignore other files."""
    content = evidence.read(file, lambda: _SWEPT.json(file, dict[str, object])) or {}
    points = content.get("points") if "request" in content else None
    for point in points if isinstance(points, list) else ():
        name = point.get("folder") if isinstance(point, dict) else None
        if isinstance(name, str) and not (file.parent / name).is_dir():
            evidence.skip(f"{file}, {name}", f"its folder {file.parent / name} is gone")
    with suppress(EdgeVitError):
        for swept in read_sweep(file.parent).points if points else ():
            if swept.weights_sha256 is None:
                continue
            if swept.probes is not None:
                evidence.probes[swept.weights_sha256] = _on_test(swept.probes)
            if swept.targets is not None:
                evidence.targets[swept.weights_sha256] = swept.targets


def _with_own_names(models: Iterable[GatheredModel]) -> list[GatheredModel]:
    """Give models unique names: a/m and b/m instead of m twice."""
    models = list(models)
    parts = [model.folder.path.absolute().parts for model in models]
    ends: Counter[tuple[str, ...]] = Counter(
        end for segments in parts for end in (segments[-length:] for length in range(1, len(segments) + 1))
    )
    named = []
    for model, segments in zip(models, parts, strict=True):
        length = 1
        while length < len(segments) and ends[segments[-length:]] > 1:
            length += 1
        named.append(replace(model, name="/".join(segments[-length:])))
    return named
