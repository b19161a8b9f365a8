"""The sizes and weights of torchvision's ViT are timm's."""

from __future__ import annotations

from of_torchvision import torchvision_vit

from edgevit.network.families.vit.torchvision import vit_of_torchvision


def test_timms_network_has_the_sizes_of_torchvisions() -> None:
    vit, weights, size = vit_of_torchvision(torchvision_vit())
    assert size == (3, 64, 64) and (vit.blocks[0].attn.num_heads, vit.norm.eps) == (4, 1e-6)
    assert {name: value.shape for name, value in vit.state_dict().items()} == {n: w.shape for n, w in weights.items()}
    assert vit.pretrained_cfg["crop_pct"] == 0.875
