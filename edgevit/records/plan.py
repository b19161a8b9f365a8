"""plan.json: what each step of pruning kept of each block, for a person to read."""

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

_READER = Reader(CheckpointError, hint="copy the folder again, or derive the model again")

# Numbers in order, with ranges: "0-3,7,12-15". Lists of neurons have hundreds.
_Numbers = Annotated[str, Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$")]


@dataclass(frozen=True)
class AttentionRecord:
    heads: _Numbers  # kept heads, by their numbers before this step
    qk: Size  # width of each head's queries and keys
    vo: Size  # width of each head's values

    @property
    def widths(self) -> tuple[int, int]:
        return self.qk, self.vo


@dataclass(frozen=True)
class FfnRecord:
    width: Size
    neurons: _Numbers  # kept neurons, by their numbers before this step
    # The removed neurons that were merged into a kept one, by its number; None: removed ones were dropped.
    merged: dict[str, _Numbers] | None = None


@dataclass(frozen=True)
class BlockRecord:
    block: Index  # number of the block before this step
    attention: AttentionRecord | None  # kept heads and widths; None: the attention was removed
    ffn: FfnRecord | None
    tokens: Dimension = 0  # number of tokens that the block passes on; 0: as many as before
    merged: bool = False  # whether one of the tokens passed on is the mean of the dropped tokens


@dataclass(frozen=True)
class StepRecord:
    """The decision of one method for its input network."""

    method: str
    blocks: Annotated[tuple[BlockRecord, ...], Field(min_length=1)]  # the kept blocks, in order
    embed: Size | None = None  # width of the embedding after this step; None: unchanged


@dataclass(frozen=True)
class PlanRecord:
    """All steps from the first base, in order."""

    steps: tuple[StepRecord, ...]
    edgevit: str | None = None  # version of edgevit that wrote the file; None: it is not written yet


PLAN_KIND = RecordKind("plan", PlanRecord, _READER)


def in_ranges(numbers: Iterable[int]) -> str:
    """Write numbers in their order: [3, 4, 5, 9] as "3-5,9"."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def from_ranges(text: str) -> list[int]:
    """Read the numbers that `in_ranges` wrote."""
    ends: list[Sequence[str]] = [part.split("-") for part in text.split(",")]
    return [n for run in ends for n in range(int(run[0]), int(run[-1]) + 1)]
