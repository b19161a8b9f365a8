"""How like the features of a network are those of its base, on images without labels."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from edgevit.records.derivation import SimilarityRecord

_NEIGHBOURS = 10  # nearest images, of which a derived model should have the same ones


@dataclass
class Likeness:
    """Compares features [B, ..., d] batch by batch: tokens one by one, and neighbours by the mean of an image's."""

    cosines: list[Tensor] = field(default_factory=list)  # [B] of each batch
    means: tuple[list[Tensor], list[Tensor]] = field(default_factory=lambda: ([], []))  # [B, d], of base and model

    def add(self, reference: Tensor, features: Tensor) -> None:
        """Add the features of a batch by the base, and by the model."""
        reference, features = (of_network.float().cpu().double() for of_network in (reference, features))
        self.cosines.append(F.cosine_similarity(reference, features, dim=-1).reshape(len(features), -1).mean(1))
        for means, values in zip(self.means, (reference, features), strict=True):
            means.append(values.reshape(len(values), -1, values.shape[-1]).mean(1))

    def record(self) -> SimilarityRecord:
        cosines = torch.cat(self.cosines)
        return SimilarityRecord(
            len(cosines), float(cosines.mean().clamp(0, 1)), same_neighbours(*map(torch.cat, self.means))
        )


def same_neighbours(reference: Tensor, features: Tensor) -> float | None:
    """Share of the nearest images by cosine of the reference that are among the nearest by the features.

    None: there are not twice as many images as neighbours. Shapes: both [N, ...].
    """
    if len(reference) < 2 * _NEIGHBOURS:
        return None
    nearest = []
    for each in (reference, features):
        directions = F.normalize(each.flatten(1).double(), dim=1)
        cosines = directions @ directions.mT
        cosines.fill_diagonal_(-2)
        nearest.append(torch.zeros_like(cosines).scatter_(1, cosines.topk(_NEIGHBOURS).indices, 1))
    return float((nearest[0] * nearest[1]).sum() / nearest[0].sum())
