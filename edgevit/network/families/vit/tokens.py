"""A block that passes on only some of its tokens: those with the most attention.

Their number is a constant of the block, so that shapes are static; they are selected per image. Class, distillation and
register tokens are always kept. Dropped tokens can be merged into one token.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import Attention, Axis
from edgevit.network.families import architecture
from edgevit.network.families.vit.parts import read_attention
from edgevit.network.layers import SoftGates
from edgevit.records.model import TokenOutput

_SHARED = 256  # channels that images and texts share; the CLIPs in timm have 512 to 1280
_RANKED = "this block drops tokens, ranked by its attention"
_UNRANKED = "a block without attention cannot rank tokens"
_PUT_OUT = "all patches are put out"
_LAST = "dropping tokens after the last block saves nothing"


def class_attention(x: Tensor, part: Attention, gates: SoftGates | None = None) -> Tensor:
    """The attention of the class token to each token, the mean over the heads: [B, N].

    It is computed separately from the same tokens, so that the attention itself stays one operation that compilers
    fuse. Per head q_c . (W_k x_j + b_k) = (W_k' q_c) . x_j + q_c . b_k, whose last term cancels in the softmax:
    H N d multiply-accumulates, about 0.1 % of a block of DeiT-Base, and no keys.

    Shape: x [B, N, d], the normalised tokens, of which the first is the class token.
    """
    q = _projected(x[:, 0], part.wq, part.bq) * part.scale  # [B, H, q]
    directions: Tensor = (q.transpose(0, 1) @ part.wk).transpose(0, 1)  # [B, H, d]
    logits = directions @ x.transpose(1, 2)
    if gates is None:
        return logits.softmax(-1).mean(1)
    rows = (logits + gates.log_gates.unsqueeze(1)).softmax(-1)
    return torch.einsum("h,bhn->bn", gates.heads / gates.heads.sum(), rows)


def _received_attention(x: Tensor, part: Attention, gates: SoftGates | None = None) -> Tensor:
    """The attention of all tokens to each token, the mean over tokens and heads: [B, N]; without class token.

    It is computed separately, too, but costs as much: queries, keys and all their products.
    """
    # [B, H, N, q] each
    q, k = (_projected(x, w, b).transpose(1, 2) for w, b in ((part.wq, part.bq), (part.wk, part.bk)))
    logits: Tensor = (q * part.scale) @ k.transpose(-2, -1)
    if gates is None:
        return logits.softmax(-1).mean((1, 2))
    rows_of_heads = (logits + gates.log_gates[:, None, None]).softmax(-1)
    # A token with a gate of a half also counts half as a query.
    return torch.einsum("h,bi,bhij->bj", gates.heads / gates.heads.sum(), gates.log_gates.softmax(-1), rows_of_heads)


def _projected(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Queries or keys [..., H, q] of tokens [..., d]."""
    rows = F.linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
    return torch.unflatten(rows, -1, weight.shape[:2])


def token_scores(attn: Any, inputs: Tensor, *, has_class: bool, gates: SoftGates | None = None) -> Tensor:
    """The scores [B, N] that rank tokens, of the input [B, N, d] of an attention."""
    return (class_attention if has_class else _received_attention)(inputs, read_attention(attn), gates)


def pass_on(x: Tensor, scores: Tensor, count: int, prefix: int, *, merge: bool) -> Tensor:
    """Select `count` tokens: the first `prefix`, then those with the highest scores in descending order.

    Of equal scores the first is selected, as by ONNX's TopK. The order of patches does not matter: positions are added
    before the first block, and no later layer depends on the order.

    Args:
        merge: whether the last of the `count` is the mean of the dropped tokens, weighted by their scores (EViT).

    Shapes: x [B, N, d], scores [B, N].
    """
    patches, scores = x[:, prefix:], scores[:, prefix:]
    # A stable sort, as topk does not define the order of equal scores.
    order = scores.sort(dim=1, descending=True, stable=True).indices
    stay = count - prefix - int(merge)

    def chosen(places: Tensor) -> Tensor:
        return patches.gather(1, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))

    parts = [x[:, :prefix], chosen(order[:, :stay])]
    if merge:
        dropped = order[:, stay:]
        weight = scores.gather(1, dropped)
        weight = weight / weight.sum(1, keepdim=True)
        parts.append(weight.unsqueeze(1) @ chosen(dropped))
    return torch.cat(parts, dim=1)


class TokenBlock(nn.Module):
    """A block of timm with its attention, and possibly its FFN, that passes on only some tokens.

    It has the modules of the block under the same names, so that names of weights do not change.
    """

    def __init__(self, block: Any, count: int, prefix: int, *, has_class: bool, merge: bool) -> None:
        super().__init__()
        self.count, self.prefix, self.has_class, self.merge = count, prefix, has_class, merge
        # timm's ResPostBlock normalises the outputs of sites, without LayerScale
        self.post_norm = not hasattr(block, "ls1")
        for name, module in block.named_children():
            setattr(self, name, module)
        self.train(block.training)

    def drop_ffn(self) -> None:
        for name in ("norm2", "mlp", "ls2", "drop_path2"):
            if hasattr(self, name):
                delattr(self, name)

    def forward(self, x: Tensor) -> Tensor:
        block: Any = self  # has attributes that nn.Module does not declare
        inputs = x if self.post_norm else block.norm1(x)
        scores = self.scores(inputs)
        x = x + self._after(block.attn(inputs), 1)
        if hasattr(self, "mlp"):
            x = x + self._after(block.mlp(x if self.post_norm else block.norm2(x)), 2)
        return pass_on(x, scores, self.count, self.prefix, merge=self.merge)

    def _after(self, added: Tensor, number: int) -> Tensor:
        for name in ("norm" if self.post_norm else "ls", "drop_path"):
            added = getattr(self, f"{name}{number}")(added)
        return added

    def scores(self, inputs: Tensor) -> Tensor:
        return token_scores(self.attn, inputs, has_class=self.has_class)


class TokenChoice(nn.Identity):
    """What a head reads of all tokens [B, N, d], in place of timm's pooling."""

    def __init__(self, tokens: TokenOutput, prefix: int) -> None:
        super().__init__()
        self.tokens, self.prefix = tokens, prefix

    def forward(self, x: Tensor) -> Tensor:
        patches = x[:, self.prefix :]
        if self.tokens == "class":
            return x[:, 0]
        if self.tokens == "patches":
            return patches
        if self.tokens == "class,mean":
            return torch.cat([x[:, 0], patches.mean(1)], dim=1)
        return x if self.prefix == 1 else torch.cat([x[:, :1], patches], dim=1)

    @property
    def joined(self) -> int:
        """How many vectors of the embedding's width the head reads side by side."""
        return 2 if self.tokens == "class,mean" else 1

    def counted(self, patches: int) -> int:
        """How many times the head is applied, of so many patches."""
        return {"patches": patches, "class,patches": 1 + patches}.get(self.tokens, 1)


def choose_tokens(model: Any, tokens: TokenOutput) -> None:
    """Have the head of a model read these tokens in place of pooled ones; a head of another width is random.

    Raises:
        UnsupportedModelError: it has no class token, or several heads, or a norm of pooled tokens alone.
    """
    name = architecture(model)
    if tokens != "patches" and model.cls_token is None:
        raise UnsupportedModelError(f"{name} has no class token; try --output features:patches")
    if hasattr(model, "head_dist") or not isinstance(model.fc_norm, nn.Identity):
        raise UnsupportedModelError(f"the head of {name} does not read tokens one by one; try --output features")
    model.global_pool, model.attn_pool = "", None
    model.fc_norm = choice = TokenChoice(tokens, model.num_prefix_tokens)
    if choice.joined > 1 and isinstance(model.head, nn.Linear):
        model.head = widened(model, model.head.out_features)


def chosen_tokens(model: Any) -> TokenOutput | None:
    """The tokens that the head of a model reads; None: timm's pooled token."""
    choice = getattr(model, "fc_norm", None)
    return choice.tokens if isinstance(choice, TokenChoice) else None


def pooled_part(model: Any) -> slice | None:
    """The part of [class token, mean of the patches] that timm pools; None: a head cannot read both of them."""
    if model.cls_token is None or hasattr(model, "head_dist") or not isinstance(model.fc_norm, nn.Identity):
        return None
    if model.global_pool == "avg" and model.pool_include_prefix:
        return None
    width = model.embed_dim
    return {"token": slice(0, width), "avg": slice(width, 2 * width)}.get(model.global_pool)


def widened(model: Any, classes: int) -> nn.Linear:
    """A head with random weights, as wide as the tokens that it reads."""
    like = model.pos_embed if model.pos_embed is not None else model.cls_token
    return nn.Linear(model.fc_norm.joined * model.embed_dim, classes, device=like.device, dtype=like.dtype)


def is_projection(model: Any) -> bool:
    """Whether the head of a ViT is CLIP's map to what images and texts share: in timm its bias is zero.

    A classifier without a bias is told from it by fewer outputs.
    """
    head = getattr(model, "head", None)
    if isinstance(getattr(model, "norm_pre", None) or nn.Identity(), nn.Identity) or not isinstance(head, nn.Linear):
        return False
    return head.out_features >= _SHARED and (head.bias is None or not bool(head.bias.any()))


def passing(block: Any, count: int, prefix: int, *, has_class: bool, merge: bool) -> Any:
    """The block, passing on `count` tokens; 0: unchanged."""
    if count and isinstance(block, TokenBlock):
        block.count, block.merge = count, merge
    elif count:
        return TokenBlock(block, count, prefix, has_class=has_class, merge=merge)
    return block


def frozen(block: Any, *, is_last: bool, put_out: bool) -> dict[Axis, str]:
    """The axes of a block that are frozen because of tokens."""
    if isinstance(block, TokenBlock):
        return {"site": _RANKED, "block": _RANKED}
    if not hasattr(block, "attn"):
        return {"tokens": _UNRANKED}
    if put_out:
        return {"tokens": _PUT_OUT}
    return {"tokens": _LAST} if is_last else {}
