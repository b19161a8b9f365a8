"""The estimate before the work counts every part, and the passes over images show how far they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from problems import untrained

from edgevit.data.task import open_task
from edgevit.derivation import estimate as estimating
from edgevit.derivation.cache import Cache
from edgevit.derivation.estimate import Estimate, estimate
from edgevit.derivation.methods.forge.config import Config as ForgeConfig
from edgevit.derivation.problem import finetuned_base, has_finetuned_base
from edgevit.network.model import describe


@pytest.mark.parametrize(
    ("estimate", "told"),
    [
        (Estimate(61.2, 59, 121), "about 4 min: 61 s for baselines, 59 s for measuring, 2 min for training"),
        (Estimate(0.2, 0, 30), "about 30 s: 1 s for baselines, 30 s for training"),
        (Estimate(0, 60, 0, 80), "about 2 min: 60 s for measuring, 80 s for the layers behind the backbone"),
        (
            Estimate(600, 1200, 7200, 0, 3),
            "about 2.5 h: 10 min for baselines, 20 min for measuring, 2.0 h for training",
        ),
    ],
)
def test_an_estimate_is_told_in_the_unit_that_fits(estimate: Estimate, told: str) -> None:
    whose = "this derivation takes" if estimate.derivations == 1 else "the 3 derivations take"
    assert estimate.text() == f"{whose} {told}; less where the cache has it"


def test_a_base_that_is_trained_counts_by_its_own_steps(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    model = describe(small_vit(depth=2), "vit_tiny_patch16_224", {"depth": 2})
    task = open_task("digits", ["3", "7"], preprocessing=model.preprocessing, base_outputs=10)
    problem, config = untrained(model, task, 0.5, tmp_path), SimpleNamespace()
    problem = replace(problem, base_training=replace(problem.base_training, steps=100_000))
    alone, beside = (estimate(problem, config, finetune_base=trains) for trains in (False, True))
    assert beside.baselines > 20 * alone.baselines and alone.training == beside.training == 0
    taught = replace(problem, training=replace(problem.training, steps=1, teacher="finetuned"))
    by_it = estimate(taught, config, finetune_base=False)
    assert by_it.baselines > 20 * alone.baselines
    (problem.folder / "finetuned-base.safetensors").touch()
    assert estimate(problem, config, finetune_base=True).baselines < beside.baselines / 10, "it need only be read"


def test_rates_share_the_statistics_and_the_training_of_the_base(
    small_vit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimating, "image_seconds", lambda *_: (0.001, 0.01))
    model = describe(small_vit(depth=2), "vit_tiny_patch16_224", {"depth": 2})
    task = open_task("digits", ["3", "7"], preprocessing=model.preprocessing, base_outputs=10)
    problem = untrained(model, task, 0.5, tmp_path)
    config = SimpleNamespace(calibration_images=100, sensitivity_images=50)

    def told(derivations: int, **options: Any) -> Estimate:
        return estimate(problem, config, **{"finetune_base": False, **options}, derivations=derivations)

    one, many = told(1), told(101)
    assert many.derivations == 101 and many.baselines == pytest.approx(101 * one.baselines)
    assert many.measuring == pytest.approx(one.measuring + 100 * 100 * 2 * 0.01), "solutions, not statistics, each time"
    problem = replace(problem, base_training=replace(problem.base_training, steps=100_000))
    assert told(5, finetune_base=True).baselines < 1.01 * told(1, finetune_base=True).baselines


def test_ordering_neurons_grows_with_the_widths_of_ffns_and_not_with_the_images(
    small_vit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimating, "image_seconds", lambda *_: (0.0, 0.0))
    seconds = {}
    for ratio in (4, 16):
        model = describe(small_vit(mlp_ratio=ratio), "vit_tiny_patch16_224", {"mlp_ratio": ratio})
        task = open_task("digits", ["3", "7"], preprocessing=model.preprocessing, base_outputs=10)
        problem = untrained(model, task, 0.5, tmp_path)
        ticks = (number / 1000 for number in range(1000))
        monkeypatch.setattr(estimating, "monotonic", ticks.__next__)  # a product takes a millisecond
        seconds[ratio] = estimate(problem, ForgeConfig(), finetune_base=False).measuring
        assert estimate(problem, SimpleNamespace(), finetune_base=False).measuring == 0
    assert seconds[16] == pytest.approx(64 * seconds[4])
    assert seconds[4] == pytest.approx(3 * 2 * 6 * 256**3 * 0.001 / (2 * 384**3))


def test_a_base_that_was_trained_for_one_derivation_is_there_for_the_next(
    small_vit: Callable[..., Any], tmp_path: Path
) -> None:
    model = describe(small_vit(depth=2), "vit_tiny_patch16_224", {"depth": 2})
    task = open_task("digits", ["3", "7"], preprocessing=model.preprocessing, base_outputs=10)
    one, next_, longer = (
        replace(untrained(model, task, 0.5, tmp_path / name), cache=Cache(tmp_path / "cache"))
        for name in ("one", "next", "longer")
    )
    longer = replace(longer, base_training=replace(longer.base_training, steps=1))
    one.folder.mkdir()
    assert not has_finetuned_base(next_)
    finetuned_base(one)
    assert [has_finetuned_base(problem) for problem in (one, next_, longer)] == [True, True, False]
