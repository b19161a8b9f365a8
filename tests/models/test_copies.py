"""Copies of networks that were observed and trained."""

import torch

from edgevit.models.copies import bare_copy, shape_copy


def test_a_copy_leaves_hooks_and_a_forward_of_the_instance_behind(small_vit):
    network, seen = small_vit(), []
    network.blocks[0].register_forward_hook(lambda *_: seen.append(1))
    network.forward = lambda x: x
    images = torch.randn(1, 3, 32, 32)
    assert bare_copy(network)(images).shape == (1, 10) and not seen


def test_a_copy_of_sizes_holds_no_value(small_vit):
    network = small_vit()
    copied = shape_copy(network)
    kept = {name: (t.shape, t.dtype) for name, t in network.state_dict().items()}
    assert {name: (t.shape, t.dtype) for name, t in copied.state_dict().items()} == kept
    assert all(t.is_meta for t in copied.state_dict().values()) and not network.cls_token.is_meta
