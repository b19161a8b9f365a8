"""A Transformer block as tensors: the one form in which methods see a model.

Shapes: H heads, q and v the per-head QK and VO widths, d embedding width, e FFN width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

from edgevit.folder.model import BlockDims as BlockDims


@dataclass(frozen=True)
class BlockWeights:
    """The weights of one block; views of the live parameters when a family made them.

    Attention of head h on normalised tokens x [N, d] is
    softmax((x wq' + bq)(x wk' + bk)' / sqrt(q)) (x wv' + bv) wo', summed over heads, plus bo.
    """

    wq: Tensor  # [H, q, d]
    bq: Tensor | None  # [H, q]
    wk: Tensor  # [H, q, d]
    bk: Tensor | None  # [H, q]
    wv: Tensor  # [H, v, d]
    bv: Tensor | None  # [H, v]
    wo: Tensor  # [H, d, v]
    bo: Tensor | None  # [d]
    w1: Tensor  # [e, d]
    b1: Tensor | None  # [e]
    w2: Tensor  # [d, e]
    b2: Tensor | None  # [d]

    @property
    def dims(self) -> BlockDims:
        heads, qk, _ = self.wq.shape
        return BlockDims(heads=heads, qk=qk, vo=self.wv.shape[1], ffn=self.w1.shape[0])
