"""timm's lists of the maps of a Swin have the same maps after they were adopted."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from family_examples import SWIN
from torch import nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.families import swin
from edgevit.network.families.swin import interchange
from edgevit.network.families.swin.listed import ListedSwin, is_listed, swin_of_list

ARGS = {"img_size": 36, "patch_size": 4, "embed_dim": 16, "depths": (2, 1, 1), "num_heads": (2, 2, 4)}


def features(name: str = SWIN, **options: Any) -> Any:
    torch.manual_seed(0)
    return timm.create_model(name, features_only=True, window_size=4, **{**ARGS, **options}).eval()


@pytest.mark.parametrize("options", [{}, {"out_indices": (0, 2)}, {"out_indices": (1,), "feature_cls": "dict"}])
@torch.inference_mode()
def test_the_maps_are_those_of_timm(options: dict[str, Any]) -> None:
    module, images = features(**options), torch.rand(2, 3, 36, 36)
    expected, names = module(images), {*module.state_dict()}
    assert is_listed(module) and swin.matches(module)
    with pytest.raises(UnsupportedModelError, match="which `adopted` of its family converts"):
        swin.check(module)
    adopted = interchange.adopted(module)
    assert isinstance(adopted, ListedSwin) and swin.matches(adopted) and not is_listed(adopted)
    swin.check(adopted, alone=False)
    torch.testing.assert_close(adopted(images), expected, rtol=1e-5, atol=1e-5)
    assert {name.replace("layers.", "layers_") for name in adopted.state_dict()} == names


def test_the_swin_of_a_list_ends_with_its_last_stage() -> None:
    made = swin_of_list(features(out_indices=(0, 1)))
    assert (len(made.layers), made.num_features, made.embed_dim) == (2, 32, 16)
    assert interchange.reason_against(made) is None


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        (SWIN, {"feature_cls": "hook"}, "reads maps by hooks, .*; make it with feature_cls='getter'"),
        (SWIN, {"in_chans": 1}, r"reads 1 channel\(s\)"),
        ("swinv2_tiny_window8_256", {"img_size": 32}, "the cosine attention of Swin V2"),
    ],
)
def test_a_list_that_cannot_be_pruned_is_refused_with_the_reason(
    name: str, options: dict[str, Any], reason: str
) -> None:
    module = features(name, **options)
    assert interchange.adopted(module) is module and swin.matches(module)
    with pytest.raises(UnsupportedModelError, match=f"cannot prune {name}: .*{reason}"):
        swin.check(module)


def test_a_list_of_other_stages_is_no_swin() -> None:
    assert not is_listed(timm.create_model("resnet10t", features_only=True))
    assert not is_listed(nn.ModuleDict({"layers_0": features().layers_0}))
