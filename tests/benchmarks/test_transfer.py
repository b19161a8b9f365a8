"""The benchmark of a base that learnt other classes: what it derives, and its tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import transfer
from accuracy import Case, run
from small_base import fewer_digits

from edgevit.derivation.methods import load_method
from edgevit.derivation.options import make_config


def row(case: Case, top1: float) -> dict[str, Any]:
    trained = None if case.derive_from == "base" else 0.95
    start = {"network": "finetuned", "steps": 270, "loss_validation_base": 0.3, "loss_validation_finetuned": 0.1}
    return {
        **case.settings(),
        **({} if trained is None else {"start": start}),
        "accuracy": {"base_full_head": 0.9, "base_restricted": 0.9, "base_finetuned": trained, "derived": top1},
        "train_images": 1297,
        "test_images": 357,
        "versions": {"edgevit": "0.1.0 (abc1234)"},
    }


def test_every_variant_is_asked_for_with_options_that_there_are() -> None:
    wanted = list(transfer.cases((42, 43), transfer.RATES))
    assert len({case.key("b") for case in wanted}) == len(wanted) == 2 * 3 * len(transfer.VARIANTS)
    for case in wanted:
        make_config(case.method, load_method(case.method).Config, case.options)
        assert case.settings().get("derive_from", "base") == case.derive_from


def test_tables_set_both_starts_side_by_side() -> None:
    top1 = {"forge": 0.90, "forge, better base": 0.95, "vulcan": 0.80}
    wanted = [case for case in transfer.cases((42, 43), (0.9,)) if case.variant in top1]
    told = transfer.section({"rows": {case.key("b"): row(case, top1[case.variant]) for case in wanted}})
    assert "| forge, better base | 95.0 (95.0 to 95.0) |" in told
    assert "| forge | +5.0 (+5.0 to +5.0) |" in told and "| vulcan |  |" in told
    assert "in 2 derivations of 2" in " ".join(told.split()) and "| 95.0 (95.0 to 95.0) |" in told
    assert transfer.section(None) == transfer.section({"rows": {}}) == ""


def test_a_head_is_fitted_to_digits_and_the_trained_base_is_cut(tmp_path: Path) -> None:
    place = transfer.open_headless(tmp_path)
    (case,) = (c for c in transfer.cases((42,), (0.9,)) if c.variant == "forge, better base")
    few = {"calibration_images": 48, "sensitivity_images": 16}
    with fewer_digits():
        found = run(replace(case, steps=8, options={**case.options, **few}), place, 1)
    assert isinstance(found, dict), found
    start, accuracy = found["start"], found["accuracy"]
    assert start["steps"] == 8 and found["rate_reached"] >= 0.9
    assert accuracy["base_restricted"] == accuracy["base_full_head"] > 0.8 and accuracy["base_finetuned"] > 0.5
