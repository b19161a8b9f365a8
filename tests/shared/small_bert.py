"""A small BERT as transformers writes one, and texts of four classes that it can learn."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from edgevit.network.families.bert.modules import BertClassifier
from edgevit.network.network import Network
from edgevit.records.tokenizer import store_tokenizer, text_encoder, tokenizer_text

WORDS = {
    "cooking": ("bake", "stir", "salt", "oven", "soup"),
    "music": ("chord", "drum", "tune", "choir", "melody"),
    "sailing": ("mast", "wind", "harbour", "rope", "wave"),
    "space": ("orbit", "moon", "rocket", "comet", "launch"),
}
COMMON = ("the", "a", "of", "and", "in", "with", "we", "it", "on", "for")
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *COMMON, *(w for words in WORDS.values() for w in words))
TOKENS = 16
ARGS: dict[str, Any] = {
    "vocab_size": len(VOCABULARY), "embed_dim": 64, "depth": 2, "num_heads": 4, "mlp_ratio": 2,
    "max_positions": TOKENS, "num_classes": 4,
}  # fmt: skip


def some_texts(name: str, count: int) -> list[str]:
    """Sentences of 4 to 14 words, a third of them of the class."""
    draw = random.Random(name)
    return [
        " ".join(draw.choice(WORDS[name] if draw.random() < 0.35 else COMMON) for _ in range(draw.randint(4, 14)))
        for _ in range(count)
    ]


def write_texts(folder: Path, count: int = 40) -> Path:
    """Write a folder of class folders of .txt files."""
    for name in WORDS:
        (folder / name).mkdir(parents=True)
        for i, text in enumerate(some_texts(name, count)):
            (folder / name / f"{i:03}.txt").write_text(text)
    return folder


def some_ids() -> Tensor:
    """Ids of three texts [3, N]: of all tokens, of nine and of three."""
    ids = torch.randint(1, len(VOCABULARY), (3, TOKENS), generator=torch.Generator().manual_seed(1))
    ids[1, 9:] = ids[2, 3:] = 0
    return ids


def small_bert(**args: Any) -> Network:
    """A BERT with random weights, biases included."""
    torch.manual_seed(0)
    network = Network(BertClassifier(**{**ARGS, **args}).eval())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return network


def written_names(network: Network) -> dict[str, Tensor]:
    """The weights as transformers names them."""
    return {name.replace(".ffn.", "."): value.clone() for name, value in network.state_dict().items()}


def write_release(folder: Path, network: Network, **config: Any) -> Path:
    """Write a folder as `save_pretrained` of transformers does, with vocab.txt."""
    folder.mkdir(parents=True)
    save_file(written_names(network), folder / "model.safetensors")
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCABULARY))
    stated = {
        "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "max_position_embeddings": TOKENS, "pad_token_id": 0, "layer_norm_eps": 1e-12,
        "hidden_act": "gelu", "id2label": {str(i): name for i, name in enumerate(WORDS)},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(stated | config))
    return folder


def learnt_release(folder: Path) -> Path:
    """The same of a BERT that has learnt the four classes, in a second."""
    write_release(folder, small_bert())
    encode = text_encoder({"input_size": [TOKENS], "tokenizer": store_tokenizer(tokenizer_text(folder) or "")})
    network = small_bert()
    rows = [(encode(text), label) for label, name in enumerate(WORDS) for text in some_texts(name, 40)]
    ids, labels = torch.tensor([row for row, _ in rows]), torch.tensor([label for _, label in rows])
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    network.train()
    for _ in range(10):
        for batch in torch.randperm(len(ids)).split(32):
            torch.nn.functional.cross_entropy(network(ids[batch]), labels[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
    save_file(written_names(network), folder / "model.safetensors")
    return folder
