"""BERT for the classification of texts: post-norm blocks, and a classifier that reads the pooled first token."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import Attention, Axis, Block, BlockDims, Decoder, Ffn, Site
from edgevit.network.copies import bare_copy, without_values
from edgevit.network.cost import Geometry, NetworkStage, attention_terms, ffn_terms
from edgevit.network.families.bert import interchange as interchange
from edgevit.network.families.bert.modules import BertAttention, BertClassifier, BertFfn, BertLayer
from edgevit.network.families.vit.parts import keep_rows, parameter
from edgevit.network.layers import AttentionLayer, BlockLayers, Ends, FfnLayer, SoftGates

# Post-norm: x' = norm(x + f(x)), and the next residual sum starts from x'. So every norm reads the sum in the basis of
# the embedding: its gain is diagonal in this basis alone and stays between two sums, where no weight can take it.
FROZEN: dict[Axis, str] = {
    "embed": "a LayerNorm after each sum scales every channel by itself, and what it puts out is added to again",
    "tokens": "texts differ in their number of tokens, and padding fills the rest",
}


def matches(model: Any) -> bool:
    return isinstance(model, BertClassifier)


def check(model: Any, *, alone: bool = True) -> None:
    """Nothing: `BertClassifier` makes no network that cannot be pruned."""


# -- reading -----------------------------------------------------------------------------------------------------------


def blocks(model: Any) -> list[BlockLayers]:
    return [_block_layers(index, layer) for index, layer in enumerate(model.bert.encoder.layer)]


def _block_layers(index: int, layer: BertLayer) -> BlockLayers:
    attention, ffn = layer.attention, layer.ffn
    around: dict[str, Any] = {"before": nn.Identity(), "after": (), "scale": None}
    of_attention = None if attention is None else AttentionLayer(
        site=Site(index, "attention", FROZEN),
        module=attention,
        readers=(attention.self.query, attention.self.key, attention.self.value),
        packed=attention.self,
        output=attention.output.dense,
        read=partial(_read_attention, attention),
        token_scores=_no_scores,
        joined=attention.output.joined,
        **around,
    )  # fmt: skip
    of_ffn = None if ffn is None else FfnLayer(
        site=Site(index, "ffn", FROZEN),
        module=ffn,
        readers=(ffn.intermediate.dense,),
        output=ffn.output.dense,
        read=partial(_read_ffn, ffn),
        joined=ffn.output.joined,
        **around,
    )  # fmt: skip
    return BlockLayers(layer, of_attention, of_ffn)


def _no_scores(tokens: Tensor, gates: SoftGates | None) -> Tensor:
    raise UnsupportedModelError(f"tokens cannot be ranked: {FROZEN['tokens']}")


def _read_attention(attention: BertAttention) -> Attention:
    p, heads = attention.self, attention.self.dims.heads
    weights = [torch.unflatten(layer.weight, 0, (heads, -1)) for layer in (p.query, p.key, p.value)]
    biases = [torch.unflatten(layer.bias, 0, (heads, -1)) for layer in (p.query, p.key, p.value)]
    dense = attention.output.dense
    wo = torch.unflatten(dense.weight, 1, (heads, -1)).permute(1, 0, 2)  # [d, H * v] -> [H, d, v]
    (wq, wk, wv), (bq, bk, bv) = weights, biases
    return Attention(wq=wq, bq=bq, wk=wk, bk=bk, wv=wv, bv=bv, wo=wo, bo=dense.bias)


def _read_ffn(ffn: BertFfn) -> Ffn:
    first, second = ffn.intermediate.dense, ffn.output.dense
    return Ffn(w1=first.weight, b1=first.bias, w2=second.weight, b2=second.bias)


def ends(model: Any) -> Ends:
    head = model.classifier
    return Ends(
        input_size=(model.tokens,),
        final=model.bert.encoder,
        norm=None,
        reads_mean=True,  # the first token alone
        classifiers=(head,) if isinstance(head, nn.Linear) else (),
        pads=True,
    )


def geometry(model: Any) -> Geometry:
    """The cost of a text of `tokens` tokens, padding included: a device computes it, too."""
    heads, dim = ends(model).classifiers, model.embed_dim
    outside = sum(p.numel() for name, p in model.named_parameters() if ".encoder." not in name)
    attention, ffn = attention_terms(biases=True, vectors=3), ffn_terms(1, biases=True, vectors=3)
    return Geometry(
        stages=(NetworkStage(dim, model.tokens, attention, ffn),),
        patches=model.tokens - 1,  # the first token is the class token; looking up the others is free, but for a norm
        patch_values=1,
        outputs=sum(head.out_features for head in heads),
        classifier_heads=1,
        head_macs=dim * dim,  # MACs of the pooler
        other_params=outside - sum(p.numel() for head in heads for p in head.parameters()),
        sites=tuple(layer.site for b in blocks(model) for layer in (b.attention, b.ffn) if layer is not None),
    )


# -- writing -----------------------------------------------------------------------------------------------------------


def _replace_layers(model: Any, dims: Sequence[BlockDims]) -> None:
    """Give a network blocks of these sizes, on the meta device but for the norms of sites that it has had."""
    layers = list[BertLayer]()
    for old, sizes in zip(model.bert.encoder.layer, dims, strict=True):
        if sizes.tokens:
            raise UnsupportedModelError(f"cannot drop tokens of a BERT: {FROZEN['tokens']}")
        with without_values():
            layers.append(model.layer_of(sizes))
        for site in ("attention", "ffn"):
            if (new := getattr(layers[-1], site)) is not None and getattr(old, site) is not None:
                new.output.LayerNorm = getattr(old, site).output.LayerNorm
        layers[-1].train(model.training)
    model.bert.encoder.layer = nn.ModuleList(layers)


def resize(model: Any, dims: Sequence[BlockDims], names: Container[str] | None = None) -> None:
    _replace_layers(model, dims)


@torch.no_grad()
def build(model: Any, weights_of_blocks: Sequence[Block]) -> Any:
    # Layers that will be replaced are not copied.
    linear = [m for m in model.bert.encoder.modules() if isinstance(m, nn.Linear)]
    slim: Any = bare_copy(model, linear)
    _replace_layers(slim, [weights.dims for weights in weights_of_blocks])
    for layer, weights in zip(slim.bert.encoder.layer, weights_of_blocks, strict=True):
        if (a := weights.attention) is not None:
            p, dense = layer.attention.self, layer.attention.output.dense
            for linear_layer, weight, bias in ((p.query, a.wq, a.bq), (p.key, a.wk, a.bk), (p.value, a.wv, a.bv)):
                _write(linear_layer, weight.flatten(0, 1), None if bias is None else bias.flatten())
            _write(dense, a.wo.permute(1, 0, 2).flatten(1), a.bo)  # [H, d, v] -> [d, H * v]
        if (f := weights.ffn) is not None:
            _write(layer.ffn.intermediate.dense, f.w1, f.b1)
            _write(layer.ffn.output.dense, f.w2, f.b2)
    return slim


def _write(layer: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    """Give a layer these weights; without a bias zeros."""
    layer.weight = parameter(weight)
    layer.bias = parameter(weight.new_zeros(len(weight)) if bias is None else bias)


def with_embedding(
    model: Any, encoders: Sequence[Tensor], decoders: Sequence[Decoder] | None = None, read: Sequence[int] = ()
) -> Any:
    raise UnsupportedModelError(f"cannot narrow the embedding of a BERT: {FROZEN['embed']}")


def keep_blocks(model: Any, indices: Sequence[int]) -> None:
    model.bert.encoder.layer = nn.ModuleList(model.bert.encoder.layer[i] for i in indices)


def make_classifiers(model: Any, classes: int) -> None:
    model.classifier = nn.Linear(model.embed_dim, classes).to(model.bert.pooler.dense.weight)


def keep_classes(model: Any, classes: Sequence[int]) -> None:
    keep_rows(model.classifier, classes)


# -- the forward pass in steps -----------------------------------------------------------------------------------------


@contextmanager
def of_one_size(model: Any) -> Iterator[None]:
    """Take padding from the ids, once; the number of tokens is fixed already."""
    model.explicit = True
    try:
        yield
    finally:
        model.explicit = False


def first_tokens(model: Any, images: Tensor) -> Tensor:
    tokens: Tensor = model.embedded(images)
    return tokens


def answers(model: Any, tokens: Tensor) -> Tensor:
    logits: Tensor = model.head(tokens)
    return logits
