"""BERT as transformers writes it: post-norm blocks with separate projections, for texts of one length.

Weights have the names of transformers, except that an FFN is one module: `ffn.intermediate` and `ffn.output`.

Padding is a token of zeros. Such a token is no key of an attention, and every module computes zeros of it, so that
statistics can leave it out and blocks need no other input than tokens. In an exported network the padding is taken from
the ids instead, once, as a bias of all attentions; what modules compute of padding is then arbitrary, and not read.

Shapes: B batch, N tokens, d embedding width, H heads, q QK width, v VO width, e FFN width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import get_act_layer
from timm.models import register_model
from torch import Tensor, nn

from edgevit.network.anatomy import BlockDims, unpack

_APART = -1e4  # added to the logits of padding; within fp16, and its softmax is 0 in fp32


def real_tokens(tokens: Tensor) -> Tensor:
    """Which tokens are not padding: bool [B, N, 1] of tokens [B, N, d]."""
    return (tokens != 0).any(-1, keepdim=True)


def padding_bias(padding: Tensor) -> Tensor:
    """What an attention adds to its logits, fp32 [B, 1, 1, N], if these tokens are padding, bool [B, N]."""
    return torch.where(padding, _APART, 0.0)[:, None, None]


class BertEmbeddings(nn.Module):
    """Ids [B, N] to tokens [B, N, d], normalised; those of padding are zeros."""

    def __init__(self, dim: int, *, vocab_size: int, max_positions: int, token_types: int, eps: float) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, dim)
        self.position_embeddings = nn.Embedding(max_positions, dim)
        self.token_type_embeddings = nn.Embedding(token_types, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=eps)

    def forward(self, ids: Tensor, real: Tensor | None) -> Tensor:
        """`real` [B, N] says which are no padding; None: all are computed."""
        places = self.position_embeddings.weight[: ids.shape[1]] + self.token_type_embeddings.weight[0]
        tokens: Tensor = self.LayerNorm(self.word_embeddings(ids) + places)
        return tokens if real is None else tokens * real.unsqueeze(-1)


class BertProjections(nn.Module):
    """Queries, keys and values of tokens [B, N, d], packed as for `anatomy.unpack`."""

    def __init__(self, dim: int, dims: BlockDims) -> None:
        super().__init__()
        self.dims = dims
        self.query, self.key = (nn.Linear(dim, dims.heads * dims.qk) for _ in range(2))
        self.value = nn.Linear(dim, dims.heads * dims.vo)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.query(x), self.key(x), self.value(x)], dim=-1)


class BertOutput(nn.Module):
    """The last linear layer of a site, and the norm of the sum of its output and the tokens."""

    def __init__(self, width: int, dim: int, eps: float) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(width, dim), nn.LayerNorm(dim, eps=eps)

    def joined(self, tokens: Tensor, added: Tensor) -> Tensor:
        """The tokens after the site, of those before it: norm(tokens + added), and zeros where these are zeros."""
        normalised: Tensor = self.LayerNorm(tokens + added)
        return normalised * real_tokens(tokens)


class BertAttention(nn.Module):
    """Tokens to the output of the attention's last linear layer: [B, N, d]."""

    def __init__(self, dim: int, dims: BlockDims, eps: float) -> None:
        super().__init__()
        self.self = BertProjections(dim, dims)
        self.output = BertOutput(dims.heads * dims.vo, dim, eps)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        """`attn_mask` and `padding` are added to the logits; with `padding` None it is found in the tokens."""
        p = self.self
        if padding is not None:  # an export, which has no use for packed projections
            parts = [layer(x).unflatten(-1, (p.dims.heads, -1)) for layer in (p.query, p.key, p.value)]
            return self._attended(parts, padding)
        real = real_tokens(x)
        bias = padding_bias(~real.squeeze(-1)).to(x)
        return self._attended(unpack(p(x), p.dims), bias if attn_mask is None else bias + attn_mask, real)

    def _attended(self, parts: Sequence[Tensor], bias: Tensor, real: Tensor | None = None) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in parts)  # [B, H, N, q or v]
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        out: Tensor = self.output.dense(heads if real is None else heads * real)
        return out


class BertIntermediate(nn.Module):
    """Tokens to neurons [B, N, e]."""

    def __init__(self, dim: int, width: int, activation: str) -> None:
        super().__init__()
        self.dense, self.activation = nn.Linear(dim, width), get_act_layer(activation)()

    def forward(self, x: Tensor) -> Tensor:
        neurons: Tensor = self.activation(self.dense(x))
        return neurons


class BertFfn(nn.Module):
    """Tokens to the output of the FFN's last linear layer: [B, N, d]."""

    def __init__(self, dim: int, width: int, activation: str, eps: float) -> None:
        super().__init__()
        self.intermediate = BertIntermediate(dim, width, activation)
        self.output = BertOutput(width, dim, eps)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        neurons = self.intermediate(x)
        out: Tensor = self.output.dense(neurons * real_tokens(x) if padding is None else neurons)
        return out


class BertLayer(nn.Module):
    """A block; a removed site has no modules, its norm included."""

    def __init__(self, attention: BertAttention | None, ffn: BertFfn | None) -> None:
        super().__init__()
        self.attention, self.ffn = attention, ffn

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        for site, options in ((self.attention, {"attn_mask": attn_mask}), (self.ffn, {})):
            if site is None:
                continue
            if padding is None:
                x = site.output.joined(x, site(x, **options))
            else:
                x = site.output.LayerNorm(x + site(x, padding=padding))
        return x


class BertEncoder(nn.Module):
    def __init__(self, layers: Sequence[BertLayer]) -> None:
        super().__init__()
        self.layer = nn.ModuleList(layers)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        for layer in self.layer:
            x = layer(x) if padding is None else layer(x, padding=padding)
        return x


class BertPooler(nn.Module):
    """The first token [B, d], for the classifier."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.dense(tokens[:, 0]))


class BertBody(nn.Module):
    def __init__(self, embeddings: BertEmbeddings, encoder: BertEncoder, pooler: BertPooler) -> None:
        super().__init__()
        self.embeddings, self.encoder, self.pooler = embeddings, encoder, pooler


class BertClassifier(nn.Module):
    """transformers' BertForSequenceClassification for texts alone, without dropout: ids [B, N] to logits [B, C].

    Ids are of any type of number. Those equal to `pad_token` are padding, except for the first.

    Raises:
        ValueError: sizes that do not fit.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 30522,
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        max_positions: int = 512,
        token_types: int = 2,
        tokens: int | None = None,
        pad_token: int = 0,
        norm_eps: float = 1e-12,
        act_layer: str = "gelu",
        num_classes: int = 1000,
    ) -> None:
        super().__init__()
        self.tokens, self.pad_token, self.embed_dim = tokens or max_positions, pad_token, embed_dim
        self.act_layer, self.norm_eps = act_layer, norm_eps
        if embed_dim % num_heads:
            raise ValueError(f"an embedding of {embed_dim} does not divide into {num_heads} heads")
        if self.tokens > max_positions:
            raise ValueError(f"it has positions for {max_positions} tokens, and texts have tokens={self.tokens}")
        if pad_token >= vocab_size:
            raise ValueError(f"pad_token={pad_token} is beyond the {vocab_size} tokens of the vocabulary")
        width = embed_dim // num_heads
        dims = BlockDims(num_heads, width, width, round(mlp_ratio * embed_dim))
        self.bert = BertBody(
            BertEmbeddings(
                embed_dim, vocab_size=vocab_size, max_positions=max_positions, token_types=token_types, eps=norm_eps
            ),
            BertEncoder([self.layer_of(dims) for _ in range(depth)]),
            BertPooler(embed_dim),
        )
        self.classifier: nn.Module = nn.Linear(embed_dim, num_classes) if num_classes else nn.Identity()
        self.explicit = False  # whether padding is taken from the ids alone, once
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)  # as transformers starts them
                if isinstance(module, nn.Linear):
                    nn.init.zeros_(module.bias)

    def layer_of(self, dims: BlockDims) -> BertLayer:
        """A block of these sizes."""
        d, eps = self.embed_dim, self.norm_eps
        attention = BertAttention(d, dims, eps) if dims.has("attention") else None
        return BertLayer(attention, BertFfn(d, dims.ffn, self.act_layer, eps) if dims.has("ffn") else None)

    def padding(self, ids: Tensor) -> Tensor:
        """Which tokens are padding: bool [B, N]. The first never is, as an attention needs a key."""
        return (ids == self.pad_token) & (torch.arange(ids.shape[1], device=ids.device) > 0)

    def embedded(self, ids: Tensor) -> Tensor:
        """The tokens [B, N, d] before the first block."""
        ids = ids.long()
        tokens: Tensor = self.bert.embeddings(ids, ~self.padding(ids))
        if torch.is_grad_enabled() and not tokens.requires_grad:
            tokens.requires_grad_()  # gradients of what blocks compute, where no weight has any: ids have none
        return tokens

    def forward_features(self, ids: Tensor) -> Tensor:
        if not self.explicit:
            tokens: Tensor = self.bert.encoder(self.embedded(ids))
            return tokens
        tokens = self.bert.encoder(self.bert.embeddings(ids, None), padding_bias(self.padding(ids)))
        return tokens

    def head(self, tokens: Tensor) -> Tensor:
        """The logits for the tokens after the last block."""
        logits: Tensor = self.classifier(self.bert.pooler(tokens))
        return logits

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.forward_features(ids))


@register_model  # type: ignore[untyped-decorator]
def bert(pretrained: bool = False, **arguments: Any) -> BertClassifier:
    """Make the network for timm's `create_model`, which has no networks of texts itself."""
    if pretrained:
        raise RuntimeError("edgevit downloads no networks of texts; give the folder that transformers wrote")
    for of_timm in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):
        arguments.pop(of_timm, None)
    return BertClassifier(**arguments)
