"""Taylor: what the loss does not feel goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained

from edgevit.baselines.taylor import Config, derive
from edgevit.data.task import open_task
from edgevit.errors import OptionError
from edgevit.network.model import describe


def test_neurons_that_nothing_reads_go_though_their_weights_are_large(
    small_vit: Callable[..., Any], tmp_path: Path
) -> None:
    network = small_vit(depth=2, num_heads=4)
    blocks = network.read()
    unread = torch.arange(0, blocks[0].dims.ffn, 2)
    with torch.no_grad():
        for block in blocks:
            block.ffn.w1[unread] *= 5
            block.ffn.w2[:, unread] = 0  # neither the product of w1 nor that of w2 with its gradient is anything
    base = describe(network, "vit_tiny_patch16_224", {"depth": 2, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(base, task, 0.6, tmp_path, shape="free")
    for terms in ("group", "each"):
        config = Config(calibration_images=16, terms=terms, attention="widths", cut_embedding=False)
        for block in derive(problem, config).plan.blocks:
            assert block.ffn is not None and not set(block.ffn.neurons.tolist()) & set(unread.tolist())


def test_images_are_counted() -> None:
    with pytest.raises(OptionError, match=r"taylor\.calibration_images 0 is not in \[1, "):
        Config(calibration_images=0)
