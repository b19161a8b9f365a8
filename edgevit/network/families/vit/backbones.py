"""ViTs of transformers inside other networks, such as Depth Anything, as VisionTransformers that put out the same.

They are backbones, which put out maps after some blocks, and models, which put out the last tokens. Of transformers
only the classes of outputs are needed, which the user's own network has imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.copies import without_values
from edgevit.network.families.vit import rotary
from edgevit.network.families.vit.names import named
from edgevit.network.families.vit.rotary import WithoutPositions
from edgevit.network.families.vit.shapes import REGISTERS
from edgevit.network.weights import misfit, mlp_ratio
from edgevit.records.release import ACTIVATIONS

_MODULES = "transformers.models."
_OUTPUTS = "transformers.modeling_outputs"
_BACKBONES = ("Dinov2Backbone", "Dinov2WithRegistersBackbone", "DINOv3ViTBackbone", "VitPoseBackbone")
# Which have a norm before the first block; their last tokens are those before the last norm.
_CLIPS = ("CLIPVisionModel", "CLIPSegVisionModel", "OwlViTVisionTransformer", "Owlv2VisionTransformer")
_MODELS = (
    "Dinov2Model", "Dinov2WithRegistersModel", "DINOv3ViTModel", "ViTModel", "DPTModel", "SiglipVisionModel", *_CLIPS,
)  # fmt: skip
_WITHOUT_CLASS = ("VitPoseBackbone", "SiglipVisionModel")
_OTHERWISE_POOLED = ("ViTModel", "DPTModel")  # by a layer that timm does not have


class Adopted:
    """A network of timm in place of another program's, called alike, with images [B, 3, H, W] of one size alone."""

    config: Any  # that of the original, which networks around it may read, as the next two

    @property
    def device(self: Any) -> torch.device:
        device: torch.device = self.patch_embed.proj.weight.device
        return device

    @property
    def dtype(self: Any) -> torch.dtype:
        dtype: torch.dtype = self.patch_embed.proj.weight.dtype
        return dtype


def tokens_of_blocks(vit: Any, images: Tensor) -> list[Tensor]:
    """The tokens [B, N, d] before the first block of a VisionTransformer, and after each."""
    tokens = [vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))]
    for block in vit.blocks:
        tokens.append(block(tokens[-1]))
    return tokens


class _Maps(Adopted):
    depths: tuple[int, ...]  # numbers of the blocks, from 1, after which there is a map; 0: before the first one
    normed: tuple[int, ...]  # those of them to which the last norm is applied
    reshapes: bool  # whether maps are [B, d, h, w], of patches alone
    whole: bool  # whether others, [B, N, d], are of all tokens, not of patches alone

    def forward(self: Any, pixel_values: Tensor, **_: Any) -> Any:
        """Compute the maps; other arguments, as for outputs of all blocks, are not supported."""
        after = tokens_of_blocks(self, pixel_values)
        maps = (self.norm(after[i]) if i in self.normed else after[i] for i in self.depths)
        return sys.modules[_OUTPUTS].BackboneOutput(feature_maps=tuple(map(self.as_map, maps)))

    def forward_with_filtered_kwargs(self: Any, *images: Tensor, **more: Any) -> Any:
        """Compute the maps, as networks of transformers call it."""
        return self(*images, **more)

    def as_map(self: Any, tokens: Tensor) -> Tensor:
        patches = tokens if self.whole else tokens[:, self.num_prefix_tokens :]
        if not self.reshapes:
            return patches
        return patches.transpose(1, 2).reshape(patches.shape[0], -1, *self.patch_embed.grid_size)


class _Tokens(Adopted):
    is_normed: bool  # whether the last tokens are put out behind the last norm
    pools: bool  # whether a pooled token is put out: that of the attention pooling, or else the class token

    @property
    def post_layernorm(self: Any) -> nn.Module:
        """The last norm, which an OWL-ViT applies to what this puts out."""
        norm: nn.Module = self.norm
        return norm

    def forward(
        self: Any,
        pixel_values: Tensor,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> Any:
        """Compute the last tokens [B, N, d], the pooled one [B, d], and if asked for the tokens after each block.

        What is not given is as the configuration says.
        """
        all_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        is_named = self.config.return_dict if return_dict is None else return_dict
        after = tokens_of_blocks(self, pixel_values)
        normed, pooled = self.norm(after[-1]), None
        if self.pools:
            pooled = normed[:, 0] if self.attn_pool is None else self.attn_pool(normed)
        outputs = sys.modules[_OUTPUTS].BaseModelOutputWithPooling(
            last_hidden_state=normed if self.is_normed else after[-1],
            pooler_output=pooled,
            hidden_states=tuple(after) if all_states else None,
        )
        return outputs if is_named else outputs.to_tuple()


class FeatureMaps(_Maps, VisionTransformer):  # type: ignore[misc]
    """A VisionTransformer that puts out the feature maps of a backbone of transformers."""


class RotaryFeatureMaps(_Maps, WithoutPositions):
    """The same with rotary embeddings."""


class LastTokens(_Tokens, VisionTransformer):  # type: ignore[misc]
    """A VisionTransformer that puts out the last tokens of a model of transformers."""


class RotaryLastTokens(_Tokens, WithoutPositions):
    """The same with rotary embeddings."""


def is_backbone(module: Any) -> bool:
    """Whether a module is one of these, with FFNs of two layers."""
    kind = type(module)
    if kind.__name__ not in (*_BACKBONES, *_MODELS) or not kind.__module__.startswith(_MODULES):
        return False
    config: Any = module.config
    if kind.__name__.startswith("DINOv3"):
        biases = (config.query_bias == config.value_bias, config.proj_bias, config.mlp_bias)
        return config.hidden_act == "gelu" and not config.use_gated_mlp and all(biases)
    others = getattr(config, "use_swiglu_ffn", False) or getattr(config, "num_experts", 1) > 1
    return config.hidden_act in ACTIVATIONS and not others and not getattr(config, "is_hybrid", False)


def adopted(module: Any) -> VisionTransformer:
    """Convert such a module to a VisionTransformer of the same outputs, for images of the size in its configuration.

    The pooled token of a ViTModel or a DPTModel is left out.

    Raises:
        UnsupportedModelError: it computes something else.
    """
    name, config = type(module).__name__, module.config
    vit: Any
    with without_values():
        if name.startswith("DINOv3"):
            vit = _rotary(RotaryFeatureMaps if name in _BACKBONES else RotaryLastTokens, config)
        else:
            kind = FeatureMaps if name in _BACKBONES else LastTokens
            has_class, registers = name not in _WITHOUT_CLASS, getattr(config, "num_register_tokens", 0)
            pool = "map" if getattr(module, "use_head", False) else "token" if has_class else ""
            vit = made(
                kind, config, config.image_size, class_token=has_class, global_pool=pool, reg_tokens=registers,
                no_embed_class=registers > 0, pre_norm=name in _CLIPS,
            )  # fmt: skip
            if name == "VitPoseBackbone":
                vit.patch_embed.proj.padding = module.embeddings.patch_embeddings.projection.padding
    take_weights(vit, module)
    if name in _BACKBONES:
        set_depths(vit, module)
        vit.reshapes = bool(getattr(config, "reshape_hidden_states", False))
        vit.whole = name.startswith("Dinov2") and not vit.reshapes
        if name == "DINOv3ViTBackbone":  # whose last map is always normalised
            vit.normed = (*vit.normed, len(vit.blocks))
    else:
        vit.is_normed = name not in _CLIPS
        vit.pools = name not in _OTHERWISE_POOLED and bool(vit.global_pool)
    pooled = getattr(vit, "pools", False)
    check_same(module, vit, lambda network, image: _tensors(network(image, return_dict=True), pooled=pooled))
    vit.train(module.training)
    return vit


def made(kind: Callable[..., Any], config: Any, size: Any, *, depth: int | None = None, **arguments: Any) -> Any:
    """A VisionTransformer of this class with the sizes in a configuration of transformers, for images of this size."""
    ratio = getattr(config, "mlp_ratio", None) or mlp_ratio(config.intermediate_size, config.hidden_size)
    return kind(
        img_size=size, patch_size=config.patch_size, embed_dim=config.hidden_size,
        depth=depth or config.num_hidden_layers, num_heads=config.num_attention_heads,
        qkv_bias=getattr(config, "qkv_bias", True), mlp_ratio=ratio, act_layer=ACTIVATIONS[config.hidden_act],
        init_values=1.0 if hasattr(config, "layerscale_value") else None, num_classes=0, **arguments,
    )  # fmt: skip


def _rotary(kind: type[WithoutPositions], config: Any) -> Any:
    eva = timm.create_model(
        "vit_small_patch16_dinov3_qkvb" if config.query_bias else "vit_small_patch16_dinov3",
        img_size=config.image_size, patch_size=config.patch_size, embed_dim=config.hidden_size,
        depth=config.num_hidden_layers, num_heads=config.num_attention_heads, num_classes=0,
        mlp_ratio=mlp_ratio(config.intermediate_size, config.hidden_size), num_reg_tokens=config.num_register_tokens,
        rope_temperature=config.rope_theta, dynamic_img_size=False,
    )  # fmt: skip
    return rotary.adopted(eva, kind)


def take_weights(vit: Any, module: Any) -> None:
    """Give a VisionTransformer the weights of a module whose names are those of another program, in place.

    Raises:
        UnsupportedModelError: some are missing, as layers of the module were replaced, or have other shapes.
    """
    weights = named({name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}).state
    if vit.pos_embed is not None and vit.pos_embed.shape[1] < weights["pos_embed"].shape[1]:
        # The position of the class token is added to it, or where there is none to every patch.
        first, weights["pos_embed"] = weights["pos_embed"][:, :1], weights["pos_embed"][:, 1:]
        adding = "pos_embed" if vit.cls_token is None else "cls_token"
        weights[adding] = weights[adding] + first
    if REGISTERS in weights:
        weights["reg_token"] = weights[REGISTERS]
    weights = {name: weights[name] for name in vit.state_dict() if name in weights}
    if (fault := misfit(vit, weights)) is not None:
        raise UnsupportedModelError(
            f"this {type(module).__name__} is not as its class makes it: {fault} (in timm's names); merge adapters "
            "such as LoRA's into its layers, and give it before it is quantised or cut"
        )
    vit.load_state_dict(weights, assign=True)
    if (config := getattr(module, "config", None)) is not None:
        vit.config = config
        for part in vit.modules():
            if isinstance(part, nn.LayerNorm):
                part.eps = config.layer_norm_eps


def set_depths(vit: Any, module: Any) -> None:
    """Have a VisionTransformer put out maps after the blocks after which a backbone of transformers does."""
    vit.depths = tuple(i for i, stage in enumerate(module.stage_names) if stage in module.out_features)
    vit.normed = vit.depths if getattr(module.config, "apply_layernorm", True) else ()


def _tensors(outputs: Any, *, pooled: bool) -> Sequence[Tensor]:
    if hasattr(outputs, "feature_maps"):
        maps: Sequence[Tensor] = outputs.feature_maps
        return maps
    return [outputs.last_hidden_state, *([outputs.pooler_output] if pooled else [])]


@torch.no_grad()
def check_same(module: Any, vit: Any, run: Callable[[Any, Tensor], Sequence[Tensor]]) -> None:
    """Compare what both compute of a random image, the module in fp32, as which the converted one has its weights.

    Raises:
        UnsupportedModelError: they differ, or are not finite.
    """
    weight, was_training = vit.patch_embed.proj.weight, module.training
    image = torch.rand(1, 3, *vit.patch_embed.img_size, generator=torch.Generator().manual_seed(0)).to(weight)
    expected, actual = (run(network.eval(), image) for network in (module.float(), vit))
    module.train(was_training)
    for one, other in zip(expected, actual, strict=True):
        if not one.isfinite().all():
            raise UnsupportedModelError(
                f"this {type(module).__name__} puts out values that are not finite; check its weights"
            )
        if one.shape != other.shape or not torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max())):
            raise UnsupportedModelError(
                f"this {type(module).__name__} computes something else than the network of this name that edgevit "
                "reads; merge adapters such as LoRA's into its layers, or give timm's network of the same function"
            )
