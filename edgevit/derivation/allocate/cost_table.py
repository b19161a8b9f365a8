"""Measured costs of a base's parts at several sizes, for budgets in milliseconds and millijoules.

A file that `edgevit cost` writes, or a person, as YAML or JSON:

    schema: 1
    measured_on: Orin NX 16GB, mode 25W, TensorRT 10.3 fp16, batch 1   # for people; kept with every result
    origin: {board: orin-nx-16gb-l4t36.4.3-trt10.3.0-8sm, power_mode: 25W, clocks_locked: true, runner: tensorrt,
      precision: fp16, batch: 1}             # for programs; optional
    noise: 0.004                             # relative standard error of the costs; optional
    base: {family: vit, embed: 192, tokens: 37, patch_values: 192, depth: 6,
      blocks: [{heads: 3, qk: 64, vo: 64, ffn: 768}]}   # one entry if all blocks are alike, otherwise one for each
    costs:
    - {part: fixed, ms: 0.21}                # patch embedding, head and everything else outside the blocks
    - {part: block, ms: 0.01}                # of a block with both sites, beyond their sum; may be negative; optional
    - {part: attention, heads: 3, width: 16, ms: 0.11}   # width: the mean of QK and VO
    - {part: attention, heads: 3, width: 64, ms: 0.19}
    - {part: ffn, width: 32, ms: 0.05}
    - {part: ffn, width: 768, ms: 0.31}
    - {part: ffn, width: 32, embed: 96, ms: 0.04}        # at a narrower embedding; without it: at the base's own
    - {part: ffn, width: 32, tokens: 16, ms: 0.03}       # of a block that gets fewer tokens; without it: all
    - {part: cut, tokens: 16, ms: 0.02}      # of a block that passes on so many tokens, beyond its sites; optional

The base of a network of stages also has `stages: [{embed: 96, tokens: 3136, pairs: 153664, depth: 2}, ...]`, with the
pairs of tokens that attend to one another, and the number of blocks; its `embed` and `tokens` are those of the first.
Each stage has its own costs, with `stage: 1` and so on in all but the first.

Every `ms`, of one inference, may have a `mj` beside it, of one image: all or none. Each part is listed for every
combination of its sizes. Costs rise with every size; between two sizes they are interpolated. Below the smallest size
they are constant; sizes and embeddings outside the table are refused. Fewer tokens than the fewest cost as much as the
fewest.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, BaseModel, Field, model_validator

from edgevit.derivation.allocate.policy import Policy, smallest
from edgevit.derivation.allocate.prices import AXES, MOST_SAVED, UNITS, Measured, Part, Prices, SizeGrid, size_text
from edgevit.errors import CostTableError
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry
from edgevit.records.derivation import TableRecord
from edgevit.records.documents import Reader
from edgevit.records.model import SITE_AXES, Dimension, Size, SizeAxis

READER = Reader(CostTableError, hint="correct it, or measure again with `edgevit cost`")
SCHEMA = 1
Name = TypeVar("Name", bound=str)
_SHARED = ("embed", "tokens")  # axes along which all parts are listed for the same sizes
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Origin(BaseModel, extra="forbid", frozen=True):
    """The conditions under which a table was measured; its costs are valid under no others."""

    board: str | None = None  # fingerprint of the board; None: it was measured on another machine
    # Name of the processor of a machine that is not a board; None: it was measured on a board.
    processor: str | None = None
    power_mode: str | None = None
    clocks_locked: bool | None = None
    runner: str
    provider: str | None = None
    threads: Size | None = None
    precision: str
    batch: Size = 1
    edgevit: str | None = None  # version of edgevit that measured the table; `differing` ignores it

    def differing(self, now: Origin) -> str:
        """Describe the conditions that are different now; empty: none, so the costs still hold."""
        pairs = [(name, value, getattr(now, name)) for name, value in self if name != "edgevit"]
        different = [[name, *("none" if v is None else v for v in both)] for name, *both in pairs if both[0] != both[1]]
        return ", ".join(f"{name} {value} (here it is {current})" for name, value, current in different)

    def check(self, now: Origin) -> None:
        """Refuse a table that was measured under other conditions.

        Raises:
            CostTableError: it was; the message lists the differences.
        """
        if differing := self.differing(now):
            raise CostTableError(f"cost table: it was measured with {differing}; measure one here with `edgevit cost`")


def _has_all_axes(sizes: dict[SizeAxis, int]) -> dict[SizeAxis, int]:
    if missing := [axis for axes in SITE_AXES.values() for axis in axes if axis not in sizes]:
        raise ValueError(f"{missing[0]} is missing")
    return sizes


class StageSizes(BaseModel, extra="forbid", frozen=True):
    """One stage of a base."""

    embed: Size
    tokens: Size
    pairs: Size  # number of pairs of tokens that attend to one another
    depth: Dimension


class BaseSizes(BaseModel, extra="forbid", frozen=True):
    """The base that a table belongs to."""

    family: str
    embed: Size  # width of the embedding in the first stage
    tokens: Size
    stages: tuple[StageSizes, ...] | None = None  # sizes of every stage; None: the base has one stage
    patch_values: Size  # input values per patch: channels * height * width
    depth: Size
    # The sizes of one block, if all are alike, or of every block.
    blocks: tuple[Annotated[dict[SizeAxis, Dimension], AfterValidator(_has_all_axes)], ...] = Field(min_length=1)

    @property
    def dims(self) -> tuple[BlockDims, ...]:
        """The sizes of every block."""
        blocks = self.blocks if len(self.blocks) > 1 else self.blocks * self.depth
        stages = [number for number, depth in enumerate(self.depths) for _ in range(depth)]
        pairs = zip(blocks, stages, strict=True)
        return tuple(BlockDims(0, 0, 0, 0, stage=stage).with_sizes(sizes) for sizes, stage in pairs)

    @property
    def depths(self) -> list[int]:
        """The number of blocks of each stage."""
        return [self.depth] if self.stages is None else [stage.depth for stage in self.stages]

    @property
    def whole(self) -> list[dict[str, int]]:
        """The width of the embedding and the number of tokens of each stage."""
        return [{axis: getattr(stage, axis) for axis in _SHARED} for stage in self.stages or (self,)]

    @model_validator(mode="after")
    def _is_consistent(self) -> BaseSizes:
        if len(self.blocks) not in (1, self.depth):
            raise ValueError(f"base has {len(self.blocks)} blocks; give one for all, or {self.depth}")
        if sum(self.depths) != self.depth:
            raise ValueError(f"the stages have {sum(self.depths)} blocks together, and depth is {self.depth}")
        for axis, size in self.whole[0].items():
            if size != getattr(self, axis):
                raise ValueError(f"{axis} is {getattr(self, axis)}, and {size} in the first stage")
        return self


def described(family: str, blocks: Sequence[BlockDims], geometry: Geometry) -> dict[str, Any]:
    """Return the fields of `BaseSizes` for a base with these blocks, without `blocks`."""
    first, stages = geometry.stages[0], []
    for number, stage in enumerate(geometry.stages):
        pairs = stage.tokens**2 if stage.pairs is None else stage.pairs
        depth = sum(dims.stage == number for dims in blocks)
        stages.append({"embed": stage.embed, "tokens": stage.tokens, "pairs": pairs, "depth": depth})
    return {
        "family": family,
        "embed": first.embed,
        "tokens": first.tokens,
        "stages": stages if len(stages) > 1 else None,
        "patch_values": geometry.patch_values,
        "depth": len(blocks),
    }


class PartCost(BaseModel, extra="forbid", frozen=True):
    """The cost of one part of a network at one size."""

    part: Part
    heads: Size | None = None
    width: Size | None = None  # mean of an attention's QK and VO widths, or an FFN's number of neurons
    embed: Size | None = None  # width of the embedding; None: that of the base
    tokens: Size | None = None  # number of input tokens; None: all tokens of the stage
    stage: Size | None = None  # number of the stage, from 0; None: the first
    ms: _Finite
    mj: _Finite | None = None

    def key(self, base: BaseSizes) -> tuple[int, ...]:
        """Return the sizes that the cost depends on."""
        default = base.whole[self.stage or 0]
        return tuple(getattr(self, axis) or default[axis] for axis in AXES[self.part])

    @model_validator(mode="after")
    def _has_the_sizes_of_its_part(self) -> PartCost:
        axes = AXES[self.part]
        for name in ("heads", "width", "embed", "tokens"):
            value, required = getattr(self, name), name in axes and (name in ("heads", "width") or self.part == "cut")
            if value is None and required:
                raise ValueError(f"{self.part} lacks {name}")
            if value is not None and name not in axes:
                raise ValueError(f"{self.part} has {name}, which it does not depend on")
        if self.part == "fixed" and self.stage is not None:
            raise ValueError("fixed has stage, which it does not depend on")
        costs = [cost for cost in (self.ms, self.mj) if cost is not None]
        if self.part in ("attention", "ffn") and min(costs) <= 0:
            raise ValueError(f"{self.part} costs {min(costs):g}; a site costs more than 0")
        if self.part in ("fixed", "cut") and min(costs) < 0:
            raise ValueError(f"{self.part} costs {min(costs):g}, less than 0")
        return self


class CostTable(BaseModel, extra="forbid", frozen=True):
    """The costs of a base's parts, in ms of one inference and optionally in mJ of one image."""

    schema_: Literal[1] = Field(alias="schema")
    measured_on: str = Field(min_length=1)  # board, power mode, precision and batch in words, for people
    origin: Origin | None = None
    noise: _NonNegative | None = None
    base: BaseSizes
    costs: tuple[PartCost, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_consistent(self) -> CostTable:
        if (most := max(cost.stage or 0 for cost in self.costs)) >= len(self.base.depths):
            raise ValueError(f"stage {most} is listed, and the base has {len(self.base.depths)}, the first of them 0")
        if len({cost.mj is None for cost in self.costs}) > 1:
            raise ValueError("mj is missing in some costs; give it in all, or in none")
        for stage, whole in enumerate(self.base.whole):
            for axis, size in whole.items():
                listed = self._axes[stage]["attention"][AXES["attention"].index(axis)]
                if listed and listed[-1] != size:
                    raise ValueError(
                        f"{axis} is listed up to {listed[-1]}, and the base has {size}; list that, and smaller"
                    )
            for part in AXES:
                self._check_grid(stage, part)
        for quantity, prices in self._prices.items():
            if prices.saved > 1:
                raise ValueError(
                    f"block saves {prices.saved:.4g} times the {UNITS[quantity]} of the smallest attention"
                )
        return self

    def _check_grid(self, stage: int, part: Part) -> None:
        """Raise ValueError unless the costs of a part in a stage are a full grid."""
        keys, axes = self._keys[stage][part], self._axes[stage][part]
        if len(keys) > len(set(keys)):
            twice = next(key for i, key in enumerate(keys) if key in keys[:i])
            raise ValueError(f"{size_text(part, twice)} is listed twice")
        if not keys:
            if part in ("block", "cut") or (stage > 0 if part == "fixed" else not self.base.depths[stage]):
                return
            raise ValueError(f"{part} is missing{f' in stage {stage}' if stage else ''}")
        grid = set(product(*axes))
        if missing := sorted(grid - set(keys)):
            raise ValueError(f"{size_text(part, missing[0])} is missing; list every combination of sizes")
        if extra := sorted(set(keys) - grid):
            raise ValueError(f"{size_text(part, extra[0])} is listed, and all tokens stay there; leave it out")

    @cached_property
    def _keys(self) -> list[dict[Part, list[tuple[int, ...]]]]:
        """The sizes of all costs, by stage and part."""
        keys: list[dict[Part, list[tuple[int, ...]]]] = [{part: [] for part in AXES} for _ in self.base.depths]
        for cost in self.costs:
            keys[cost.stage or 0][cost.part].append(cost.key(self.base))
        return keys

    @cached_property
    def _axes(self) -> list[dict[Part, list[list[int]]]]:
        """The sizes along each axis of each part, rising, by stage."""
        return [self._axes_of(stage) for stage in range(len(self.base.depths))]

    def _axes_of(self, stage: int) -> dict[Part, list[list[int]]]:
        """Return the axes of a stage; all its parts share those of the embedding and of tokens."""
        sizes: dict[tuple[str, Part | None], set[int]] = defaultdict(set)
        names = {part: [(axis, None if axis in _SHARED else part) for axis in axes] for part, axes in AXES.items()}
        for part, keys in self._keys[stage].items():
            for name, column in zip(names[part], zip(*keys, strict=True), strict=bool(keys)):
                sizes[name] |= set(column)
        axes = {part: [sorted(sizes[name]) for name in of_part] for part, of_part in names.items()}
        whole = self.base.whole[stage]["tokens"]  # all tokens need no cut
        return {**axes, "cut": [[size for size in axes["cut"][0] if size != whole]]}

    @cached_property
    def _prices(self) -> dict[Measured, Prices]:
        base, stages = self.base, range(len(self.base.depths))
        return {
            quantity: Prices(
                quantity, tuple(self._grids(stage, quantity) for stage in stages), base.dims, base.embed, base.tokens
            )
            for quantity in self.quantities
        }

    def _grids(self, stage: int, quantity: Measured) -> dict[Part, SizeGrid]:
        """Return the costs of a stage in one quantity."""
        grids: dict[Part, SizeGrid] = {}
        for part, axes in self._axes[stage].items():
            positions = [{size: i for i, size in enumerate(sizes)} for sizes in axes]
            costs = np.zeros([len(sizes) for sizes in axes])  # a part that is not listed costs nothing
            listed = (cost for cost in self.costs if cost.part == part and (cost.stage or 0) == stage)
            for key, cost in zip(self._keys[stage][part], listed, strict=True):
                costs[tuple(map(dict.__getitem__, positions, key))] = getattr(cost, quantity)
            grids[part] = SizeGrid(tuple(np.array(sizes, dtype=np.int64) for sizes in axes), costs)
        return grids

    @property
    def quantities(self) -> tuple[Measured, ...]:
        """The quantities that the table lists."""
        return ("ms",) if self.costs[0].mj is None else ("ms", "mj")

    @property
    def batch(self) -> int:
        """Images of the inference that was timed; 1 if the table does not say."""
        return 1 if self.origin is None else self.origin.batch

    def in_quantity(self, quantity: Measured) -> Prices:
        """Return the costs in milliseconds of one inference, or in millijoules of one image.

        Raises:
            CostTableError: the table lists no millijoules.
        """
        if quantity not in self.quantities:
            raise CostTableError(
                f"cost table: it was measured on {self.measured_on} and lists no energy; measure on a board whose "
                "power can be read"
            )
        return self._prices[quantity]

    def check(self, family: str, base: Sequence[BlockDims], geometry: Geometry, policy: Policy) -> None:
        """Make sure that the table belongs to this base, rises with every size, and covers the policy's widths.

        Of the embedding only the base's own width must be listed.

        Raises:
            CostTableError: it does not; the message names part, sizes and costs.
        """
        _refuse_other(
            "the base", self.base.model_dump(mode="json", exclude={"blocks"}), described(family, base, geometry)
        )
        if any(dims.tokens for dims in base):
            raise CostTableError("cost table: this base already drops tokens, and tables are of bases that keep them")
        prices = [self.in_quantity(quantity) for quantity in self.quantities]
        for fault in (of_stage.fault() for costs in prices for of_stage in costs.of_stages):
            if fault is not None:
                raise CostTableError(f"cost table: {fault}; measure again, with more repetitions")
        for i, (dims, least) in enumerate(zip(base, smallest(base, policy, geometry), strict=True)):
            _refuse_other(f"block {i}", self.base.dims[i].sizes, dims.sizes)
            if (hole := prices[0].of_stages[dims.stage].hole(least, dims)) is not None:
                raise CostTableError(f"cost table: it {hole} by shape {policy.name!r}; measure those as well")

    def corrected(
        self, *, fixed: float = 1.0, attention: float = 1.0, ffn: float = 1.0, block: float = 1.0
    ) -> CostTable:
        """Return the same table with the costs of each part multiplied, in every quantity.

        What a block saves beyond the sum of its sites grows to MOST_SAVED of its smallest attention, and no further.
        """
        factors = {"fixed": fixed, "attention": attention, "ffn": ffn, "cut": attention}

        def corrected(cost: PartCost, quantity: Measured) -> float:
            figure: float = getattr(cost, quantity)
            if cost.part != "block":
                return figure * factors[cost.part]
            grid = self._prices[quantity].stages[cost.stage or 0]["attention"]
            least = float(grid.costs[:, :, grid.sizes[2].tolist().index(*cost.key(self.base)), -1].min())
            return max(figure * block, -max(MOST_SAVED * least, -figure) * attention)

        costs = (cost.model_copy(update={q: corrected(cost, q) for q in self.quantities}) for cost in self.costs)
        fields: dict[str, Any] = {name: getattr(self, name) for name in ("measured_on", "origin", "noise", "base")}
        return CostTable(schema=self.schema_, costs=tuple(costs), **fields)

    def content(self) -> dict[str, Any]:
        """Return the content of the table's file."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def record(self) -> TableRecord:
        """Return what identifies the table in a result."""
        content = json.dumps(self.content(), sort_keys=True)
        return TableRecord(self.measured_on, hashlib.sha256(content.encode()).hexdigest())


def _refuse_other(subject: str, listed: Mapping[Name, Any], sizes: Mapping[Name, Any]) -> None:
    """Raise CostTableError if the table was measured on something else, and name what differs."""
    differing = [
        f"{name} {value!r} (the base has {sizes[name]})" for name, value in listed.items() if value != sizes[name]
    ]
    if differing:
        raise CostTableError(
            f"cost table: {subject} was measured with {', '.join(differing)}; give a table of this base"
        )


def load_cost_table(path: str | Path) -> CostTable:
    """Read a cost table, YAML or JSON.

    Raises:
        CostTableError: the file cannot be read, or is not a cost table.
    """
    path = Path(path)
    return READER.json(path, CostTable) if path.suffix == ".json" else READER.yaml(path, CostTable)
