"""The data of a model's plots, as plain values, thinned to what a screen can show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypedDict

from edgevit.agent.records import Power, Run
from edgevit.records.derivation import AccuracyRecord
from edgevit.reporting.axes import LatencyPlace, machine_name
from edgevit.reporting.gather import Evidence, GatheredModel
from edgevit.reporting.layers import break_down

BINS = 60  # number of bins of a histogram
_SHOWN = 0.995  # share of the latencies in it: a few outliers would leave all others one bin
_POINTS = 300  # most points of a curve, where there are few models
_ALL_POINTS = 10_000  # most points of one curve of every model together, so that the page stays small
_LEAST_POINTS = 40
_LARGEST = 1e300  # largest figure that can be drawn; NaN is not below it either
MATRIX = 40  # classes of a confusion matrix; of more, the pairs that are confused most
_PAIRS = 30


class DrawnBlock(TypedDict):
    """Sizes of a block by axis, of the base and of the model; `now` is None for a removed block."""

    block: int
    base: dict[str, int]
    now: dict[str, int] | None


class ClassRow(TypedDict):
    name: str
    top1: float
    base: float | None  # top-1 of the restricted base; None: not judged


# "is" is a keyword of Python, so that this one is no class.
ConfusedPair = TypedDict("ConfusedPair", {"is": str, "called": str, "images": int})


class Confusions(TypedDict):
    """The most frequent pairs of `all`; and a matrix, whose cells are empty if there are many classes."""

    pairs: list[ConfusedPair]
    all: int
    classes: list[dict[str, str | int]]
    cells: list[tuple[int, int, int]]


def details(model: GatheredModel, evidence: Evidence, compared: Sequence[LatencyPlace]) -> dict[str, object]:
    """The data of all plots of one model; unknown parts are empty."""
    points = max(_LEAST_POINTS, min(_POINTS, _ALL_POINTS // max(len(evidence.models), 1)))
    placed = [(place, place.runs_of(model.files)) for place in compared]
    measured = [(place, runs) for place, runs in placed if runs]
    return {
        "blocks": blocks(model),
        "embed": embed(model),
        "history": curves(model.history, points),
        "confusion": confusion(model),
        "latency": [latency(place, of_file) for place, runs in measured for of_file in _by_file(runs)],
        "power": [
            drawn
            for place, runs in measured
            for of_file in _by_file(runs)
            if (drawn := _power_of(place, of_file, points)) is not None
        ],
        "layers": [
            {"place": machine_name(profile.environment), **asdict(break_down(profile))}
            for profile in evidence.profiles
            if profile.model_sha256 in model.files
        ],
    }


def blocks(model: GatheredModel) -> list[DrawnBlock]:
    document, derivation = model.document, model.derivation
    if document is None:
        return []
    numbers = derivation.facts.kept_blocks if derivation is not None else None
    remaining = dict(zip(numbers or range(len(document.blocks)), document.blocks, strict=True))
    return [
        {"block": i, "base": asdict(before), "now": asdict(remaining[i]) if i in remaining else None}
        for i, before in enumerate(document.base.blocks)
    ]


def embed(model: GatheredModel) -> dict[str, int] | None:
    """Channels of the embedding and of the base's; None if none were removed."""
    narrowed = model.document.narrowed if model.document is not None else None
    return None if narrowed is None else {"now": narrowed[0], "base": narrowed[1]}


def curves(history: Sequence[dict[str, object]], points: int) -> list[dict[str, object]]:
    """A curve for each figure of each stage of training: its steps and values."""
    curve_points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for line in history:
        stage, step = line.get("stage"), line.get("step")
        if not isinstance(stage, str) or not isinstance(step, int):
            continue
        for name, value in line.items():
            drawn = name.startswith(("loss", "accuracy")) or name == "lr"
            if drawn and isinstance(value, (int, float)) and abs(value) < _LARGEST:
                curve_points.setdefault((stage, name), []).append((step, _five_digits(float(value))))
    return [
        {"stage": stage, "name": name, "points": thinned(values, points)}
        for (stage, name), values in curve_points.items()
        if len(values) > 1
    ]


def classes(model: GatheredModel) -> list[ClassRow]:
    """Accuracy by class, the worst first, with that of the restricted base if known."""
    accuracy = model.derivation.accuracy if model.derivation is not None else None
    derived = accuracy.derived if accuracy is not None else None
    before = (
        accuracy.base_restricted.per_class if accuracy is not None and accuracy.base_restricted is not None else None
    ) or {}
    rows: list[ClassRow] = [
        {"name": name, "top1": top1, "base": before.get(name)}
        for name, top1 in ((derived.per_class if derived is not None else None) or {}).items()
        if top1 is not None
    ]
    return sorted(rows, key=lambda row: (row["top1"], row["name"]))


def confusion(model: GatheredModel) -> Confusions | None:
    """Confusions of classes: a matrix if there are few, else the most frequent pairs."""
    derived = model.derivation.accuracy.derived if model.derivation is not None else None
    if derived is None or derived.confused is None or derived.images_per_class is None:
        return None
    names = list(derived.images_per_class)
    pairs = sorted(((n, a, b) for a, row in derived.confused.items() for b, n in row.items()), reverse=True)
    confusions: Confusions = {
        "pairs": [{"is": a, "called": b, "images": n} for n, a, b in pairs[:_PAIRS]],
        "all": len(pairs),
        "classes": [],
        "cells": [],
    }
    if len(names) <= MATRIX:
        confusions["classes"] = [{"name": name, "images": images} for name, images in derived.images_per_class.items()]
        confusions["cells"] = _cells(names, derived)
    return confusions


def _cells(names: Sequence[str], accuracy: AccuracyRecord) -> list[tuple[int, int, int]]:
    """The cells of the matrix that are not empty: class, predicted class, images."""
    cells = []
    for i, name in enumerate(names):
        wrong = (accuracy.confused or {}).get(name, {})
        called = {**wrong, name: (accuracy.images_per_class or {})[name] - sum(wrong.values())}
        cells += [(i, j, called[name_called]) for j, name_called in enumerate(names) if called.get(name_called)]
    return cells


def latency(place: LatencyPlace, runs: Sequence[Run]) -> dict[str, object]:
    """A histogram of all inferences of runs of one file, in ms, without the slowest few."""
    import numpy as np

    times = np.sort(np.concatenate([np.asarray(run.latencies_ns) for run in runs]) / 1e6)
    low, high = float(times[0]), float(times[math.ceil(_SHOWN * len(times)) - 1])
    width = (high - low) / BINS or 1e-6
    shown = times[times <= high]
    counts = np.bincount(np.minimum(((shown - low) / width).astype(int), BINS - 1), minlength=BINS).tolist()
    return {
        "place": place.title,
        "file": runs[0].model,
        "runs": len(runs),
        "samples": len(times),
        "slower": len(times) - len(shown),
        "slowest_ms": _five_digits(float(times[-1])),
        "least_ms": _five_digits(low),
        "bin_ms": width,
        "counts": counts,
        "percentiles_ms": {
            f"p{p}": _five_digits(float(times[math.ceil(p * len(times) / 100) - 1])) for p in (50, 90, 95, 99)
        },
    }


def _power_of(place: LatencyPlace, runs: Sequence[Run], points: int) -> dict[str, object] | None:
    """The power of the run whose energy is the median."""
    measured = [(energy, run) for run in runs if (energy := run.energy_per_image_mj()) is not None]
    if not measured:
        return None
    run = sorted(measured, key=lambda pair: pair[0])[(len(measured) - 1) // 2][1]
    assert run.power is not None  # it has an energy
    idle = run.idle_power_mw()
    return {
        "place": place.title,
        "file": run.model,
        "rails": list(run.power.total),
        "window_s": run.power.window_s(),
        "idle_w": None if idle is None else idle / 1e3,
        "mean_w": (run.power_mw() or 0) / 1e3,
        "points": power_trace(run.power, points),
    }


def power_trace(power: Power, points: int) -> list[tuple[float, float]]:
    """Seconds since the timed window began, and watts of the module."""
    watts = power.total_mw() or ()
    pairs = zip(power.times_ns, watts, strict=True)
    readings = [(round((ns - power.window_started_ns) / 1e9, 3), _five_digits(mw / 1e3)) for ns, mw in pairs]
    return thinned(readings, points)


def thinned(values: Sequence[Any], points: int) -> list[Any]:
    """At most so many, evenly chosen, the first and the last among them."""
    if len(values) <= points:
        return list(values)
    return [values[round(i * (len(values) - 1) / (points - 1))] for i in range(points)]


def drawable(value: Any) -> Any:
    """Plain values with None in place of numbers that are not finite or too large, which JSON cannot express."""
    if isinstance(value, dict):
        return {name: drawable(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [drawable(part) for part in value]
    return None if isinstance(value, float) and not abs(value) < _LARGEST else value


def _five_digits(value: float) -> float:
    """Round to five digits, more than a screen can show."""
    return float(f"{value:.5g}")


def _by_file(runs: Iterable[Run]) -> list[list[Run]]:
    files: dict[str, list[Run]] = {}
    for run in runs:
        files.setdefault(run.model_sha256, []).append(run)
    return list(files.values())
