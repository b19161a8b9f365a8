"""The sizes and weights of torchvision's Swin are timm's."""

from __future__ import annotations

from of_torchvision import torchvision_swin

from edgevit.network.families.swin.torchvision import swin_of_torchvision


def test_timms_network_has_the_sizes_of_torchvisions() -> None:
    swin, weights, size = swin_of_torchvision(torchvision_swin())
    assert size == (3, 224, 224) and [len(stage.blocks) for stage in swin.layers] == [1, 1, 2, 1]
    assert {name: value.shape for name, value in swin.state_dict().items()} == {n: w.shape for n, w in weights.items()}
    assert swin.pretrained_cfg["interpolation"] == "bicubic"
