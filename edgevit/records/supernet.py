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

_READER = Reader(CheckpointError, hint="copy the folder again, or make it again with edgevit supernet")

ModuleKind = Literal["attention", "ffn", "embed"]
Module = tuple[int, ModuleKind]  # number of the block; 0 for the embedding


@dataclass(frozen=True)
class Unit:
    """Dimensions `first` to `last - 1` of one module: for an attention, of queries, keys and values in every head.

    For the embedding they are channels, and `macs` is their cost in the whole network.
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
    """A slice whose accuracy was measured after the training of the super-network."""

    rate: Share  # removed share of the super-network's MACs
    macs: Count
    params: Count
    top1: Share  # accuracy of the slice on the validation part


@dataclass(frozen=True)
class SettingsRecord:
    """Settings of the super-network; `more` contains those that only its training reads."""

    shape: ShapeRecord
    training: TrainingRecord
    more: More = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SupernetRecord:
    """The content of supernet.json."""

    created: str  # time of the training as ISO 8601, UTC
    base: str
    base_top1: Share  # accuracy of the base on the validation part
    assumptions: AssumptionsRecord | None = None
    settings: SettingsRecord
    data: DataRecord
    fitted_head: FittedHead | None = None  # head that was fitted to the base; None: the base has a classifier
    versions: Versions
    processes: Index = 1  # number of processes of a distributed training; 1: it was not distributed
    seconds: dict[str, float]
    order: tuple[Unit, ...]  # units in the order in which they are dropped
    # Measured slices, from the whole network to the smallest.
    curve: Annotated[tuple[SlicePoint, ...], Field(min_length=1)]
    # Hash of model.safetensors; None: it is not written yet.
    weights_sha256: Sha256 | None = field(default=None, compare=False)

    def out_of_order(self, blocks: Sequence[BlockDims]) -> Unit | None:
        """The first unit whose last dimension is not the last remaining one of its module; None: there is none."""
        ends: dict[Module, int] = {(i, "ffn"): b.ffn for i, b in enumerate(blocks)}
        ends |= {u.module: u.last for u in reversed(self.order) if u.kind == "embed"}  # the first one has the width
        ends |= {(i, "attention"): max(b.qk, b.vo) for i, b in enumerate(blocks)}
        for unit in self.order:
            if not (unit.macs > 0 and 0 < unit.first < unit.last == ends.get(unit.module)):
                return unit
            ends[unit.module] = unit.first
        return None


SUPERNET_KIND = RecordKind("supernet", SupernetRecord, _READER)
