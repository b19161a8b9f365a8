"""The energy of an emulated board, read as on a real one: a captured power tree, its sensors' lag, the agent's meter.

A board draws power for being on, for what it computes and for what it moves, so energy is no multiple of time. In turns
with the base, the sensor's running mean still holds the power of the model before: `agent.records.Power` subtracts it.
The trees are of an Orin NX, a Nano and an AGX, whose module has several rails. The clock is computed, so nothing waits.
"""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from benchmarks.product.emulated import EmulatedBench, EmulatedBoard, draw
from edgevit.agent import power
from edgevit.agent.meters import ina3221
from edgevit.agent.records import Power
from edgevit.board.profiles import load_profile
from edgevit.latency.paired import ROUNDS, SURE
from edgevit.latency.rounds import CONFIDENT, MeasuredFigure
from edgevit.network.anatomy import BlockDims

CAPTURED = Path(__file__).parents[2] / "tests" / "boards"
# Each captured tree by its profile, which says whose rails make up the module.
TREES = {
    "orin-nx-16gb": "orin-nx-16gb-jetpack6.2",
    "orin-nano-8gb": "orin-nano-8gb-jetpack6.2.1",
    "agx-orin-64gb": "agx-orin-64gb-jetpack6.2.1",
}
WINDOW_S, READ_S = 3.0, 0.2
MILLIVOLTS = 5000


class PowerTree:
    """The sensors of a captured board, fed with a given power."""

    def __init__(self, root: Path, profile: str = "orin-nx-16gb") -> None:
        self.total = load_profile(profile).total_rails()
        for line in (CAPTURED / TREES[profile] / "sys.txt").read_text().splitlines():
            path, _, value = line.partition(":")
            if "ina3221" in path:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(value + "\n")
        self.root, self.now_ns, self.shown_mw = root, 0, 5000.0
        channels = {(rail.address, rail.label): rail for rail in ina3221.sensor_channels(str(root))}
        rails = [channels[name] for name in self.total]
        self.currents = [Path(rail.folder, f"curr{rail.channel}_input") for rail in rails]
        for rail in rails:
            Path(rail.folder, f"in{rail.channel}_input").write_text(f"{MILLIVOLTS}\n")
        interval_ms = ina3221.interval_ms(str(root))
        assert interval_ms is not None
        self.constant_s = interval_ms / 1e3

    def energy_mj(self, milliwatts: float) -> float:
        """Return the meter's energy for a window in which so much power is drawn."""
        clock: dict[str, Any] = {"perf_counter_ns": lambda: self.now_ns}
        with patch.multiple(ina3221, **clock), patch.multiple(power, **clock):
            meter = ina3221.Meter(str(self.root), self.total)
            self._show()
            with meter:
                for _ in range(round(WINDOW_S / READ_S)):
                    self.now_ns += round(READ_S * 1e9)
                    self.shown_mw += (milliwatts - self.shown_mw) * (1 - math.exp(-READ_S / self.constant_s))
                    self._show()
                    meter.read()
        energy = Power.from_dict(meter.figures()["power"]).energy_mj()
        assert energy is not None
        return energy

    def _show(self) -> None:
        for i, current in enumerate(self.currents, 1):  # unequal shares of the whole
            share = 2 * i / (len(self.currents) * (len(self.currents) + 1))
            current.write_text(f"{round(self.shown_mw * share / MILLIVOLTS * 1000)}\n")


@dataclass(frozen=True)
class EnergyBoard(EmulatedBoard):
    """A board that is measured by energy: `ms` holds millijoules everywhere."""

    on_w: float = 3.0
    computing_w: float = 10.0
    moving_w: float = 5.0
    base: tuple[BlockDims, ...] = ()
    tree: PowerTree | None = field(default=None, compare=False)

    def ms(self, blocks: Sequence[BlockDims]) -> float:
        """What an image takes, in mJ."""
        computing = replace(self, bytes_per_ms=math.inf, launch_ms=0.0, fixed_ms=0.0)
        moving = replace(self, macs_per_ms=math.inf, launch_ms=0.0, fixed_ms=0.0)
        return (
            self.on_w * self.time_ms(blocks)
            + self.computing_w * computing.time_ms(blocks)
            + self.moving_w * moving.time_ms(blocks)
        )

    def time_ms(self, blocks: Sequence[BlockDims]) -> float:
        return super().ms(blocks)

    def measure(self, blocks: Sequence[BlockDims], random: Random, most: int = ROUNDS) -> MeasuredFigure:
        """Measure in turns with the base, through the meter, relative to the base's energy by the table."""
        ratios: list[float] = []
        while True:
            for _ in range(ROUNDS):
                of_base, of_model = (self._window_mj(model, random) for model in (self.base, blocks))
                ratios.append(of_model / of_base)
            value, deviation = statistics.median(ratios), statistics.stdev(ratios)
            spread = CONFIDENT * 1.25 * deviation / math.sqrt(len(ratios))
            if spread <= SURE * value or len(ratios) >= most:
                break
        whole = self.ms(self.base)
        return MeasuredFigure(value * whole, (value - spread) * whole, (value + spread) * whole, len(ratios))

    def _window_mj(self, blocks: Sequence[BlockDims], random: Random) -> float:
        """Measure the energy of one image in one window of noisy power."""
        assert self.tree is not None
        time_ms = self.time_ms(blocks)
        milliwatts = self.ms(blocks) / time_ms * 1000 * max(random.gauss(1, self.noise), 0.5)
        return self.tree.energy_mj(milliwatts) / (WINDOW_S * 1000 / time_ms)


def tree_of(seed: int) -> str:
    """Return the profile of the captured tree of a draw; each serves three draws in a row, of three budgets."""
    return list(TREES)[seed // 3 % len(TREES)]


def draw_energy(seed: int, folder: Path) -> EmulatedBench:
    """Draw the board and base of `draw` with powers; its sensor tree lies in the folder."""
    bench = draw(seed, narrower=False)
    random = Random(seed + 10**6)
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
    fields_of_board = {
        board_field.name: getattr(bench.board, board_field.name) for board_field in fields(EmulatedBoard)
    }
    board = EnergyBoard(
        **fields_of_board,
        on_w=random.uniform(2, 6),
        computing_w=random.uniform(4, 20),
        moving_w=random.uniform(1, 10),
        base=tuple(bench.base),
        tree=PowerTree(folder, tree_of(seed)),
    )
    return EmulatedBench(board, bench.base, bench.losses, bench.random, ffn_step=bench.ffn_step)
