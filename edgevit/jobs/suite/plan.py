"""The plan of a suite: which networks answer which question, in how much time, and published figures. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgevit.errors import JobsError
from edgevit.jobs.suite.record import Published
from edgevit.records.documents import Reader

_PLAN = Path(__file__).with_name("plan.yaml")
_Share = Annotated[float, Field(gt=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NetworkEntry(_Strict):
    """A network that is made from a dense one."""

    name: str = ""  # what follows the size in the network's name; empty: the size is the whole name
    # Which of the sizes in --sizes the networks are made from, or that of the one Swin.
    sizes: Literal["largest", "smaller", "swin"] = "largest"
    quick: bool = False  # whether --quick measures it
    precision: Literal["fp16", "fp32"] = "fp16"  # precision of the engine
    # Share of the MACs to remove by widths that policy `shape` allows; None: no MACs are removed that way.
    rate: _Share | None = None
    shape: str | None = None
    padded: bool = False  # whether its heads are padded until attention fuses
    head_width: int | None = None
    blocks: int | None = None  # number of blocks; None: all
    width: _Share = 1  # share of the embedding width and of the heads
    attention_every: int = 1  # only every n-th block has attention
    tokens: tuple[tuple[int, int], ...] = ()  # pairs of a block and the number of tokens that it passes on
    macs: _Share | None = None  # share of the dense network's MACs that the FFN widths are fitted to
    args: dict[str, Any] = {}  # arguments for timm


class QuestionEntry(_Strict):
    """Networks that are measured in turns with the dense one."""

    question: str
    rounds: tuple[tuple[int, _Share], ...]  # pairs of a batch size and a share of --rounds; an interval needs all
    energy: bool = False  # whether energy is measured as well, at the first batch size
    networks: tuple[NetworkEntry, ...]

    def rounds_at(self, most: int, batches: Sequence[int]) -> dict[int, int]:
        """The number of rounds by batch size, of `most` at these batch sizes."""
        return {batch: max(round(most * share), 1) for batch, share in self.rounds if batch in batches}


class SuitePlan(_Strict):
    """The plan of a suite: its questions, their networks, and the time limits."""

    minutes: float  # time limit in minutes
    quick_minutes: float
    questions: tuple[QuestionEntry, ...]
    published: dict[str, tuple[Published, ...]]  # figures of others, by the name of a profile or a prefix of it

    def question(self, name: str) -> QuestionEntry:
        return next(entry for entry in self.questions if entry.question == name)

    def published_for(self, profile: str | None) -> tuple[Published, ...]:
        """The published figures for boards with this profile."""
        if profile is None:
            return ()
        return tuple(f for name, figures in self.published.items() if profile.startswith(name) for f in figures)


@cache
def shipped_plan() -> SuitePlan:
    """Read the plan that edgevit ships."""
    return Reader(JobsError, hint="install edgevit again").yaml(_PLAN, SuitePlan)
