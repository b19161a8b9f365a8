"""The benchmark of a base that learnt other classes: what it derives, and its tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small_base import fewer_digits

from benchmarks.derivations import parted, run
from benchmarks.product import transfer
from edgevit.derivation.methods import load_method
from edgevit.derivation.options import make_config


def test_every_variant_is_asked_for_with_options_that_there_are() -> None:
    wanted = list(transfer.cases((42, 43), transfer.RATES))
    assert len({case.key("b") for case in wanted}) == len(wanted) == 2 * 3 * len(transfer.VARIANTS)
    for case in wanted:
        make_config(case.method, load_method(case.method).Config, parted(case.options)[1])
        assert case.settings().get("derive_from", "base") == case.derive_from


@pytest.mark.slow
def test_a_head_is_fitted_to_digits_and_the_trained_base_is_cut(tmp_path: Path) -> None:
    place = transfer.open_headless(tmp_path)
    (case,) = (c for c in transfer.cases((42,), (0.9,)) if c.variant == "vulcan, better base")
    few = {"calibration_images": 48}
    with fewer_digits():
        found = run(replace(case, steps=8, options={**case.options, **few}), place, 1)
    assert isinstance(found, dict), found
    start, accuracy = found["start"], found["accuracy"]
    assert start["steps"] == 8 and found["rate_reached"] >= 0.9
    assert accuracy["base_restricted"] == accuracy["base_full_head"] > 0.8 and accuracy["base_finetuned"] > 0.5
