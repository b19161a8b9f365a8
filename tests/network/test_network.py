"""A network as one object, apart from what it derives from its family (test_families_protocol.py)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from family_examples import images
from small_models import ARGS
from torch import nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.families import load_family
from edgevit.network.network import Network


def test_its_weights_have_the_names_that_they_have_in_the_module(small_vit: Callable[..., Network]) -> None:
    network, other = small_vit(), small_vit()
    assert network.state_dict().keys() == network.module.state_dict().keys()
    assert [name for name, _ in network.named_parameters()] == [name for name, _ in network.module.named_parameters()]
    for parameter in other.parameters():
        parameter.data.zero_()
    found = other.load_state_dict(network.state_dict())
    assert not found.missing_keys and not found.unexpected_keys
    assert torch.equal(other(images()), network(images()))
    assert other.load_state_dict({}, strict=False).missing_keys == list(network.state_dict())


def test_a_network_of_a_network_is_the_same_module() -> None:
    module = timm.create_model("vit_tiny_patch16_224", **ARGS)
    for mode in (True, False):
        network = Network(module.train(mode))
        assert network.training == mode and Network(network).module is module
    assert network.family is load_family("vit")


def test_what_cannot_be_pruned_is_no_network() -> None:
    with pytest.raises(UnsupportedModelError, match="cannot prune a Linear: supported families are bert, swin, vit"):
        Network(nn.Linear(1, 1))
    module = timm.create_model("vit_tiny_patch16_224", **ARGS, qk_norm=True)
    with pytest.raises(UnsupportedModelError, match="in block 0, qk-norm"):
        Network(module)


@torch.no_grad()
def test_a_copy_has_weights_of_its_own_and_follows_the_first_no_longer(small_vit: Callable[..., Network]) -> None:
    network = small_vit()
    expected = network(images())
    copied = copy.deepcopy(network)
    network.keep_blocks([1])
    network.classifiers[0].weight.zero_()
    assert (len(network.blocks), len(copied.blocks)) == (1, 2) and network.geometry != copied.geometry
    assert torch.equal(copied(images()), expected) and copied.family is network.family


def test_it_can_be_pickled(small_vit: Callable[..., Network], tmp_path: Path) -> None:
    network = small_vit()
    torch.save(network, tmp_path / "network.pt")
    for again in (pickle.loads(pickle.dumps(network)), torch.load(tmp_path / "network.pt", weights_only=False)):
        assert again.family is network.family and again.dims == network.dims
        assert torch.equal(again(images()), network(images()))
    assert network.family is load_family("vit"), "it is as before"


def test_a_weighing_that_fails_leaves_no_hooks(small_vit: Callable[..., Network]) -> None:
    network = small_vit()
    expected = network(images())
    with pytest.raises(ZeroDivisionError), network.weighing(lambda _: torch.ones(1, 1) / (1 // 0)):
        network(images())
    assert torch.equal(network(images()), expected)


def test_a_layer_that_was_removed_is_none_in_all_lists(small_vit: Callable[..., Network]) -> None:
    whole = small_vit()
    first, second = whole.read()
    network = whole.build([first, type(second)(None, second.ffn)])
    assert network.layers[1][0] is None
    for modules in (network.attention_inputs, network.projections, network.attention_outputs):
        assert [module is None for module in modules] == [False, True]
    assert None not in network.ffn_outputs and len(network.token_norms) == 4
