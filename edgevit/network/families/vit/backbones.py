"""DINOv2 inside other networks, such as Depth Anything, as a VisionTransformer that puts out the same.

It is transformers' Dinov2Backbone, or the class of DINOv2's release, which Depth Anything V2 and others have a copy of.
Of transformers only the class of the output is needed, which the user's own network has imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import isqrt
from typing import Any, TypeVar

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.copies import without_values
from edgevit.network.families.vit.names import named
from edgevit.network.weights import mlp_ratio

_MODULES = "transformers.models.dinov2."
_OUTPUTS = "transformers.modeling_outputs"
B = TypeVar("B", bound="Dinov2Backbone")


class Dinov2Backbone(VisionTransformer):  # type: ignore[misc]
    """A VisionTransformer that puts out the feature maps of transformers' Dinov2Backbone."""

    depths: tuple[int, ...]  # numbers of the blocks, from 1, after which there is a map; 0: before the first one
    normalises: bool  # whether the last norm is applied to each of them
    reshapes: bool  # whether they are [B, d, h, w], without the class token, and not [B, N, d]

    def forward(self, pixel_values: Tensor, **_: Any) -> Any:
        """Compute the maps of images [B, 3, H, W]; other arguments, as for outputs of all blocks, are not supported."""
        tokens = self.norm_pre(self.patch_drop(self._pos_embed(self.patch_embed(pixel_values))))
        after = {0: tokens}
        for number, block in enumerate(self.blocks, 1):
            after[number] = tokens = block(tokens)
        maps = tuple(self._as_map(after[depth]) for depth in self.depths)
        return sys.modules[_OUTPUTS].BackboneOutput(feature_maps=maps)

    def forward_with_filtered_kwargs(self, *images: Tensor, **more: Any) -> Any:
        """Compute the maps, as networks of transformers call it."""
        return self(*images, **more)

    def _as_map(self, tokens: Tensor) -> Any:
        tokens = self.norm(tokens) if self.normalises else tokens
        if not self.reshapes:
            return tokens
        patches = tokens[:, self.num_prefix_tokens :]
        return patches.transpose(1, 2).reshape(patches.shape[0], -1, *self.patch_embed.grid_size)


class Dinov2Release(VisionTransformer):  # type: ignore[misc]
    """A VisionTransformer that is called as DINOv2's own class, for images of one size."""

    def get_intermediate_layers(
        self,
        x: Tensor,
        n: int | Sequence[int] = 1,
        reshape: bool = False,
        return_class_token: bool = False,
        norm: bool = True,
    ) -> tuple[Any, ...]:
        """The patches [B, N, d] or [B, d, h, w] after blocks `n`, from 0, or the last n; with class tokens [B, d]."""
        last = len(self.blocks)
        chosen = range(last - n, last) if isinstance(n, int) else n
        tokens, after = self._first(x), list[Tensor]()
        for number, block in enumerate(self.blocks):
            tokens = block(tokens)
            if number in chosen:
                after.append(self.norm(tokens) if norm else tokens)
        patches, grid = [each[:, 1:] for each in after], tuple(self.patch_embed.grid_size)
        if reshape:
            patches = [each.transpose(1, 2).reshape(each.shape[0], -1, *grid) for each in patches]
        of_class = [each[:, 0] for each in after]
        return tuple(zip(patches, of_class, strict=True)) if return_class_token else tuple(patches)

    def forward_features(self, x: Tensor) -> dict[str, Tensor]:
        """The tokens after the last block, before and behind the last norm, by the names of the release."""
        tokens = self._first(x)
        for block in self.blocks:
            tokens = block(tokens)
        normed = self.norm(tokens)
        return {"x_norm_clstoken": normed[:, 0], "x_norm_patchtokens": normed[:, 1:], "x_prenorm": tokens}

    def forward(self, x: Tensor, is_training: bool = False) -> Any:
        """The class token [B, d] behind the last norm, or with `is_training` all of `forward_features`."""
        features = self.forward_features(x)
        return features if is_training else features["x_norm_clstoken"]

    def _first(self, x: Tensor) -> Any:
        return self.norm_pre(self.patch_drop(self._pos_embed(self.patch_embed(x))))


def is_backbone(module: Any) -> bool:
    """Whether a module is one of these, without registers and with FFNs of two layers."""
    kind = type(module)
    if kind.__name__ == "Dinov2Backbone" and kind.__module__.startswith(_MODULES):
        return not module.config.use_swiglu_ffn and module.config.hidden_act == "gelu"
    return _is_release(module)


def _is_release(module: Any) -> bool:
    if type(module).__name__ != "DinoVisionTransformer" or not hasattr(module, "get_intermediate_layers"):
        return False
    names = named(module.state_dict()).state.keys()  # DINOv3's class of this name has no positions
    return {"pos_embed", "blocks.0.mlp.fc1.weight"} <= names and not {"register_tokens", "head.weight"} & names


def adopted(module: Any) -> VisionTransformer:
    """Convert such a module to a VisionTransformer of the same outputs, for images of the size of its positions.

    Raises:
        UnsupportedModelError: the copy of the release's class in it computes something else.
    """
    vit = _of_release(module) if _is_release(module) else _of_transformers(module)
    vit.train(module.training)
    return vit


def _fill(vit: Any, module: nn.Module) -> None:
    """Give a VisionTransformer the weights of a module whose names are those of another program, in place."""
    weights = named(module.state_dict()).state
    vit.load_state_dict({name: weights[name] for name in vit.state_dict()}, assign=True)


@torch.no_grad()
def _of_release(module: Any) -> Dinov2Release:
    _, positions, width = module.pos_embed.shape
    weight, patch = module.patch_embed.proj.weight, module.patch_embed.proj.kernel_size[0]
    names, side = named(module.state_dict()).state, isqrt(positions - 1)
    with without_values():
        vit = Dinov2Release(
            img_size=side * patch, patch_size=patch, embed_dim=width, num_heads=module.num_heads, num_classes=0,
            depth=1 + max(int(name.split(".")[1]) for name in names if name.startswith("blocks.")),
            mlp_ratio=mlp_ratio(len(names["blocks.0.mlp.fc1.weight"]), width),
            qkv_bias="blocks.0.attn.qkv.bias" in names, init_values=1.0 if "blocks.0.ls1.gamma" in names else None,
        )  # fmt: skip
    _fill(vit, module)
    was_training = module.training
    image = torch.rand(1, weight.shape[1], side * patch, side * patch, generator=torch.Generator().manual_seed(0))
    expected, actual = (
        network.eval().get_intermediate_layers(image.to(weight), range(len(vit.blocks)), return_class_token=True)
        for network in (module, vit)
    )
    module.train(was_training)
    for pair in zip(expected, actual, strict=True):
        for one, other in zip(*pair, strict=True):
            if not torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max())):
                raise UnsupportedModelError(
                    f"this {type(module).__name__} computes something else than DINOv2 without registers does, which "
                    "edgevit cannot read; give timm's network of the same function"
                )
    return vit


def _of_transformers(module: Any) -> Dinov2Backbone:
    config = module.config
    with without_values():
        vit = made(Dinov2Backbone, config, config.image_size, config.num_hidden_layers)
    put_out(vit, module)
    vit.reshapes = bool(config.reshape_hidden_states)
    return vit


def made(kind: type[B], config: Any, size: int, depth: int) -> B:
    """A backbone of this class with the sizes in a configuration of transformers, for images of this size."""
    return kind(
        img_size=size, patch_size=config.patch_size, embed_dim=config.hidden_size, depth=depth,
        num_heads=config.num_attention_heads, qkv_bias=config.qkv_bias, mlp_ratio=config.mlp_ratio, init_values=1.0,
        num_classes=0,
    )  # fmt: skip


def put_out(vit: Dinov2Backbone, module: Any) -> None:
    """Give a backbone the weights of one of transformers, and have it put out the same maps."""
    _fill(vit, module)
    for part in vit.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = module.config.layer_norm_eps
    vit.depths = tuple(i for i, stage in enumerate(module.stage_names) if stage in module.out_features)
    vit.normalises = bool(module.config.apply_layernorm)
