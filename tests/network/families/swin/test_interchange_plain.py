"""The lines that load a Swin without edgevit, where blocks and sites have gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from family_examples import SWIN
from small_models import SWIN_ARGS, with_embedding

from edgevit.network.families.swin.interchange import plain_loader


@pytest.mark.parametrize("embed", [128, 48])
@torch.no_grad()
def test_windows_are_those_of_the_blocks_that_remain(small_vit: Any, embed: int) -> None:
    args = {"depths": [3, 2], "window_size": 3}
    network = small_vit(SWIN, **args)
    network.keep_blocks([1, 2, 3])  # the first is shifted
    first, second, last = network.read()
    network = network.build([first, replace(second, attention=None), replace(last, ffn=None)]).eval()
    network = network if embed == 128 else with_embedding(network, embed)
    lines = plain_loader(network.module)
    assert lines is not None and "edgevit" not in lines
    timm_args = {**SWIN_ARGS, **args, **network.timm_arguments(5, 128)}
    spec = {"timm_name": SWIN, "timm_args": timm_args, "blocks": [vars(dims) for dims in network.dims]}
    made: dict[str, Any] = {"timm": timm, "torch": torch, "spec": spec, "state": network.state_dict()}
    exec(lines, made)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(made["model"].eval()(images), network(images), rtol=1e-5, atol=1e-5)
