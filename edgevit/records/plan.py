"""plan.json: what became of each block of a base, step by step, for a person to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

from pydantic import Field

from edgevit.errors import CheckpointError
from edgevit.records.documents import Reader
from edgevit.records.kinds import RecordKind
from edgevit.records.model import Dimension, Index, Size

READER = Reader(CheckpointError, mend="copy the folder again, or derive the model again")

# Numbers in order, neighbours as ranges: "0-3,7,12-15". Most lists of neurons have hundreds.
Numbers = Annotated[str, Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$")]


@dataclass(frozen=True)
class AttentionRecord:
    heads: Numbers  # those that stay, by their numbers before this step
    qk: Size  # width of each head's queries and keys
    vo: Size  # width of each head's values


@dataclass(frozen=True)
class FfnRecord:
    width: Size
    neurons: Numbers  # those that stay, by their numbers before this step
    # For each of these that others were merged into, those others; None: what does not stay was dropped.
    merged: dict[str, Numbers] | None = None


@dataclass(frozen=True)
class BlockRecord:
    block: Index  # its number before this step
    attention: AttentionRecord | None  # None: gone
    ffn: FfnRecord | None
    tokens: Dimension = 0  # that it passes on; 0: as many as before
    merged: bool = False  # whether one of these is the mean of those that leave


@dataclass(frozen=True)
class StepRecord:
    """What one method decided, for the network that it was given."""

    method: str
    blocks: Annotated[tuple[BlockRecord, ...], Field(min_length=1)]  # those that stay
    embed: Size | None = None  # the embedding's width after this step; None: it stays as it is


@dataclass(frozen=True)
class PlanRecord:
    """All steps from the first base on, in order."""

    steps: tuple[StepRecord, ...]
    edgevit: str | None = None  # version that wrote it; None: it is not written yet


PLAN_KIND = RecordKind("plan", PlanRecord, READER)


def in_ranges(numbers: Iterable[int]) -> str:
    """Write numbers in their order: [3, 4, 5, 9] as "3-5,9"."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def from_ranges(text: str) -> list[int]:
    """Read what `in_ranges` wrote."""
    ends: list[Sequence[str]] = [part.split("-") for part in text.split(",")]
    return [n for run in ends for n in range(int(run[0]), int(run[-1]) + 1)]
