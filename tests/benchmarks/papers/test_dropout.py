"""Which slices the benchmark of PIAD's rivals judges, and its tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import timm

from benchmarks import bases, derivations
from benchmarks.papers import dropout
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import check_policy_reaches, make_policy
from edgevit.derivation.methods.skd.dropout import RATES
from edgevit.derivation.options import SUPERNET, make_config
from edgevit.derivation.session.supernet import Config
from edgevit.network.network import Network

MODELS: dict[str, dict[str, Any]] = {
    "rendered": bases.RENDERED_ARGS, "fine": bases.FINE_ARGS, "fashion": bases.FASHION_ARGS,
}  # fmt: skip
CASES = list(dropout.cases())


def row(case: derivations.Case, derived: float) -> dict[str, Any]:
    accuracies = {"base_full_head": 0.9, "base_restricted": 0.95, "base_finetuned": None, "derived": derived}
    return {**asdict(case), "base_sha256": "b", "test_images": 600, "accuracy": accuracies}


def section(rows: list[dict[str, Any]]) -> str:
    return dropout.section({"rows": {str(n): one for n, one in enumerate(rows)}})


def test_every_case_is_another_and_is_sliced_from_a_network_that_can_be_made() -> None:
    assert len({case.key("b") for _, case in CASES}) == len(CASES)
    for _, case in CASES:
        config = make_config(SUPERNET, Config, derivations.SUPERNETS[case.variant])
        trained = case.variant != dropout.UNTRAINED
        assert case.supernet_steps == (derivations.STEPS if trained else 0) and case.steps == 0
        assert not trained or (config.dropout_rate > 0) == case.variant[-1].isdigit()
        assert f"{config.dropout_rate:g}" in case.variant or not config.dropout_rate


def test_every_way_to_drop_is_there_and_rivals_have_two_rates() -> None:
    made = [
        make_config(SUPERNET, Config, options)
        for options in (
            derivations.SUPERNETS[name]
            for names in dropout.PARTS.values()
            for name in names
            if name != dropout.UNTRAINED
        )
    ]
    assert sorted(config.dropout for config in made) == sorted(["none", "piad", *["channel", "weighted", "layer"] * 2])
    own = [derivations.SUPERNETS[name] for name in dropout.PARTS["strategies"] if name[-1].isdigit()]
    assert {options["dropout"]: options["dropout_rate"] for options in own} == RATES


@pytest.mark.parametrize("name", MODELS)
def test_every_base_has_slices_of_every_size(name: Any) -> None:
    network = Network(timm.create_model(bases.TIMM_NAME, **MODELS[name]))
    dims, geometry = list(network.dims), network.geometry
    for case in {case.rate: case for case in derivations.on_base((case for _, case in CASES), name)}.values():
        budget = make_budget(geometry.macs(dims), geometry.params(dims), rate=case.rate)
        check_policy_reaches(dims, geometry, budget, make_policy(case.shape))
        assert case.data == name


def test_a_network_stays_the_same_for_all_of_its_slices_and_they_are_not_begun_side_by_side() -> None:
    first = [case for _, case in CASES[: len(dropout.PARTS["strategies"])]]
    assert len({case.variant for case in first}) == len(first) and {case.rate for case in first} == {2 / 3}


def test_the_table_has_points_to_piad_of_the_same_sub_task_and_seed() -> None:
    of = {"PIAD": 0.8, "LayerDrop 0.2": 0.7}
    rows = [
        row(case, of[case.variant] - (0.2 if case.task == 6 else 0))
        for _, case in CASES
        if case.variant in of and case.rate == 1 / 2 and case.seed == 42
    ]
    rows = [one for one in rows if (one["variant"], one["task"]) != ("PIAD", 6)]  # not run: nothing to compare with
    told = section(rows)
    assert "on 24 rendered classes" in told and "n = 1 (seed 42)" in told
    assert "| PIAD |  | 80.0 (80.0 to 80.0) |  |  |" in told
    assert "| LayerDrop 0.2 |  | 63.3 (50.0 to 70.0) |  |  |" in told
    assert "| LayerDrop 0.2 |  | -10.0 (-10.0 to -10.0) |  |  |" in told
    assert "channel dropout" not in told.partition("|")[2]
