"""Weights of our networks under the names that others give them."""

from __future__ import annotations

import re

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
