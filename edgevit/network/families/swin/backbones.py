"""Swins of transformers inside other networks, such as UPerNet and Mask2Former, as Swins of the same outputs."""

from __future__ import annotations

import sys
from typing import Any

from timm.models.swin_transformer import SwinTransformer
from torch import Tensor

from edgevit.errors import UnsupportedModelError
from edgevit.network.copies import without_values
from edgevit.network.families.swin.conversion import on_tokens
from edgevit.network.families.swin.modules import TokenSwin
from edgevit.network.families.swin.names import named
from edgevit.network.families.vit.backbones import Adopted, check_same
from edgevit.network.weights import misfit

_MODULE = "transformers.models.swin.modeling_swin"


class _Maps(Adopted):
    stages: dict[int, str]  # those after which there is a map: the name of its norm by number, 0 for the patches

    def forward(self: Any, pixel_values: Tensor, **_: Any) -> Any:
        """Compute the maps [B, d, rows, columns]; other arguments, as for outputs of all blocks, are not supported."""
        tokens, maps = self.patch_embed(pixel_values), list[Tensor]()
        for number in range(len(self.layers) + 1):
            if number:
                tokens = self.layers[number - 1](tokens)
            if number in self.stages:
                grid = self.layers[max(number - 1, 0)].windows.grid
                normed = self.hidden_states_norms[self.stages[number]](tokens)
                maps.append(normed.transpose(1, 2).unflatten(2, grid))
        return sys.modules["transformers.modeling_outputs"].BackboneOutput(feature_maps=tuple(maps))

    def forward_with_filtered_kwargs(self: Any, *images: Tensor, **more: Any) -> Any:
        """Compute the maps, as networks of transformers call it."""
        return self(*images, **more)


class _Tokens(Adopted):
    pools: bool  # whether their mean is put out, too

    def forward(
        self: Any,
        pixel_values: Tensor,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> Any:
        """Compute the last tokens [B, N, d] and their mean [B, d].

        Raises:
            UnsupportedModelError: the outputs of all stages are asked for.
        """
        if self.config.output_hidden_states if output_hidden_states is None else output_hidden_states:
            raise UnsupportedModelError(
                "hidden_states of a SwinModel are not given, only its last tokens; read a SwinBackbone's maps"
            )
        tokens = self.last_tokens(pixel_values)
        outputs = sys.modules[_MODULE].SwinModelOutput(
            last_hidden_state=tokens, pooler_output=tokens.mean(1) if self.pools else None
        )
        return outputs if (self.config.return_dict if return_dict is None else return_dict) else outputs.to_tuple()


class SwinMaps(_Maps, TokenSwin):  # type: ignore[misc]
    """A Swin that puts out the maps of transformers' SwinBackbone."""


class SwinTokens(_Tokens, TokenSwin):  # type: ignore[misc]
    """A Swin that puts out the last tokens of transformers' SwinModel."""


def is_transformers_swin(module: Any) -> bool:
    """Whether a module is transformers' SwinBackbone or SwinModel with the usual layers."""
    kind = type(module)
    if kind.__module__ != _MODULE or kind.__name__ not in ("SwinBackbone", "SwinModel"):
        return False
    config: Any = module.config
    return config.hidden_act == "gelu" and config.num_channels == 3 and not config.use_absolute_embeddings


def adopted(module: Any) -> TokenSwin:
    """Convert such a module to a Swin of the same outputs, for images of the size in its configuration.

    Raises:
        UnsupportedModelError: its images do not divide into patches and stages, or it computes something else.
    """
    config, has_maps = module.config, type(module).__name__ == "SwinBackbone"
    rows, columns = size = _pair(config.image_size)
    step = config.patch_size * 2 ** (len(config.depths) - 1)
    if rows % step or columns % step:
        raise UnsupportedModelError(
            f"this {type(module).__name__} is configured for images of {rows} x {columns}, and sides of multiples of "
            f"{step} are needed; give its configuration such an image_size, as your images have"
        )
    with without_values():
        made = SwinTransformer(
            img_size=size, patch_size=config.patch_size, embed_dim=config.embed_dim, depths=config.depths,
            num_heads=config.num_heads, window_size=config.window_size, mlp_ratio=config.mlp_ratio,
            qkv_bias=config.qkv_bias, num_classes=0, always_partition=has_maps,
        )  # fmt: skip
    for block in (block for stage in made.layers for block in stage.blocks):
        if not has_maps and min(block.input_resolution) <= config.window_size:
            block.shift_size = (0, 0)  # along both sides, where timm keeps that along the longer one
    _take_weights(made, module.swin if has_maps else module)
    swin: Any = on_tokens(made, SwinMaps if has_maps else SwinTokens, pads_first=True)
    swin.config = config
    if has_maps:
        swin.stages = {i: name for i, name in enumerate(module.stage_names) if name in module.out_features}
        swin.hidden_states_norms = module.hidden_states_norms
    else:
        swin.pools = module.pooler is not None
    check_same(module, swin, lambda network, image: _tensors(network(image, return_dict=True)))
    converted: TokenSwin = swin.train(module.training)
    return converted


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _take_weights(swin: Any, module: Any) -> None:
    weights = named(module.state_dict()).state
    weights = {name: weights[name] for name in swin.state_dict() if name in weights}
    if (fault := misfit(swin, weights)) is not None:
        raise UnsupportedModelError(
            f"this {type(module).__name__} is not as its class makes it: {fault} (in timm's names); merge adapters "
            "such as LoRA's into its layers, give it before it is quantised or cut, and images at least as large as "
            "its windows"
        )
    swin.load_state_dict(weights, assign=True)
    for block in (block for stage in swin.layers for block in stage.blocks):
        block.norm1.eps = block.norm2.eps = module.config.layer_norm_eps
    swin.norm.eps = module.config.layer_norm_eps


def _tensors(outputs: Any) -> list[Tensor]:
    if hasattr(outputs, "feature_maps"):
        return [*outputs.feature_maps]
    return [outputs.last_hidden_state, *([] if outputs.pooler_output is None else [outputs.pooler_output])]
