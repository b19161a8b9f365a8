"""What the jobs of a plan took: hours of processors, GPUs and boards, and dollars at the plan's prices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgevit.jobs.fleet.plan import HourPrices, Stage
from edgevit.jobs.fleet.states import JobState

HEAD = ("stage", "jobs", "hours", "processor hours", "GPU hours")  # headings of the columns of `StageCost.cells`
BOARD_HEAD = ("board", "minutes", "of these engines", "of these benches", "idle while a job waited")


@dataclass(frozen=True)
class StageCost:
    """What the finished and the failed jobs of a stage took, each in its last try."""

    stage: Stage
    jobs: int
    hours: float
    cpu_hours: float  # processor hours, summed over all threads
    gpu_hours: float
    board_hours: float
    dollars: float | None  # cost of the stage in dollars; None: the plan has no prices

    def cells(self) -> tuple[str, ...]:
        """The stage as a row of a table; with the dollars where the plan has prices."""
        numbers = (self.hours, self.cpu_hours, self.gpu_hours)
        return (self.stage, str(self.jobs), *map(_digits, numbers), *_money(self.dollars))


@dataclass(frozen=True)
class BoardCost:
    """How long jobs occupied a board, the host to which SSH went."""

    board: str
    minutes: float
    engine_minutes: float
    bench_minutes: float
    idle_minutes: float  # minutes without a job while one was ready for the board and another job of the plan ran
    dollars: float | None

    def cells(self) -> tuple[str, ...]:
        """The board as a row of a table."""
        numbers = (self.minutes, self.engine_minutes, self.bench_minutes, self.idle_minutes)
        return (self.board, *map(_digits, numbers), *_money(self.dollars))


@dataclass(frozen=True)
class FleetCost:
    """What a plan took so far."""

    out: str  # folder of the plan's models
    stages: tuple[StageCost, ...]
    boards: tuple[BoardCost, ...]
    prices: Mapping[str, float]  # dollars of an hour of cpu, gpu and board, as the plan states them
    dollars: float | None  # cost of all stages in dollars; None: the plan has no prices

    def tables(self) -> list[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
        """Head and rows of the table of stages, and of that of boards if there are any."""
        money = () if self.dollars is None else ("dollars",)
        stages = ((*HEAD, *money), [stage.cells() for stage in self.stages])
        boards = ((*BOARD_HEAD, *money), [board.cells() for board in self.boards])
        return [stages, boards] if self.boards else [stages]

    def text(self) -> str:
        """The sum in dollars, with the prices; empty: the plan has none."""
        if self.dollars is None:
            return ""
        names = {"cpu": "processor", "gpu": "GPU", "board": "board"}
        prices = " and ".join(f"{price:g} of a {names[name]} hour" for name, price in self.prices.items())
        return f"{self.dollars:.2f} dollars at the plan's prices in dollars: {prices}"


def cost_of(out: str, states: Iterable[JobState], prices: HourPrices) -> FleetCost:
    """Add up what jobs took, by stage and by board."""
    ended = [state for state in states if state.state in ("done", "failed")]
    named = {name: price for name, price in vars(prices).items() if price is not None}
    of_stages = {
        stage: [state for state in ended if state.stage == stage] for stage in dict.fromkeys(s.stage for s in ended)
    }
    stages = tuple(_stage_cost(stage, of_stage, named) for stage, of_stage in of_stages.items())
    boards = sorted({state.board for state in ended if state.board is not None})
    dollars = sum(stage.dollars or 0 for stage in stages) if named else None
    return FleetCost(out, stages, tuple(_board_cost(board, ended, named) for board in boards), named, dollars)


def _stage_cost(stage: Stage, states: Sequence[JobState], prices: Mapping[str, float]) -> StageCost:
    cpu, gpu = (sum(getattr(state, f"{name}_s") for state in states) / 3600 for name in ("cpu", "gpu"))
    board = sum(state.seconds or 0 for state in states if state.board is not None) / 3600
    used = {"cpu": cpu, "gpu": gpu, "board": board}
    dollars = sum(price * used[name] for name, price in prices.items()) if prices else None
    return StageCost(stage, len(states), sum(state.seconds or 0 for state in states) / 3600, cpu, gpu, board, dollars)


def _board_cost(board: str, states: Sequence[JobState], prices: Mapping[str, float]) -> BoardCost:
    def minutes(*stages: Stage) -> float:
        return sum(s.seconds or 0 for s in states if s.board == board and (not stages or s.stage in stages)) / 60

    dollars = prices.get("board", 0) * minutes() / 60 if prices else None
    idle = _idle_s(board, states) / 60
    return BoardCost(board, minutes(), minutes("engine"), minutes("bench"), idle, dollars)


def _idle_s(board: str, states: Sequence[JobState]) -> float:
    """Seconds in which a board had no job, while one was ready for it and another job of the plan ran.

    A job is ready when the last job that it needs has ended. Where nothing ran, no command worked on the plan.
    """
    spans = {s.job: (s.began, s.began + (s.seconds or 0)) for s in states if s.began is not None}
    places = {s.place for s in states if s.board == board}
    first = min((began for began, _ in spans.values()), default=0.0)
    changes: list[tuple[float, str, int]] = []  # when, of which count, and by how much
    for state in states:
        if (span := spans.get(state.job)) is None:
            continue
        changes += _change("runs", *span)
        if state.board == board:
            changes += _change("on the board", *span)
        if state.place in places:
            ready = max((spans[name][1] for name in state.needs if name in spans), default=first)
            changes += _change("ready", ready, span[0])
    counts: Counter[str] = Counter()
    idle = before = 0.0
    for time, name, change in sorted(changes):
        if counts["ready"] > 0 and counts["runs"] > 0 and not counts["on the board"]:
            idle += time - before
        counts[name] += change
        before = time
    return idle


def _change(name: str, begin: float, end: float) -> list[tuple[float, str, int]]:
    return [(begin, name, 1), (end, name, -1)] if end > begin else []


def _digits(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 or not value else f"{value:.1g}"


def _money(dollars: float | None) -> tuple[str, ...]:
    return () if dollars is None else (f"{dollars:.2f}",)
