"""Measure a model in turns with the base: the ratio of the two, times the cost of the base by the table.

A machine that grows warm or has other work slows both down, so the ratio stays. Latencies alternate in one process per
round. Energy is measured in a process for each model, because sensors are too slow to separate single inferences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgevit.agent.records import Run
from edgevit.board.bench import bench
from edgevit.board.comparison import Comparison, compare_within, decisive
from edgevit.board.connection import THIS_MACHINE, open_board
from edgevit.board.request import BenchRequest
from edgevit.derivation.allocate.prices import UNITS
from edgevit.derivation.allocate.prices import Measured as Quantity
from edgevit.engines.build import build_engine
from edgevit.engines.options import EngineOptions
from edgevit.engines.request import ExportRequest
from edgevit.errors import EngineError, UnfitBoardError
from edgevit.exporting.current import current_export
from edgevit.exporting.request import FilesRequest
from edgevit.latency.rounds import MeasuredFigure
from edgevit.latency.target import MeasurementTarget
from edgevit.progress import Progress
from edgevit.records.model_folder import ModelFolder
from edgevit.records.precisions import FP16, FP32, PRECISIONS

ROUNDS = 8  # rounds of base and model: an interval needs 6
MOST_ROUNDS = 32  # while the interval stays wide
SURE = 0.0075  # half-width of a narrow interval, relative: half of the window in which a budget is met
SECONDS, POWER_SECONDS = 0.5, 3.0  # time of each model in a round: ten turns; the rails' sensors average over 0.43 s
LABELS = ("base", "model")
_DRIFT = 0.05  # relative change of the base's cost since the table was measured that is worth a warning
TRIES = 2  # number of attempts to get runs that are not void
MOST_BATCH = 8  # largest batch of an engine, unless the target has a larger one


@dataclass
class PairedBench:
    """Measures models of one task on one target."""

    target: MeasurementTarget
    quantity: Quantity
    base_cost: float  # cost of the base by the table, in ms or mJ
    progress: Progress
    data: str | Path | None = None  # images to calibrate a model without a derivation; None: none are known
    figure: str = ""  # the kind of figure whose ratio was taken last: p50, mean, processor or energy
    # Measured cost of the last model and of the base, not as a ratio; None: nothing is measured yet.
    clock: tuple[float, float] | None = None
    # The engines of prepared folders, which may have others of this board, too.
    _engines: dict[Path, Path] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return self.target.board or THIS_MACHINE

    def prepare(self, folder: Path, *, judged: bool = False) -> None:
        """Export a model and, if it runs as an engine, build the engine, which must pass the gate on the target.

        `judged`: also compare the exported files with the model on images, as for a model that is kept.

        Raises:
            EngineError: no precision gives a correct engine, or the base is not in INT8, and its costs are.
            BoardError, ExportError: as their names say.
        """
        precision, options = self.target.computes_in, dict[str, Any]()
        is_base = ModelFolder(folder).derivation() is None
        if calibrated := PRECISIONS[precision].calibrated:
            options = {"precision": precision, "data": self.data if is_base else None}
        if not self.target.builds:
            half = precision == FP16.name
            files = FilesRequest(model=folder, fp16=half, accuracy=judged, **options)
            current_export(files, progress=self.progress)
            return
        batches = (1, self.target.batch, max(self.target.batch, MOST_BATCH))
        request = ExportRequest(
            model=folder,
            trt=True,
            engine=EngineOptions(batches=batches),
            profile=self.target.profile,
            accuracy=judged,
            fp16=precision != FP32.name,
            **options,
        )
        with open_board(self.target.board, ssh_config=self.target.ssh_config) as board:
            record = build_engine(request, board, self.progress, self.target.conditions())
        if calibrated and is_base and record.precision != precision:
            raise EngineError(
                f"the base runs in {record.precision_level} on {self.host}, as its engine in {precision} "
                f"{record.attempts[-1].failure}: costs in {precision} are not its own; give --run-precision fp16"
            )
        self._engines[folder] = record.path

    def measure(self, base: Path, model: Path) -> MeasuredFigure:
        """Measure a model in turns with the base until its interval is narrow, or for MOST_ROUNDS; both are prepared.

        Raises:
            UnfitBoardError: the board throttled or changed its clocks each time, or has no power meter.
            BoardError: as its name says.
        """
        runs = self._valid_runs(base, model)
        while not _is_sure(self.compared(runs)) and len(runs) < len(LABELS) * MOST_ROUNDS:
            runs += self._valid_runs(base, model)
        comparison = self.compared(runs)
        self.figure = comparison.figure
        self._warn_of_drift(*self._clock(runs))
        low, high = (None if end is None else end * self.base_cost for end in (comparison.low, comparison.high))
        return MeasuredFigure(comparison.ratio * self.base_cost, low, high, comparison.rounds or 1)

    def _valid_runs(self, base: Path, model: Path) -> tuple[Run, ...]:
        """Return the runs of some rounds, none of which is void; raise UnfitBoardError as `measure` does."""
        for _ in range(TRIES):
            runs = self._runs(base, model)
            if not (void := self.compared(runs).void):
                return runs
            self.progress.warn(f"measured again: {void[0]}")
        raise UnfitBoardError(
            f"every run on {self.host} is void: {void[0]}; cool it, give --lock-clocks, or a lower --power-mode"
        )

    def _runs(self, base: Path, model: Path) -> tuple[Run, ...]:
        energy = self.quantity == "mj"
        conditions = replace(self.target.conditions(), duration_s=POWER_SECONDS if energy else SECONDS)
        if self.target.builds:
            conditions = replace(conditions, precision=None)  # the engine's own: its gate may have required fp32
        request = BenchRequest(
            models=[self._engines.get(folder, folder) for folder in (base, model)],
            conditions=conditions,
            repeat=ROUNDS,
            alternate=not energy,
            labels=LABELS,
            board=self.target.board,
            ssh_config=self.target.ssh_config,
            profile=self.target.profile,
        )
        return bench(request, progress=self.progress).runs

    def compared(self, runs: Sequence[Run]) -> Comparison:
        """Compare model and base by energy; or by p50, or a figure that other programs do not disturb.

        Raises:
            UnfitBoardError: energy is required, and was not measured.
        """
        figures = {comparison.figure: comparison for comparison in compare_within(runs)}
        comparison = figures.get("energy" if self.quantity == "mj" else "p50")
        if comparison is None:
            raise UnfitBoardError(
                f"--mj: no power can be read on {self.host}; give --ms, or a --board whose rails can be read"
            )
        return comparison if self.quantity == "mj" else decisive(list(figures.values()))[0]

    def _clock(self, runs: Sequence[Run]) -> tuple[float, float]:
        """Return the cost of model and base by the clock, or by the board's energy."""
        figure = "energy" if self.quantity == "mj" else "p50"
        comparison = next(comparison for comparison in compare_within(runs) if comparison.figure == figure)
        self.clock = comparison.after_value, comparison.before_value
        return self.clock

    def _warn_of_drift(self, model: float, base: float) -> None:
        """Warn if the cost of the base has changed since the table was measured."""
        if abs(base / self.base_cost - 1) > _DRIFT:
            unit = UNITS[self.quantity]
            self.progress.warn(
                f"on {self.host} the base takes {base:.4g} {unit} now and {self.base_cost:.4g} by the table: the "
                f"model is judged by its ratio, and takes {model:.4g} now; measure again when the machine is as it was"
            )


def _is_sure(comparison: Comparison) -> bool:
    """Whether more rounds would not help: the interval is narrow, or the figure has none."""
    if comparison.low is None or comparison.high is None:
        return True
    return comparison.high - comparison.low <= 2 * SURE * comparison.ratio
