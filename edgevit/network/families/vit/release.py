"""The class of DINOv2's release, which Depth Anything V2 and others have a copy of, as a VisionTransformer."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from edgevit.network.copies import without_values
from edgevit.network.families.vit.backbones import Adopted, check_same, take_weights, tokens_of_blocks
from edgevit.network.families.vit.names import named
from edgevit.network.weights import mlp_ratio


class Dinov2Release(Adopted, VisionTransformer):  # type: ignore[misc]
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
        after = [
            self.norm(tokens) if norm else tokens
            for i, tokens in enumerate(tokens_of_blocks(self, x)[1:])
            if i in chosen
        ]
        patches, grid = [each[:, 1:] for each in after], tuple(self.patch_embed.grid_size)
        if reshape:
            patches = [each.transpose(1, 2).reshape(each.shape[0], -1, *grid) for each in patches]
        of_class = [each[:, 0] for each in after]
        return tuple(zip(patches, of_class, strict=True)) if return_class_token else tuple(patches)

    def forward_features(self, x: Tensor) -> dict[str, Tensor]:
        """The tokens after the last block, before and behind the last norm, by the names of the release."""
        tokens = tokens_of_blocks(self, x)[-1]
        normed = self.norm(tokens)
        return {"x_norm_clstoken": normed[:, 0], "x_norm_patchtokens": normed[:, 1:], "x_prenorm": tokens}

    def forward(self, x: Tensor, is_training: bool = False) -> Any:
        """The class token [B, d] behind the last norm, or with `is_training` all of `forward_features`."""
        features = self.forward_features(x)
        return features if is_training else features["x_norm_clstoken"]


def is_dinov2_release(module: Any) -> bool:
    """Whether a module is of this class, without registers and with FFNs of two layers."""
    if type(module).__name__ != "DinoVisionTransformer" or not hasattr(module, "get_intermediate_layers"):
        return False
    names = named(module.state_dict()).state.keys()  # DINOv3's class of this name has no positions
    return {"pos_embed", "blocks.0.mlp.fc1.weight"} <= names and not {"register_tokens", "head.weight"} & names


def adopted(module: Any) -> Dinov2Release:
    """Convert such a module to a VisionTransformer of the same outputs, for images of the size of its positions.

    Raises:
        UnsupportedModelError: the copy of the class computes something else.
    """
    _, positions, width = module.pos_embed.shape
    patch, names = module.patch_embed.proj.kernel_size[0], named(module.state_dict()).state
    with without_values():
        vit = Dinov2Release(
            img_size=isqrt(positions - 1) * patch, patch_size=patch, embed_dim=width, num_heads=module.num_heads,
            depth=1 + max(int(name.split(".")[1]) for name in names if name.startswith("blocks.")), num_classes=0,
            mlp_ratio=mlp_ratio(len(names["blocks.0.mlp.fc1.weight"]), width),
            qkv_bias="blocks.0.attn.qkv.bias" in names, init_values=1.0 if "blocks.0.ls1.gamma" in names else None,
        )  # fmt: skip
    take_weights(vit, module)

    def tokens(network: Any, image: Tensor) -> list[Tensor]:
        pairs = network.get_intermediate_layers(image, range(len(vit.blocks)), return_class_token=True)
        return [part for pair in pairs for part in pair]

    check_same(module, vit, tokens)
    vit.train(module.training)
    return vit
