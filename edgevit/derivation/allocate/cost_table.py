"""What each site of a base takes at each size, as measured: for budgets in milliseconds and in millijoules.

A file that `edgevit cost` writes, or a person, as YAML or JSON:

    schema: 1
    measured_on: Orin NX 16GB, mode 25W, TensorRT 10.3 fp16, batch 1   # in words; kept with every result
    where: {board: orin-nx-16gb-l4t36.4.3-trt10.3.0-8sm, power_mode: 25W, clocks_locked: true, runner: tensorrt,
      precision: fp16, batch: 1}             # the same for programs; may be left out
    noise: 0.004                             # relative standard error of the figures; may be left out
    between: linear                          # sizes between two that are listed; or above: as the next ones above
    base: {family: vit, embed: 192, tokens: 37, patch_values: 192, depth: 6}
    fixed_ms: 0.21                           # patch embedding, head and all else that no block changes
    blocks:                                  # one for all blocks alike, or one for each
      - base: {heads: 3, qk: 64, vo: 64, ffn: 768}
        block_ms: 0.01                       # of a block with both sites, beyond their sum; may be negative
        attention:
          - {heads: 3, width: 16, ms: 0.11}  # QK = VO; with `above`, qk and vo may be listed each on its own
          - {heads: 3, width: 64, ms: 0.19}
        ffn:
          - {width: 32, ms: 0.05}
          - {width: 768, ms: 0.31}
    narrower:                                # the same sizes at narrower embeddings, the widest first; may be left out
      - embed: 96
        fixed_ms: 0.12
        blocks:                              # as many as above
          - attention: [{heads: 3, width: 16, ms: 0.09}, {heads: 3, width: 64, ms: 0.12}]
            ffn: [{width: 32, ms: 0.04}, {width: 768, ms: 0.17}]
    fewer_tokens:                            # blocks that are given fewer, the most first; may be left out
      - tokens: 16
        cut_ms: 0.02                         # of a block that passes on so many, beyond what it takes
        attention: {ms: 0.03, share_ms: 0.41}  # that is ms + share_ms * what it takes with all tokens
        ffn: {ms: 0.02, share_ms: 0.5}

Every `ms`, of one inference, may have a `mj` beside it, of one image: all or none. With `linear`, attention is listed
as a full grid of heads and widths, and what lies between is interpolated in both; QK and VO of two widths cost what
their mean does. What is smaller than the smallest that is listed costs what that costs. Embeddings between two widths
are priced in the same way; what is narrower than all that are listed is not known, and no plan has it. What is said of
fewer tokens is of every embedding; between two numbers of tokens costs are interpolated, too, and nothing takes more
than it does with more tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from edgevit.derivation.allocate.listed_costs import BaseSizes, BlockCosts, NarrowerCosts, NonNegative, TokenCosts
from edgevit.derivation.allocate.policy import Policy, smallest
from edgevit.derivation.allocate.prices import MOST_SAVED, Measured, Prices
from edgevit.derivation.allocate.tokens import Between
from edgevit.errors import CostTableError
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry
from edgevit.records.derivation import TableRecord
from edgevit.records.documents import Reader
from edgevit.records.model import Size

READER = Reader(CostTableError, hint="mend it, or measure again with `edgevit cost`")
SCHEMA = 1


class Where(BaseModel, extra="forbid", frozen=True):
    """What a table was measured on: what must be the same for its figures to hold."""

    board: str | None = None  # fingerprint of a board
    processor: str | None = None  # of a machine that is no board
    power_mode: str | None = None
    clocks_locked: bool | None = None
    runner: str
    provider: str | None = None
    threads: Size | None = None
    precision: str
    batch: Size = 1
    edgevit: str | None = None  # that measured it

    def differing(self, here: Where) -> str:
        """What is different here, in words; empty: nothing, so what was measured there holds here."""
        pairs = [(name, value, getattr(here, name)) for name, value in self if name != "edgevit"]
        other = [[name, *("none" if v is None else v for v in both)] for name, *both in pairs if both[0] != both[1]]
        return ", ".join(f"{name} {value} (here it is {own})" for name, value, own in other)

    def check(self, here: Where) -> None:
        """Refuse a table that was measured in another power mode, precision or the like than there is here.

        Raises:
            CostTableError: it was; the message has what differs.
        """
        if differing := self.differing(here):
            raise CostTableError(f"cost table: it was measured with {differing}; measure one here with `edgevit cost`")


class CostTable(BaseModel, extra="forbid", frozen=True):
    """What each site of a base takes at each size, in ms of one inference and perhaps in mJ of one image."""

    schema_: Literal[1] = Field(alias="schema")
    measured_on: str = Field(min_length=1)  # board, power mode, precision, batch: in words
    where: Where | None = None
    noise: NonNegative | None = None
    between: Between = "above"
    base: BaseSizes
    fixed_ms: NonNegative
    fixed_mj: NonNegative | None = None
    blocks: tuple[BlockCosts, ...] = Field(min_length=1)
    narrower: tuple[NarrowerCosts, ...] = ()
    fewer_tokens: tuple[TokenCosts, ...] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> CostTable:
        if len(self.blocks) not in (1, self.base.depth):
            raise ValueError(f"blocks has {len(self.blocks)} entries; give one for all, or {self.base.depth}")
        for i, block in enumerate(self.blocks):
            if fault := block.fault(self.fixed_mj, self.between):
                raise ValueError(f"block {i} {fault}")
        for costs in self.narrower:
            if fault := self._narrower_fault(costs):
                raise ValueError(f"the embedding of {costs.embed} {fault}")
        embeds = [self.base.embed, *(costs.embed for costs in self.narrower)]
        if embeds != sorted(set(embeds), reverse=True):
            raise ValueError(f"embeddings are listed as {embeds}; give each once, below the base's, the widest first")
        counts = [self.base.tokens, *(costs.tokens for costs in self.fewer_tokens)]
        if counts != sorted(set(counts), reverse=True):
            raise ValueError(f"tokens are listed as {counts}; give each once, below the base's, the most first")
        for listed in self.fewer_tokens:
            if listed.has_energy != (self.fixed_mj is not None):
                raise ValueError(f"{listed.tokens} tokens list energy where the base does not, or not all of it")
        return self

    def _narrower_fault(self, costs: NarrowerCosts) -> str | None:
        if (costs.fixed_mj is None) != (self.fixed_mj is None):
            return "lists energy where the base's does not, or the other way round"
        if len(costs.blocks) != len(self.blocks):
            return f"has {len(costs.blocks)} entries of blocks; give {len(self.blocks)}, as at the base's width"
        for i, (block, own) in enumerate(zip(costs.blocks, self.blocks, strict=True)):
            if block.sizes != own.sizes:
                return f"lists other sizes in block {i} than at the base's width; give the same"
            if fault := block.fault(costs.fixed_mj, self.between):
                return f"in block {i} {fault}"
        return None

    def in_quantity(self, quantity: Measured) -> Prices:
        """The table in milliseconds of one inference, or in millijoules of one image.

        Raises:
            CostTableError: it has no millijoules.
        """
        if quantity not in self.quantities:
            raise CostTableError(
                f"cost table: it was measured on {self.measured_on} and lists no energy; measure on a board whose "
                "power can be read"
            )
        own = tuple(self.block(i).base.dims for i in range(self.base.depth))
        fewer = tuple(listed.in_quantity(quantity) for listed in self.fewer_tokens)

        def prices(embed: int, costs: CostTable | NarrowerCosts, narrower: tuple[Prices, ...] = ()) -> Prices:
            blocks = tuple(block.in_quantity(quantity, self.between) for block in costs.blocks)
            fixed = getattr(costs, f"fixed_{quantity}")
            return Prices(quantity, fixed, blocks, own, embed, narrower, self.base.tokens, fewer)

        return prices(self.base.embed, self, tuple(prices(costs.embed, costs) for costs in self.narrower))

    @property
    def quantities(self) -> tuple[Measured, ...]:
        return ("ms",) if self.fixed_mj is None else ("ms", "mj")

    @property
    def batch(self) -> int:
        """Images of the inference that was timed; a table that does not say is of one."""
        return 1 if self.where is None else self.where.batch

    def block(self, index: int) -> BlockCosts:
        return self.blocks[index if len(self.blocks) > 1 else 0]

    def check(self, family: str, base: Sequence[BlockDims], geometry: Geometry, policy: Policy) -> None:
        """Make sure that the table is of this base, rises with every width, and has all that the policy can ask for.

        The embedding's own width is all that must be listed of it.

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
        if any(dims.tokens for dims in base):
            raise CostTableError("cost table: tokens leave this base already, and tables are of bases that keep them")
        priced = [self.in_quantity(quantity) for quantity in self.quantities]
        for i, (dims, least) in enumerate(zip(base, smallest(base, policy, geometry), strict=True)):
            _refuse_other(f"block {i}", self.block(i).base, dims.sizes)
            if i > 0 and len(self.blocks) == 1 and dims == base[0]:
                continue
            for prices in priced:
                if (fault := prices.fault(i)) is not None:
                    raise CostTableError(f"cost table: block {i}: {fault}; measure again, with more repetitions")
            if (hole := priced[0].of(i).hole(least, dims)) is not None:
                raise CostTableError(f"cost table: block {i}: {hole} by shape {policy.name!r}; measure those as well")

    def corrected(
        self, *, fixed: float = 1.0, attention: float = 1.0, ffn: float = 1.0, block: float = 1.0
    ) -> CostTable:
        """The same table with each of its terms multiplied, in every quantity.

        What a block saves beyond the sum of its sites grows to MOST_SAVED of its smallest attention, and no further.
        """
        content = self.content()
        widths = [content, *content.get("narrower", ())]
        for quantity, costs_at in product(self.quantities, widths):
            costs_at[f"fixed_{quantity}"] *= fixed
            for listed in costs_at["blocks"]:
                together, least = listed.get(f"block_{quantity}") or 0.0, min(a[quantity] for a in listed["attention"])
                most = max(MOST_SAVED * least, -together) * attention
                listed[f"block_{quantity}"] = max(together * block, -most)
                for factor, costs in ((attention, listed["attention"]), (ffn, listed["ffn"])):
                    for cost in costs:
                        cost[quantity] *= factor
        for quantity, listed in product(self.quantities, content.get("fewer_tokens", ())):
            listed[f"cut_{quantity}"] = (listed.get(f"cut_{quantity}") or 0.0) * attention
            for factor, law in ((attention, listed["attention"]), (ffn, listed["ffn"])):
                law[quantity] = (law.get(quantity) or 0.0) * factor
        return READER.checked(content, CostTable, "the corrected cost table")

    def content(self) -> dict[str, Any]:
        """What the file says."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def record(self) -> TableRecord:
        """What identifies the table in a result."""
        content = json.dumps(self.content(), sort_keys=True)
        return TableRecord(self.measured_on, hashlib.sha256(content.encode()).hexdigest())


def _refuse_other(what: str, listed: BaseModel, own: dict[str, Any]) -> None:
    """Raise CostTableError if the table was measured on something else, and name what differs."""
    differing = [f"{name} {value!r} (the base has {own[name]})" for name, value in listed if value != own[name]]
    if differing:
        raise CostTableError(f"cost table: {what} was measured with {', '.join(differing)}; give a table of this base")


def load_cost_table(path: str | Path) -> CostTable:
    """Read a table of costs, YAML or JSON.

    Raises:
        CostTableError: the file cannot be read, or is no such table.
    """
    path = Path(path)
    return READER.json(path, CostTable) if path.suffix == ".json" else READER.yaml(path, CostTable)
