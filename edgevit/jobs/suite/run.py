"""`edgevit.characterize`: measure the networks of a suite on a board, in turns with the dense one.

The record is written after every question: the same call continues with the questions that it lacks.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from edgevit.agent.measure import MeasurementRequest
from edgevit.agent.records import Run
from edgevit.board.answers import FailedRun
from edgevit.board.bench import Setting, Turns, in_turns, look, requests_of, take_turns
from edgevit.board.connection import Board, open_board
from edgevit.board.request import Conditions
from edgevit.engines.build import check_board
from edgevit.errors import AgentError, EdgeVitError, OptionError
from edgevit.jobs.folder import working_in
from edgevit.jobs.suite.answers import answers
from edgevit.jobs.suite.figures import ENERGY_WINDOW_S, measured_network
from edgevit.jobs.suite.files import NetworkFiles, Prepared
from edgevit.jobs.suite.opening import open_record, open_weights
from edgevit.jobs.suite.plan import shipped_plan
from edgevit.jobs.suite.record import SuiteRecord, write_suite_record
from edgevit.jobs.suite.request import CharacterizeRequest
from edgevit.jobs.suite.suite import SuiteNetwork, largest_of, suite
from edgevit.jobs.suite.time_limit import END_S, WARMUP_S, WINDOW_S, TimeLimit
from edgevit.progress import Progress, Silent
from edgevit.records.kinds import plain
from edgevit.request import takes_options

_DENSE = "dense"
SAMPLES, WARMUP = 20, 3  # a run is short: many of them, each in turns with the dense network, show a ratio


@takes_options(CharacterizeRequest, "board")
def characterize(request: CharacterizeRequest, progress: Progress | None = None) -> SuiteRecord:
    """Measure networks of many shapes on a board, and write one file with all figures and raw runs.

    No data, no weights and no root are needed, and nothing is changed on the board. With a `checkpoint` of the largest
    size, it and the networks cut from it have these weights; networks of other tokens, embeddings or sizes have random
    ones. Without `board` this machine is measured, with ONNX Runtime. The same call continues an interrupted one.

    Raises:
        OptionError: an unknown option, or the time limit is too short for any network.
        RunsError: the output holds something else, or the record of another suite or board.
        EdgeVitError: anything else, in one line.
    """
    request.check()
    began, progress, folder = time.monotonic(), progress or Silent(), request.output.parent
    weights = open_weights(request)
    conditions = Conditions(
        runner="onnxruntime" if request.board is None else "tensorrt",
        batches=request.batches,
        threads=request.threads,
        idle_s=0.0,  # energy is that of the whole module
        duration_s=WINDOW_S,
        samples=SAMPLES,
        warmup=WARMUP,
        warmup_seconds=WARMUP_S,
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
        record = open_record(request, setting)
        limit = TimeLimit(request.most_minutes, record.seconds, began)
        files = NetworkFiles(board, setting.facts.tensorrt, Path(scratch), progress, largest_of(request.sizes), weights)
        try:
            return _Work(request, conditions, board, setting, progress, record, limit, files).finished()
        finally:
            with suppress(EdgeVitError):  # as where the board was lost
                files.discard()


@dataclass
class _Work:
    """A suite that is being measured."""

    request: CharacterizeRequest
    conditions: Conditions
    board: Board
    setting: Setting
    progress: Progress
    record: SuiteRecord
    limit: TimeLimit
    files: NetworkFiles

    @property
    def dense(self) -> SuiteNetwork:
        largest = largest_of(self.request.sizes)
        return SuiteNetwork(largest, largest)

    def finished(self) -> SuiteRecord:
        """Answer every question for which there is time."""
        questions = suite(self.request.sizes, quick=self.request.quick, fp32_too=self.request.board is not None)
        left_out: list[str] = []
        dense: Prepared | None = None
        for question, networks in questions.items():
            due = [network for network in networks if self.record.of(network.name) is None]
            if due and self._fits(question, 2):
                dense = dense or self._dense_prepared()
                due = self._answer(question, due, dense)
            left_out += [network.name for network in due]
        if left_out and not self.record.measured:
            raise self._too_short(questions)
        if tuple(left_out) != self.record.left_out:
            self._keep(left_out=tuple(left_out))
        if left_out:
            minutes = max(self.limit.minutes, self.limit.elapsed_s / 60)
            more = f"the same command with --minutes {math.ceil(2 * minutes)} continues"
            self.progress.warn(f"left out for lack of time: {', '.join(left_out)}; {more}")
        return self.record

    # -- time ----------------------------------------------------------------------------------------------------------

    def _too_short(self, questions: Iterable[str]) -> OptionError:
        """For a time limit within which no network can be compared with the dense one."""
        limit = self.limit
        least_s = 2 * limit.build_s + min(self._measuring_s(question, 2) for question in questions)
        minutes = (limit.elapsed_s + least_s + END_S) / 60
        return OptionError(
            f"--minutes {limit.minutes:g} is too short: two networks take about {minutes:.1f} on {self.board.host}, "
            f"and nothing was measured; try --minutes {max(math.ceil(2 * minutes), shipped_plan().quick_minutes):g}"
        )

    def _fits(self, question: str, networks: int) -> bool:
        """Whether there is time to build one more network and to measure this many, the dense one among them."""
        return self.limit.allows(self.limit.build_s + self._measuring_s(question, networks))

    def _measuring_s(self, question: str, networks: int) -> float:
        """The time to measure this many networks, without the longer window for energy."""
        return networks * sum(self._rounds(question).values()) * self.limit.run_s

    def _rounds(self, question: str) -> dict[int, int]:
        """The number of measurements of each network of a question, by batch size."""
        return shipped_plan().question(question).rounds_at(self.request.rounds, self.conditions.batches)

    # -- questions -----------------------------------------------------------------------------------------------------

    def _answer(self, question: str, networks: Sequence[SuiteNetwork], dense: Prepared) -> list[SuiteNetwork]:
        """Build and measure the networks of a question, and keep the result; return those there was no time for."""
        self.progress.note(f"{question}: {len(networks)} networks")
        prepared: list[Prepared] = []
        while len(prepared) < len(networks) and self._fits(question, len(prepared) + 2):
            prepared.append(self._prepared(networks[len(prepared)]))
        if not prepared:
            return list(networks)
        runnable = [dense, *(network for network in prepared if network.measurable is not None)]
        runs, failed = self._measure(question, runnable) if len(runnable) > 1 else ((), {})
        of_questions = [(question, network) for network in prepared]
        if runs and self.record.of(self.dense.name) is None:
            of_questions.insert(0, (_DENSE, dense))
        measured = (
            measured_network(of, network, runs, self.dense.name, self.setting, failed.get(network.network.name))
            for of, network in of_questions
        )
        before = [replace(m, failed=failed.get(m.name, m.failed)) for m in self.record.measured]
        self._keep(measured=(*before, *measured))
        self.files.discard(but=self.dense.name)
        return list(networks[len(prepared) :])

    def _dense_prepared(self) -> Prepared:
        """The dense network, which takes turns with every other."""
        dense = self._prepared(self.dense)
        if dense.measurable is None:
            raise AgentError(f"there is no engine of the dense network on {self.board.host}: {dense.placed.refused}")
        return dense

    def _prepared(self, network: SuiteNetwork) -> Prepared:
        began = self.limit.clock()
        prepared = self.files.prepare(network)
        self.limit.add_build(self.limit.clock() - began)
        return prepared

    def _keep_runs(self, done: Turns) -> None:
        """Write raw runs; without their question's figures they are measured again by the next command."""
        self._keep(runs=(*self.record.runs, *(plain(run.to_dict()) for run in done.runs)))

    def _keep(self, **changed: Any) -> None:
        """Change the record, and write it."""
        self.record = replace(self.record, seconds=self.limit.elapsed_s, **changed)
        if "measured" in changed:
            self.record = replace(self.record, answers=answers(self.record, self.dense.name))
        write_suite_record(self.record, self.request.output)

    # -- measuring -----------------------------------------------------------------------------------------------------

    def _measure(self, question: str, prepared: Sequence[Prepared]) -> tuple[tuple[Run, ...], dict[str, str]]:
        """Measure networks in turns, one batch size after the other; return the runs, and why networks failed.

        A network whose process fails, for example for lack of memory, is left out from there on. If the question asks
        for energy, the windows of the last round at the smallest batch size are long enough for it, for all networks.
        """
        longer_s = len(prepared) * (ENERGY_WINDOW_S - WINDOW_S)
        wants_energy = shipped_plan().question(question).energy
        has_energy = wants_energy and self.setting.facts.has_power and self.setting.profile is not None
        is_long = has_energy and self.limit.allows(self._measuring_s(question, len(prepared)) + longer_s)
        turns = list(chain.from_iterable(self._turns(question, prepared, is_long)))
        name, began = f"{question} on {self.board.host}", self.limit.clock()
        runs: tuple[Run, ...] = ()
        failed: dict[str, str] = {}
        while turns:
            done = take_turns(
                self.board, self.conditions, turns, self.setting, name, self.progress, self._keep_runs, as_stated=True
            )
            runs += done.runs
            turns = [] if done.failed is None else self._without(turns[len(done.runs)][0], done.failed, turns)
            if done.failed is not None:
                failed[done.failed.labels[0]] = f"at batch {done.failed.batch}: {done.failed.message}"
        self.limit.add_runs(len(runs), self.limit.clock() - began - (longer_s if is_long else 0.0))
        return runs, failed

    def _without(
        self, request: MeasurementRequest, failed: FailedRun, turns: Sequence[list[MeasurementRequest]]
    ) -> list[list[MeasurementRequest]]:
        """The turns of the other networks, from the round in which this one failed.

        Raises:
            AgentError: it was the dense network at the smallest batch size, with which all others are compared.
        """
        problem = f"cannot measure {request.label} at batch {request.batch} on {self.board.host}: {failed.message}"
        if request.label == self.dense.name and request.batch == self.conditions.batches[0]:
            raise AgentError(problem, remote_traceback=failed.traceback)
        self.progress.warn(f"{problem}; the others continue without it")
        rounds = [(turn.batch, turn.round) for (turn,) in turns]
        return [
            turn for turn in turns[rounds.index((request.batch, request.round)) :] if turn[0].label != request.label
        ]

    def _turns(
        self, question: str, prepared: Sequence[Prepared], is_long: bool
    ) -> Iterator[list[list[MeasurementRequest]]]:
        """The turns at each batch size."""
        for batch, rounds in self._rounds(question).items():
            turns = in_turns([self._requests(network, batch) for network in prepared], rounds, seed=0)
            if is_long and batch == self.conditions.batches[0]:
                last = turns[-len(prepared) :]
                turns[-len(prepared) :] = [[replace(request, duration_s=ENERGY_WINDOW_S)] for (request,) in last]
            yield turns

    def _requests(self, prepared: Prepared, batch: int) -> list[MeasurementRequest]:
        assert prepared.measurable is not None and self.conditions.runner is not None
        conditions = replace(self.conditions, batches=(batch,))
        path = str(prepared.measurable.path)
        return requests_of(conditions, path, prepared.measurable, self.conditions.runner, self.setting)
