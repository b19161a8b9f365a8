"""Folders that transformers wrote become networks, whatever head they have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_bert import ARGS, TOKENS, small_bert, some_ids, write_release, written_names
from torch import Tensor

from edgevit.errors import CheckpointError, OptionError
from edgevit.network.families.bert import interchange
from edgevit.network.model import Headless
from edgevit.network.opening import open_network

pytest.importorskip("tokenizers")


@torch.no_grad()
def test_a_folder_of_transformers_is_opened_with_its_own_sizes_and_names(tmp_path: Path) -> None:
    network = small_bert()
    base = open_network(write_release(tmp_path / "base", network))
    assert torch.equal(base(some_ids()), network(some_ids()))
    named = open_network("bert", checkpoint=tmp_path / "base")
    assert torch.equal(named(some_ids()), network(some_ids())), "a kind, which says no sizes"
    assert base.release.labels == ("cooking", "music", "sailing", "space") and base.input_size == (TOKENS,)
    assert base.spec.timm_args["num_heads"] == 4 and base.spec.preprocessing["input_size"] == [TOKENS]
    shorter = open_network(tmp_path / "base", model_args={"tokens": 9})
    ids = base.transform("the oven and the soup")
    assert ids.tolist()[:7] == [2, 5, 18, 8, 5, 19, 3] and not ids[7:].any() and shorter.transform("a").shape == (9,)
    torch.testing.assert_close(shorter(ids[None, :9]), base(ids[None]), rtol=1e-5, atol=1e-5)


def bare(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A BertModel alone."""
    return {name.removeprefix("bert."): value for name, value in state.items() if name.startswith("bert.")}


def old(state: dict[str, Tensor]) -> dict[str, Tensor]:
    renamed = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
               for name, value in state.items()}  # fmt: skip
    return renamed | {"bert.embeddings.position_ids": torch.arange(TOKENS)[None]}


@pytest.mark.parametrize(("renamed", "classes"), [(bare, 0), (old, 4)])
def test_weights_of_other_programs_are_renamed(
    renamed: Callable[[dict[str, Tensor]], dict[str, Tensor]], classes: int
) -> None:
    state = small_bert().state_dict()
    weights = interchange.named(renamed(written_names(small_bert())))
    assert weights.classes == classes and all(torch.equal(value, state[key]) for key, value in weights.state.items())
    assert interchange.guessed_name(weights.state) == "bert" and interchange.guessed_name({}) is None


def test_a_body_without_a_classifier_is_a_base_without_a_head(tmp_path: Path) -> None:
    folder = write_release(tmp_path / "base", small_bert())
    save_file(bare(written_names(small_bert())), folder / "model.safetensors")
    assert isinstance(open_network(folder), Headless)


def test_arguments_follow_from_the_shapes_but_for_the_heads() -> None:
    module: Any = small_bert(embed_dim=32, depth=3, mlp_ratio=3).module
    usual: Any = small_bert().module
    state = module.state_dict()
    guessed, note = interchange.guessed_arguments(state, usual, usual.state_dict(), ("num_heads",))
    assert (guessed, note) == ({"embed_dim": 32, "depth": 3, "mlp_ratio": 3}, None)
    with pytest.raises(CheckpointError, match="number of heads"):
        interchange.guessed_arguments(state, usual, usual.state_dict(), ())
    assert interchange.timm_arguments(module, 2, 32) == {"depth": 3} and interchange.plain_loader(module) is None
    assert interchange.stated_arguments(module)["tokens"] == TOKENS
    assert interchange.adopted(module) is module
    assert interchange.fitted(interchange.named(state), module, "bert", resample=False).classes == ARGS["num_classes"]


def test_what_is_missing_or_does_not_apply_is_refused(tmp_path: Path) -> None:
    folder = write_release(tmp_path / "base", small_bert())
    with pytest.raises(OptionError, match="prepares no images; leave --mean out"):
        open_network(folder, preprocessing={"mean": [0.5] * 3})
    with pytest.raises(OptionError, match="positions for 16 tokens"):
        open_network(folder, model_args={"tokens": 17})
    (folder / "vocab.txt").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer.json or vocab.txt"):
        open_network(folder)
    relative = write_release(tmp_path / "relative", small_bert(), position_embedding_type="relative_key")
    with pytest.raises(CheckpointError, match="relative_key"):
        open_network(relative)
