"""CORP: ranked by energy, made up for by ridge regression."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained

from edgevit.data.task import open_task
from edgevit.derivation.measure.divergence import answers, divergence
from edgevit.derivation.methods.corp import METHOD, Config, derive
from edgevit.derivation.problem import Problem
from edgevit.derivation.reach import asked_of
from edgevit.errors import DataError, OptionError
from edgevit.network.checkpoint import describe
from edgevit.network.families import family_of


def opened(network: Any, folder: Path) -> Problem:
    base = describe(network, "vit_tiny_patch16_224", {"depth": 2, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    return untrained(base, task, 0.5, folder, shape="free")


def test_what_is_made_up_for_is_nearer_to_the_base(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    problem = opened(small_vit(depth=2, num_heads=4), tmp_path)
    images = problem.task.validation
    whole = answers(problem.network, images, problem.columns, problem.passes)
    lost = {}
    for compensate in (True, False):
        made = derive(problem, Config(compensate=compensate, calibration_images=48))
        found = answers(made.network, images, problem.columns, problem.passes)
        lost[compensate] = divergence(whole, found)
        assert made.facts["steps"] == 0
    assert lost[True] < 0.8 * lost[False]


def test_neurons_that_never_fire_go_first(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    network = small_vit(depth=2, num_heads=4)
    silent = torch.arange(0, 256, 2)
    with torch.no_grad():
        for block in family_of(network).read(network):
            block.ffn.w1[silent] = 0
            block.ffn.b1[silent] = 0
    for block in derive(opened(network, tmp_path), Config(calibration_images=48)).plan.blocks:
        assert block.ffn is not None and len(block.ffn.neurons) < 160
        assert len(set(block.ffn.neurons.tolist()) & set(silent.tolist())) == max(block.ffn.width - 128, 0)


def test_nothing_is_trained_unless_asked_and_options_are_checked(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    assert METHOD.default_steps(Config(), 0.9, 10**6, 1) == 0
    with pytest.raises(OptionError, match=r"corp\.ridge=0 is not a number above 0"):
        Config(ridge=0.0)
    with pytest.raises(DataError, match=r"corp\.calibration_images"):
        METHOD.check(Config(calibration_images=1), asked_of(opened(small_vit(depth=2, num_heads=4), tmp_path)))
