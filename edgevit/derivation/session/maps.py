"""Compare the maps of a derived network with those of its base."""

from __future__ import annotations

import torch
from torch import Tensor

from edgevit.data.task import Split
from edgevit.network.network import Network
from edgevit.network.output import Map
from edgevit.records.derivation import MapRecord
from edgevit.train.passes import Passes


def measure_map(output: Map, base: Network, derived: Network, images: Split, passes: Passes) -> MapRecord:
    """Compare maps of held-out images batch by batch, as those of all may not fit into memory."""
    base, derived = (network.to(passes.compute.device).eval() for network in (base, derived))
    sums = torch.zeros(3, dtype=torch.float64, device=passes.compute.device)

    def compare(batch: Tensor, _: Tensor) -> None:
        reference, outputs = base(batch).float(), derived(batch).float()
        sums[0] += output.divergence(reference.double(), outputs.double()).sum()
        sums[1] += output.score(outputs, output.answers(reference)).sum()
        sums[2] += (output.shown(outputs) - output.shown(reference)).abs().flatten(1).mean(1).sum()

    passes.show(base, images, compare, stage="compare maps")
    divergence, score, error = (passes.compute.sum(sums) / len(images)).tolist()
    return MapRecord(len(images), max(divergence, 0.0), score, error)
