"""One command's work with one board: files carried over, engines built and judged there, the right one fetched."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from edgevit.board.connection import Board
from edgevit.board.facts import BoardFacts
from edgevit.board.fingerprint import fingerprint
from edgevit.engines.gate import EngineVerdict, Sample, judge, remarks
from edgevit.engines.ladder import Descent, PrecisionRung, node_patterns
from edgevit.engines.options import EngineOptions
from edgevit.errors import BoardError, ConnectionLostError, EdgeVitError, Interrupted, OptionError
from edgevit.exporting.variants import Exported, Variant, WrittenVariant
from edgevit.progress import Progress
from edgevit.records.engine import (
    EngineBoard,
    EngineRecord,
    EngineTensor,
    EngineTried,
    OnnxSource,
    TimingCacheUse,
)
from edgevit.records.export import ExportRecord
from edgevit.records.names import onnx_name
from edgevit.records.writing import file_sha256, writing
from edgevit.version import written_by

LEFT_S = 3600.0  # that a file which is being fetched is written to at least once in
NATIVE_OPSET, OLDEST_OPSET = 17, 16  # with LayerNormalization as one operator, from TensorRT 8.6 on; without
TAKEN_OVER = ("sha256", "bytes", "strongly_typed", "workspace_bytes", "device_memory_bytes", "fused")


def batches_of(report: ExportRecord, options: EngineOptions) -> tuple[int, int, int]:
    """Images per inference of the engine: as asked for, or those of an export of a fixed batch.

    Raises:
        OptionError: others were asked for than such an export has.
    """
    least, chosen, most = options.batches  # a list, where a file or a program gives one
    asked = (least, chosen, most)
    if report.batch == "dynamic":
        return asked
    fixed = (report.batch, report.batch, report.batch)
    if asked not in (fixed, EngineOptions.batches):
        raise OptionError(
            f"--batches {','.join(map(str, options.batches))} is for files of any batch, and these have a fixed batch "
            f"of {report.batch}; leave it out, or export with --batch dynamic"
        )
    return fixed


def mode_name(facts: BoardFacts) -> str | None:
    return facts.power_mode.name if facts.power_mode else None


def board_in_short(facts: BoardFacts) -> EngineBoard:
    module, cuda = facts.module, facts.cuda
    return EngineBoard(
        model=module.model,
        part=module.part,
        super=module.super,
        jetpack=facts.jetpack,
        l4t=facts.l4t,
        tensorrt=facts.tensorrt.version,
        cuda=cuda.runtime,
        device=cuda.device,
        sms=cuda.sms,
        capability=cuda.capability,
        power_mode=mode_name(facts),
    )


def _tensors(described: Sequence[Mapping[str, Any]]) -> tuple[EngineTensor, ...]:
    return tuple(EngineTensor(tensor["name"], tensor["dtype"], tuple(tensor["shape"])) for tensor in described)


def _discard(board: Board, paths: Iterable[str]) -> None:
    """Remove files from the board, whose disk is small; one that is lost keeps them, which harms no result."""
    with suppress(BoardError):
        board.call("discard", paths=sorted(paths))


@contextmanager
def tidied(board: Board, paths: Collection[str]) -> Iterator[None]:
    """Remove files from the board when the block ends; `paths` may grow in it.

    A job goes on without us after Ctrl-C or when the connection is lost, and still needs them.
    """
    try:
        yield
    except (Interrupted, ConnectionLostError):
        raise
    except EdgeVitError:
        _discard(board, paths)
        raise
    _discard(board, paths)


def classification(board: Board, engine: str, sample: Sample, progress: Progress) -> dict[str, Any]:
    """Send the sample, and ask for its classification by an engine that is there; what is missing is the batch."""
    return {
        "engine": engine,
        "images": board.put(sample.path, sample.sha256, progress),
        "count": sample.count,
        "shape": list(sample.shape),
        "dtype": "float16",
        "columns": list(sample.columns),
    }


@dataclass(frozen=True)
class Attempt:
    """An engine on the board, and the verdict on it."""

    onnx: Path
    written: WrittenVariant | None  # None: a file of the export itself
    fp32_modules: tuple[str, ...]
    built: dict[str, Any]  # as the board tells it, or why it was refused
    verdict: EngineVerdict

    @property
    def failure(self) -> str | None:
        return self.verdict.failure


class Workshop:
    """Makes an attempt of a rung, and a record of the one that is right."""

    def __init__(
        self,
        board: Board,
        facts: BoardFacts,
        exported: Exported,
        sample: Sample,
        scratch: Path,
        options: EngineOptions,
        progress: Progress,
    ) -> None:
        self.board, self.facts, self.exported, self.sample = board, facts, exported, sample
        self.scratch, self.options, self.progress = scratch, options, progress
        self.source = exported.written_of
        self.strongly_typed = bool(facts.tensorrt.strongly_typed)
        self.batches = batches_of(exported.report, options)
        self.older: WrittenVariant | None = None  # for releases before strong typing; written once
        self.leftovers: set[str] = set()  # files on the board that are of no use once an engine is chosen

    def attempt(self, rung: PrecisionRung) -> Attempt:
        """Build an engine and have it classify the sample."""
        modules = rung.modules(self.source.norms, self.source.blocks)
        onnx, written = self._typed_file(rung, modules) if self.strongly_typed else self._untyped_file()
        built = self._build(rung, onnx, [] if self.strongly_typed else node_patterns(modules))
        if built["refused"]:
            return Attempt(onnx, written, modules, built, EngineVerdict({}, built["refused"]))
        self.leftovers.add(built["engine"])
        verdict = self._judge(rung, built["engine"])
        if verdict.failure is not None:
            _discard(self.board, [built["engine"]])
        return Attempt(onnx, written, modules, built, verdict)

    def _typed_file(self, rung: PrecisionRung, modules: tuple[str, ...]) -> tuple[Path, WrittenVariant | None]:
        """Where an engine computes in the types of its ONNX file, each rung has a file of its own."""
        report = self.exported.report
        if rung.precision == "fp32" or modules == report.fp32_modules:
            return report.folder / onnx_name(rung.precision), None
        with self.progress.stage(f"write {rung}"):
            written = self.exported.write(Variant(rung.label, "fp16", report.opset, modules), self.scratch)
        return written.path, written

    def _untyped_file(self) -> tuple[Path, WrittenVariant | None]:
        """Where the builder chooses types, one fp32 file serves all rungs; such releases know no newer operators."""
        report = self.exported.report
        opset = NATIVE_OPSET if self.facts.tensorrt.native_layer_norm else OLDEST_OPSET
        if report.opset <= opset:
            return report.folder / onnx_name("fp32"), None
        if self.older is None:
            with self.progress.stage(f"write opset {opset}"):
                self.older = self.exported.write(Variant(f"fp32.opset{opset}", "fp32", opset), self.scratch)
        return self.older.path, self.older

    def _build(self, rung: PrecisionRung, onnx: Path, fp32_layers: list[str]) -> dict[str, Any]:
        options, dynamic = self.options, self.exported.report.batch == "dynamic"
        args = {
            "onnx": self.board.put(onnx, file_sha256(onnx), self.progress),
            "precision": rung.precision,
            "batches": list(self.batches) if dynamic else None,
            "fp32_layers": fp32_layers,
            "workspace_bytes": options.workspace_bytes,
            "optimization_level": options.optimization_level,
            "timing_cache": options.timing_cache,
        }
        built: dict[str, Any] = self.board.run_job("build", args, name=str(rung), progress=self.progress)
        return built

    def _judge(self, rung: PrecisionRung, engine: str) -> EngineVerdict:
        """At the batch that kernels were chosen for, then at the most: an engine may be wrong at one of them only."""
        sample = self.sample
        args = classification(self.board, engine, sample, self.progress)
        self.leftovers.add(args["images"])
        for batch in dict.fromkeys(self.batches[1:]):
            name = f"{rung}, batch {batch}"
            seen = self.board.run_job("classify", {**args, "batch": batch}, name=name, progress=self.progress)
            verdict = judge(sample, seen["predicted"], seen["nonfinite"], self.options.tolerances)
            if verdict.failure is not None:
                return replace(verdict, failure=f"{verdict.failure}, at batch {batch}")
        return verdict

    @property
    def _fuses_nothing(self) -> bool:
        """TensorRT 8.5, which JetPack 5 has, brings no fused attention for Orin's generation."""
        return (self.facts.tensorrt.version or "").startswith("8.5.") and self.facts.cuda.capability == "8.7"

    def _expected_fused(self, rung: PrecisionRung) -> int:
        """Attention blocks that should run as one kernel: fp16, of fusable dimensions, by a compiler that can."""
        if rung.precision == "fp32" or self._fuses_nothing:
            return 0
        return sum(fusable for i, fusable in enumerate(self.source.fusable) if i not in rung.blocks)

    def _warnings(self, rung: PrecisionRung, built: Mapping[str, Any]) -> list[str]:
        version, fused, expected = built["tensorrt"], built["fused"], self._expected_fused(rung)
        said = [*built["warnings"], *remarks(self.sample, self.options.tolerances)]
        if version.startswith("10.3."):
            by = (
                "the accuracy gate found none in this engine" if self.sample.judges else "NOTHING WAS THERE TO FIND OUT"
            )
            said.append(f"TensorRT {version} is known to miscompile some Vision Transformers; {by}")
        if self._fuses_nothing:
            said.append(f"TensorRT {version} (JetPack 5) fuses no attention on Orin; JetPack 6 and newer do")
        elif fused is not None and fused < expected:
            said.append(
                f"TensorRT {version} fuses {fused} of {sum(self.source.has_attention)} attention blocks, where "
                f"{expected} have dimensions that should fuse; the layers are listed beside the engine"
            )
        return said

    def record(self, descent: Descent[Attempt], target: Path, key: str, warnings: Sequence[str]) -> EngineRecord:
        """All that is known of the engine that was found right."""
        rung, attempt, report = descent.rung, descent.judged, self.exported.report
        built = attempt.built
        return EngineRecord(
            path=target,
            file=target.name,
            key=key,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            fingerprint=fingerprint(self.facts),
            board=board_in_short(self.facts),
            weights_sha256=report.model.weights_sha256,
            onnx=OnnxSource(attempt.onnx.name, file_sha256(attempt.onnx)),
            precision=rung.kind,
            rung=str(rung),
            fp32_modules=attempt.fp32_modules,
            batches=self.batches,
            build_seconds=built["seconds"],
            optimization_level=self.options.optimization_level,
            blocks=sum(self.source.has_attention),
            fused_expected=self._expected_fused(rung),
            fused_proxy=report.fusion,
            accuracy=attempt.verdict.record(self.sample),
            tried=tuple(EngineTried(str(r), a.built["seconds"], a.failure) for r, a in descent.tried),
            timing_cache=TimingCacheUse(**built["timing_cache"]) if built["timing_cache"] else None,
            inputs=_tensors(built["inputs"]),
            outputs=_tensors(built["outputs"]),
            warnings=(*warnings, *self._warnings(rung, built)),
            edgevit=written_by(),
            **{name: built[name] for name in TAKEN_OVER},
        )

    @contextmanager
    def fetched(self, descent: Descent[Attempt], target: Path) -> Iterator[Path]:
        """Give the engine as a temporary file beside its place, and make the ONNX file it came from part of the export.

        Raises:
            OutputError: the disk is full, or may not be written to.
        """
        built, written = descent.judged.built, descent.judged.written
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_left(target.parent)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            self.board.fetch(built["engine"], temporary, built["sha256"], self.progress)
            if written is not None:
                self.exported.keep(written)
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def _remove_left(folder: Path) -> None:
    """Remove what fetches left that were killed: one that goes on, here or on another machine, writes all the time."""
    for file in folder.glob(".*.engine.*"):
        with suppress(FileNotFoundError):  # it was another's, and is in its place now
            if time.time() - file.stat().st_mtime > LEFT_S:
                file.unlink()
