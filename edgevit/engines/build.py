"""Build the engine of a model on a board, and accept it only if it is correct there."""

from __future__ import annotations

import math
import shlex
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from edgevit.board.connection import THIS_MACHINE, Board
from edgevit.board.facts import BoardFacts, TensorRT, examine
from edgevit.board.fingerprint import fingerprint
from edgevit.board.profiles import load_profile
from edgevit.board.request import Conditions
from edgevit.engines.builder import EngineBuilder, batches_of, mode_name
from edgevit.engines.detections import Annotated, annotated
from edgevit.engines.gate import Sample, images_file, take_sample, unlabelled_sample
from edgevit.engines.options import MOST_IMAGES, MOST_OUTPUTS
from edgevit.engines.outputs import tidied
from edgevit.engines.precision_levels import PrecisionLevel, first_level, search_precision
from edgevit.engines.request import ExportRequest
from edgevit.errors import EngineError, UnfitBoardError
from edgevit.exporting.current import current_export
from edgevit.exporting.images import Judging
from edgevit.exporting.imported.importing import imported
from edgevit.exporting.losses import LEAST_IMAGES
from edgevit.exporting.onnx import judging_images, note_class_order, open_model_source
from edgevit.exporting.request import QUANTISED_OPSET
from edgevit.exporting.source import ModelSource, Source
from edgevit.exporting.variants import Exported
from edgevit.network.output import Levels, Logits
from edgevit.progress import Progress, Silent
from edgevit.records.engine import ENGINE_KIND, EngineRecord, key_of, store_engine, stored_engine
from edgevit.records.export import ExportRecord
from edgevit.records.model_folder import ModelFolder
from edgevit.records.names import onnx_name
from edgevit.records.precisions import FP16, FP32, INT8


def check_board(host: str, facts: BoardFacts, profile: str | None) -> None:
    """Check that a board has TensorRT and a GPU, and matches the profile.

    Raises:
        UnfitBoardError, ProfileError: it has not, or does not.
    """
    if profile is not None:
        load_profile(profile).check(facts)
    is_this_machine = host == THIS_MACHINE
    doctor = "edgevit board" if is_this_machine else f"edgevit board {shlex.quote(host)}"
    advice = "give --board USER@HOST of one that has it; " if is_this_machine else ""
    tensorrt, cuda = facts.tensorrt, facts.cuda
    if tensorrt.version is None:
        raise UnfitBoardError(
            f"no TensorRT on {host} ({(tensorrt.error or 'unknown').partition(';')[0]}); {advice}on a Jetson try "
            f"`sudo apt install python3-libnvinfer`, and see `{doctor}`"
        )
    if cuda.error is not None:
        raise UnfitBoardError(f"no GPU for an engine on {host} ({cuda.error}); see `{doctor}`")


def check_int8(tensorrt: TensorRT) -> None:
    """Raise EngineError if this TensorRT takes no types from a file."""
    if not tensorrt.strongly_typed:
        raise EngineError(
            f"TensorRT {tensorrt.version} takes no types from a file, which an engine in INT8 needs; TensorRT 10 "
            "(JetPack 6) and newer do: give fp16 in place of int8"
        )


def _key(report: ExportRecord, board: str, request: ExportRequest) -> str:
    """Hash all that determines the engine; the folder of the export and the timing cache do not."""
    sources = {p: report.files[onnx_name(p)].sha256 for p in request.precisions}
    options = asdict(replace(request.engine, batches=batches_of(report, request.engine)))
    for name in ("rebuild", "timing_cache"):
        del options[name]
    # An absolute path, as a relative one depends on the working directory.
    data = request.data and str(Path(request.data).resolve() if Path(request.data).exists() else request.data)
    inputs = {"schema": ENGINE_KIND.schema, "board": board, "files": sources, "data": data}
    return key_of({**inputs, **options, "max_images": request.engine_images})


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
    """Open validation images for the gate, which selects a precision; `edgevit evaluate` uses test images."""
    judging = judging_images(
        source.subject,
        request.data,
        warnings,
        part="validation",
        skip_bad_images=request.skip_bad_images,
        progress=progress,
    )
    note_class_order(request.model, source.subject, judging, progress)
    return judging and judging.limited(request.engine_images)


def _at_once(report: ExportRecord) -> int:
    """The number of images whose outputs are not too many to be held at once."""
    return max(MOST_OUTPUTS // sum(math.prod(map(int, output.shape[1:])) for output in report.outputs), 1)


def _take_sample(
    exported: Exported, judging: Judging | None, path: Path, workers: int, progress: Progress
) -> Sample | Annotated:
    if judging is None:
        return unlabelled_sample(exported.images, exported.source.subject.output, path)
    reference, most = exported.report.folder / onnx_name(exported.report.reference), _at_once(exported.report)
    if isinstance(judging.output, Levels) and isinstance(exported.source, ModelSource):
        record, at_once = exported.source.subject.record, min(most, MOST_IMAGES)
        sample = annotated(
            judging, exported.source.model, record.showing if record else None,
            reference=reference, at_once=at_once, progress=progress,
        )  # fmt: skip
        if sample is not None:
            return sample
    if not isinstance(judging.output, Logits):  # only the logits of the target classes are sent
        judging = judging.limited(max(most, LEAST_IMAGES))
    return take_sample(judging, reference, path, progress, workers=workers)


def build_engine(
    request: ExportRequest, board: Board, progress: Progress | None = None, conditions: Conditions | None = None
) -> EngineRecord:
    """Build the engine of a model folder on a board, check it there, and store it under `export/engines/`.

    The model is exported first unless an export is up to date, and an unchanged engine is reused. The result is the
    first precision level whose engine classifies validation images as ONNX Runtime does in fp32 on the host. An engine
    in INT8 is compared with it in the power mode and with the clocks of `conditions`.

    Raises:
        EngineError: no precision level gives a correct engine; the message names the class with the largest loss.
        UnfitBoardError, ProfileError: the board cannot build, or does not match the profile.
        BoardError: the board was not reached, or the build failed.
        ExportError, CheckpointError, DataError, OptionError, OutputError: as for an export.
    """
    progress = progress or Silent()
    facts = examine(board, progress)
    check_board(board.host, facts, request.profile)
    request = imported(request, progress)
    adds_int8 = INT8.name in request.precisions and ModelFolder(request.model).own_precision is None
    if adds_int8:
        check_int8(facts.tensorrt)
    report, folder, board_name = current_export(request, progress=progress), request.model, fingerprint(facts)
    if adds_int8 and report.opset < QUANTISED_OPSET:
        raise EngineError(
            f"{request.model} has operator set {report.opset}, and Q/DQ of fp16 needs {QUANTISED_OPSET}; export the "
            "original model with a newer one, or leave --precision int8 out"
        )
    if large := [name for name in report.files if name.endswith(".onnx.data")]:
        raise EngineError(
            f"{large[0]} has weights of {large[0].removesuffix('.data')}, which exceed the 2 GB of an ONNX file; an "
            "engine is built from one file: make a smaller model, such as by `edgevit derive` at a higher --rate"
        )
    key = _key(report, board_name, request)
    target = ModelFolder(folder).export.engine(board_name, key)
    if not request.engine.rebuild and (stored := stored_engine(target, key)):
        return _reused(stored, facts, progress)
    warnings: list[str] = []
    source = open_model_source(folder)
    judging = _open_judging(source, request, progress, warnings)
    exported = Exported(report, source, judging, request.tolerances)
    with tempfile.TemporaryDirectory(prefix="edgevit-") as scratch:
        sample = _take_sample(exported, judging, images_file(Path(scratch), key), request.workers or 0, progress)
        builder = EngineBuilder(
            board, facts, exported, sample, Path(scratch), request.engine, progress, conditions or Conditions()
        )
        with tidied(board, builder.leftovers):
            search = search_precision(
                builder.attempt,
                fp16=FP16.name in request.precisions and report.reference == FP32.name,
                norms=bool(source.norms),
                blocks=len(source.blocks),
                start=first_level(report.fp32_modules, source.blocks),
                last=PrecisionLevel(report.reference),
                most_probes=request.engine.most_probes,
                note=progress.note,
            )
            if adds_int8:
                search = builder.with_int8(search)
            builder.leftovers.discard(search.judged.built.engine)
        record = builder.record(search, target, key, warnings)
        with builder.fetched(search, target) as engine:
            store_engine(engine, record, search.judged.built.layers)
    return record
