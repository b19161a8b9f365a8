"""What each module of a base takes at each width, in milliseconds as measured: for budgets in milliseconds.

A file that a person or a program writes, as YAML or JSON:

    schema: 1
    measured_on: Orin NX 16GB, mode 25W, TensorRT 10.3 fp16, batch 1   # in words; kept with every result
    base: {family: vit, embed: 192, tokens: 37, patch_values: 192, depth: 6}
    fixed_ms: 0.21                           # patch embedding, head and all else that widths do not change
    blocks:                                  # one for all blocks alike, or one for each
      - base: {heads: 3, qk: 64, vo: 64, ffn: 768}
        attention:
          - {heads: 3, width: 16, ms: 0.11}  # QK = VO; or qk and vo, each on its own
          - {heads: 3, width: 64, ms: 0.19}
        ffn:
          - {width: 32, ms: 0.05}
          - {width: 768, ms: 0.31}

A width between two that are listed takes what the next one above takes: hardware works in steps, and a guess between
two would break the limit. benchmarks/cost_table.py writes such a file for this machine.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from math import fsum
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from edgevit.derive.allocate.policy import Policy, smallest
from edgevit.errors import CostTableError
from edgevit.folder.derivation import TableRecord
from edgevit.folder.documents import Reader
from edgevit.folder.model import Size
from edgevit.models.anatomy import BlockDims
from edgevit.models.cost import Geometry

READER = Reader(CostTableError, mend="mend it, or measure again with benchmarks/cost_table.py")


class AttentionTime(BaseModel, extra="forbid", frozen=True):
    """What the attention of a block takes, from its normalised input to its output."""

    heads: Size
    width: Size | None = None  # of QK and VO
    qk: Size | None = None
    vo: Size | None = None
    ms: float = Field(gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _has_one_width_or_two(self) -> AttentionTime:
        if [self.width is None, self.qk is None, self.vo is None] not in ([False, True, True], [True, False, False]):
            raise ValueError(f"attention of {self.heads} heads needs width, or qk and vo")
        return self

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Heads, QK width, VO width."""
        return self.heads, self.qk or self.width or 0, self.vo or self.width or 0


class FfnTime(BaseModel, extra="forbid", frozen=True):
    """What the FFN of a block takes."""

    width: Size
    ms: float = Field(gt=0, allow_inf_nan=False)


class BaseSizes(BaseModel, extra="forbid", frozen=True):
    """What must be a base's own for the table to be of it."""

    family: str
    embed: Size
    tokens: Size
    patch_values: Size  # input values per patch: channels * height * width
    depth: Size


class BlockSizes(BaseModel, extra="forbid", frozen=True):
    heads: Size
    qk: Size
    vo: Size
    ffn: Size


class BlockTimes(BaseModel, extra="forbid", frozen=True):
    """The times of one block, or of all alike."""

    base: BlockSizes
    attention: tuple[AttentionTime, ...] = Field(min_length=1)
    ffn: tuple[FfnTime, ...] = Field(min_length=1)

    @cached_property
    def _attention(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Heads, QK and VO width [n, 3] and ms [n]."""
        return np.array([a.sizes for a in self.attention]), np.array([a.ms for a in self.attention])

    @cached_property
    def _ffn(self) -> list[FfnTime]:
        return sorted(self.ffn, key=lambda f: f.width)

    def attention_ms(self, heads: int, qk: int, vo: int) -> float | None:
        sizes, ms = self._attention
        enough = (sizes >= (heads, qk, vo)).all(1)
        return float(ms[enough].min()) if enough.any() else None

    def ffn_ms(self, width: int) -> float | None:
        at = bisect_left(self._ffn, width, key=lambda f: f.width)
        return self._ffn[at].ms if at < len(self._ffn) else None

    def fault(self) -> str | None:
        """Where more of something takes less time, or something is listed twice; None: nowhere."""
        sizes, ms = self._attention
        no_more = (sizes[:, None] <= sizes[None]).all(2)  # [n, n]: the first has no more heads and is no wider
        less = no_more & ~np.eye(len(ms), dtype=bool)
        if (pairs := np.argwhere(less & less.T)).size:
            return f"lists {_attention(sizes[pairs[0, 0]])} twice"
        if (pairs := np.argwhere(less & (ms[:, None] > ms[None]))).size:
            i, j = pairs[0]
            return f"{_attention(sizes[j])} takes {ms[j]:g} ms, less than the {ms[i]:g} ms of {_attention(sizes[i])}"
        for a, b in zip(self._ffn, self._ffn[1:], strict=False):
            if a.width == b.width:
                return f"lists FFN width {a.width} twice"
            if a.ms > b.ms:
                return f"FFN width {b.width} takes {b.ms:g} ms, less than the {a.ms:g} ms of width {a.width}"
        return None

    def hole(self, least: BlockDims, most: BlockDims) -> str | None:
        """Which of the widths from `least` to `most` lie outside what is listed; None: none."""
        sizes, _ = self._attention
        of_heads = sizes[sizes[:, 0] == most.heads]
        if not len(of_heads):
            return f"lists no attention of {most.heads} heads"
        for name, column, low, high in (("QK", 1, least.qk, most.qk), ("VO", 2, least.vo, most.vo)):
            first, last = of_heads[:, column].min(), of_heads[:, column].max()
            if first > low or last < high:
                return (
                    f"lists {name} widths {first} to {last} of {most.heads} heads, and {low} to {high} can be asked for"
                )
        if self.attention_ms(most.heads, most.qk, most.vo) is None:
            return f"lists nothing as wide as {_attention((most.heads, most.qk, most.vo))}"
        first, last = self._ffn[0].width, self._ffn[-1].width
        if first > least.ffn or last < most.ffn:
            return f"lists FFN widths {first} to {last}, and {least.ffn} to {most.ffn} can be asked for"
        return None


def _attention(sizes: Sequence[int]) -> str:
    heads, qk, vo = sizes
    return f"attention of {heads} heads, QK {qk}, VO {vo}"


class CostTable(BaseModel, extra="forbid", frozen=True):
    """The file, as it is read."""

    schema_: Literal[1] = Field(alias="schema")  # history: 1  first version
    measured_on: str = Field(min_length=1)  # board, power mode, precision, batch: in words
    base: BaseSizes
    fixed_ms: float = Field(ge=0, allow_inf_nan=False)
    blocks: tuple[BlockTimes, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_one_block_or_all(self) -> CostTable:
        if len(self.blocks) not in (1, self.base.depth):
            raise ValueError(f"blocks has {len(self.blocks)} entries; give one for all, or {self.base.depth}")
        return self

    def check(self, family: str, base: Sequence[BlockDims], geometry: Geometry, policy: Policy) -> None:
        """Make sure that the table is of this base, rises with every width, and has all that the policy can ask for.

        Raises:
            CostTableError: it is not, does not, or has not; the message names block, widths and values.
        """
        own = {
            "family": family,
            "embed": geometry.embed,
            "tokens": geometry.tokens,
            "patch_values": geometry.patch_values,
            "depth": len(base),
        }
        _refuse_other("the base", self.base, own)
        for i, (dims, least) in enumerate(zip(base, smallest(base, policy, geometry), strict=True)):
            times = self.block(i)
            _refuse_other(f"block {i}", times.base, vars(dims))
            if i > 0 and len(self.blocks) == 1 and dims == base[0]:
                continue
            if (fault := times.fault()) is not None:
                raise CostTableError(f"cost table: block {i}: {fault}; measure again, with more repetitions")
            if (hole := times.hole(least, dims)) is not None:
                raise CostTableError(f"cost table: block {i}: {hole} by shape {policy.name!r}; measure those as well")

    def block(self, index: int) -> BlockTimes:
        assert 0 <= index < self.base.depth
        return self.blocks[index if len(self.blocks) > 1 else 0]

    def attention_ms(self, block: int, heads: int, qk: int, vo: int) -> float:
        """What the attention of a block takes at these sizes, or at the next ones above that are listed.

        Raises:
            CostTableError: nothing as wide is listed.
        """
        return _listed(self.block(block).attention_ms(heads, qk, vo), block, lambda: _attention((heads, qk, vo)))

    def ffn_ms(self, block: int, width: int) -> float:
        """What the FFN of a block takes at this width, or at the next one above that is listed.

        Raises:
            CostTableError: nothing as wide is listed.
        """
        return _listed(self.block(block).ffn_ms(width), block, lambda: f"FFN width {width}")

    def block_cost(self, block: int, dims: BlockDims) -> float:
        """What a block takes, in milliseconds."""
        return self.attention_ms(block, dims.heads, dims.qk, dims.vo) + self.ffn_ms(block, dims.ffn)

    def cost(self, blocks: Sequence[BlockDims], kept: Sequence[int] | None = None) -> float:
        """What a model takes, in milliseconds; `kept` says which of the base's blocks these are, if not all."""
        if kept is None:
            assert len(blocks) == self.base.depth or len(self.blocks) == 1
            kept = range(len(blocks))
        return fsum([self.fixed_ms, *(self.block_cost(i, dims) for i, dims in zip(kept, blocks, strict=True))])

    @property
    def base_ms(self) -> float:
        """What the base itself takes."""
        return self.cost([BlockDims(**dict(self.block(i).base)) for i in range(self.base.depth)])

    def record(self) -> TableRecord:
        """What identifies the table in a result."""
        content = json.dumps(self.model_dump(mode="json", by_alias=True), sort_keys=True)
        return TableRecord(self.measured_on, hashlib.sha256(content.encode()).hexdigest())


def _listed(ms: float | None, block: int, told: Callable[[], str]) -> float:
    if ms is None:
        raise CostTableError(f"cost table: block {block} lists nothing as wide as {told()}; measure that as well")
    return ms


def _refuse_other(what: str, listed: BaseModel, own: dict[str, Any]) -> None:
    """Raise CostTableError if the table was measured on something else, and name what differs."""
    differing = [f"{name} {value!r} (the base has {own[name]})" for name, value in listed if value != own[name]]
    if differing:
        raise CostTableError(f"cost table: {what} was measured with {', '.join(differing)}; give a table of this base")


def load_cost_table(path: str | Path) -> CostTable:
    """Read a table of costs in milliseconds, YAML or JSON.

    Raises:
        CostTableError: the file cannot be read, or is no such table.
    """
    path = Path(path)
    return READER.json(path, CostTable) if path.suffix == ".json" else READER.yaml(path, CostTable)
