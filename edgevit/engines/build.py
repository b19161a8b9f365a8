"""Build a model's engine on a board, and ship it only if it is right there."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from edgevit.board.connection import THIS_MACHINE, Board
from edgevit.board.facts import BoardFacts, examine
from edgevit.board.fingerprint import fingerprint
from edgevit.board.profiles import load_profile
from edgevit.engines.gate import Sample, images_file, take_sample, unlabelled_sample
from edgevit.engines.ladder import descend, least_rung
from edgevit.engines.request import ExportRequest
from edgevit.engines.workshop import Workshop, batches_of, mode_name, tidied
from edgevit.errors import EngineError, UnfitBoardError
from edgevit.exporting.current import current_export
from edgevit.exporting.images import Judging
from edgevit.exporting.importing import imported
from edgevit.exporting.onnx import judging_images, open_model_source, tell_order
from edgevit.exporting.source import Source
from edgevit.exporting.variants import Exported
from edgevit.progress import Progress, Silent
from edgevit.records.engine import ENGINE_KIND, EngineRecord, key_of, store_engine, stored_engine
from edgevit.records.export import ExportRecord
from edgevit.records.model_folder import ModelFolder
from edgevit.records.names import onnx_name


def check_board(host: str, facts: BoardFacts, profile: str | None) -> None:
    """Refuse a board that has no TensorRT or no GPU, or is another than was meant.

    Raises:
        UnfitBoardError, ProfileError: why.
    """
    if profile is not None:
        load_profile(profile).check(facts)
    here = host == THIS_MACHINE
    doctor = "edgevit board" if here else f"edgevit board {shlex.quote(host)}"
    elsewhere = "give --board USER@HOST of one that has it; " if here else ""
    tensorrt, cuda = facts.tensorrt, facts.cuda
    if tensorrt.version is None:
        raise UnfitBoardError(
            f"no TensorRT on {host} ({(tensorrt.error or 'unknown').partition(';')[0]}); {elsewhere}on a Jetson try "
            f"`sudo apt install python3-libnvinfer`, and see `{doctor}`"
        )
    if cuda.error is not None:
        raise UnfitBoardError(f"no GPU for an engine on {host} ({cuda.error}); see `{doctor}`")


def _key(report: ExportRecord, board: str, request: ExportRequest) -> str:
    """Hash of what decides on the engine: where it was exported first and how TensorRT was timed does not."""
    built_from = {p: report.files[onnx_name(p)].sha256 for p in request.precisions}
    asked = asdict(replace(request.engine, batches=batches_of(report, request.engine)))
    for name in ("rebuild", "timing_cache"):
        del asked[name]
    # In full, as images/ is another folder elsewhere.
    data = request.data and str(Path(request.data).resolve() if Path(request.data).exists() else request.data)
    given = {"schema": ENGINE_KIND.schema, "board": board, "files": built_from, "data": data}
    return key_of({**given, **asked, "max_images": request.engine_images})


def _reused(record: EngineRecord, facts: BoardFacts, progress: Progress) -> EngineRecord:
    progress.note(f"{record.path} is up to date: reused")
    before, now = record.board.power_mode, mode_name(facts)
    if before == now:
        return record
    text = (
        f"built in power mode {before}, and the board is in {now}: kernels were chosen at other clocks; try --rebuild"
    )
    return replace(record, warnings=(*record.warnings, text))


def _open_judging(source: Source, request: ExportRequest, progress: Progress, warnings: list[str]) -> Judging | None:
    """Open validation images, as the gate chooses by them; `edgevit evaluate` judges an engine on test images."""
    how = {"part": "validation", "skip_bad_images": request.skip_bad_images, "progress": progress}
    judging = judging_images(source.subject, request.data, warnings, **how)
    tell_order(request.model, source.subject, judging, progress)
    return judging and judging.limited(request.engine_images)


def _take_sample(exported: Exported, judging: Judging | None, path: Path, workers: int, progress: Progress) -> Sample:
    if judging is not None:
        fp32 = exported.report.folder / onnx_name("fp32")
        return take_sample(judging, fp32, path, progress, workers=workers)
    subject = exported.source.subject
    return unlabelled_sample(exported.images, subject.class_columns or range(subject.outputs), path)


def build_engine(request: ExportRequest, board: Board, progress: Progress | None = None) -> EngineRecord:
    """Build a model folder's engine on a board, judge it there, and store it under `export/engines/`.

    The export is made first where none is up to date, and an engine is reused where nothing has changed. Of the
    precisions the first is taken whose engine classifies validation images as ONNX Runtime does in fp32 here.

    Raises:
        EngineError: no precision gives a right engine; the class that loses most is named.
        UnfitBoardError, ProfileError: the board cannot build, or is not the one that was meant.
        BoardError: the board could not be reached, or the build failed there.
        ExportError, CheckpointError, DataError, OptionError, OutputError: as for an export.
    """
    progress = progress or Silent()
    facts = examine(board, progress)
    check_board(board.host, facts, request.profile)
    request = imported(request, progress)
    report, folder, here = current_export(request, progress=progress), request.model, fingerprint(facts)
    if large := [name for name in report.files if name.endswith(".onnx.data")]:
        raise EngineError(
            f"{large[0]} holds weights of {large[0].removesuffix('.data')}, as an ONNX file ends at 2 GB; an engine is "
            "built from one file: make a smaller model, such as by `edgevit derive` at a higher --rate"
        )
    key = _key(report, here, request)
    target = ModelFolder(folder).export.engine(here, key)
    if not request.engine.rebuild and (stored := stored_engine(target, key)):
        return _reused(stored, facts, progress)
    warnings: list[str] = []
    source = open_model_source(folder)
    judging = _open_judging(source, request, progress, warnings)
    exported = Exported(report, source, judging, request.tolerances)
    with tempfile.TemporaryDirectory(prefix="edgevit-") as scratch:
        sample = _take_sample(exported, judging, images_file(Path(scratch), key), request.workers or 0, progress)
        workshop = Workshop(board, facts, exported, sample, Path(scratch), request.engine, progress)
        with tidied(board, workshop.leftovers):
            descent = descend(
                workshop.attempt,
                fp16="fp16" in request.precisions,
                norms=bool(source.norms),
                blocks=len(source.blocks),
                least=least_rung(report.fp32_modules, source.blocks),
                most_probes=request.engine.most_probes,
                note=progress.note,
            )
            workshop.leftovers.discard(descent.judged.built["engine"])
        record = workshop.record(descent, target, key, warnings)
        with workshop.fetched(descent, target) as engine:
            store_engine(engine, record, descent.judged.built["layers"])
    return record
