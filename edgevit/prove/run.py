"""`edgevit.prove`: build and measure the suite on a board, question by question, in turns with the dense network."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from torch import nn

from edgevit.agent.measure import Request
from edgevit.agent.records import Run
from edgevit.board.bench import Setting, in_turns, look, requests_of, take_turns
from edgevit.board.connection import Board, open_board
from edgevit.board.models import Measurable
from edgevit.board.request import Conditions
from edgevit.board.roofline import ceiling_found, least_bytes, roofline
from edgevit.engines.build import check_board
from edgevit.engines.unjudged import OPSET, build_unjudged
from edgevit.errors import AgentError, CheckpointError, Interrupted, OutputError, RunsError
from edgevit.export.graph import write_onnx
from edgevit.export.precision import halved
from edgevit.folder.lock import alone_in
from edgevit.folder.records import plain
from edgevit.folder.writing import file_sha256
from edgevit.models.checkpoint import Headless, open_network
from edgevit.models.families import vit
from edgevit.progress import Progress, Silent
from edgevit.prove.answers import against, answers
from edgevit.prove.published import published_for
from edgevit.prove.record import Figure, Measured, Proof, read_proof, write_proof
from edgevit.prove.request import BATCHES, SIZES, ProveRequest
from edgevit.prove.suite import Subject, largest_of, shape_of, suite
from edgevit.request import as_request
from edgevit.version import written_by

DENSE = "dense"
MOST = max(BATCHES)
# One run of many, each in turns with the dense network: that much of each shows a ratio.
SAMPLES, WARMUP, WARMUP_S = 20, 3, 0.2
WINDOW_S, POWER_WINDOW_S = 0.5, 2.0  # the rails' sensors average over 0.43 s
CHECKED = (DENSE, "shapes at 0.8")  # questions whose engines trtexec runs, too
TRTEXEC_S = 3.0
KEPT = ("module", "jetpack", "l4t", "tensorrt", "cuda", "power_mode", "clocks_locked")


def prove(board: str | ProveRequest | None = None, *, progress: Progress | None = None, **options: Any) -> Proof:
    """Measure how networks of many shapes run on a board, and write one file that tells it.

    No data, no weights and no root are needed, and nothing is changed on the board. With a `checkpoint` of the largest
    size, it and what is cut from it have these weights; networks of other tokens, embeddings or sizes have random ones.
    The same call goes on where it was interrupted.

    Args:
        board: as ssh knows it, or a whole request; None is this machine, with ONNX Runtime.
        options: the fields of `ProveRequest`.

    Raises:
        OptionError: also of an option that there is not.
        RunsError: the output holds something else, or the proof of another suite or board.
        EdgeVitError: whatever else is wrong, in one line.
    """
    return run(as_request(ProveRequest, "board", board, options), progress)


def run(request: ProveRequest, progress: Progress | None = None) -> Proof:
    """Do what is asked; `prove` says what is raised."""
    request.check()
    told, file = progress or Silent(), request.output
    weights = _weights(request)
    busy = OutputError(f"another edgevit is working in {file.parent.absolute()}; wait until it has ended")
    how = Conditions(
        runner="onnxruntime" if request.board is None else "tensorrt", batches=BATCHES, threads=request.threads
    )
    with (
        alone_in(file.parent, busy),
        open_board(request.board, ssh_config=request.ssh_config) as board,
        tempfile.TemporaryDirectory(prefix="edgevit-") as scratch,
    ):
        setting = look(board, None, how, told)
        if request.board is not None:
            check_board(board.host, setting.facts, None)
        window_s = POWER_WINDOW_S if setting.facts.has_power else WINDOW_S
        how = replace(how, duration_s=window_s, samples=SAMPLES, warmup=WARMUP, warmup_seconds=WARMUP_S)
        work = _Work(request, how, board, setting, Path(scratch), told, _opened(request, setting), weights)
        try:
            return work.finished()
        except (KeyboardInterrupt, Interrupted) as stop:
            raise Interrupted("stopped; the same command goes on with the questions that are not answered") from stop


def _weights(request: ProveRequest) -> nn.Module | None:
    """The largest network with the weights of the checkpoint, if there is one.

    Raises:
        CheckpointError: it is none of that network, or of other classes than ImageNet's 1000.
    """
    if request.checkpoint is None:
        return None
    size = largest_of(request.sizes)
    found = open_network(SIZES[size], checkpoint=request.checkpoint)
    outputs = 0 if isinstance(found, Headless) else found.spec.outputs
    if outputs != (wanted := shape_of(size)[1].outputs):
        raise CheckpointError(
            f"{request.checkpoint} has {outputs} outputs, and the networks of a proof have {wanted}; give another, or "
            "leave --checkpoint out"
        )
    return found.network


def _opened(request: ProveRequest, setting: Setting) -> Proof:
    """The proof that is there, or a new one.

    Raises:
        RunsError: what is there is of something else.
    """
    facts, profile = setting.facts, None if setting.profile is None else setting.profile.name
    told: dict[str, Any] = {
        "sizes": list(request.sizes),
        "quick": request.quick,
        "rounds": request.rounds,
        "threads": request.threads,
    }
    if request.checkpoint is not None:
        told["weights_sha256"] = file_sha256(request.checkpoint)
    environment = {name: plain(getattr(facts, name)) for name in KEPT}
    fresh = Proof(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        edgevit=written_by(),
        asked=told,
        host=setting.host,
        profile=profile,
        environment=environment,
        seconds=0.0,
        published=published_for(profile),
    )
    if not request.output.exists():
        return fresh
    found = read_proof(request.output)
    for what, before, now in (("asked", found.asked, told), ("board", found.host, setting.host),
                              ("environment", found.environment, environment)):  # fmt: skip
        if before != now:
            raise RunsError(
                f"{request.output} is of another {what}: {_differing(before, now)}; choose another --output"
            )
    found.measurements()
    return found


def _differing(before: Any, now: Any) -> str:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        name = next(name for name in sorted({*before, *now}) if before.get(name) != now.get(name))
        return f"{name} was {before.get(name)} and is {now.get(name)}"
    return f"{before}, and now {now}"


@dataclass
class _Work:
    """One proof under way."""

    request: ProveRequest
    how: Conditions
    board: Board
    setting: Setting
    scratch: Path
    progress: Progress
    proof: Proof
    weights: nn.Module | None = None  # the largest network, as it was trained; None: random weights
    began: float = field(default_factory=time.monotonic)

    @property
    def builds(self) -> bool:
        return self.request.board is not None

    @property
    def dense(self) -> Subject:
        largest = largest_of(self.request.sizes)
        return Subject(largest, largest)

    @property
    def is_late(self) -> bool:
        return self.proof.seconds + time.monotonic() - self.began > 60 * self.request.most_minutes

    def finished(self) -> Proof:
        """Answer every question for which there is time."""
        asked = suite(self.request.sizes, quick=self.request.quick, fp32_too=self.builds)
        left: list[str] = []
        anchor: _Ready | None = None
        for question, subjects in asked.items():
            due = [subject for subject in subjects if self.proof.of(subject.name) is None]
            if self.is_late:
                left += [subject.name for subject in due]
            elif due:
                anchor = anchor or self._anchor()
                left += self._answer(question, due, anchor)
        if anchor is not None:
            self._discard([anchor])
        if tuple(left) != self.proof.left_out:
            self._keep(left_out=tuple(left))
        if left:
            more = f"the same command with --minutes {2 * self.request.most_minutes:g} goes on"
            self.progress.warn(f"left out for want of time: {', '.join(left)}; {more}")
        return self.proof

    def _anchor(self) -> _Ready:
        """The dense network, which every other takes turns with."""
        anchor = self._ready(self.dense)
        if anchor.measurable is None:
            raise AgentError(f"there is no engine of the dense network on {self.board.host}: {anchor.refused}")
        return anchor

    def _answer(self, question: str, subjects: Sequence[Subject], anchor: _Ready) -> list[str]:
        """Build and measure the networks of one question, and keep what came of it; those there was no time for."""
        self.progress.note(f"{question}: {len(subjects)} networks")
        ready: list[_Ready] = []
        while len(ready) < len(subjects) and not self.is_late:
            ready.append(self._ready(subjects[len(ready)]))
        there = [anchor, *(one for one in ready if one.measurable is not None)]
        runs = self._measure(question, there) if len(there) > 1 else ()
        found = [self._measured(question, one, runs) for one in ready]
        if self.proof.of(self.dense.name) is None and runs:
            found.insert(0, self._measured(DENSE, anchor, runs))
        self._discard(ready)
        self._keep(
            measured=(*self.proof.measured, *found), runs=(*self.proof.runs, *(plain(run.to_dict()) for run in runs))
        )
        return [subject.name for subject in subjects[len(ready) :]]

    def _keep(self, **found: Any) -> None:
        """Write down what is there so far, and what it says."""
        now = time.monotonic()
        proof = replace(self.proof, seconds=self.proof.seconds + now - self.began, **found)
        self.began, self.proof = now, replace(proof, answers=answers(proof, self.dense.name))
        write_proof(self.proof, self.request.output)

    # -- networks on the board -----------------------------------------------------------------------------------------

    def _ready(self, subject: Subject) -> _Ready:
        """Have the file that is run of a network on the machine that runs it."""
        if not self.builds:
            path = self._written(subject, "fp32", OPSET)
            return _Ready(subject, "fp32", self._measurable(subject, str(path), file_sha256(path), "fp32"))
        built = build_unjudged(
            self.board,
            self.setting.facts.tensorrt,
            lambda precision, opset: self._written(subject, precision, opset),
            name=subject.name,
            precision=subject.precision,
            batches=(1, 1, MOST),
            progress=self.progress,
        )
        if built["refused"]:
            return _Ready(subject, subject.precision, None, build_s=built["seconds"], refused=built["refused"])
        measurable = self._measurable(subject, built["engine"], built["sha256"], subject.precision)
        return _Ready(subject, subject.precision, measurable, fused=built["fused"], build_s=built["seconds"])

    def _discard(self, ready: Sequence[_Ready]) -> None:
        """Remove the engines from the board, where there is little room."""
        if paths := [str(one.measurable.path) for one in ready if self.builds and one.measurable is not None]:
            self.board.call("discard", paths=paths)

    def _written(self, subject: Subject, precision: str, opset: int) -> Path:
        path = self.scratch / f"{subject.name.replace(' ', '-').replace(',', '')}.onnx"
        if not path.is_file():
            with self.progress.stage(f"write {subject.name}"):
                of_dense = subject.is_cut_from(self.dense.size)
                network = subject.network(self.weights if of_dense else None)
                form = halved(network) if precision == "fp16" else network
                how: dict[str, Any] = {"batch": "dynamic", "opset": opset, "metadata": {"network": subject.name}}
                write_onnx(form, path, input_size=vit.input_size(network), **how)
        return path

    @staticmethod
    def _measurable(subject: Subject, path: str, sha256: str, precision: str) -> Measurable:
        return Measurable(Path(path), sha256, precision, subject.name)

    # -- figures -------------------------------------------------------------------------------------------------------

    def _measure(self, question: str, ready: Sequence[_Ready]) -> tuple[Run, ...]:
        """All of them at every batch size, in turns."""
        shapes = [self._requests(one) for one in ready]
        turns = in_turns(shapes, self.request.rounds, seed=0)
        name = f"{question} on {self.board.host}"
        done = take_turns(self.board, self.how, turns, self.setting, name, self.progress)
        if failed := done.failed:
            what = f"cannot measure {turns[failed['number']].label} on {self.board.host}"
            raise AgentError(f"{what}: {failed['message']}", remote_traceback=failed["traceback"])
        return done.runs

    def _requests(self, one: _Ready) -> list[Request]:
        assert one.measurable is not None and self.how.runner is not None
        return requests_of(self.how, str(one.measurable.path), one.measurable, self.how.runner, self.setting)

    def _measured(self, question: str, one: _Ready, runs: Sequence[Run]) -> Measured:
        """A network, with its figures."""
        subject = one.subject
        dims, geometry = subject.cost()
        return Measured(
            name=subject.name,
            question=question,
            size=subject.size,
            precision=one.precision,
            tokens=geometry.tokens,
            macs=geometry.macs(dims),
            params=geometry.params(dims),
            blocks=dims,
            fusable=sum(block.fusable for block in dims) if one.precision == "fp16" else 0,
            fused=one.fused,
            build_s=one.build_s,
            refused=one.refused,
            figures=tuple(self._figures(question, one, runs)) if one.measurable is not None else (),
        )

    def _figures(self, question: str, one: _Ready, runs: Sequence[Run]) -> Iterator[Figure]:
        ratios = {c.batch: c for c in against(runs, self.dense.name, one.subject.name)}
        for batch in BATCHES:
            own = [run for run in runs if run.label == one.subject.name and run.batch == batch]
            if not own:
                continue
            ratio, energies = ratios.get(batch), [e for run in own if (e := run.energy_per_image_mj()) is not None]
            p50_ms = median(run.p50_ns() for run in own) / 1e6
            yield Figure(
                batch=batch,
                p50_ms=p50_ms,
                mean_ms=median(run.mean_ns() for run in own) / 1e6,
                images_per_s=median(run.images_per_second() for run in own),
                energy_mj=median(energies) if energies else None,
                ratio=None if ratio is None else ratio.ratio,
                low=None if ratio is None else ratio.low,
                high=None if ratio is None else ratio.high,
                roofline_share=self._roofline_share(one, batch, p50_ms),
                trtexec_ms=self._by_trtexec(question, one, batch),
                void=tuple(dict.fromkeys(chain.from_iterable(run.void() for run in own))),
            )

    def _roofline_share(self, one: _Ready, batch: int, p50_ms: float) -> float | None:
        if self.setting.profile is None:
            return None
        dims, geometry = one.subject.cost()
        values = geometry.patches * geometry.patch_values + geometry.outputs
        moved = least_bytes(geometry.params(dims), values, batch=batch, precision=one.precision)
        limits = ceiling_found(self.setting.profile, self.setting.facts)
        return roofline(limits, batch * geometry.macs(dims), moved, one.precision).share(p50_ms / 1e3)

    def _by_trtexec(self, question: str, one: _Ready, batch: int) -> float | None:
        """GPU time of the same engine by trtexec, where it is on the board."""
        if question not in CHECKED or not self.builds or not self.setting.facts.trtexec or one.measurable is None:
            return None
        args = {"engine": str(one.measurable.path), "batch": batch, "seconds": TRTEXEC_S, "streams": 1}
        name = f"trtexec {one.subject.name}, batch {batch}"
        try:
            seen = self.board.run_job("trtexec", args, name=name, progress=self.progress)
        except AgentError as error:
            self.progress.warn(f"{name}: {error}")
            return None
        return float(seen["gpu_ms"]["median"])


@dataclass(frozen=True)
class _Ready:
    """A network on the machine that runs it, or why there is no engine of it."""

    subject: Subject
    precision: str
    measurable: Measurable | None
    fused: int | None = None
    build_s: float | None = None
    refused: str | None = None
