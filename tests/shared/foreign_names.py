"""Weights of our networks under the names that others give them."""

from __future__ import annotations

import re

import torch
from torch import Tensor


def hugging_face(state: dict[str, Tensor], prefix: str, *, modules: bool = False) -> dict[str, Tensor]:
    """What transformers calls the weights of a timm ViT: in files, or as `modules` of transformers 5 are called."""
    dinov2 = prefix.startswith("dinov2")
    block = {
        "attn.proj": "attention.o_proj" if modules else "attention.output.dense",
        "ls1.gamma": "layer_scale1.lambda1",
        "ls2.gamma": "layer_scale2.lambda1",
    }
    if not dinov2:
        block |= {"norm1": "layernorm_before", "norm2": "layernorm_after"}
        block |= {} if modules else {"mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}
    outside = {
        "cls_token": "embeddings.cls_token",
        "dist_token": "embeddings.distillation_token",
        "mask_token": "embeddings.mask_token",
        "register_tokens": "embeddings.register_tokens",
        "pos_embed": "embeddings.position_embeddings",
        "patch_embed.proj": "embeddings.patch_embeddings.projection",
        "norm": "layernorm",
    }
    queries = ("q_proj", "k_proj", "v_proj") if modules else ("attention.query", "attention.key", "attention.value")
    layers = "layers" if modules and not dinov2 else "encoder.layer"
    found = {}
    for name, value in state.items():
        module, _, kind = name.rpartition(".")
        if name.startswith(("head.", "head_dist.")):
            classifiers = {"head": "classifier", "head_dist": "distillation_classifier"}
            if "head_dist.weight" in state:
                classifiers["head"] = "cls_classifier"
            found[f"{classifiers[module]}.{kind}"] = value
        elif inside := re.fullmatch(r"blocks\.(\d+)\.(.*)", name):
            number, inner = inside.groups()
            if inner.startswith("attn.qkv"):
                for query, rows in zip(queries, value.chunk(3), strict=True):
                    found[f"{prefix}{layers}.{number}.attention.{query}.{kind}"] = rows
            elif inner in block:
                found[f"{prefix}{layers}.{number}.{block[inner]}"] = value
            else:
                part = inner.rpartition(".")[0]
                found[f"{prefix}{layers}.{number}.{block.get(part, part)}.{kind}"] = value
        else:
            found[prefix + (outside[name] if name in outside else f"{outside[module]}.{kind}")] = value
    return found


def hugging_face_tower(state: dict[str, Tensor], prefix: str = "vision_model.") -> dict[str, Tensor]:
    """What transformers calls the weights of the image tower of a CLIP or a SigLIP, of a timm ViT."""
    names = [
        (r"^cls_token$", "embeddings.class_embedding"), (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
        (r"^pos_embed$", "embeddings.position_embedding.weight"), (r"^norm_pre\.", "pre_layrnorm."),
        (r"^norm\.", "post_layernorm."), (r"^blocks\.(\d+)\.", r"encoder.layers.\1."),
        (r"\.norm([12])\.", r".layer_norm\1."), (r"\.attn\.proj\.", ".self_attn.out_proj."),
        (r"^attn_pool\.latent$", "head.probe"), (r"^attn_pool\.proj\.", "head.attention.out_proj."),
        (r"^attn_pool\.norm\.", "head.layernorm."), (r"^attn_pool\.mlp\.", "head.mlp."),
    ]  # fmt: skip
    renamed = {}
    for name, value in state.items():
        if name == "cls_token":
            value = value.flatten()
        elif name == "pos_embed":
            value = value[0]
        for pattern, replacement in names:
            name = re.sub(pattern, replacement, name)
        if ".attn.qkv." in name:
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                renamed[prefix + name.replace(".attn.qkv.", f".self_attn.{part}_proj.")] = rows
        elif name.startswith("attn_pool.q."):
            both = torch.cat([value, state[name.replace(".q.", ".kv.")]])
            renamed[prefix + name.replace("attn_pool.q.", "head.attention.in_proj_")] = both
        elif not name.startswith("attn_pool.kv."):
            renamed[prefix + name] = value
    return renamed


def torchvision(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What torchvision calls the weights of a timm ViT."""
    names = [
        (r"^cls_token$", "class_token"), (r"^patch_embed\.proj\.", "conv_proj."),
        (r"^pos_embed$", "encoder.pos_embedding"),
        (r"^norm\.", "encoder.ln."), (r"^head\.", "heads.head."), (r"\.norm([12])\.", r".ln_\1."),
        (r"\.attn\.qkv\.", ".self_attention.in_proj_"), (r"\.attn\.proj\.", ".self_attention.out_proj."),
        (r"\.mlp\.fc1\.", ".mlp.0."), (r"\.mlp\.fc2\.", ".mlp.3."),
        (r"^blocks\.(\d+)\.", r"encoder.layers.encoder_layer_\1."),
    ]  # fmt: skip
    renamed = {}
    for name, value in state.items():
        for pattern, replacement in names:
            name = re.sub(pattern, replacement, name)
        renamed[name] = value
    return renamed


def microsoft_swin(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What Microsoft's release calls the weights of a timm Swin: tokens are merged where a stage ends."""
    found = {}
    for name, value in state.items():
        if ".downsample." in name:
            name = re.sub(r"layers\.(\d+)", lambda match: f"layers.{int(match[1]) - 1}", name)
        found[name.replace("head.fc.", "head.")] = value
    return found


def mmdetection_swin(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What mmdetection calls the weights of a timm Swin in a detector, beside others of that detector.

    Built from the module's own functions: unfold gives the four merged tokens channel by channel.
    """
    names = {
        "layers.": "stages.", "attn.": "attn.w_msa.", "mlp.fc1": "ffn.layers.0.0", "mlp.fc2": "ffn.layers.1",
        "patch_embed.proj.": "patch_embed.projection.",
    }  # fmt: skip
    found = {}
    for name, value in microsoft_swin(state).items():
        if ".downsample." in name:
            width = value.shape[-1] // 4
            tokens = torch.arange(4 * width).reshape(2, 2, width)  # [column, row, channel], as timm joins them
            order = torch.nn.functional.unfold(tokens.permute(2, 1, 0)[None].float(), 2).flatten().long()
            value = value[..., order]
        for own_name, other in names.items():
            name = name.replace(own_name, other)
        found["backbone." + re.sub(r"^norm\.", "norm2.", name)] = value
    found |= {"backbone.norm1.weight": torch.zeros(3), "backbone.norm1.bias": torch.zeros(3)}
    return found | {"neck.lateral_convs.0.conv.weight": torch.zeros(1), "rpn_head.rpn_conv.weight": torch.zeros(1)}


def hugging_face_swin(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What transformers calls the weights of a timm Swin, whose tokens it merges where a stage ends."""
    names = [
        (r"^patch_embed\.proj\.", "embeddings.patch_embeddings.projection."),
        (r"^patch_embed\.norm\.", "embeddings.norm."), (r"^norm\.", "layernorm."), (r"^layers\.", "encoder.layers."),
        (r"\.norm1\.", ".layernorm_before."), (r"\.norm2\.", ".layernorm_after."),
        (r"\.attn\.proj\.", ".attention.output.dense."), (r"\.attn\.", ".attention.self."),
        (r"\.mlp\.fc1\.", ".intermediate.dense."), (r"\.mlp\.fc2\.", ".output.dense."),
    ]  # fmt: skip
    found = {}
    for name, value in state.items():
        if name.startswith("head.fc."):
            found[name.replace("head.fc", "classifier")] = value
            continue
        if ".downsample." in name:
            name = re.sub(r"layers\.(\d+)", lambda match: f"layers.{int(match[1]) - 1}", name)
        for pattern, replacement in names:
            name = re.sub(pattern, replacement, name)
        if ".qkv." in name:
            for part, rows in zip(("query", "key", "value"), value.chunk(3), strict=True):
                found["swin." + name.replace("qkv", part)] = rows
        else:
            found["swin." + name] = value
    return found
