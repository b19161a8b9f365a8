"""An example of a family: a ViT that takes pixels from 0 to 255 and normalises them itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from edgevit.network.anatomy import Block, Decoder
from edgevit.network.families import vit
from edgevit.network.weights import Weights


class FromPixels(nn.Module):
    """The network, which would be in your own package."""

    def __init__(self, inner: nn.Module, mean: float = 127.5, std: float = 127.5) -> None:
        super().__init__()
        self.inner, self.mean, self.std = inner, mean, std

    def normalised(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std

    def forward(self, images: Tensor) -> Any:
        return self.inner(self.normalised(images))


def _delegated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function of the ViT family to the inner network."""
    return lambda model, *arguments: function(model.inner, *arguments)


def matches(model: nn.Module) -> bool:
    return isinstance(model, FromPixels) and vit.matches(model.inner)


def adopted(model: FromPixels) -> nn.Module:
    return FromPixels(vit.adopted(model.inner), model.mean, model.std)


# Functions that change the structure wrap the result again.
def build(model: FromPixels, blocks: Sequence[Block]) -> nn.Module:
    return FromPixels(vit.build(model.inner, blocks), model.mean, model.std)


def with_embedding(model: FromPixels, encode: Tensor, decoders: Sequence[Decoder] | None = None) -> nn.Module:
    return FromPixels(vit.with_embedding(model.inner, encode, decoders), model.mean, model.std)


# The forward pass in steps begins with the new step.
def first_tokens(model: FromPixels, images: Tensor) -> Tensor:
    return vit.first_tokens(model.inner, model.normalised(images))


def plain_loader(model: nn.Module) -> None:
    """Return None: timm alone cannot build this network."""


# Files of weights belong to the inner network.
def fitted(weights: Weights, model: FromPixels, name: str, *, resample: bool, trained: Any = None) -> Weights:
    return vit.fitted(weights, model.inner, name, resample=resample, trained=trained)


def guessed_arguments(
    state: Mapping[str, Tensor], model: FromPixels, model_state: Mapping[str, Tensor], stated: Collection[str]
) -> tuple[dict[str, Any], str | None]:
    return vit.guessed_arguments(state, model.inner, model_state, stated)


# Everything else is delegated to the inner network.
named, unpack, pack, guessed_name = vit.named, vit.unpack, vit.pack, vit.guessed_name
check, sites, read, read_block, geometry, input_size, classifiers = map(
    _delegated, (vit.check, vit.sites, vit.read, vit.read_block, vit.geometry, vit.input_size, vit.classifiers)
)
resize, keep_blocks, keep_classes, arguments = map(
    _delegated, (vit.resize, vit.keep_blocks, vit.keep_classes, vit.arguments)
)
has_classifier, make_classifiers, weighing, reads_mean, of_one_size = map(
    _delegated, (vit.has_classifier, vit.make_classifiers, vit.weighing, vit.reads_mean, vit.of_one_size)
)
layers, attention_inputs, projections, attention_outputs, ffn_outputs = map(
    _delegated, (vit.layers, vit.attention_inputs, vit.projections, vit.attention_outputs, vit.ffn_outputs)
)
token_norms, final_tokens, answers, token_scores, branches, residual_scales = map(
    _delegated, (vit.token_norms, vit.final_tokens, vit.answers, vit.token_scores, vit.branches, vit.residual_scales)
)
