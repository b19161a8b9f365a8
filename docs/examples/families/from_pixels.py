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

    def forward_features(self, images: Tensor) -> Any:
        return self.inner.forward_features(self.normalised(images))  # type: ignore[operator]

    def forward(self, images: Tensor) -> Any:
        return self.inner(self.normalised(images))

    def around(self, inner: nn.Module) -> FromPixels:
        """The same step before another network."""
        return FromPixels(inner, self.mean, self.std)


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function of the ViT family to the inner network."""
    return lambda model, *arguments: function(model.inner, *arguments)


def matches(model: nn.Module) -> bool:
    return isinstance(model, FromPixels) and vit.matches(model.inner)


# The structure is that of the inner network: its blocks, its first and last layers, and its sizes.
check, blocks, ends, geometry = map(_inner, (vit.check, vit.blocks, vit.ends, vit.geometry))


# A copy of the inner network gets the new step again.
def build(model: Any, weights: Sequence[Block]) -> nn.Module:
    return model.around(vit.build(model.inner, weights))


def with_embedding(
    model: Any, encoders: Sequence[Tensor], decoders: Sequence[Decoder] | None = None, read: Sequence[int] = ()
) -> nn.Module:
    return model.around(vit.with_embedding(model.inner, encoders, decoders, read))


# Changes in place are made in the inner network.
resize, keep_blocks = map(_inner, (vit.resize, vit.keep_blocks))
make_classifiers, keep_classes = map(_inner, (vit.make_classifiers, vit.keep_classes))


# The forward pass in steps begins with the new step, and continues in the inner network.
def first_tokens(model: Any, images: Tensor) -> Tensor:
    return vit.first_tokens(model.inner, model.normalised(images))


answers, of_one_size = map(_inner, (vit.answers, vit.of_one_size))


class _Interchange:
    """Files contain the weights of the inner network, under its names."""

    model_types = ()  # transformers has no such network
    named = staticmethod(vit.interchange.named)
    shape_arguments = staticmethod(vit.interchange.shape_arguments)
    guessed_name = staticmethod(vit.interchange.guessed_name)
    stated_arguments = staticmethod(_inner(vit.interchange.stated_arguments))
    timm_arguments = staticmethod(_inner(vit.interchange.timm_arguments))

    def adopted(self, model: Any) -> nn.Module:
        inner = vit.interchange.adopted(model.inner)
        return model if inner is model.inner else model.around(inner)

    def fitted(self, weights: Weights, model: Any, name: str, *, resample: bool, trained: Any = None) -> Weights:
        return vit.interchange.fitted(weights, model.inner, name, resample=resample, trained=trained)

    def guessed_arguments(
        self, state: Mapping[str, Tensor], model: Any, model_state: Mapping[str, Tensor], stated: Collection[str]
    ) -> tuple[dict[str, Any], str | None]:
        return vit.interchange.guessed_arguments(state, model.inner, model_state, stated)

    def plain_loader(self, model: Any) -> None:
        """Return None: timm alone cannot build this network."""


interchange = _Interchange()
