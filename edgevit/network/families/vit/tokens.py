"""A block after which only some of its tokens go on: those that its own attention looks at most.

How many stay is a constant of the block, so that shapes are static; which ones is decided image by image. The class
token, distillation and register tokens always stay. What leaves can be merged into one token that goes on in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.network.anatomy import Axis
from edgevit.network.families import LogWeights, SoftGates

RANKED = "tokens leave after this block, ranked by its attention"
UNRANKED = "a block without attention ranks no tokens"
LAST = "nothing is saved where tokens leave after the last block"


def class_attention(x: Tensor, qkv: nn.Linear, heads: int, qk: int, there: SoftGates | None = None) -> Tensor:
    """How much the class token looks at each token, the mean over the heads: [B, N].

    Worked out beside the attention and from the same tokens, so that the attention itself stays one operation that
    compilers fuse. Per head q_c . (W_k x_j + b_k) = (W_k' q_c) . x_j + q_c . b_k, whose last term softmax does not see:
    H N d multiply-accumulates, about 0.1 % of a block of DeiT-Base, and no keys.

    Shapes: x [B, N, d], the normalised tokens, of which the first is the class token; qkv.weight [H * (2q + v), d].
    """
    wq, wk = torch.unflatten(qkv.weight[: 2 * heads * qk], 0, (2, heads, qk))  # [H, q, d] each
    bq = None if qkv.bias is None else qkv.bias[: heads * qk]
    q = torch.unflatten(F.linear(x[:, 0], wq.flatten(0, 1), bq), 1, (heads, qk)) * qk**-0.5  # [B, H, q]
    directions: Tensor = (q.transpose(0, 1) @ wk).transpose(0, 1)  # [B, H, d]
    logits = directions @ x.transpose(1, 2)
    if there is None:
        return logits.softmax(-1).mean(1)
    rows = (logits + there.log_gates.unsqueeze(1)).softmax(-1)
    return torch.einsum("h,bhn->bn", there.heads / there.heads.sum(), rows)


def received_attention(x: Tensor, qkv: nn.Linear, heads: int, qk: int, there: SoftGates | None = None) -> Tensor:
    """How much all tokens look at each token, the mean over tokens and heads: [B, N]. For models without class token.

    Beside the attention, too, but at its price: queries, keys and all their products.
    """
    rows = 2 * heads * qk
    both = F.linear(x, qkv.weight[:rows], None if qkv.bias is None else qkv.bias[:rows])
    q, k = torch.unflatten(both, -1, (2, heads, qk)).permute(2, 0, 3, 1, 4)  # [B, H, N, q] each
    logits: Tensor = (q * qk**-0.5) @ k.transpose(-2, -1)
    if there is None:
        return logits.softmax(-1).mean((1, 2))
    looks = (logits + there.log_gates[:, None, None]).softmax(-1)
    # A token that is half gone counts half as one that looks, too.
    return torch.einsum("h,bi,bhij->bj", there.heads / there.heads.sum(), there.log_gates.softmax(-1), looks)


def token_scores(attn: Any, seen: Tensor, *, has_class: bool, there: SoftGates | None = None) -> Tensor:
    """By what tokens are ranked: [B, N] of an attention's input [B, N, d]."""
    score = class_attention if has_class else received_attention
    return score(seen, attn.qkv, attn.num_heads, round(float(attn.scale) ** -2), there)


@contextmanager
def weighing(model: Any, log_weights: LogWeights) -> Iterator[None]:
    """Let attention weigh the tokens that it looks at (`Family`)."""

    def weigh(block: int) -> Any:
        def see(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            weights = log_weights(block)
            return given, {**named, "attn_mask": None if weights is None else weights[:, None, None]}

        return see

    with ExitStack() as stack:
        for i, block in enumerate(model.blocks):
            stack.callback(block.register_forward_pre_hook(weigh(i), with_kwargs=True).remove)
        yield


def pass_on(x: Tensor, scores: Tensor, count: int, prefix: int, *, merge: bool) -> Tensor:
    """The `count` tokens that go on: the first `prefix`, then those of the highest scores, the highest first.

    Of equal scores the first goes on, here as in ONNX's TopK. That patches come in another order than before does not
    matter: positions were added before the first block, and no layer after it looks at the order.

    Args:
        merge: whether the last of the `count` is the mean of all that leave, weighted by their scores (EViT).

    Shapes: x [B, N, d], scores [B, N].
    """
    patches, scores = x[:, prefix:], scores[:, prefix:]
    # A stable sort and no topk: which of two equal tokens topk takes is nowhere said.
    order = scores.sort(dim=1, descending=True, stable=True).indices
    stay = count - prefix - int(merge)

    def chosen(places: Tensor) -> Tensor:
        return patches.gather(1, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))

    parts = [x[:, :prefix], chosen(order[:, :stay])]
    if merge:
        gone = order[:, stay:]
        weight = scores.gather(1, gone)
        weight = weight / weight.sum(1, keepdim=True)
        parts.append(weight.unsqueeze(1) @ chosen(gone))
    return torch.cat(parts, dim=1)


class TokenBlock(nn.Module):
    """A block of timm's, with its attention and with or without its FFN, that passes on only some tokens.

    It takes over the modules of the block under their own names, so that weights keep theirs.
    """

    def __init__(self, block: Any, count: int, prefix: int, *, has_class: bool, merge: bool) -> None:
        super().__init__()
        self.count, self.prefix, self.has_class, self.merge = count, prefix, has_class, merge
        # timm's ResPostBlock normalises what is added, and scales nothing
        self.post_norm = not hasattr(block, "ls1")
        for name, module in block.named_children():
            setattr(self, name, module)
        self.train(block.training)

    def drop_ffn(self) -> None:
        for name in ("norm2", "mlp", "ls2", "drop_path2"):
            if hasattr(self, name):
                delattr(self, name)

    def forward(self, x: Tensor) -> Tensor:
        own: Any = self
        seen = x if self.post_norm else own.norm1(x)
        scores = self.scores(seen)
        x = x + self._after(own.attn(seen), 1)
        if hasattr(self, "mlp"):
            x = x + self._after(own.mlp(x if self.post_norm else own.norm2(x)), 2)
        return pass_on(x, scores, self.count, self.prefix, merge=self.merge)

    def _after(self, added: Tensor, number: int) -> Tensor:
        for name in ("norm" if self.post_norm else "ls", "drop_path"):
            added = getattr(self, f"{name}{number}")(added)
        return added

    def scores(self, seen: Tensor) -> Tensor:
        return token_scores(self.attn, seen, has_class=self.has_class)


def passing(block: Any, count: int, prefix: int, *, has_class: bool, merge: bool) -> Any:
    """The block, passing on `count` tokens; with 0 it passes on as many as it does."""
    if count and isinstance(block, TokenBlock):
        block.count, block.merge = count, merge
    elif count:
        return TokenBlock(block, count, prefix, has_class=has_class, merge=merge)
    return block


def frozen(block: Any, *, is_last: bool) -> dict[Axis, str]:
    """The axes that tokens freeze in a block."""
    if isinstance(block, TokenBlock):
        return {"site": RANKED, "block": RANKED}
    if not hasattr(block, "attn"):
        return {"tokens": UNRANKED}
    return {"tokens": LAST} if is_last else {}
