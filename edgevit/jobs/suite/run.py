"""`edgevit.prove`: build and measure the suite on a board, question by question, in turns with the dense network."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from torch import nn

from edgevit.agent.doubts import POWER_WINDOW_S
from edgevit.agent.measure import MeasurementRequest
from edgevit.agent.records import Run
from edgevit.board.bench import Setting, Turns, in_turns, look, requests_of, take_turns
from edgevit.board.connection import Board, open_board
from edgevit.board.models import Measurable
from edgevit.board.request import Conditions
from edgevit.board.roofline import board_ceiling, least_bytes, roofline
from edgevit.engines.build import check_board
from edgevit.engines.unjudged import OPSET, build_unjudged
from edgevit.errors import AgentError, CheckpointError, Interrupted, OptionError, OutputError, RunsError
from edgevit.exporting.graph import write_onnx
from edgevit.jobs.suite.answers import against, answers
from edgevit.jobs.suite.published import published_for
from edgevit.jobs.suite.record import Figure, MeasuredNetwork, Proof, Waiting, read_proof, write_proof
from edgevit.jobs.suite.request import BATCHES, QUICK_MINUTES, SIZES, ProveRequest
from edgevit.jobs.suite.suite import EFFORTS, SuiteNetwork, largest_of, shape_of, suite
from edgevit.network.checkpoint import Headless, open_network
from edgevit.network.families import vit
from edgevit.progress import Progress, Silent
from edgevit.records.kinds import plain
from edgevit.records.lock import alone_in
from edgevit.records.writing import file_sha256
from edgevit.request import as_request, takes_options
from edgevit.version import written_by

DENSE = "dense"
MOST = max(BATCHES)
# One run of many, each in turns with the dense network: that much of each shows a ratio.
SAMPLES, WARMUP, WARMUP_S = 20, 3, 0.2
WINDOW_S = 0.5
ENERGY_WINDOW_S = POWER_WINDOW_S  # of the one round that tells energy; shorter ones are mostly their edges
CHECKED = (DENSE, "shapes at 0.8")  # questions whose engines trtexec runs, too, at the smallest batch size
TRTEXEC_S = 3.0
# What is reckoned for the start of a process that loads an engine, until it was seen; and for the end of a proof.
START_S, END_S = 3.5, 5.0
SET = ("power_mode", "clocks_locked")  # what a job may set for itself, and another sees meanwhile
KEPT = ("module", "jetpack", "l4t", "tensorrt", "cuda", *SET)


@takes_options(ProveRequest)
def prove(board: str | ProveRequest | None = None, *, progress: Progress | None = None, **options: Any) -> Proof:
    """Measure how networks of many shapes run on a board, and write one file that tells it.

    No data, no weights and no root are needed, and nothing is changed on the board. With a `checkpoint` of the largest
    size, it and what is cut from it have these weights; networks of other tokens, embeddings or sizes have random ones.
    The same call goes on where it was interrupted: until then, engines that were built and not measured wait there.

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
    began, told, file = time.monotonic(), progress or Silent(), request.output
    weights = _weights(request)
    busy = OutputError(f"another edgevit is working in {file.parent.absolute()}; wait until it has ended")
    how = Conditions(
        runner="onnxruntime" if request.board is None else "tensorrt",
        batches=request.batches,
        threads=request.threads,
        idle_s=0.0,  # energy is told as all that the module draws
    )
    with (
        alone_in(file.parent, busy),
        open_board(request.board, ssh_config=request.ssh_config) as board,
        tempfile.TemporaryDirectory(prefix="edgevit-") as scratch,
    ):
        setting = look(board, None, how, told)
        if request.board is not None:
            check_board(board.host, setting.facts, None)
            if setting.facts.clocks_locked is False:
                told.warn(
                    f"the clocks of {board.host} are free, and a run within which that of the GPU moves tells nothing; "
                    "`sudo jetson_clocks` there holds them until it starts again"
                )
        how = replace(how, duration_s=WINDOW_S, samples=SAMPLES, warmup=WARMUP, warmup_seconds=WARMUP_S)
        work = _Work(request, how, board, setting, Path(scratch), told, _opened(request, setting), weights, began)
        try:
            return work.finished()
        except (KeyboardInterrupt, Interrupted) as stop:
            wait = f", with engines that wait in ~/.cache/edgevit/files on {board.host}" if work.proof.waiting else ""
            raise Interrupted(f"stopped; the same command goes on where this one was{wait}") from stop


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
        request=told,
        host=setting.host,
        profile=profile,
        environment=environment,
        seconds=0.0,
        published=published_for(profile),
    )
    if not request.output.exists():
        return fresh
    found = read_proof(request.output)
    if not found.runs:  # what was built may be used in any state of the board
        found = replace(found, environment={**found.environment, **{name: environment[name] for name in SET}})
    for what, before, now in (("request", found.request, told), ("board", found.host, setting.host),
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
    began: float = 0.0  # by the clock
    clock: Callable[[], float] = time.monotonic

    @property
    def builds(self) -> bool:
        return self.request.board is not None

    @property
    def dense(self) -> SuiteNetwork:
        largest = largest_of(self.request.sizes)
        return SuiteNetwork(largest, largest)

    @property
    def elapsed_s(self) -> float:
        return self.proof.seconds + self.clock() - self.began

    def finished(self) -> Proof:
        """Answer every question for which there is time."""
        asked = suite(self.request.sizes, quick=self.request.quick, fp32_too=self.builds)
        left: list[str] = []
        anchor: _Ready | None = None
        for question, subjects in asked.items():
            due = [subject for subject in subjects if self.proof.of(subject.name) is None]
            if due and self._fits(question, due[0], 2):
                anchor = anchor or self._anchor()
                left += self._answer(question, due, anchor)
            else:
                left += [subject.name for subject in due]
        if left and not self.proof.measured:
            raise self._too_short(asked)  # engines that were built wait
        self._discard()
        if tuple(left) != self.proof.left_out:
            self._keep(left_out=tuple(left))
        if left:
            minutes = max(self.request.most_minutes, self.elapsed_s / 60)
            more = f"the same command with --minutes {math.ceil(2 * minutes)} goes on"
            self.progress.warn(f"left out for want of time: {', '.join(left)}; {more}")
        return self.proof

    def _too_short(self, asked: Iterable[str]) -> OptionError:
        """For a time in which no network can be set beside the dense one; with the least that a question takes."""
        least_s = 2 * (self.proof.build_s or 0.0) + min(self._measuring_s(question, 2) for question in asked)
        minutes = (self.elapsed_s + least_s + END_S) / 60
        return OptionError(
            f"--minutes {self.request.most_minutes:g} is too short: two networks take about {minutes:.1f} on "
            f"{self.board.host}, and nothing was measured; try --minutes {max(math.ceil(2 * minutes), QUICK_MINUTES):g}"
        )

    def _fits(self, question: str, subject: SuiteNetwork, networks: int) -> bool:
        """Whether there is time to build a network and then to measure so many, this one and the dense one among them.

        One that waits on the board fits: when it was built, there was time to measure it.
        """
        if self.proof.waits(subject.name) is not None:
            return True
        return self._is_time_for((self.proof.build_s or 0.0) + self._measuring_s(question, networks))

    def _measuring_s(self, question: str, networks: int) -> float:
        """What it takes to measure so many networks and to check them with trtexec, but for the window of energy."""
        run_s = self.proof.run_s or WINDOW_S + WARMUP_S + START_S
        check_s = self._check_s if question in CHECKED else 0.0
        return networks * (sum(self._rounds(question).values()) * run_s + check_s)

    def _rounds(self, question: str) -> dict[int, int]:
        """How often each network of a question is measured, by batch size."""
        return EFFORTS[question].rounds(self.request.rounds, self.how.batches)

    def _is_time_for(self, seconds: float) -> bool:
        return self.elapsed_s + seconds + END_S <= 60 * self.request.most_minutes

    @property
    def _check_s(self) -> float:
        """What trtexec takes for one network."""
        return WARMUP_S + START_S + TRTEXEC_S if self.builds and self.setting.facts.trtexec else 0.0

    def _anchor(self) -> _Ready:
        """The dense network, which every other takes turns with."""
        anchor = self._ready(self.dense)
        if anchor.measurable is None:
            raise AgentError(f"there is no engine of the dense network on {self.board.host}: {anchor.refused}")
        return anchor

    def _answer(self, question: str, subjects: Sequence[SuiteNetwork], anchor: _Ready) -> list[str]:
        """Build and measure the networks of one question, and keep what came of it; those there was no time for."""
        self.progress.note(f"{question}: {len(subjects)} networks")
        ready: list[_Ready] = []
        while len(ready) < len(subjects) and self._fits(question, subjects[len(ready)], len(ready) + 2):
            ready.append(self._ready(subjects[len(ready)]))
        there = [anchor, *(one for one in ready if one.measurable is not None)]
        runs, failed = self._measure(question, there) if len(there) > 1 else ((), {})
        found = [self._measured(question, one, runs, failed) for one in ready]
        if self.proof.of(self.dense.name) is None and runs:
            found.insert(0, self._measured(DENSE, anchor, runs, failed))
        before = [replace(one, failed=failed.get(one.name, one.failed)) for one in self.proof.measured]
        self._keep(measured=(*before, *found))
        self._discard(self.dense.name)
        return [subject.name for subject in subjects[len(ready) :]]

    def _keep_runs(self, done: Turns) -> None:
        """Write down raw runs; the networks they are of are not measured yet, and are measured again if this ends."""
        self._keep(runs=(*self.proof.runs, *(plain(run.to_dict()) for run in done.runs)))

    def _keep(self, **found: Any) -> None:
        """Write down what is there so far, and what it says."""
        now = self.clock()
        self.proof = replace(self.proof, seconds=self.proof.seconds + now - self.began, **found)
        self.began = now
        if "measured" in found:
            self.proof = replace(self.proof, answers=answers(self.proof, self.dense.name))
        write_proof(self.proof, self.request.output)

    # -- networks on the board -----------------------------------------------------------------------------------------

    def _ready(self, subject: SuiteNetwork) -> _Ready:
        """Have the file that is run of a network on the machine that runs it."""
        began = self.clock()
        if not self.builds:
            path = self._written(subject, "fp32", OPSET)
            self._keep_build(began)
            return _Ready(subject, "fp32", self._measurable(subject, str(path), file_sha256(path), "fp32"))
        waiting = self.proof.waits(subject.name)
        if waiting is None or not self._is_there(waiting):
            built = build_unjudged(
                self.board,
                self.setting.facts.tensorrt,
                lambda precision, opset: self._written(subject, precision, opset),
                name=subject.name,
                precision=subject.precision,
                batches=(1, 1, MOST),
                progress=self.progress,
            )
            others = tuple(one for one in self.proof.waiting if one.name != subject.name)
            if built["refused"]:
                self._keep_build(began, waiting=others)
                return _Ready(subject, subject.precision, None, build_s=built["seconds"], refused=built["refused"])
            waiting = Waiting(subject.name, built["engine"], built["sha256"], built["fused"], built["seconds"])
            self._keep_build(began, waiting=(*others, waiting))
        measurable = self._measurable(subject, waiting.engine, waiting.sha256, subject.precision)
        return _Ready(subject, subject.precision, measurable, fused=waiting.fused, build_s=waiting.build_s)

    def _keep_build(self, began: float, **found: Any) -> None:
        """Write down what was built; the dense network's build counts only until there is another one.

        It is the first, for which TensorRT times kernels that it knows afterwards.
        """
        took_s, before_s = self.clock() - began, self.proof.build_s or 0.0
        is_early = self.proof.of(self.dense.name) is None and len(self.proof.waiting) < 2
        self._keep(build_s=took_s if is_early else max(took_s, before_s), **found)

    def _is_there(self, one: Waiting) -> bool:
        part = f"{one.engine}.none"
        return bool(self.board.call("offer", path=one.engine, part=part, sha256=one.sha256)["there"])

    def _discard(self, kept: str | None = None) -> None:
        """Remove the engines from the board, where there is little room, but for one."""
        waiting = self.proof.waiting
        if gone := [one.engine for one in waiting if one.name != kept]:
            self.board.call("discard", paths=gone)
            self._keep(waiting=tuple(one for one in waiting if one.name == kept))

    def _written(self, subject: SuiteNetwork, precision: str, opset: int) -> Path:
        path = self.scratch / f"{subject.name.replace(' ', '-').replace(',', '')}.onnx"
        if not path.is_file():
            with self.progress.stage(f"write {subject.name}"):
                of_dense = subject.is_cut_from(self.dense.size)
                network = subject.network(self.weights if of_dense else None)
                how: dict[str, Any] = {"batch": "dynamic", "opset": opset, "metadata": {"network": subject.name}}
                write_onnx(network, path, input_size=vit.input_size(network), precision=precision, **how)
        return path

    @staticmethod
    def _measurable(subject: SuiteNetwork, path: str, sha256: str, precision: str) -> Measurable:
        return Measurable(Path(path), sha256, precision, subject.name)

    # -- figures -------------------------------------------------------------------------------------------------------

    def _measure(self, question: str, ready: Sequence[_Ready]) -> tuple[tuple[Run, ...], dict[str, str]]:
        """All of them in turns, at one batch size after the other; and why some were not measured to the end.

        One whose process fails, as for want of memory, is left out from there on, and the others go on without it.

        Where energy is asked for and can be told, the window of the last round at the smallest batch size is as long as
        that takes: of all of them, so that they meet the same board.
        """
        longer_s = len(ready) * (ENERGY_WINDOW_S - WINDOW_S)
        is_told = EFFORTS[question].energy and self.setting.facts.has_power and self.setting.profile is not None
        is_long = is_told and self._is_time_for(self._measuring_s(question, len(ready)) + longer_s)
        turns = list(chain.from_iterable(self._turns(question, ready, is_long)))
        name, began = f"{question} on {self.board.host}", self.clock()
        runs: tuple[Run, ...] = ()
        failed: dict[str, str] = {}
        while turns:
            where = (self.board, self.how, turns, self.setting)
            done = take_turns(*where, name, self.progress, self._keep_runs, as_stated=True)
            runs += done.runs
            turns = [] if done.failed is None else self._without(turns[len(done.runs)][0], done.failed, turns)
            if done.failed is not None:
                failed[done.failed["labels"][0]] = f"at batch {done.failed['batch']}: {done.failed['message']}"
        # One whose result was waiting took no time now.
        took_s = self.clock() - began - (longer_s if is_long else 0.0)
        run_s = max(took_s / max(len(runs), 1), WINDOW_S + WARMUP_S)
        self.proof = replace(self.proof, run_s=run_s)
        return runs, failed

    def _without(
        self, one: MeasurementRequest, failed: Mapping[str, Any], turns: Sequence[list[MeasurementRequest]]
    ) -> list[list[MeasurementRequest]]:
        """What is left to measure when this one has failed: the others, from the round on that it ended.

        Raises:
            AgentError: it was the dense network at the smallest batch size, which all others are set against; so it
                ends, too, when the board as a whole fails.
        """
        what = f"cannot measure {one.label} at batch {one.batch} on {self.board.host}: {failed['message']}"
        if one.label == self.dense.name and one.batch == self.how.batches[0]:
            raise AgentError(what, remote_traceback=failed["traceback"])
        self.progress.warn(f"{what}; the others go on without it")
        rounds = [(request.batch, request.round) for (request,) in turns]
        return [alike for alike in turns[rounds.index((one.batch, one.round)) :] if alike[0].label != one.label]

    def _turns(self, question: str, ready: Sequence[_Ready], is_long: bool) -> Iterator[list[list[MeasurementRequest]]]:
        """Those of each batch size."""
        for batch, rounds in self._rounds(question).items():
            turns = in_turns([self._requests(one, batch) for one in ready], rounds, seed=0)
            if is_long and batch == self.how.batches[0]:
                last = turns[-len(ready) :]
                turns[-len(ready) :] = [[replace(one, duration_s=ENERGY_WINDOW_S)] for (one,) in last]
            yield turns

    def _requests(self, one: _Ready, batch: int) -> list[MeasurementRequest]:
        assert one.measurable is not None and self.how.runner is not None
        how = replace(self.how, batches=(batch,))
        return requests_of(how, str(one.measurable.path), one.measurable, self.how.runner, self.setting)

    def _measured(self, question: str, one: _Ready, runs: Sequence[Run], failed: Mapping[str, str]) -> MeasuredNetwork:
        """A network, with its figures."""
        subject = one.subject
        dims, geometry = subject.cost()
        return MeasuredNetwork(
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
            failed=failed.get(subject.name),
        )

    def _figures(self, question: str, one: _Ready, runs: Sequence[Run]) -> Iterator[Figure]:
        ratios = {c.batch: c for c in against(runs, self.dense.name, one.subject.name)}
        for batch in self.how.batches:
            own = [run for run in runs if run.label == one.subject.name and run.batch == batch]
            if not own:
                continue
            ratio, energies = ratios.get(batch), [energy for run in own if (energy := _energy_mj(run)) is not None]
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
        limits = board_ceiling(self.setting.profile, self.setting.facts)
        return roofline(limits, batch * geometry.macs(dims), moved, one.precision).least_s / (p50_ms / 1e3)

    def _by_trtexec(self, question: str, one: _Ready, batch: int) -> float | None:
        """GPU time of the same engine by trtexec, where it is on the board."""
        if question not in CHECKED or batch != self.how.batches[0] or not self._check_s or one.measurable is None:
            return None
        if not self._is_time_for(self._check_s):
            return None
        args = {"engine": str(one.measurable.path), "batch": batch, "seconds": TRTEXEC_S, "streams": 1}
        name = f"trtexec {one.subject.name}, batch {batch}"
        try:
            seen = self.board.run_job("trtexec", args, name=name, progress=self.progress)
        except AgentError as error:
            self.progress.warn(f"{name}: {error}")
            return None
        return float(seen["gpu_ms"]["median"])


def _energy_mj(run: Run) -> float | None:
    """Of an image; None: no power was read, or the window was too short to tell."""
    if run.power is None or run.power.window_s() < ENERGY_WINDOW_S:
        return None
    return run.energy_per_image_mj()


@dataclass(frozen=True)
class _Ready:
    """A network on the machine that runs it, or why there is no engine of it."""

    subject: SuiteNetwork
    precision: str
    measurable: Measurable | None
    fused: int | None = None
    build_s: float | None = None
    refused: str | None = None
