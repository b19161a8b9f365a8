"""Padding of images that were scaled to fit into one size: where the pictures are in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_HALF_STEP = 0.5 + 1e-3  # half a step of an 8-bit colour, with a margin for rounding


@dataclass(frozen=True)
class PictureAreas:
    """The rectangle of each image of a batch that is no padding, by its rows and columns of pixels."""

    rows: Tensor  # bool [B, H]: which rows of pixels belong to the picture
    columns: Tensor  # bool [B, W]: which columns of pixels belong to the picture

    def cells(self, rows: int, columns: int) -> Tensor:
        """Which cells of a grid have any pixel of the picture: bool [B, rows, columns]."""
        real: Tensor = F.adaptive_max_pool1d(self.rows.float(), rows).unsqueeze(2) > 0
        return real & (F.adaptive_max_pool1d(self.columns.float(), columns).unsqueeze(1) > 0)

    def values(self, sizes: Sequence[torch.Size]) -> list[Tensor]:
        """Which values of maps of these sizes [C, H, W] are at such a cell: bool [B, C * H * W] each."""
        return [self.cells(h, w).unsqueeze(1).expand(-1, c, -1, -1).flatten(1) for c, h, w in sizes]


def picture_areas(images: Tensor, std: Sequence[float]) -> PictureAreas | None:
    """Find the smallest rectangle around all pixels that are not of the mean colour; None: no image has padding.

    Args:
        images: [B, C, H, W], normalised by the mean and this deviation of each channel.
    """
    # Padding in 8 bits is up to half a step from the mean, and other padding 0.
    steps = images.detach() * (255 * torch.tensor(std)).to(images)[:, None, None]
    coloured = (steps.abs() > _HALF_STEP).any(1)
    rows, columns = (_from_first_to_last(coloured.any(axis)) for axis in (2, 1))
    blank = ~rows.any(1, keepdim=True)  # an image of this colour alone is a picture
    areas = PictureAreas(rows | blank, columns | blank)
    return None if bool(areas.rows.all() and areas.columns.all()) else areas


def _from_first_to_last(marked: Tensor) -> Tensor:
    """Mark all between the first and the last that are marked: bool [B, n]."""
    return marked.cumsum(1).bool() & marked.flip(1).cumsum(1).flip(1).bool()
