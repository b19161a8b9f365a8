"""What to keep: decided by a method, checked here, carried out by `surgery.apply`, stored beside an unfinished run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from edgevit.derive.collapse import Clusters
from edgevit.derive.state import reading_state, save_tensors
from edgevit.derive.unfinished import STATE
from edgevit.folder.writing import write_whole, writing
from edgevit.models.blocks import BlockDims, BlockWeights


@dataclass(frozen=True)
class Plan:
    """For each block its new dimensions and the clusters into which its FFN neurons are merged.

    `moments` [d + 1, d + 1] per block, where attention is to be factorised for its own inputs and not for its weights.
    """

    dims: tuple[BlockDims, ...]
    clusters: tuple[Clusters, ...]
    moments: tuple[Tensor, ...] | None = None

    def check(self, blocks: Sequence[BlockWeights]) -> None:
        """Assert that the plan fits these blocks: whoever made it is at fault, not the user."""
        assert len(self.dims) == len(self.clusters) == len(blocks)
        for new, clusters, block in zip(self.dims, self.clusters, blocks, strict=True):
            old = block.dims
            assert new.heads == old.heads and new.qk <= old.qk and new.vo <= old.vo and new.ffn <= old.ffn
            assert len(clusters.labels) == old.ffn and len(clusters.anchors) == new.ffn


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
