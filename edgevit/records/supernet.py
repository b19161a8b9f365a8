"""supernet.json: how a super-network was made, the order in which its units are dropped, and the accuracy of slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from edgevit.errors import CheckpointError
from edgevit.records.derivation import AssumptionsRecord, DataRecord, FittedHead, ShapeRecord, Share, TrainingRecord
from edgevit.records.documents import Reader
from edgevit.records.kinds import More, RecordKind, Versions
from edgevit.records.model import BlockDims, Count, Index, Sha256

READER = Reader(CheckpointError, mend="copy the folder again, or make it again with edgevit supernet")

ModuleKind = Literal["attention", "ffn", "embed"]
Module = tuple[int, ModuleKind]  # of which block; the embedding counts as the first one's


@dataclass(frozen=True)
class Unit:
    """Dimensions `first` to `last - 1` of one module; of an attention, in every head, of queries, keys and values.

    Of the embedding it is channels, and `macs` is what they cost in the whole network.
    """

    block: int
    kind: ModuleKind
    first: int
    last: int
    macs: int

    @property
    def module(self) -> Module:
        return self.block, self.kind


@dataclass(frozen=True)
class SlicePoint:
    """A slice whose accuracy was measured when the super-network was made."""

    rate: Share  # share of the super-network's MACs that it lacks
    macs: Count
    params: Count
    top1: Share  # on the validation part


@dataclass(frozen=True)
class SettingsRecord:
    """What the super-network was made by; `more` has what only its making reads."""

    shape: ShapeRecord
    training: TrainingRecord
    more: More = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SupernetRecord:
    """What supernet.json says."""

    created: str  # UTC, ISO 8601
    base: str
    base_top1: Share  # of the base on the validation part
    assumptions: AssumptionsRecord | None = None  # None: of an older edgevit
    settings: SettingsRecord
    data: DataRecord
    fitted_head: FittedHead | None = None  # None: the base had a classifier of its own
    versions: Versions
    processes: Index = 1  # that trained side by side
    seconds: dict[str, float]
    order: tuple[Unit, ...]  # the first to be dropped first
    curve: Annotated[tuple[SlicePoint, ...], Field(min_length=1)]  # from the whole network to its smallest slice
    weights_sha256: Sha256 | None = field(default=None, compare=False)  # of model.safetensors, once it is written

    def out_of_order(self, blocks: Sequence[BlockDims]) -> Unit | None:
        """The first unit that does not go from its module's last dimension on, after those before it; None: all do."""
        ends: dict[Module, int] = {(i, "ffn"): b.ffn for i, b in enumerate(blocks)}
        ends |= {u.module: u.last for u in reversed(self.order) if u.kind == "embed"}  # the first one says how wide
        ends |= {(i, "attention"): max(b.qk, b.vo) for i, b in enumerate(blocks)}
        for unit in self.order:
            if not (unit.macs > 0 and 0 < unit.first < unit.last == ends.get(unit.module)):
                return unit
            ends[unit.module] = unit.first
        return None


SUPERNET_KIND = RecordKind("supernet", SupernetRecord, READER)
