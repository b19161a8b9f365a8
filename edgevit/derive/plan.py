"""What to keep: decided by a method, checked here, carried out by `surgery.apply`, stored beside an unfinished run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from edgevit.derive.methods.vulcan.collapse import Clusters
from edgevit.errors import PlanError
from edgevit.folder.unfinished import STATE
from edgevit.folder.writing import write_whole, writing
from edgevit.models.anatomy import BlockDims, BlockWeights
from edgevit.train.state import reading_state, save_tensors


@dataclass(frozen=True)
class Plan:
    """For each block its new dimensions and the clusters into which its FFN neurons are merged: none is dropped.

    `moments` [d + 1, d + 1] per block, where attention is to be factorised for its own inputs and not for its weights.
    """

    dims: tuple[BlockDims, ...]
    clusters: tuple[Clusters, ...]
    moments: tuple[Tensor, ...] | None = None

    def check(self, blocks: Sequence[BlockWeights]) -> None:
        """See that the plan can be realised on these blocks.

        Raises:
            PlanError: it cannot; the message names the block, and what was expected of it.
        """
        moments = self.moments or (None,) * len(blocks)
        for name, given in (("dims", self.dims), ("clusters", self.clusters), ("moments", moments)):
            if len(given) != len(blocks):
                raise PlanError(f"the plan has {name} for {len(given)} blocks, expected {len(blocks)}")
        for i, parts in enumerate(zip(blocks, self.dims, self.clusters, moments, strict=True)):
            if (fault := next(_faults(*parts), None)) is not None:
                raise PlanError(f"the plan of block {i} has {fault}")


def _faults(block: BlockWeights, new: BlockDims, clusters: Clusters, moment: Tensor | None) -> Iterator[str]:
    """Why a block cannot be realised; whoever asks for the first is spared the others, which rest on it."""
    old = block.dims
    if new.heads != old.heads:
        yield f"{new.heads} heads, expected all {old.heads}; surgery.keep_heads drops heads"
    for name in ("qk", "vo", "ffn"):
        width, most = getattr(new, name), getattr(old, name)
        if not 1 <= width <= most:
            yield f"{name} width {width}, expected 1 to {most}"
    labels, anchors = clusters.labels, clusters.anchors
    for what, given, count in (("labels", labels, old.ffn), ("anchors", anchors, new.ffn)):
        if given.shape != (count,) or given.dtype != torch.int64:
            yield f"{what} {list(given.shape)} {given.dtype}, expected [{count}] torch.int64"
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= new.ffn:
        yield (
            f"cluster labels from {low} to {high}, expected 0 to {new.ffn - 1}: a plan merges every neuron into one of "
            f"its clusters; surgery.keep_neurons drops neurons"
        )
    empty = (torch.bincount(labels, minlength=new.ffn) == 0).nonzero().flatten().tolist()
    if empty:
        yield f"{len(empty)} empty clusters, the first of them {empty[0]}, expected a neuron in each of {new.ffn}"
    if int(anchors.min()) < 0 or int(anchors.max()) >= old.ffn:
        yield f"anchors from {int(anchors.min())} to {int(anchors.max())}, expected neurons 0 to {old.ffn - 1}"
    strange = (labels[anchors] != torch.arange(new.ffn, device=labels.device)).nonzero().flatten().tolist()
    if strange:
        first = strange[0]
        yield f"neuron {int(anchors[first])} for the anchor of cluster {first}, expected one of the cluster's members"
    side = block.w1.shape[1] + 1
    if moment is not None and moment.shape != (side, side):
        yield f"a moment {list(moment.shape)}, expected [{side}, {side}]"


def save_plan(plan: Plan, folder: Path) -> None:
    tensors = {f"{i}.{name}": t for i, c in enumerate(plan.clusters) for name, t in vars(c).items()}
    for i, moment in enumerate(plan.moments or ()):
        tensors[f"{i}.moment"] = moment
    with writing(folder):
        save_tensors(folder / "plan.safetensors", tensors)
        # Written last: a plan.json that exists is complete.
        write_whole(folder / "plan.json", json.dumps([asdict(d) for d in plan.dims]))


def load_plan(folder: Path) -> Plan | None:
    """Read the plan of an unfinished run, or None if it had not got that far."""
    if not (folder / "plan.json").is_file():
        return None
    dims = STATE.json(folder / "plan.json", tuple[BlockDims, ...])
    with reading_state(folder / "plan.safetensors"):
        tensors: dict[str, torch.Tensor] = load_file(folder / "plan.safetensors")
        clusters = tuple(Clusters(tensors[f"{i}.labels"], tensors[f"{i}.anchors"]) for i in range(len(dims)))
        moments = tuple(tensors[f"{i}.moment"] for i in range(len(dims))) if "0.moment" in tensors else None
    return Plan(dims, clusters, moments)
