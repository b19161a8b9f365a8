"""Zero-pad heads to a width at which NVIDIA's compiler fuses attention, without changing what the model computes."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.models.anatomy import BlockDims, BlockWeights
from edgevit.models.families import load_family

MULTIPLE, LEAST = 8, 16  # other fusable widths cost an extra copy: docs/decisions/001-fusable-shapes.md


def padded_width(dims: BlockDims) -> int:
    """The common width of QK and VO that makes a block fuse; a block that fuses keeps its own."""
    widest = max(dims.qk, dims.vo)
    return widest if dims.fusable else max(LEAST, -(-widest // MULTIPLE) * MULTIPLE)


def _rows(weight: Tensor, width: int) -> Tensor:
    return F.pad(weight, (0, 0, 0, width - weight.shape[1]))  # [H, w, d] -> [H, width, d]


def _columns(weight: Tensor | None, width: int) -> Tensor | None:
    return None if weight is None else F.pad(weight, (0, width - weight.shape[-1]))


def pad_block(block: BlockWeights) -> BlockWeights:
    dims, width = block.dims, padded_width(block.dims)
    # Attention divides by the root of the width it sees: what padding adds to it, the queries make good.
    gain = (width / dims.qk) ** 0.5
    return replace(
        block,
        wq=_rows(block.wq * gain, width),
        bq=_columns(None if block.bq is None else block.bq * gain, width),
        wk=_rows(block.wk, width),
        bk=_columns(block.bk, width),
        wv=_rows(block.wv, width),
        bv=_columns(block.bv, width),
        wo=F.pad(block.wo, (0, width - dims.vo)),  # [H, d, v] -> [H, d, width]
    )


def pad_heads(network: nn.Module, family_name: str) -> nn.Module:
    """Return a padded copy; its blocks all have equal QK and VO widths."""
    family = load_family(family_name)
    padded: nn.Module = family.build(network, [pad_block(block) for block in family.read(network)])
    return padded.eval()
