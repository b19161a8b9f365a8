"""Build and check engines on one board for one command, and fetch the correct one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from torch import Tensor

from edgevit.board.answers import Built, Classified, Refusal
from edgevit.board.bench import Setting, in_turns, requests_of, take_turns
from edgevit.board.comparison import compare_within, decisive
from edgevit.board.connection import Board
from edgevit.board.facts import BoardFacts
from edgevit.board.fingerprint import fingerprint
from edgevit.board.models import Measurable
from edgevit.board.request import Conditions
from edgevit.engines.detections import Annotated
from edgevit.engines.gate import EngineVerdict, Sample, judge, remarks
from edgevit.engines.options import EngineOptions
from edgevit.engines.outputs import classification, drop, opened_engine, rows_of
from edgevit.engines.precision_levels import PrecisionLevel, PrecisionSearch, node_patterns
from edgevit.errors import OptionError
from edgevit.exporting.variants import Exported, Variant, WrittenVariant
from edgevit.progress import Progress
from edgevit.records.engine import (
    EngineAttempt,
    EngineBoard,
    EngineRecord,
    OnnxSource,
)
from edgevit.records.export import ExportRecord
from edgevit.records.names import onnx_name
from edgevit.records.precisions import FP16, INT8, precision_of
from edgevit.records.writing import file_sha256, writing
from edgevit.version import written_by

ROUNDS, TIMED_S = 8, 1.0  # rounds of two engines that alternate, and seconds of each
_STALE_S = 3600.0  # without a write, after which a partly fetched file is abandoned
# Opset with LayerNormalization as one operator, for TensorRT 8.6 and newer; opset without it.
NATIVE_OPSET, OLDEST_OPSET = 17, 16
_RECORDED = (  # fields of the agent's answer
    "sha256",
    "bytes",
    "strongly_typed",
    "workspace_bytes",
    "device_memory_bytes",
    "fused",
)


def batches_of(report: ExportRecord, options: EngineOptions) -> tuple[int, int, int]:
    """Images per inference of the engine: as requested, or those of an export with a fixed batch.

    Raises:
        OptionError: the request differs from the fixed batch.
    """
    least, chosen, most = options.batches
    requested = (least, chosen, most)  # which may have been a list
    if report.batch == "dynamic":
        return requested
    fixed = (report.batch, report.batch, report.batch)
    if requested not in (fixed, EngineOptions.batches):
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


@dataclass(frozen=True)
class Attempt:
    """An engine on the board and its verdict; or why there is no engine."""

    onnx: Path
    written: WrittenVariant | None  # the file that was written for this attempt; None: a file of the export was used
    fp32_modules: tuple[str, ...]
    answer: Built | Refusal
    verdict: EngineVerdict

    @property
    def failure(self) -> str | None:
        return self.verdict.failure

    @property
    def built(self) -> Built:
        """The engine. Only where there is one."""
        assert isinstance(self.answer, Built)
        return self.answer


class EngineBuilder:
    """Builds and checks engines of precision levels, and records the correct one."""

    def __init__(
        self,
        board: Board,
        facts: BoardFacts,
        exported: Exported,
        sample: Sample | Annotated,
        scratch: Path,
        options: EngineOptions,
        progress: Progress,
        conditions: Conditions,
    ) -> None:
        """`conditions`: the power mode and the clocks in which engines are compared."""
        self.board, self.facts, self.exported, self.sample = board, facts, exported, sample
        self.conditions = conditions
        self.scratch, self.options, self.progress = scratch, options, progress
        self.source = exported.written_of
        self.strongly_typed = bool(facts.tensorrt.strongly_typed)
        self.batches = batches_of(exported.report, options)
        self.older: WrittenVariant | None = None  # for TensorRT without strong typing; written once
        self.leftovers: set[str] = set()  # files on the board that are not needed once an engine is chosen

    def attempt(self, level: PrecisionLevel) -> Attempt:
        """Build an engine and classify the sample with it."""
        modules = level.modules(self.source.norms, self.source.blocks)
        onnx, written = self._typed_file(level, modules) if self.strongly_typed else self._untyped_file()
        built = self._build(level, onnx, [] if self.strongly_typed else node_patterns(modules))
        if isinstance(built, Refusal):
            return Attempt(onnx, written, modules, built, EngineVerdict({}, built.refused))
        self.leftovers.add(built.engine)
        verdict = self._judge(level, built)
        if verdict.failure is not None:
            drop(self.board, [built.engine])
        return Attempt(onnx, written, modules, built, verdict)

    def with_int8(self, search: PrecisionSearch[Attempt]) -> PrecisionSearch[Attempt]:
        """Build the engine in INT8 as well, with the same modules in fp32; take it if it is correct and faster."""
        level = PrecisionLevel(INT8.name, search.level.norms, search.level.blocks)
        attempt = self.attempt(level)
        if attempt.failure is None and (slow := self._not_faster(attempt, search)):
            attempt = replace(attempt, verdict=replace(attempt.verdict, failure=slow))
        if attempt.failure is not None:
            self.progress.note(f"{level} {attempt.failure}; {search.level} stays")
            return replace(search, failed=(*search.failed, (level, attempt)))
        return PrecisionSearch(level, attempt, search.failed)

    def _not_faster(self, attempt: Attempt, search: PrecisionSearch[Attempt]) -> str | None:
        """Compare an engine with that of a search, alternately on the board; None: it is faster by more than noise."""
        setting = Setting(self.board.host, self.facts, None)
        conditions = replace(self.conditions, batches=(self.batches[1],), duration_s=TIMED_S, idle_s=0.0)
        shapes = []
        for label, built in ((str(search.level), search.judged.built), (INT8.name, attempt.built)):
            file = Measurable(Path(built.engine), built.sha256, label, label)
            shapes.append(requests_of(conditions, built.engine, file, "tensorrt", setting))
        turns = in_turns(shapes, ROUNDS, seed=0, alternate=True)
        name = f"{INT8.name} against {search.level}"
        done = take_turns(self.board, conditions, turns, setting, name, self.progress, lambda _: None)
        if done.failed:
            return f"cannot be measured: {done.failed.message}"
        (comparison,) = decisive(compare_within(done.runs))
        if comparison.outcome == "better":
            return None
        if comparison.void:
            reason = comparison.void[0].partition(";")[0]  # what follows names options of a bench
            return (
                f"cannot be compared with {search.level}, as {reason}; run `sudo jetson_clocks` there or let it cool, "
                "and build again with --rebuild"
            )
        text = f"{comparison.outcome}, at {comparison.ratio:.2f} of its latency"
        return f"is not shown to be faster than {search.level}: {text}"

    def _typed_file(self, level: PrecisionLevel, modules: tuple[str, ...]) -> tuple[Path, WrittenVariant | None]:
        """Return the file of a level; with strong typing an engine has the types of its ONNX file."""
        report = self.exported.report
        if level.precision == INT8.name and report.reference != INT8.name:
            label = f"{level.label}.{FP16.name}"
            with self.progress.stage(f"write {level}"):
                written = self.exported.write(Variant(label, INT8.name, report.opset, modules), self.scratch)
            return written.path, written
        if not precision_of(level.precision).mixes or modules == report.fp32_modules:
            return report.folder / onnx_name(level.precision), None
        with self.progress.stage(f"write {level}"):
            written = self.exported.write(Variant(level.label, level.precision, report.opset, modules), self.scratch)
        return written.path, written

    def _untyped_file(self) -> tuple[Path, WrittenVariant | None]:
        """Return one file for all levels, for TensorRT that chooses types itself and has no newer operators."""
        report, precision = self.exported.report, self.exported.report.reference
        opset = NATIVE_OPSET if self.facts.tensorrt.native_layer_norm else OLDEST_OPSET
        if report.opset <= opset:
            return report.folder / onnx_name(precision), None
        if self.older is None:
            with self.progress.stage(f"write opset {opset}"):
                self.older = self.exported.write(Variant(f"{precision}.opset{opset}", precision, opset), self.scratch)
        return self.older.path, self.older

    def _build(self, level: PrecisionLevel, onnx: Path, fp32_layers: list[str]) -> Built | Refusal:
        options, dynamic = self.options, self.exported.report.batch == "dynamic"
        args = {
            "onnx": self.board.put(onnx, file_sha256(onnx), self.progress),
            "precision": level.precision,
            "batches": list(self.batches) if dynamic else None,
            "fp32_layers": fp32_layers,
            "workspace_bytes": options.workspace_bytes,
            "optimization_level": options.optimization_level,
            "timing_cache": options.timing_cache,
        }
        built: Built | Refusal = self.board.run_job("build", args, name=str(level), progress=self.progress)
        return built

    def _judge(self, level: PrecisionLevel, built: Built) -> EngineVerdict:
        """Check an engine at the batch of its kernels and at the largest: it may be wrong at one of them only."""
        for batch in dict.fromkeys(self.batches[1:]):
            verdict = self._verdict(level, built, batch, f"{level}, batch {batch}")
            if verdict.failure is not None:
                return replace(verdict, failure=f"{verdict.failure}, at batch {batch}")
        return verdict

    def _verdict(self, level: PrecisionLevel, built: Built, batch: int, name: str) -> EngineVerdict:
        sample, tolerances, rounds = self.sample, self.options.tolerances, level.precision == INT8.name
        if isinstance(sample, Annotated):
            with self._opened(built, batch) as compute:
                return sample.judge(compute, tolerances, batch=batch, rounds=rounds)
        if sample.columns is None:
            with self.progress.stage(f"{name}: classify"), self._opened(built, batch) as compute:
                outputs = compute(sample.images())
            return judge(sample, outputs, int((~outputs.isfinite()).sum()), tolerances, rounds=rounds)
        args = classification(self.board, built.engine, sample, self.progress)
        self.leftovers.add(args["images"])
        shape = (sample.count, len(sample.columns))

        def read(answer: Classified) -> EngineVerdict:
            outputs = rows_of(answer, shape, self.board.host)
            return judge(sample, outputs, answer.nonfinite, tolerances, rounds=rounds)

        job = {**args, "batch": batch}
        verdict: EngineVerdict = self.board.run_job("classify", job, name=name, progress=self.progress, read=read)
        return verdict

    def _opened(self, built: Built, batch: int) -> AbstractContextManager[Callable[[Tensor], Tensor]]:
        order = [output.name for output in self.exported.report.outputs]
        return opened_engine(self.board, built.engine, built.inputs, built.outputs, order, batch, self.progress)

    @property
    def _fuses_nothing(self) -> bool:
        """Whether this is the TensorRT 8.5 of JetPack 5, which has no fused attention for Orin."""
        return (self.facts.tensorrt.version or "").startswith("8.5.") and self.facts.cuda.capability == "8.7"

    def _expected_fused(self, level: PrecisionLevel) -> int:
        """The number of attentions that should run as one kernel: in fp16, and of fusable dimensions."""
        mixed = level.precision == INT8.name and self.exported.report.reference != INT8.name  # the rest is in fp16
        if not (mixed or precision_of(level.precision).fuses) or self._fuses_nothing:
            return 0
        return sum(fusable for i, fusable in enumerate(self.source.fusable) if i not in level.blocks)

    def _warnings(self, level: PrecisionLevel, built: Built) -> list[str]:
        version, fused, expected = built.tensorrt, built.fused, self._expected_fused(level)
        sample, limits = self.sample, self.options.tolerances
        own = sample.remarks() if isinstance(sample, Annotated) else remarks(sample, limits)
        warnings = [*built.warnings, *own]
        if version.startswith("10.3."):
            checked = (
                "the accuracy gate found no fault in this engine"
                if self.sample.judges
                else "THIS ENGINE WAS NOT CHECKED"
            )
            warnings.append(f"TensorRT {version} is known to miscompile some Vision Transformers; {checked}")
        if self._fuses_nothing:
            warnings.append(f"TensorRT {version} (JetPack 5) fuses no attention on Orin; JetPack 6 and newer do")
        elif fused is not None and fused < expected:
            warnings.append(
                f"TensorRT {version} fuses {fused} of {sum(self.source.has_attention)} attention blocks, where "
                f"{expected} have dimensions that should fuse; the layers are listed beside the engine"
            )
        return warnings

    def record(self, search: PrecisionSearch[Attempt], target: Path, key: str, warnings: Sequence[str]) -> EngineRecord:
        """The record of the engine that passed the gate."""
        level, attempt, report = search.level, search.judged, self.exported.report
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
            precision=level.kind,
            precision_level=str(level),
            fp32_modules=attempt.fp32_modules,
            batches=self.batches,
            build_seconds=built.seconds,
            optimization_level=self.options.optimization_level,
            blocks=sum(self.source.has_attention),
            fused_expected=self._expected_fused(level),
            accuracy=attempt.verdict.record(self.sample),
            attempts=tuple(EngineAttempt(str(r), a.answer.seconds, a.failure) for r, a in search.failed),
            timing_cache=built.timing_cache,
            inputs=built.inputs,
            outputs=built.outputs,
            warnings=(*warnings, *self._warnings(level, built)),
            edgevit=written_by(),
            **{name: getattr(built, name) for name in _RECORDED},
        )

    @contextmanager
    def fetched(self, search: PrecisionSearch[Attempt], target: Path) -> Iterator[Path]:
        """Yield the engine as a temporary file in its folder, and add the ONNX file of the engine to the export.

        Raises:
            OutputError: it cannot be written.
        """
        built, written = search.judged.built, search.judged.written
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(target.parent)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            self.board.fetch(built.engine, temporary, built.sha256, self.progress)
            if written is not None:
                self.exported.keep(written)
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def _remove_stale(folder: Path) -> None:
    """Remove partly fetched files of killed processes; a running one, on any machine, writes continuously."""
    for file in folder.glob(".*.engine.*"):
        with suppress(FileNotFoundError):  # another process has moved it to its place
            if time.time() - file.stat().st_mtime > _STALE_S:
                file.unlink()
