from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained

from edgevit.data.task import open_task
from edgevit.derivation.cache import Cache
from edgevit.derivation.measure.divergence import answers, base_answers, divergence
from edgevit.network.checkpoint import describe
from edgevit.train.passes import open_passes
from edgevit.train.products import multiplies_bf16
from edgevit.train.settings import Training


def test_the_divergence_is_the_mean_over_the_images_in_nats() -> None:
    taught = torch.tensor([[0.5, 0.5], [1.0, 1e-300]], dtype=torch.float64).log()
    found = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64).log()
    first = 0.5 * log(0.5 / 0.25) + 0.5 * log(0.5 / 0.75)
    assert divergence(taught, found) == pytest.approx((first + log(2)) / 2)
    assert divergence(taught, taught) == 0


def test_the_bases_answers_are_taken_once(small_vit: Any, tmp_path: Path) -> None:
    base = describe(small_vit(), "vit_tiny_patch16_224", {})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    problem = replace(untrained(base, task, 0.5, tmp_path), cache=Cache(tmp_path / "cache"))
    images = task.train.subset(5)
    first = base_answers(problem, images)
    assert torch.equal(first, answers(problem.network, images, problem.passes))
    assert problem.cache.reused == []
    later = replace(problem, cache=Cache(tmp_path / "cache"))  # another derivation, of any budget
    assert torch.equal(base_answers(later, images), first)
    assert later.cache.reused == ["taught"]
    assert len(base_answers(later, task.train.subset(6))) == 6, "of other images"
    quick = base_answers(later, images, quick=True)
    assert divergence(first, quick) < 1e-3 and (not torch.equal(quick, first)) == multiplies_bf16()


def test_answers_are_among_the_columns_asked_for(small_vit: Any) -> None:
    network = small_vit().eval()
    task = open_task("digits", "3,7", preprocessing=describe(network, "vit_tiny_patch16_224", {}).preprocessing,
                     base_outputs=10)  # fmt: skip
    images = task.train.subset(5)
    found = answers(network.with_columns([7, 3]), images, open_passes(Training(device="cpu")))
    logits = network(next(iter(images.batches(5)))[0]).double()
    torch.testing.assert_close(found, logits[:, [7, 3]].log_softmax(1), atol=1e-6, rtol=1e-6)
