"""How BERTs and their weights come from transformers (`families.Interchange`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.errors import CheckpointError
from edgevit.network.families.bert.modules import BertClassifier
from edgevit.network.weights import State, TimmArguments, Weights, mlp_ratio

model_types = ("bert",)

_WORDS = "embeddings.word_embeddings.weight"
_RULES = [
    (r"^(embeddings|encoder|pooler)\.", r"bert.\1."),  # of a BertModel alone
    (r"(\.layer\.\d+)\.(intermediate|output)\.", r"\1.ffn.\2."),
    (r"\.gamma$", ".weight"),  # names of LayerNorms in old files
    (r"\.beta$", ".bias"),
]
_OTHERS = ("cls.", "bert.embeddings.position_ids")  # heads of the pretraining, and a constant


def adopted(module: nn.Module) -> nn.Module:
    return module


def named(state: Mapping[str, Tensor]) -> Weights:
    """Rename weights of transformers to those of `BertClassifier`."""
    renamed: State = {}
    for name, value in state.items():
        for pattern, replacement in _RULES:
            name = re.sub(pattern, replacement, name)
        if not name.startswith(_OTHERS):
            renamed[name] = value.to(torch.float32) if value.is_floating_point() else value
    head = renamed.get("classifier.weight")
    return Weights(renamed, (), 0 if head is None else len(head), "transformers")


def fitted(weights: Weights, module: nn.Module, name: str, *, resample: bool, trained: Any = None) -> Weights:
    return weights


def guessed_name(state: Mapping[str, Tensor]) -> str | None:
    return "bert" if f"bert.{_WORDS}" in state else None


def shape_arguments(state: Mapping[str, Tensor]) -> TimmArguments:
    """The arguments by which a network has the shapes of these weights; of another network's, none."""
    words, places, types = (
        state.get(f"bert.embeddings.{kind}_embeddings.weight") for kind in ("word", "position", "token_type")
    )
    if words is None or places is None or types is None:
        return {}
    numbers = [int(match[1]) for name in state if (match := re.match(r"bert\.encoder\.layer\.(\d+)\.", name))]
    arguments: TimmArguments = {
        "vocab_size": len(words), "embed_dim": words.shape[1], "max_positions": len(places), "token_types": len(types),
        "depth": max(numbers, default=-1) + 1,
    }  # fmt: skip
    neurons = state.get("bert.encoder.layer.0.ffn.intermediate.dense.weight")
    if neurons is not None:
        arguments["mlp_ratio"] = mlp_ratio(len(neurons), words.shape[1])
    return arguments


def guessed_arguments(
    state: Mapping[str, Tensor], network: Any, network_state: Mapping[str, Tensor], stated: Collection[str]
) -> tuple[TimmArguments, str | None]:
    """The arguments by which a network would have the shapes of these weights; those that are `stated` are left out.

    Raises:
        CheckpointError: the number of heads is not stated, which no shape tells.
    """
    if "num_heads" not in stated:
        raise CheckpointError(
            "the number of heads does not follow from the weights of a BERT; keep config.json beside them, or give "
            "--model-arg num_heads=..."
        )
    now, then = shape_arguments(network_state), shape_arguments(state)
    return {key: value for key, value in then.items() if now.get(key) != value and key not in stated}, None


def stated_arguments(module: BertClassifier) -> TimmArguments:
    return {"tokens": module.tokens, "pad_token": module.pad_token, "norm_eps": module.norm_eps,
            "act_layer": module.act_layer}  # fmt: skip


def timm_arguments(module: BertClassifier, depth: int, embed: int) -> TimmArguments:
    layers = len(module.bert.encoder.layer)
    return {} if layers == depth else {"depth": layers}


def plain_loader(module: nn.Module) -> str | None:
    """Return None: timm has no network of texts."""
    return None
