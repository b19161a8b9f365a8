"""BERT's forward pass, against the published equations written out without modules, and transformers where it is."""

from __future__ import annotations

import math

import pytest
import timm
import torch
from small_bert import ARGS, TOKENS, small_bert, some_ids, written_names
from torch import Tensor

from edgevit.network.families.bert.modules import BertClassifier, padding_bias, real_tokens
from edgevit.network.network import Network


def published(state: dict[str, Tensor], ids: Tensor, *, heads: int, depth: int, eps: float = 1e-12) -> Tensor:
    """BERT (Devlin et al., 2019) of one text without its padding: logits [C] of ids [n], in fp64."""
    w = {name: value.double() for name, value in state.items()}

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        return centred / (centred.square().mean(1, keepdim=True) + eps).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]

    e = "bert.embeddings"
    x = w[f"{e}.word_embeddings.weight"][ids] + w[f"{e}.position_embeddings.weight"][: len(ids)]
    x = norm(f"{e}.LayerNorm", x + w[f"{e}.token_type_embeddings.weight"][0])
    for number in range(depth):
        layer = f"bert.encoder.layer.{number}"
        q, k, v = (linear(f"{layer}.attention.self.{name}", x).chunk(heads, 1) for name in ("query", "key", "value"))
        mixed = [torch.softmax(q[h] @ k[h].T / math.sqrt(q[h].shape[1]), dim=1) @ v[h] for h in range(heads)]
        x = norm(
            f"{layer}.attention.output.LayerNorm", x + linear(f"{layer}.attention.output.dense", torch.cat(mixed, 1))
        )
        neurons = linear(f"{layer}.intermediate.dense", x)
        neurons = neurons * 0.5 * (1 + torch.erf(neurons / math.sqrt(2)))
        x = norm(f"{layer}.output.LayerNorm", x + linear(f"{layer}.output.dense", neurons))
    return linear("classifier", torch.tanh(linear("bert.pooler.dense", x[:1])))[0]


def lengths(ids: Tensor) -> list[int]:
    return [int((row != 0).sum()) for row in ids]


@torch.no_grad()
def test_the_network_is_the_published_one_and_padding_changes_nothing() -> None:
    network, ids = small_bert(), some_ids()
    state, logits = written_names(network), network(ids)
    for row, count, given in zip(ids, lengths(ids), logits, strict=True):
        expected = published(state, row[:count], heads=4, depth=2)
        torch.testing.assert_close(given.double(), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(network(row[None, :count])[0], given, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_network_is_that_of_transformers() -> None:
    import transformers

    for activation, name in (("gelu", "gelu"), ("gelu_new", "gelu_tanh"), ("relu", "relu")):
        network, ids = small_bert(act_layer=name), some_ids()
        config = transformers.BertConfig(
            vocab_size=ARGS["vocab_size"], hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=128, max_position_embeddings=TOKENS, num_labels=4, hidden_act=activation,
        )  # fmt: skip
        reference = transformers.BertForSequenceClassification(config).eval()
        reference.load_state_dict(written_names(network))
        expected = reference(input_ids=ids, attention_mask=(ids != 0).long()).logits
        torch.testing.assert_close(network(ids), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_padding_is_zeros_after_every_block_and_is_read_from_the_ids_in_an_export() -> None:
    network, ids = small_bert(), some_ids()
    tokens = network.first_tokens(ids)
    for block in network.blocks:
        assert torch.equal(real_tokens(tokens).squeeze(-1), ids != 0)
        tokens = block.module(tokens)
    assert torch.equal(tokens, network.forward_features(ids))
    with network.of_one_size():
        assert not torch.equal(real_tokens(network.forward_features(ids)).squeeze(-1), ids != 0)
        torch.testing.assert_close(network(ids), network.answers(tokens), rtol=1e-5, atol=1e-5)
    assert padding_bias(torch.tensor([[False, True]])).flatten().tolist() == [0, -1e4]


@torch.no_grad()
def test_a_text_of_nothing_has_finite_logits() -> None:
    assert small_bert()(torch.zeros(1, TOKENS)).isfinite().all()


@pytest.mark.parametrize(
    ("args", "fault"),
    [({"num_heads": 5}, "does not divide"), ({"tokens": 17}, "positions for 16"), ({"pad_token": 99}, "beyond the 35")],
)
def test_sizes_that_do_not_fit_are_refused(args: dict[str, int], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        BertClassifier(**{**ARGS, **args})


def test_timm_makes_it_by_its_name_and_downloads_none() -> None:
    assert isinstance(timm.create_model("bert", **ARGS), BertClassifier)
    assert Network(timm.create_model("bert", **ARGS)).family_name == "bert"
    with pytest.raises(RuntimeError, match="downloads no networks of texts"):
        timm.create_model("bert", pretrained=True)
