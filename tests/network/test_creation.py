"""Networks that timm creates, and its weights from a hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import timm
import torch
from safetensors.torch import save_file
from small_base import ARGS, NAME, outputs

import edgevit
from edgevit.errors import CheckpointError, OptionError, UnknownNameError
from edgevit.network.creation import norm_eps
from edgevit.network.opening import open_network


def test_a_name_that_timm_does_not_know_is_corrected() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'deit_base_patch16_224'"):
        open_network("deit_base_patch16_244", pretrained=True)
    with pytest.raises(UnknownNameError, match="did you mean 'vit_b_16'"):
        open_network("vit_b_61", pretrained=True)
    with pytest.raises(CheckpointError, match="give --checkpoint FILE, or --pretrained"):
        open_network(NAME)
    with pytest.raises(OptionError, match="exclude each other"):
        open_network(NAME, checkpoint="x.pth", pretrained=True)


def test_norms_add_what_an_argument_says_in_copies_and_with_timm_alone_too(tmp_path: Path, small_vit: Any) -> None:
    """transformers' ViTs add 1e-12 to variances, timm's 1e-6."""
    save_file(small_vit().state_dict(), tmp_path / "base.safetensors")
    base, usual = (
        open_network(NAME, checkpoint=tmp_path / "base.safetensors", model_args={**ARGS, **args})
        for args in ({"norm_eps": 0.01}, {})
    )
    assert norm_eps(base) == {0.01} and norm_eps(usual) == {1e-6}
    assert not torch.allclose(outputs(base), outputs(usual), atol=1e-3)
    again = edgevit.base(base, out=tmp_path / "m")
    assert again.spec.timm_args["norm_eps"] == 0.01 and torch.equal(outputs(again), outputs(base))
    assert torch.equal(outputs(edgevit.load(tmp_path / "m")), outputs(base))
    spec = json.loads((tmp_path / "m" / "model.json").read_text())
    made: dict[str, Any] = {"timm": timm, "torch": torch, "spec": spec, "state": base.state_dict()}
    exec(again.plain_loader() or "", made)
    torch.testing.assert_close(outputs(made["model"].eval()), outputs(base))


def test_pretrained_without_a_network_is_one_line(
    tmp_path: Path, edgevit_main: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # which was read from the environment before
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)
    ran = edgevit_main("derive", NAME, "--pretrained", "--data", "digits", "--rate", "0.5", "--out", "out")
    assert ran.code == 1 and not ran.out
    assert ran.told[0].startswith(f"timm's weights of {NAME}, from the Hugging Face hub")
    assert ran.told[1].startswith(f"error: no pretrained weights for {NAME}") and "--checkpoint" in ran.told[1]
    assert len(ran.told) == 2
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_a_hub_that_does_not_answer_is_not_tried_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits to try again"))
    monkeypatch.setenv("NO_PROXY", "*")
    with pytest.raises(CheckpointError, match=r"http://127\.0\.0\.1:9 does not answer, and no copy is in the cache"):
        open_network(NAME, pretrained=True)
    assert huggingface_hub.constants.HF_HUB_OFFLINE is False
