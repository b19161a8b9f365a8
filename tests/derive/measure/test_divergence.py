from __future__ import annotations

from math import log
from typing import Any

import pytest
import torch

from edgevit.data.task import open_task
from edgevit.derive.measure.divergence import answers, divergence
from edgevit.models.checkpoint import describe
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training


def test_the_divergence_is_the_mean_over_the_images_in_nats() -> None:
    taught = torch.tensor([[0.5, 0.5], [1.0, 1e-300]], dtype=torch.float64).log()
    found = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64).log()
    first = 0.5 * log(0.5 / 0.25) + 0.5 * log(0.5 / 0.75)
    assert divergence(taught, found) == pytest.approx((first + log(2)) / 2)
    assert divergence(taught, taught) == 0


def test_answers_are_among_the_columns_asked_for(small_vit: Any) -> None:
    network = small_vit().eval()
    task = open_task("digits", "3,7", preprocessing=describe(network, "vit_tiny_patch16_224", {}).preprocessing,
                     base_outputs=10)  # fmt: skip
    images = task.train.subset(5)
    found = answers(network, images, [7, 3], open_passes(Training(device="cpu")))
    logits = network(next(iter(images.batches(5)))[0]).double()
    torch.testing.assert_close(found, logits[:, [7, 3]].log_softmax(1), atol=1e-6, rtol=1e-6)
