"""Zero-pad heads to a width at which NVIDIA's compiler fuses attention, without changing what the model computes."""

from __future__ import annotations

from dataclasses import replace

from edgevit.network.anatomy import Block, BlockDims
from edgevit.network.network import Network

MULTIPLE, LEAST = 8, 16  # other fusable widths cost an extra copy: docs/decisions/001-fusable-shapes.md


def padded_width(dims: BlockDims) -> int:
    """The common width of QK and VO with which a block fuses; a fusable block keeps its width."""
    widest = dims.head_width
    return widest if dims.fusable else max(LEAST, -(-widest // MULTIPLE) * MULTIPLE)


def _pad_block(block: Block) -> Block:
    """The same function with a fusable attention."""
    if block.attention is None:
        return block
    width = padded_width(block.dims)
    return replace(block, attention=block.attention.padded(width, width))


def pad_heads(network: Network) -> Network:
    """Return a padded copy; its blocks all have equal QK and VO widths."""
    return network.build([_pad_block(block) for block in network.read()]).eval()
