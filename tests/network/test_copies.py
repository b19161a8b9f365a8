"""Copies of networks that were observed and trained."""

import pytest
import timm
import torch

from edgevit.network.copies import bare_copy, shape_copy, without_values


def test_a_copy_leaves_hooks_and_a_forward_of_the_instance_behind(small_vit):
    network, seen = small_vit(), []
    network.module.blocks[0].register_forward_hook(lambda *_: seen.append(1))
    network.forward = lambda x: x
    images = torch.randn(1, 3, 32, 32)
    assert bare_copy(network)(images).shape == (1, 10) and not seen


def test_a_copy_shares_nothing_but_what_is_to_be_shared(small_vit):
    network = small_vit()
    network.module.norm_pre = torch.nn.Sequential()  # empty, and still a module of its own
    network.module.notes = {"sizes": [1, 2]}
    shared = network.module.blocks[0].mlp
    copied = bare_copy(network, [shared])
    assert copied.module.blocks[0].mlp is shared and type(copied) is type(network)
    assert (
        copied.module.notes == network.module.notes
        and copied.module.notes["sizes"] is not network.module.notes["sizes"]
    )
    pairs = list(zip(network.modules(), copied.modules(), strict=True))
    assert {id(one) for one, other in pairs if one is other} == {id(part) for part in shared.modules()}
    tensors = zip(network.state_dict().values(), copied.state_dict().values(), strict=True)
    assert sum(one.data_ptr() == other.data_ptr() for one, other in tensors) == 4  # two layers
    for name, value in copied.state_dict().items():
        assert torch.equal(value, network.state_dict()[name])


def test_tied_weights_stay_tied(small_vit):
    network = small_vit(depth=2)
    network.module.blocks[1].mlp.fc1.weight = network.module.blocks[0].mlp.fc1.weight
    copied = bare_copy(network).module
    assert copied.blocks[1].mlp.fc1.weight is copied.blocks[0].mlp.fc1.weight


def test_a_copy_of_sizes_holds_no_value(small_vit):
    network = small_vit()
    copied = shape_copy(network)
    kept = {name: (t.shape, t.dtype) for name, t in network.state_dict().items()}
    assert {name: (t.shape, t.dtype) for name, t in copied.state_dict().items()} == kept
    assert all(t.is_meta for t in copied.state_dict().values()) and not network.module.cls_token.is_meta


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_a_network_without_values_has_the_shapes_of_one_with_them(name):
    with torch.device("meta"):
        usual = timm.create_model(name)
    with without_values():
        bare, scale = timm.create_model(name), torch.nn.init.ones_(torch.empty(2, device="cpu"))
        one = torch.nn.init.constant_(torch.empty(2), 1.0)
    kinds = [{key: (t.shape, t.dtype, t.is_meta) for key, t in n.state_dict().items()} for n in (usual, bare)]
    assert kinds[0] == kinds[1]
    assert scale.tolist() == [1, 1], "a tensor on a device is filled"
    assert one.is_meta and torch.nn.init.constant_(torch.empty(2), 1.0).tolist() == [1, 1]
