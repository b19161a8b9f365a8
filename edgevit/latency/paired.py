"""Measure what a model takes: its ratio to the base, in turns with it, times what the base takes by the table.

A machine that grows warm or has other work to do is slow for both, and the ratio stays. Latencies are measured
alternately in one process per round; energy in processes of their own, as sensors are too slow to tell visits apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgevit.agent.records import Run
from edgevit.board.bench import bench_in_turns
from edgevit.board.comparison import Comparison, compare_within, decisive
from edgevit.board.connection import THIS_MACHINE, open_board
from edgevit.derivation.allocate.prices import UNITS
from edgevit.derivation.allocate.prices import Measured as Quantity
from edgevit.engines.build import build_engine
from edgevit.engines.options import EngineOptions
from edgevit.engines.request import ExportRequest
from edgevit.errors import UnfitBoardError
from edgevit.exporting.current import current_export
from edgevit.latency.rounds import MeasuredFigure
from edgevit.latency.target import MeasurementTarget
from edgevit.progress import Progress
from edgevit.records.precisions import FP16

ROUNDS = 8  # of base and model: an interval needs 6
MOST_ROUNDS = 32  # where the interval stays wide
SURE = 0.0075  # of what a model takes, to each side: half as wide as the window that a budget is met in
SECONDS, POWER_SECONDS = 0.5, 3.0  # of each, in a round: ten visits; and the rails' sensors average over 0.43 s
LABELS = ("base", "model")
DRIFT = 0.05  # of the base against what it took when the table was measured
TRIES = 2  # of what is void
MOST_BATCH = 8  # images that an engine takes, unless more are asked for


@dataclass
class PairedBench:
    """Measures models of one task at one target."""

    target: MeasurementTarget
    quantity: Quantity
    base_takes: float  # by the table
    progress: Progress
    figure: str = ""  # by which the last model was judged
    clock: tuple[float, float] | None = None  # what that model and the base took there: no ratio

    @property
    def there(self) -> str:
        """The target in words."""
        return self.target.board or THIS_MACHINE

    def ready(self, folder: Path, *, judged: bool = False) -> None:
        """Export a model, and build its engine where it runs as one, which the gate there must pass.

        `judged`: the exported files are also judged on images, as those of a model to be kept are.

        Raises:
            EngineError: no precision gives a right engine.
            BoardError, ExportError: as their names say.
        """
        if not self.target.builds:
            current_export(folder, fp16=self.target.computes_in == FP16.name, accuracy=judged, progress=self.progress)
            return
        batches = (1, self.target.batch, max(self.target.batch, MOST_BATCH))
        asked = ExportRequest(
            model=folder,
            trt=True,
            engine=EngineOptions(batches=batches),
            profile=self.target.profile,
            accuracy=judged,
            fp16=self.target.computes_in == FP16.name,
        )
        with open_board(self.target.board, ssh_config=self.target.ssh_config) as board:
            build_engine(asked, board, self.progress)

    def measure(self, base: Path, model: Path) -> MeasuredFigure:
        """Measure a model beside the base, until its interval is narrow or there are many rounds; both must be ready.

        Raises:
            UnfitBoardError: the board throttled or moved its clocks each time, or tells no power.
            BoardError: as its name says.
        """
        runs = self._counting(base, model)
        while not _is_sure(self.judged(runs)) and len(runs) < len(LABELS) * MOST_ROUNDS:
            runs += self._counting(base, model)
        found = self.judged(runs)
        self.figure = found.figure
        self._tell_drift(*self._clock(runs))
        low, high = (None if end is None else end * self.base_takes for end in (found.low, found.high))
        return MeasuredFigure(found.ratio * self.base_takes, low, high, found.rounds or 1)

    def _counting(self, base: Path, model: Path) -> tuple[Run, ...]:
        """The runs of some rounds, none of which is void; UnfitBoardError as above."""
        for _ in range(TRIES):
            runs = self._runs(base, model)
            if not (void := self.judged(runs).void):
                return runs
            self.progress.warn(f"measured again: {void[0]}")
        raise UnfitBoardError(
            f"no figure counts on {self.there}: {void[0]}; cool it, give --lock-clocks, or a lower --power-mode"
        )

    def _runs(self, base: Path, model: Path) -> tuple[Run, ...]:
        energy = self.quantity == "mj"
        how = replace(self.target.conditions(), duration_s=POWER_SECONDS if energy else SECONDS)
        if self.target.builds:
            how = replace(
                how, precision=None
            )  # that of the engine, of which the gate may have asked for more than fp16
        return bench_in_turns(
            [base, model],
            how,
            rounds=ROUNDS,
            alternate=not energy,
            labels=LABELS,
            board=self.target.board,
            ssh_config=self.target.ssh_config,
            profile=self.target.profile,
            progress=self.progress,
        ).runs

    def judged(self, runs: Sequence[Run]) -> Comparison:
        """The one figure to judge by: energy; or p50, or what tells the same where other programs were busy.

        Raises:
            UnfitBoardError: energy is asked for, and not told.
        """
        figures = {comparison.figure: comparison for comparison in compare_within(runs)}
        found = figures.get("energy" if self.quantity == "mj" else "p50")
        if found is None:
            raise UnfitBoardError(
                f"--mj: no power can be read on {self.there}; give --ms, or a --board whose rails can be read"
            )
        return found if self.quantity == "mj" else decisive(list(figures.values()))[0]

    def _clock(self, runs: Sequence[Run]) -> tuple[float, float]:
        """What model and base took by the clock, or of the board's energy."""
        wanted = "energy" if self.quantity == "mj" else "p50"
        found = next(comparison for comparison in compare_within(runs) if comparison.figure == wanted)
        self.clock = found.after_value, found.before_value
        return self.clock

    def _tell_drift(self, model: float, base: float) -> None:
        """Warn where the base takes another time, or energy, than when the table was measured."""
        if abs(base / self.base_takes - 1) > DRIFT:
            unit = UNITS[self.quantity]
            self.progress.warn(
                f"on {self.there} the base takes {base:.4g} {unit} now and {self.base_takes:.4g} by the table: the "
                f"model is judged by its ratio, and takes {model:.4g} now; measure again when the machine is as it was"
            )


def _is_sure(found: Comparison) -> bool:
    """Whether more rounds would be of no use: the interval is narrow, or the figure has none."""
    if found.low is None or found.high is None:
        return True
    return found.high - found.low <= 2 * SURE * found.ratio
