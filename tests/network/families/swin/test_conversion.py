"""timm's Swin becomes one on tokens, or is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from family_examples import SWIN
from torch import nn

from edgevit.network.families.swin.conversion import on_tokens, reason_against


def made(**options: Any) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"img_size": 56, "depths": [2, 1], "num_heads": [3, 6], "num_classes": 5}
    return timm.create_model(SWIN, **{**sizes, **options})


def test_images_of_any_size_and_stochastic_depth_end_with_the_conversion() -> None:
    swin = on_tokens(made(dynamic_img_size=True)).train()
    with pytest.raises(AssertionError):
        swin(torch.zeros(1, 3, 64, 64))
    one, other = swin(torch.ones(2, 3, 56, 56))
    assert torch.equal(one, other)


@torch.inference_mode()
def test_windows_larger_than_their_map_are_shifted_where_timm_always_partitions() -> None:
    swin = made(always_partition=True, img_size=40, window_size=7).eval()
    images = torch.rand(2, 3, 40, 40)
    expected = swin(images)
    torch.testing.assert_close(on_tokens(swin)(images), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda swin: None, None),
        (lambda swin: setattr(swin.layers[0].blocks[0], "always_partition", True), "windows may be larger"),
        (lambda swin: setattr(swin.layers[0].blocks[1], "norm2", nn.Identity()), "its norms are LayerNorm"),
        (lambda swin: setattr(swin.layers[1].blocks[0], "mlp", nn.Linear(4, 4)), "its FFN is Linear"),
    ],
)
def test_what_cannot_be_pruned_is_refused_with_the_reason(change: Any, reason: str | None) -> None:
    swin = made()
    change(swin)
    found = reason_against(swin)
    assert found is None if reason is None else found is not None and reason in found
