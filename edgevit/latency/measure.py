"""Run stacks in turns, as far as their runs are not in the store, and add them to it round by round."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

from edgevit.agent.measure import MeasurementRequest
from edgevit.agent.records import Run
from edgevit.board.bench import Setting, Turns, requests_of, take_turns
from edgevit.board.connection import THIS_MACHINE, Board
from edgevit.board.models import Measurable
from edgevit.derivation.allocate.prices import Measured
from edgevit.engines.unjudged import place_unjudged
from edgevit.errors import AgentError, EngineError, UnfitBoardError
from edgevit.latency.fit import StackSample
from edgevit.latency.stacks import Stack, write_stack
from edgevit.latency.store import Store
from edgevit.latency.target import POWER_WINDOW_S, WARMUP_S, WINDOW_S, MeasurementTarget
from edgevit.network.network import Network
from edgevit.progress import Progress, rounded_duration

TRIES = 3  # number of times that void runs are repeated
TOGETHER = 5  # stacks that alternate with the base in one process: all have a turn within 0.4 s
_OTHERS_BUSY = (
    "other programs were busy: the processor time of an inference counts there in place of the clock, which may make "
    "models smaller than a budget needs; close other programs for a budget by the clock"
)
MOST_BATCH = 8  # largest batch of an engine, as `edgevit export --trt` builds it, unless the target has a larger one


@dataclass
class StackBench:
    """One session with one machine."""

    network: Network
    target: MeasurementTarget
    board: Board
    setting: Setting
    store: Store
    anchor: Stack
    progress: Progress
    scratch: Path
    energy: bool = False  # whether runs without energy are void
    _files: dict[Stack, Measurable] = field(default_factory=dict)  # file of each stack on the machine that runs it
    _runs: list[Run] = field(default_factory=list)  # all runs in the store
    _warned_of: set[str] = field(default_factory=set)  # kinds of conditions that were already warned of

    def __post_init__(self) -> None:
        self._runs = self.store.runs()

    def measure(self, stacks: Sequence[Stack], rounds: int) -> None:
        """Run stacks until each has so many valid runs.

        Raises:
            UnfitBoardError: the runs of a stack are void in every try; or they were made in another power mode, or with
                other clocks, than the target states.
            EngineError: TensorRT has no engine for a stack.
            BoardError: the board was lost, or a run failed there; finished runs are kept.
        """
        counts = Counter(sample.label for sample in self._valid())
        due = {stack: rounds - counts[stack.label] for stack in (self.anchor, *stacks)}
        due = {stack: missing for stack, missing in due.items() if missing > 0}
        if not due:
            return
        stacks = [self.anchor, *(stack for stack in due if stack != self.anchor)]
        most = max(due.values())
        began = time.monotonic()
        self._prepare(self.anchor)
        self.progress.note(self._forecast(len(stacks), list(due.values()), time.monotonic() - began))
        with self.progress.stage("write stacks of equal blocks", len(stacks), "stack") as stage:
            for number, stack in enumerate(stacks, 1):
                self._prepare(stack)
                stage.update(number)
        for number in range(1, most + 1):  # stacks that lack most runs begin; a round repeats its void runs
            began = time.monotonic()
            of_round = [stack for stack, missing in due.items() if missing > most - number]
            self._round(of_round, f"{number} of {most}")
            if number == 1 < most:
                took_s = time.monotonic() - began
                left_s = took_s * (sum(due.values()) - len(of_round)) / len(of_round)
                self.progress.note(
                    f"round 1 of {most} took {rounded_duration(took_s)}: the others take about "
                    f"{rounded_duration(left_s)}"
                )

    def _forecast(self, stacks: int, rounds: Sequence[int], write_s: float) -> str:
        """State the least time to measure these stacks, each of which takes `write_s` to write.

        A run of a slow model takes longer, and building engines longer than all else.
        """
        power = self.setting.facts.has_power
        window_s = WARMUP_S + (POWER_WINDOW_S if power else WINDOW_S)
        with_anchor = 1 + (0 if power else 1 / TOGETHER)
        seconds = sum(rounds) * window_s * with_anchor + (0 if self.target.builds else stacks * write_s)
        engines = f", and {stacks} engine builds of seconds to minutes each" if self.target.builds else ""
        return (
            f"measuring {stacks} stacks of equal blocks on {self.board.host}, for the cost of each size: at least "
            f"{rounded_duration(seconds)}{engines}; kept for later derivations from this base"
        )

    def tidy(self) -> None:
        """Remove files and engines from the target, except the base's engine, which later stacks are compared with."""
        if self.target.builds or self.board.host != THIS_MACHINE:
            built, sent = self.store.engines(), [str(file.path) for file in self._files.values()]
            of_base = {label: engine for label, engine in built.items() if label == self.anchor.label}
            paths = {*sent, *(path for path, _ in built.values())} - {path for path, _ in of_base.values()}
            self.board.call("discard", paths=sorted(paths))
            self.store.keep_engines(of_base)
        self._files.clear()

    def samples(self, quantity: Measured) -> list[StackSample]:
        """Return the cost of each valid run, in ms of one inference or mJ of one image; without energy, none in mJ.

        Runs of one process or session use the same clock: the processor time of all, if other programs were busy
        during one of them.
        """
        runs = self._valid()
        busy = {_process(run) for run in runs if run.is_busy()}
        samples = []
        for run in runs:
            value = latency_ms(run, busy=_process(run) in busy) if quantity == "ms" else run.energy_per_image_mj()
            stack = Stack.of(run.label)
            if stack is not None and value is not None and value > 0:
                samples.append(StackSample(stack, _process(run), value))
        return samples

    @property
    def measured(self) -> list[Stack]:
        """The stacks that have samples."""
        return list(dict.fromkeys(sample.stack for sample in self.samples("ms")))

    def anchor_ms(self) -> float:
        """Return the base's p50, the median of its runs: all other times are ratios to it."""
        return median(run.latency_ms for run in self._valid() if run.label == self.anchor.label)

    def _valid(self) -> list[Run]:
        return [run for run in self._runs if self._fault(run) is None]

    def _fault(self, run: Run) -> str | None:
        """Say why a run is void; None: it is valid."""
        lacks_energy = self.energy and run.energy_per_image_mj() is None
        return next(iter(run.void()), "it has no energy of the module" if lacks_energy else None)

    def _round(self, stacks: Sequence[Stack], number: str) -> None:
        """Measure each stack once, and repeat void runs.

        Their order depends only on the runs in the store and on the stacks, so that a round that was interrupted asks
        for the same job again, which has continued on the board.
        """
        missing = list(stacks)
        for attempt in range(TRIES + 1):
            due = [self.anchor, *(stack for stack in missing if stack != self.anchor)]
            seed = f"{len(self._runs)} {sorted(stack.label for stack in due)}"
            shuffled = Random(seed).sample(due, len(due))
            name = f"costs, round {number}" + (f", try {attempt + 1}" if attempt else "")
            runs = self._run([[self._request(stack) for stack in alike] for alike in self._turns(shuffled)], name)
            void = {run.label: fault for run in runs if (fault := self._fault(run)) is not None}
            missing = [stack for stack in missing if stack.label in void]
            if not missing:
                self._warn_of_conditions(runs)
                return
            self.progress.warn(f"{len(missing)} of {len(runs)} runs are void and repeated: {void[missing[0].label]}")
        raise UnfitBoardError(
            f"{self.board.host} gave no valid run of {missing[0].text} in {TRIES + 1} tries: {void[missing[0].label]}; "
            "cool it, lock its clocks with --lock-clocks, or measure in a lower --power-mode"
        )

    def _warn_of_conditions(self, runs: Sequence[Run]) -> None:
        """Warn once of changing clocks, and once of other programs; the base met them too, so runs stay valid."""
        texts = {
            "clocks": next((text for run in runs if (text := run.doubts().get("clocks"))), None),
            "other programs": next((_OTHERS_BUSY for run in runs if run.is_busy()), None),
        }
        for kind, text in texts.items():
            if text is not None and kind not in self._warned_of:
                self._warned_of.add(kind)
                self.progress.warn(f"while costs were measured on {self.board.host}, {text}")

    def _turns(self, stacks: Sequence[Stack]) -> list[list[Stack]]:
        """Group stacks by process: a few with the base; or one, if power is read, which belongs to a process."""
        if self.setting.facts.has_power:
            return [[stack] for stack in stacks]
        others = [stack for stack in stacks if stack != self.anchor]
        parts = [others[first : first + TOGETHER] for first in range(0, len(others), TOGETHER)]
        return [[self.anchor, *part] for part in parts or [[]]]

    def _run(self, turns: Sequence[Sequence[MeasurementRequest]], name: str) -> tuple[Run, ...]:
        """Run stacks, and keep the runs."""
        conditions = self.target.conditions()
        name = f"{name} on {self.board.host}"
        done = take_turns(self.board, conditions, turns, self.setting, name, self.progress, self._keep, as_stated=True)
        if failed := done.failed:
            message = failed.message
            for stack in filter(None, map(Stack.of, failed.labels)):
                message = message.replace(stack.label, stack.text)
            raise AgentError(
                f"cannot measure stacks on {self.board.host}: {message}", remote_traceback=failed.traceback
            )
        return done.runs

    def _keep(self, done: Turns) -> None:
        self.store.add(done.runs)
        self._runs += done.runs

    def _request(self, stack: Stack) -> MeasurementRequest:
        file, power = self._files[stack], self.setting.facts.has_power
        conditions = replace(self.target.conditions(), duration_s=POWER_WINDOW_S if power else WINDOW_S)
        (request,) = requests_of(conditions, str(file.path), file, self.target.runs_on, self.setting)
        return request

    def _prepare(self, stack: Stack) -> None:
        """Make sure that the file or engine of a stack is on the machine that runs it."""
        if stack not in self._files:
            path, sha256 = self._kept_engine(stack) or self._placed(stack)
            self._files[stack] = Measurable(Path(path), sha256, self.target.computes_in, stack.label)

    def _kept_engine(self, stack: Stack) -> tuple[str, str] | None:
        """The engine of an earlier session, if it still exists on the target."""
        engine = self.store.engines().get(stack.label) if self.target.builds else None
        if engine is None:
            return None
        path, sha256 = engine
        return engine if self.board.call("offer", path=path, part=f"{path}.none", sha256=sha256)["present"] else None

    def _placed(self, stack: Stack) -> tuple[str, str]:
        """Write a stack, and send it, or build an engine like that of a model; return path and hash on the target."""
        placed = place_unjudged(
            self.board,
            self.scratch / f"{stack.label.replace(' ', '-')}.onnx",
            partial(self._write, stack),
            precision=self.target.computes_in,
            progress=self.progress,
            tensorrt=self.setting.facts.tensorrt if self.target.builds else None,
            name=stack.text,
            batches=(1, self.target.batch, max(self.target.batch, MOST_BATCH)),
        )
        if placed.refused:
            raise EngineError(f"the stack of {stack.text} {placed.refused}; try another --precision")
        engine = str(placed.path), placed.sha256
        if self.target.builds:
            self.store.keep_engines({**self.store.engines(), stack.label: engine})
        return engine

    def _write(self, stack: Stack, file: Path, precision: str, opset: int) -> None:
        write_stack(self.network, stack, file, precision=precision, opset=opset, for_engine=self.target.builds)


def _process(run: Run) -> str:
    """Name the process of runs that alternated in one, otherwise the session: the machine was equally fast in both."""
    return f"{run.session} {run.turn}" if run.beside else str(run.session)


def latency_ms(run: Run, *, busy: bool) -> float:
    """Return the time of an inference in ms, to be compared with the base's.

    This is the p50 by the clock, as in a budget in ms. If other programs were `busy`, it is the processor time, as long
    as the model ran on one thread: a long inference waits for other programs more often than a short one, which no
    median of ratios corrects.
    """
    processor_ms = run.processor_ms() if busy else None
    return run.latency_ms if processor_ms is None else processor_ms


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="edgevit-") as folder:
        yield Path(folder)
