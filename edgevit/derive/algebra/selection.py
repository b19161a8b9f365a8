"""Fewer dimensions by leaving some out: every weight that stays is the base's own, and nothing makes up for the rest.

A head's QK dimension is a row of W_Q and the same row of W_K; a VO dimension a row of W_V and a column of W_O; a
channel of the embedding an entry of every token, and so a row or a column of all that writes or reads tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from edgevit.models.anatomy import Attention


def keep_dimensions(part: Attention, heads: Sequence[int], qk: Tensor, vo: Tensor) -> Attention:
    """These heads with these of their dimensions; logits stay sums of the same products.

    The slim attention divides its logits by sqrt(q'), so W_Q' carries sqrt(q' / q). Shapes: qk [H', q'] and
    vo [H', v'], int64, for the heads that stay.
    """
    fewer, device = part.keep_heads(heads), part.wq.device
    rows = torch.arange(len(heads), device=device).unsqueeze(1)
    qk, vo = qk.to(device), vo.to(device)
    scale = (qk.shape[1] / part.qk) ** 0.5

    def kept(bias: Tensor | None, at: Tensor) -> Tensor | None:
        return None if bias is None else bias[rows, at]

    bq = kept(fewer.bq, qk)
    return replace(
        fewer,
        wq=fewer.wq[rows, qk] * scale, bq=None if bq is None else bq * scale, wk=fewer.wk[rows, qk],
        bk=kept(fewer.bk, qk), wv=fewer.wv[rows, vo], bv=kept(fewer.bv, vo), wo=fewer.wo.mT[rows, vo].mT,
    )  # fmt: skip


def channel_encoder(channels: Tensor, width: int) -> Tensor:
    """The matrix [d', d] by which tokens keep these channels [d'] of `width` (`plan.EmbedPlan`), in fp64.

    A LayerNorm does not see its scale, d' / d; with it those that read tokens keep their weights as they are.
    """
    encode = torch.zeros(len(channels), width, dtype=torch.float64)
    encode[torch.arange(len(channels)), channels.cpu()] = len(channels) / width
    return encode
