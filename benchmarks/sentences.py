"""Sentences of ten topics, and a small BERT that knows them: texts in place of 20 Newsgroups, without a download.

A text is two to four sentences of a plain grammar. Half of its nouns and verbs are of its topic, and the others of all
topics, so that no single word decides. The same seed gives the same texts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOPICS: dict[str, tuple[str, str]] = {  # nouns, and verbs in their plain form
    "astronomy": ("comet orbit telescope planet moon galaxy meteor eclipse", "observe orbit align shine"),
    "baking": ("oven dough flour crust yeast sugar butter tray", "bake knead rise whisk"),
    "chess": ("pawn rook bishop opening gambit board clock queen", "castle capture sacrifice promote"),
    "farming": ("tractor barn harvest wheat plough cattle fence seed", "sow reap graze irrigate"),
    "law": ("judge court contract jury verdict clause lawyer appeal", "sue testify rule settle"),
    "medicine": ("doctor fever nurse dose clinic vaccine wound surgeon", "heal treat diagnose prescribe"),
    "music": ("chord drum choir melody violin concert rhythm tune", "sing strum compose rehearse"),
    "sailing": ("mast anchor harbour rudder sail deck tide captain", "steer moor drift navigate"),
    "software": ("compiler server bug kernel driver disk window file", "compile crash install debug"),
    "trains": ("railway carriage platform signal engine ticket tunnel driver", "depart brake shunt arrive"),
}
_GRAMMAR = (
    "the {n} of the {n} will {v}", "we {v} a {n} near the {n}", "does your {n} {v} when the {n} is new",
    "i think that the {n} should not {v}", "there is a {n} on every {n}", "they {v} and {v} before the {n}",
)  # fmt: skip
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
OWN_SHARE = 0.5  # of the words that are of the topic
LR = 2e-3


def _text(topic: str, draw: random.Random) -> str:
    def word(kind: int) -> str:
        chosen = topic if draw.random() < OWN_SHARE else draw.choice(list(TOPICS))
        return draw.choice(TOPICS[chosen][kind].split())

    def sentence() -> str:
        parts = draw.choice(_GRAMMAR).split()
        return " ".join({"{n}": word(0), "{v}": word(1)}.get(part, part) for part in parts)

    return " . ".join(sentence() for _ in range(draw.randint(2, 4)))


def write_sentences(folder: Path, count: int, *, topics: Sequence[str] = tuple(TOPICS), seed: int = 0) -> Path:
    """Write `train/` and `test/` of class folders, with `count` and a quarter as many texts of each topic."""
    for part, number in (("train", count), ("test", max(count // 4, 1))):
        for topic in topics:
            draw, of_class = random.Random(f"{seed}/{part}/{topic}"), folder / part / topic
            of_class.mkdir(parents=True, exist_ok=True)
            for i in range(number):
                (of_class / f"{i:04}.txt").write_text(_text(topic, draw))
    return folder


def vocabulary() -> list[str]:
    words = {word for pattern in _GRAMMAR for word in pattern.split() if word[0] != "{"}
    words |= {word for pair in TOPICS.values() for of_kind in pair for word in of_kind.split()}
    return [*SPECIAL, ".", *sorted(words)]


def train_bert(
    data: Path, out: Path, *, width: int = 128, depth: int = 4, tokens: int = 48, epochs: int = 8, seed: int = 0
) -> float:
    """Train a BERT on all topics of `data` and write it as transformers would; return its accuracy on the test part."""
    import torch
    from safetensors.torch import save_file

    from edgevit.data.task import open_task
    from edgevit.network.families.bert.modules import BertClassifier
    from edgevit.network.opening import open_network
    from edgevit.records.model_folder import ModelFolder

    topics, words, heads = sorted(TOPICS), vocabulary(), width // 32
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads, "intermediate_size": 4 * width,
        "max_position_embeddings": tokens, "pad_token_id": 0, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
    }  # fmt: skip
    module = BertClassifier(
        vocab_size=len(words), embed_dim=width, depth=depth, num_heads=heads, max_positions=tokens,
        num_classes=len(topics),
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    (out / "config.json").write_text(
        json.dumps({"model_type": "bert", **sizes, "id2label": {str(i): topic for i, topic in enumerate(topics)}})
    )

    def write() -> None:
        state = {name.replace(".ffn.", "."): value.contiguous() for name, value in module.state_dict().items()}
        save_file(state, ModelFolder(out).weights_file)

    write()
    preprocessing = open_network(out).preprocessing
    task = open_task(data, None, preprocessing=preprocessing, base_outputs=len(topics), base_names=topics)
    ids, labels = next(task.train.batches(len(task.train)))
    optimizer = torch.optim.AdamW(module.parameters(), lr=LR)
    steps = epochs * len(torch.split(ids, 64))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=steps)
    module.train()
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(ids)), 64):
            torch.autograd.backward(torch.nn.functional.cross_entropy(module(ids[batch]), labels[batch]))
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    module.eval()
    write()
    right = 0
    with torch.inference_mode():
        for ids, labels in task.test.batches(64):
            right += int((module(ids).argmax(1) == labels).sum())
    return right / len(task.test)
