"""`edgevit.characterize`: measure the networks of a suite on a board, in turns with the dense one.

The record is written after every question: the same call continues with the questions that it lacks.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

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
from edgevit.errors import AgentError, CheckpointError, EdgeVitError, OptionError, RunsError
from edgevit.exporting.graph import write_onnx
from edgevit.jobs.folder import working_in
from edgevit.jobs.suite.answers import against, answers
from edgevit.jobs.suite.plan import shipped_plan
from edgevit.jobs.suite.record import Figure, MeasuredNetwork, SuiteRecord, read_suite_record, write_suite_record
from edgevit.jobs.suite.request import BATCHES, SIZES, CharacterizeRequest
from edgevit.jobs.suite.suite import SuiteNetwork, largest_of, shape_of, suite
from edgevit.network.checkpoint import Headless, Model, open_network
from edgevit.network.network import Network
from edgevit.progress import Progress, Silent
from edgevit.records.kinds import plain
from edgevit.records.precisions import FP32, PRECISIONS
from edgevit.records.writing import file_sha256
from edgevit.request import as_request, takes_options
from edgevit.version import written_by

DENSE = "dense"
MOST = max(BATCHES)
# A run is short: many of them, each in turns with the dense network, show a ratio.
SAMPLES, WARMUP, WARMUP_S = 20, 3, 0.2
WINDOW_S = 0.5
ENERGY_WINDOW_S = POWER_WINDOW_S  # of the one round that measures energy; in a shorter one its edges dominate
# Estimates until a run was seen: to start a process that loads an engine, and to finish after the last question.
START_S, END_S = 3.5, 5.0
SET = ("power_mode", "clocks_locked")  # settings that another job may change for a while
ENVIRONMENT = ("module", "jetpack", "l4t", "tensorrt", "cuda", *SET)


@takes_options(CharacterizeRequest)
def characterize(
    board: str | CharacterizeRequest | None = None, *, progress: Progress | None = None, **options: Any
) -> SuiteRecord:
    """Measure networks of many shapes on a board, and write one file with all figures and raw runs.

    No data, no weights and no root are needed, and nothing is changed on the board. With a `checkpoint` of the largest
    size, it and the networks cut from it have these weights; networks of other tokens, embeddings or sizes have random
    ones. The same call continues an interrupted one.

    Args:
        board: as ssh knows it, or a whole request; None is this machine, with ONNX Runtime.
        options: the fields of `CharacterizeRequest`.

    Raises:
        OptionError: an unknown option, or the time limit is too short for any network.
        RunsError: the output holds something else, or the record of another suite or board.
        EdgeVitError: anything else, in one line.
    """
    return run(as_request(CharacterizeRequest, "board", board, options), progress)


def run(request: CharacterizeRequest, progress: Progress | None = None) -> SuiteRecord:
    """Carry out a request; see `characterize` for what is raised."""
    request.check()
    began, progress, folder = time.monotonic(), progress or Silent(), request.output.parent
    weights = _weights(request)
    conditions = Conditions(
        runner="onnxruntime" if request.board is None else "tensorrt",
        batches=request.batches,
        threads=request.threads,
        idle_s=0.0,  # energy is that of the whole module
    )
    with (
        working_in(folder, "the questions that are open"),
        open_board(request.board, ssh_config=request.ssh_config) as board,
        tempfile.TemporaryDirectory(prefix="edgevit-") as scratch,
    ):
        setting = look(board, None, conditions, progress)
        if request.board is not None:
            check_board(board.host, setting.facts, None)
            if setting.facts.clocks_locked is False:
                progress.warn(
                    f"the clocks of {board.host} are not locked, and a run is void if the GPU's clock changes; "
                    "`sudo jetson_clocks` locks them until the board restarts"
                )
        conditions = replace(conditions, duration_s=WINDOW_S, samples=SAMPLES, warmup=WARMUP, warmup_seconds=WARMUP_S)
        record = _opened(request, setting)
        work = _Work(request, conditions, board, setting, Path(scratch), progress, record, weights, began)
        try:
            return work.finished()
        finally:
            with suppress(EdgeVitError):  # as where the board was lost
                work.discard_engines()


def _weights(request: CharacterizeRequest) -> Network | None:
    """The largest network with the weights of the checkpoint; None: without a checkpoint.

    Raises:
        CheckpointError: it is of another network, or of other classes than ImageNet's 1000.
    """
    if request.checkpoint is None:
        return None
    size = largest_of(request.sizes)
    opened = open_network(SIZES[size], checkpoint=request.checkpoint)
    outputs = 0 if isinstance(opened, Headless) else opened.spec.outputs
    if outputs != (expected := shape_of(size)[1].outputs):
        raise CheckpointError(
            f"{request.checkpoint} has {outputs} outputs, and the networks of the suite have {expected}; give another, "
            "or leave --checkpoint out"
        )
    assert isinstance(opened, Model), "it has outputs"
    return opened


def _opened(request: CharacterizeRequest, setting: Setting) -> SuiteRecord:
    """The record in the output file, or a new one.

    Raises:
        RunsError: the file is of another request or board.
    """
    facts, profile = setting.facts, None if setting.profile is None else setting.profile.name
    options: dict[str, Any] = {
        "sizes": list(request.sizes),
        "quick": request.quick,
        "rounds": request.rounds,
        "threads": request.threads,
    }
    if request.checkpoint is not None:
        options["weights_sha256"] = file_sha256(request.checkpoint)
    environment = {name: plain(getattr(facts, name)) for name in ENVIRONMENT}
    if not request.output.exists():
        return SuiteRecord(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            edgevit=written_by(),
            request=options,
            host=setting.host,
            profile=profile,
            environment=environment,
            seconds=0.0,
            published=shipped_plan().published_for(profile),
        )
    record = read_suite_record(request.output)
    for name, before, now in (
        ("request", record.request, options),
        ("board", record.host, setting.host),
        ("environment", record.environment, environment),
    ):
        if before != now:
            raise RunsError(f"{request.output} is of another {name}: {_change(before, now)}; choose another --output")
    record.measurements()
    return record


def _change(before: Any, now: Any) -> str:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        name = next(name for name in sorted({*before, *now}) if before.get(name) != now.get(name))
        return f"{name} was {before.get(name)} and is {now.get(name)}"
    return f"{before}, and now {now}"


@dataclass
class _Work:
    """A suite that is being measured."""

    request: CharacterizeRequest
    conditions: Conditions
    board: Board
    setting: Setting
    scratch: Path
    progress: Progress
    record: SuiteRecord
    weights: Network | None = None  # the largest network with trained weights; None: random weights
    began: float = 0.0  # by the clock
    clock: Callable[[], float] = time.monotonic
    build_s: float = 0.0  # of the longest build, but for the first, in which TensorRT times kernels for all others
    run_s: float = WINDOW_S + WARMUP_S + START_S  # of a run with its process, on average of the last question
    builds: int = 0
    engines: dict[str, str] = field(default_factory=dict)  # paths on the board by network

    @property
    def dense(self) -> SuiteNetwork:
        largest = largest_of(self.request.sizes)
        return SuiteNetwork(largest, largest)

    @property
    def elapsed_s(self) -> float:
        return self.record.seconds + self.clock() - self.began

    def finished(self) -> SuiteRecord:
        """Answer every question for which there is time."""
        questions = suite(self.request.sizes, quick=self.request.quick, fp32_too=self.request.board is not None)
        left_out: list[str] = []
        dense: _Ready | None = None
        for question, networks in questions.items():
            due = [network for network in networks if self.record.of(network.name) is None]
            if due and self._fits(question, 2):
                dense = dense or self._dense_ready()
                due = self._answer(question, due, dense)
            left_out += [network.name for network in due]
        if left_out and not self.record.measured:
            raise self._too_short(questions)
        if tuple(left_out) != self.record.left_out:
            self._keep(left_out=tuple(left_out))
        if left_out:
            minutes = max(self.request.most_minutes, self.elapsed_s / 60)
            more = f"the same command with --minutes {math.ceil(2 * minutes)} continues"
            self.progress.warn(f"left out for lack of time: {', '.join(left_out)}; {more}")
        return self.record

    def discard_engines(self, but: str | None = None) -> None:
        """Remove the engines from the board, where there is little room, but for one network's."""
        if paths := [path for name, path in self.engines.items() if name != but]:
            self.board.call("discard", paths=paths)
        self.engines = {name: path for name, path in self.engines.items() if name == but}

    # -- time ----------------------------------------------------------------------------------------------------------

    def _too_short(self, questions: Iterable[str]) -> OptionError:
        """For a time limit within which no network can be compared with the dense one."""
        least_s = 2 * self.build_s + min(self._measuring_s(question, 2) for question in questions)
        minutes = (self.elapsed_s + least_s + END_S) / 60
        return OptionError(
            f"--minutes {self.request.most_minutes:g} is too short: two networks take about {minutes:.1f} on "
            f"{self.board.host}, and nothing was measured; try --minutes "
            f"{max(math.ceil(2 * minutes), shipped_plan().quick_minutes):g}"
        )

    def _fits(self, question: str, networks: int) -> bool:
        """Whether there is time to build one more network and to measure this many, the dense one among them."""
        return self._is_time_for(self.build_s + self._measuring_s(question, networks))

    def _measuring_s(self, question: str, networks: int) -> float:
        """The time to measure this many networks, without the longer window for energy."""
        return networks * sum(self._rounds(question).values()) * self.run_s

    def _rounds(self, question: str) -> dict[int, int]:
        """The number of measurements of each network of a question, by batch size."""
        return shipped_plan().question(question).rounds_at(self.request.rounds, self.conditions.batches)

    def _is_time_for(self, seconds: float) -> bool:
        return self.elapsed_s + seconds + END_S <= 60 * self.request.most_minutes

    # -- questions -----------------------------------------------------------------------------------------------------

    def _answer(self, question: str, networks: Sequence[SuiteNetwork], dense: _Ready) -> list[SuiteNetwork]:
        """Build and measure the networks of a question, and keep the result; return those there was no time for."""
        self.progress.note(f"{question}: {len(networks)} networks")
        ready: list[_Ready] = []
        while len(ready) < len(networks) and self._fits(question, len(ready) + 2):
            ready.append(self._ready(networks[len(ready)]))
        if not ready:
            return list(networks)
        runnable = [dense, *(network for network in ready if network.measurable is not None)]
        runs, failed = self._measure(question, runnable) if len(runnable) > 1 else ((), {})
        measured = [self._measured(question, network, runs, failed) for network in ready]
        if self.record.of(self.dense.name) is None and runs:
            measured.insert(0, self._measured(DENSE, dense, runs, failed))
        before = [replace(m, failed=failed.get(m.name, m.failed)) for m in self.record.measured]
        self._keep(measured=(*before, *measured))
        self.discard_engines(but=self.dense.name)
        return list(networks[len(ready) :])

    def _keep_runs(self, done: Turns) -> None:
        """Write raw runs; without their question's figures they are measured again by the next command."""
        self._keep(runs=(*self.record.runs, *(plain(run.to_dict()) for run in done.runs)))

    def _keep(self, **changed: Any) -> None:
        """Change the record, and write it."""
        now = self.clock()
        self.record = replace(self.record, seconds=self.record.seconds + now - self.began, **changed)
        self.began = now
        if "measured" in changed:
            self.record = replace(self.record, answers=answers(self.record, self.dense.name))
        write_suite_record(self.record, self.request.output)

    # -- networks on the board -----------------------------------------------------------------------------------------

    def _dense_ready(self) -> _Ready:
        """The dense network, which takes turns with every other."""
        dense = self._ready(self.dense)
        if dense.measurable is None:
            raise AgentError(f"there is no engine of the dense network on {self.board.host}: {dense.refused}")
        return dense

    def _ready(self, network: SuiteNetwork) -> _Ready:
        """Put the file of a network on the machine that runs it."""
        began = self.clock()
        if self.request.board is None:
            path = self._written(network, FP32.name, OPSET)
            ready = _Ready(network, FP32.name, Measurable(path, file_sha256(path), FP32.name, network.name))
        else:
            built = build_unjudged(
                self.board,
                self.setting.facts.tensorrt,
                lambda precision, opset: self._written(network, precision, opset),
                name=network.name,
                precision=network.precision,
                batches=(1, 1, MOST),
                progress=self.progress,
            )
            measurable = None
            if not built["refused"]:
                self.engines[network.name] = built["engine"]
                measurable = Measurable(Path(built["engine"]), built["sha256"], network.precision, network.name)
            ready = _Ready(
                network, network.precision, measurable, built.get("fused"), built["seconds"], built["refused"]
            )
        self.builds += 1
        took_s = self.clock() - began
        self.build_s = took_s if self.builds <= 2 else max(took_s, self.build_s)
        return ready

    def network(self, network: SuiteNetwork) -> Network:
        """Make a network, with the weights of the checkpoint where it can have them."""
        return network.network(self.weights if network.is_cut_from(self.dense.size) else None)

    def _written(self, network: SuiteNetwork, precision: str, opset: int) -> Path:
        path = self.scratch / f"{network.name.replace(' ', '-').replace(',', '')}.onnx"
        if not path.is_file():
            with self.progress.stage(f"write {network.name}"):
                module = self.network(network)
                write_onnx(
                    module,
                    path,
                    input_size=module.input_size,
                    precision=precision,
                    batch="dynamic",
                    opset=opset,
                    metadata={"network": network.name},
                )
        return path

    # -- measuring -----------------------------------------------------------------------------------------------------

    def _measure(self, question: str, ready: Sequence[_Ready]) -> tuple[tuple[Run, ...], dict[str, str]]:
        """Measure networks in turns, one batch size after the other; return the runs, and why networks failed.

        A network whose process fails, for example for lack of memory, is left out from there on. If the question asks
        for energy, the windows of the last round at the smallest batch size are long enough for it, for all networks.
        """
        longer_s = len(ready) * (ENERGY_WINDOW_S - WINDOW_S)
        wants_energy = shipped_plan().question(question).energy
        has_energy = wants_energy and self.setting.facts.has_power and self.setting.profile is not None
        is_long = has_energy and self._is_time_for(self._measuring_s(question, len(ready)) + longer_s)
        turns = list(chain.from_iterable(self._turns(question, ready, is_long)))
        name, began = f"{question} on {self.board.host}", self.clock()
        runs: tuple[Run, ...] = ()
        failed: dict[str, str] = {}
        while turns:
            done = take_turns(
                self.board, self.conditions, turns, self.setting, name, self.progress, self._keep_runs, as_stated=True
            )
            runs += done.runs
            turns = [] if done.failed is None else self._without(turns[len(done.runs)][0], done.failed, turns)
            if done.failed is not None:
                failed[done.failed["labels"][0]] = f"at batch {done.failed['batch']}: {done.failed['message']}"
        took_s = self.clock() - began - (longer_s if is_long else 0.0)
        self.run_s = max(took_s / max(len(runs), 1), WINDOW_S + WARMUP_S)
        return runs, failed

    def _without(
        self, request: MeasurementRequest, failed: Mapping[str, Any], turns: Sequence[list[MeasurementRequest]]
    ) -> list[list[MeasurementRequest]]:
        """The turns of the other networks, from the round in which this one failed.

        Raises:
            AgentError: it was the dense network at the smallest batch size, with which all others are compared.
        """
        problem = f"cannot measure {request.label} at batch {request.batch} on {self.board.host}: {failed['message']}"
        if request.label == self.dense.name and request.batch == self.conditions.batches[0]:
            raise AgentError(problem, remote_traceback=failed["traceback"])
        self.progress.warn(f"{problem}; the others continue without it")
        rounds = [(turn.batch, turn.round) for (turn,) in turns]
        return [
            turn for turn in turns[rounds.index((request.batch, request.round)) :] if turn[0].label != request.label
        ]

    def _turns(self, question: str, ready: Sequence[_Ready], is_long: bool) -> Iterator[list[list[MeasurementRequest]]]:
        """The turns at each batch size."""
        for batch, rounds in self._rounds(question).items():
            turns = in_turns([self._requests(network, batch) for network in ready], rounds, seed=0)
            if is_long and batch == self.conditions.batches[0]:
                last = turns[-len(ready) :]
                turns[-len(ready) :] = [[replace(request, duration_s=ENERGY_WINDOW_S)] for (request,) in last]
            yield turns

    def _requests(self, ready: _Ready, batch: int) -> list[MeasurementRequest]:
        assert ready.measurable is not None and self.conditions.runner is not None
        conditions = replace(self.conditions, batches=(batch,))
        path = str(ready.measurable.path)
        return requests_of(conditions, path, ready.measurable, self.conditions.runner, self.setting)

    # -- figures -------------------------------------------------------------------------------------------------------

    def _measured(
        self, question: str, ready: _Ready, runs: Sequence[Run], failed: Mapping[str, str]
    ) -> MeasuredNetwork:
        """A network with its figures."""
        network = ready.network
        dims, geometry = network.cost()
        return MeasuredNetwork(
            name=network.name,
            question=question,
            size=network.size,
            precision=ready.precision,
            tokens=geometry.tokens,
            macs=geometry.macs(dims),
            params=geometry.params(dims),
            blocks=dims,
            fusable=sum(block.fusable for block in dims) if PRECISIONS[ready.precision].fuses else 0,
            fused=ready.fused,
            build_s=ready.build_s,
            refused=ready.refused,
            figures=tuple(self._figures(ready, runs)) if ready.measurable is not None else (),
            failed=failed.get(network.name),
        )

    def _figures(self, ready: _Ready, runs: Sequence[Run]) -> Iterator[Figure]:
        ratios = {c.batch: c for c in against(runs, self.dense.name, ready.network.name)}
        for batch in self.conditions.batches:
            own_runs = [run for run in runs if run.label == ready.network.name and run.batch == batch]
            if not own_runs:
                continue
            ratio = ratios.get(batch)
            energies = [energy for run in own_runs if (energy := _energy_mj(run)) is not None]
            p50_ms = median(run.p50_ns() for run in own_runs) / 1e6
            yield Figure(
                batch=batch,
                p50_ms=p50_ms,
                mean_ms=median(run.mean_ns() for run in own_runs) / 1e6,
                images_per_s=median(run.images_per_second() for run in own_runs),
                energy_mj=median(energies) if energies else None,
                ratio=None if ratio is None else ratio.ratio,
                low=None if ratio is None else ratio.low,
                high=None if ratio is None else ratio.high,
                roofline_share=self._roofline_share(ready, batch, p50_ms),
                void=tuple(dict.fromkeys(chain.from_iterable(run.void() for run in own_runs))),
            )

    def _roofline_share(self, ready: _Ready, batch: int, p50_ms: float) -> float | None:
        if self.setting.profile is None:
            return None
        dims, geometry = ready.network.cost()
        values = geometry.patches * geometry.patch_values + geometry.outputs
        moved = least_bytes(geometry.params(dims), values, batch=batch, precision=ready.precision)
        limits = board_ceiling(self.setting.profile, self.setting.facts)
        return roofline(limits, batch * geometry.macs(dims), moved, ready.precision).least_s / (p50_ms / 1e3)


def _energy_mj(run: Run) -> float | None:
    """Energy of an image; None: no power was read, or the window was too short."""
    if run.power is None or run.power.window_s() < ENERGY_WINDOW_S:
        return None
    return run.energy_per_image_mj()


@dataclass(frozen=True)
class _Ready:
    """A network on the machine that runs it, or why there is no engine of it."""

    network: SuiteNetwork
    precision: str
    measurable: Measurable | None
    fused: int | None = None  # blocks whose attention is one kernel; None: unknown
    build_s: float | None = None
    refused: str | None = None
