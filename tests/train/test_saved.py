"""A training that is interrupted ends as one that is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_base import press_ctrl_c_in_step
from teaching import Bench, kept_step
from torch import nn

from edgevit.errors import Interrupted
from edgevit.train.history import History


# The best state is a late one, or that before the first step.
@pytest.mark.quick("0.001-True")
@pytest.mark.parametrize(("lr", "by_loss"), [(1e-3, True), (0.3, False)])
def test_an_interrupted_distillation_resumed_ends_in_the_same_weights(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lr: float, by_loss: bool
) -> None:
    def run(folder: Path, network: nn.Module) -> History:
        return bench.train(
            network, 9, folder / "history.jsonl", folder=folder / "state", distillation=bench.teacher(tokens=0.1),
            unlabelled=bench.task.unlabelled, keep="best",
            training={"augment": "crop", "lr": lr, "lr_by_loss": by_loss, "warmup_steps": 3, "clip_norm": 1.0},
        )  # fmt: skip

    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    whole, resumed = bench.spoilt(), bench.spoilt()
    history = run(tmp_path / "whole", whole)
    press_ctrl_c_in_step(4, monkeypatch)
    with pytest.raises(Interrupted, match="stopped at step 5 of 9"):
        run(tmp_path / "resumed", bench.spoilt())
    again = run(tmp_path / "resumed", resumed)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name

    def told(history: History) -> list[dict[str, Any]]:
        return [{k: v for k, v in line.items() if k != "images_per_s"} for line in history.lines]

    assert told(history) == told(again)
    assert (kept_step(history) == 0) == (lr > 0.1)
