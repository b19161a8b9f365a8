"""The figures of a network of a suite, from its runs and those of the dense one in the same rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import median

from edgevit.agent.doubts import POWER_WINDOW_S
from edgevit.agent.records import Run
from edgevit.board.bench import Setting
from edgevit.board.models import Work
from edgevit.board.roofline import board_ceiling
from edgevit.jobs.suite.answers import against
from edgevit.jobs.suite.files import Prepared
from edgevit.jobs.suite.record import Figure, MeasuredNetwork
from edgevit.records.precisions import PRECISIONS

ENERGY_WINDOW_S = POWER_WINDOW_S  # window of the one round that measures energy; in a shorter one its edges dominate


def measured_network(
    question: str, prepared: Prepared, runs: Sequence[Run], dense: str, setting: Setting, failed: str | None
) -> MeasuredNetwork:
    """Sum up the runs of a network, and of the dense one of this name."""
    network = prepared.network
    dims, geometry = network.cost()
    work = Work(geometry.macs(dims), geometry.params(dims), geometry.patches * geometry.patch_values + geometry.outputs)
    return MeasuredNetwork(
        name=network.name,
        question=question,
        size=network.size,
        precision=prepared.precision,
        tokens=geometry.tokens,
        macs=work.macs,
        params=work.params,
        blocks=dims,
        fusable=sum(block.fusable for block in dims) if PRECISIONS[prepared.precision].fuses else 0,
        fused=prepared.placed.fused,
        build_s=prepared.placed.build_s,
        refused=prepared.placed.refused,
        figures=tuple(_figures(prepared, work, runs, dense, setting)),
        failed=failed,
    )


def _figures(prepared: Prepared, work: Work, runs: Sequence[Run], dense: str, setting: Setting) -> Iterator[Figure]:
    name = prepared.network.name
    ratios = {c.batch: c for c in against(runs, dense, name)}
    limits = None if setting.profile is None else board_ceiling(setting.profile, setting.facts)
    for batch in sorted({run.batch for run in runs if run.label == name}):
        own_runs = [run for run in runs if run.label == name and run.batch == batch]
        ratio = ratios.get(batch)
        energies = [energy for run in own_runs if (energy := _energy_mj(run)) is not None]
        p50_ms = median(run.p50_ns() for run in own_runs) / 1e6
        least_s = None if limits is None else work.least_s(limits, batch, prepared.precision)
        yield Figure(
            batch=batch,
            p50_ms=p50_ms,
            mean_ms=median(run.mean_ns() for run in own_runs) / 1e6,
            images_per_s=median(run.images_per_second() for run in own_runs),
            energy_mj=median(energies) if energies else None,
            ratio=None if ratio is None else ratio.ratio,
            low=None if ratio is None else ratio.low,
            high=None if ratio is None else ratio.high,
            roofline_share=None if least_s is None else least_s / (p50_ms / 1e3),
            void=tuple(dict.fromkeys(chain.from_iterable(run.void() for run in own_runs))),
        )


def _energy_mj(run: Run) -> float | None:
    """Energy of an image; None: no power was read, or the window was too short."""
    if run.power is None or run.power.window_s() < ENERGY_WINDOW_S:
        return None
    return run.energy_per_image_mj()
