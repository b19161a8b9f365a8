"""Parts of a network in another precision."""

from __future__ import annotations

import torch
from small_models import random_base

from edgevit.export.precision import mixed, norm_names


def test_a_mixed_copy_leaves_the_network_as_it_was() -> None:
    network = random_base()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    copy = mixed(network, [*norm_names(network)[2:], "blocks.0"])
    assert copy(torch.randn(2, 3, 32, 32).half()).dtype == torch.float16
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert not any(module._forward_hooks for module in network.modules())
