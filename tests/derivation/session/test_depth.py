"""Whole blocks removed after a method: which ones go, what is trained, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_base import ARGS, NAME, PREPROCESSING, assert_same_weights, fewer_digits, press_ctrl_c_in_step
from small_base import derive as derive_small

from edgevit.data.task import open_task
from edgevit.derivation.session.depth import check_removal, least_missed_blocks, without_blocks
from edgevit.errors import Interrupted, OptionError
from edgevit.network.classifier import with_classes
from edgevit.network.network import Network
from edgevit.network.opening import open_network
from edgevit.records.model_folder import ModelFolder
from edgevit.train.passes import accuracy_of, open_passes
from edgevit.train.settings import Training

DEEP = {**ARGS, "depth": 4}


@pytest.fixture
def deep_checkpoint(tmp_path: Path) -> Path:
    """A random base of four blocks, of which block 2 adds nothing to the tokens."""
    import timm

    torch.manual_seed(3)
    state = timm.create_model(NAME, num_classes=10, **DEEP).state_dict()
    for name, tensor in state.items():
        if name.startswith("blocks.2.") and ("attn.proj" in name or "mlp.fc2" in name):
            tensor.zero_()
    save_file({k: v.contiguous() for k, v in state.items()}, tmp_path / "base.safetensors")
    return tmp_path / "base.safetensors"


def small(checkpoint: Path, out: Path, **more: Any) -> Any:
    given: dict[str, Any] = {"model_args": DEEP, "method": "random", "rate": 0.1, "cache": False, **more}
    with fewer_digits():
        return derive_small(checkpoint, out, **given)


def test_the_block_that_costs_least_goes_and_is_chosen_anew_each_time(deep_checkpoint: Path) -> None:
    base = open_network(NAME, checkpoint=deep_checkpoint, model_args=DEEP, preprocessing=PREPROCESSING)
    task = open_task("digits", ["3", "7", "9"], preprocessing=base.preprocessing, base_outputs=10)
    network, passes = with_classes(base, task.base_columns), open_passes(Training(device="cpu"))
    images = task.train.subset(60)

    def top1(removed: list[int]) -> float:
        return accuracy_of(without_blocks(network, removed), images, task.class_names, passes).top1

    first, second = least_missed_blocks(network, images, 2, passes)
    assert top1([first]) == max(top1([i]) for i in range(4)) >= top1([2]) == top1([])
    assert top1([first, second]) == max(top1([first, i]) for i in {0, 1, 2, 3} - {first})
    assert len(network.dims) == 4 and least_missed_blocks(network, images, 9, passes)[:2] == [first, second]


def test_more_blocks_than_there_are_to_spare_are_refused() -> None:
    import timm

    network = Network(timm.create_model(NAME, num_classes=3, **DEEP))
    check_removal(network, 3)
    with pytest.raises(
        OptionError, match="--remove-blocks 4: the base has 4 blocks, of which 3 can be removed; give 3"
    ):
        check_removal(network, 4)


@pytest.mark.slow
def test_a_model_loses_blocks_after_vulcan_and_learns_from_the_finetuned_base(
    deep_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {
        "method": "vulcan", "shape": "paper", "rate": 0.4, "remove_blocks": 2, "training": {"teacher": "finetuned"},
    }  # fmt: skip
    made = small(deep_checkpoint, tmp_path / "whole", **given)
    assert len(made.model.spec.blocks) == 2 and made.model.spec.rate > 0.6
    assert len(made.record.facts.kept_blocks) == 2
    removed = made.record.facts.more["blocks_removed"]
    assert sorted([*removed, *made.record.facts.kept_blocks]) == [0, 1, 2, 3]
    plan = ModelFolder(tmp_path / "whole").plan()
    assert [block.block for block in plan.steps[-1].blocks] == list(made.record.facts.kept_blocks)
    after = [line for line in ModelFolder(tmp_path / "whole").history() if line.stage == "train after blocks"]
    assert after[-1].step == 6 and "loss_teacher" in after[-1].more
    # Ctrl-C in the training after the blocks went ends in the same weights
    press_ctrl_c_in_step(3, monkeypatch)
    with pytest.raises(Interrupted):
        small(deep_checkpoint, tmp_path / "again", **given)
    resumed = small(deep_checkpoint, tmp_path / "again", resume=True, **given)
    assert_same_weights(made.model.state_dict(), resumed.model.state_dict())


def test_without_training_the_blocks_that_stay_have_the_weights_of_the_method(
    deep_checkpoint: Path, tmp_path: Path
) -> None:
    closed: dict[str, Any] = {"training": {"steps": 0}}
    whole, cut = (small(deep_checkpoint, tmp_path / str(count), remove_blocks=count, **closed) for count in (0, 2))
    blocks, left = whole.model.read(), cut.model.read()
    for place, block in zip(cut.record.facts.kept_blocks, left, strict=True):
        torch.testing.assert_close(block.ffn.w1, blocks[place].ffn.w1)
    assert len(left) == 2
