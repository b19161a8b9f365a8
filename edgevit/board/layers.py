"""The time of each layer of an inference: a record apart from runs, because a profiler slows the model.

A file of them has one on each line, as `edgevit bench --layers --output FILE` appends them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from edgevit.agent.layers import Layer
from edgevit.agent.measure import MeasurementRequest
from edgevit.agent.records import Run
from edgevit.board.answers import ProfileAnswer
from edgevit.errors import RunsError
from edgevit.records.documents import Reader
from edgevit.records.kinds import RecordKind
from edgevit.version import written_by

_READER = Reader(RunsError, hint="remove the line if it was cut off, or measure again with --layers")


@dataclass(frozen=True, kw_only=True)
class LayerProfile:
    """The layers of one model at one batch size, each with its times by the runtime's own profiler."""

    profiled: Literal["layers"] = "layers"  # what a line of such a file is, for a program that reads it
    label: str
    model: str  # file name of the model
    model_sha256: str
    precision: str | None
    runner: str
    provider: str | None
    batch: int
    clock: Literal["gpu", "host"]  # the clock that timed whole inferences
    inferences_ns: tuple[int, ...]  # durations of whole inferences with the profiler on
    # Durations, by the same clock, of all inferences of the session's runs without the profiler.
    plain_ns: tuple[int, ...]
    layers: tuple[Layer, ...]
    environment: dict[str, str]
    session: str
    created: str  # time of the profile as ISO 8601, UTC
    edgevit: str

    def __post_init__(self) -> None:
        counts = {len(layer.times_ns) for layer in self.layers} | {len(self.inferences_ns)}
        if len(counts) != 1 or not self.layers or not self.inferences_ns or not self.plain_ns:
            raise ValueError("it does not hold one time of each layer for each inference, or no plain run")
        if min(*self.inferences_ns, *self.plain_ns, 1) < 1:
            raise ValueError("an inference took no time")


# No seal: a line of a file of runs, from which people select lines and values.
LAYERS_KIND = RecordKind("layers", LayerProfile, _READER, sealed=False)


def profile_of(request: MeasurementRequest, answer: ProfileAnswer, runs: Sequence[Run]) -> LayerProfile:
    """Build the profile of one model from the agent's answer and the plain runs of the same bench.

    Raises:
        RunsError: the answer lacks times.
    """
    plain = [run for run in runs if (run.label, run.batch) == (request.label, request.batch)]
    by_gpu = answer.clock == "gpu"
    try:
        return LayerProfile(
            **{name: getattr(request, name) for name in ("label", "model_sha256", "precision", "runner", "batch")},
            **{field.name: getattr(answer, field.name) for field in fields(answer)},
            model=Path(request.model).name,
            plain_ns=tuple(ns for run in plain for ns in (run.gpu_ns if by_gpu else run.latencies_ns) or ()),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            edgevit=written_by(),
        )
    except ValueError as error:
        raise RunsError(f"the layers of {request.label}: {error}") from error


def line_of(profile: LayerProfile) -> str:
    """Write a profile as one line of a file."""
    return json.dumps(LAYERS_KIND.content(profile)) + "\n"


def load_profiles(path: Path) -> list[LayerProfile]:
    """Read a file of layer profiles.

    Raises:
        RunsError: the file is missing, or a line is not a profile.
    """
    profiles = []
    for source, line in _READER.lines(path):
        content = _READER.parse(line, dict[str, Any], source)
        if "profiled" not in content:
            raise RunsError(
                f"{source} holds no profiled layers; of plain runs, see `edgevit compare {shlex.quote(str(path))}`"
            )
        profiles.append(LAYERS_KIND.checked(content, source))
    return profiles
