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
from edgevit.derivation.measure.divergence import base_outputs, divergence, network_outputs
from edgevit.network.model import describe
from edgevit.network.output import Features, Logits
from edgevit.train.products import multiplies_bf16


def test_the_divergence_is_the_mean_over_the_images_in_nats() -> None:
    taught = torch.tensor([[0.5, 0.5], [1.0, 1e-300]], dtype=torch.float64).log()
    found = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64).log()
    first = 0.5 * log(0.5 / 0.25) + 0.5 * log(0.5 / 0.75)
    output = Logits((0, 1))
    assert divergence(output, taught, found) == pytest.approx((first + log(2)) / 2)
    assert divergence(output, taught, taught) == 0


def test_the_bases_answers_are_taken_once(small_vit: Any, tmp_path: Path) -> None:
    base = describe(small_vit(), "vit_tiny_patch16_224", {})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    problem = replace(untrained(base, task, 0.5, tmp_path), cache=Cache(tmp_path / "cache"))
    images = task.train.subset(5)
    first = base_outputs(problem, images)
    assert torch.equal(first, network_outputs(problem.network, images, problem.passes))
    assert problem.cache.reused == []
    later = replace(problem, cache=Cache(tmp_path / "cache"))  # another derivation, of any budget
    assert torch.equal(base_outputs(later, images), first)
    assert later.cache.reused == ["outputs"]
    assert len(base_outputs(later, task.train.subset(6))) == 6, "of other images"
    quick = base_outputs(later, images, quick=True)
    assert (
        divergence(problem.network.output, first, quick) < 1e-3 and (not torch.equal(quick, first)) == multiplies_bf16()
    )


def test_features_diverge_by_their_mean_squared_difference_in_units_of_each_channel() -> None:
    scale, reference = torch.tensor([1.0, 100.0]), torch.randn(7, 2, generator=torch.Generator().manual_seed(0))
    outputs = reference + torch.tensor([1.0, 100.0])
    assert divergence(Features(scale), reference, outputs) == pytest.approx(0.5)
