"""The rivals: every one reaches the lower rates, and `magnitude` is the one that NuWa's paper calls Numerical."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import timm

from benchmarks import bases
from benchmarks.derivations import parted
from benchmarks.product import rivals
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.feasibility import Target
from edgevit.derivation.methods import load_method
from edgevit.derivation.options import make_config
from edgevit.errors import BudgetError
from edgevit.network.network import Network

MODELS: dict[str, dict[str, Any]] = {
    "rendered": bases.RENDERED_ARGS, "fine": bases.FINE_ARGS, "fashion": bases.FASHION_ARGS,
}  # fmt: skip


def test_lower_rates_are_run_where_they_are_asked_for() -> None:
    assert {case.rate for _, case in rivals.cases()} == set(rivals.RATES)
    lower = [case for _, case in rivals.cases((4,), rivals.LOWER)]
    assert {case.rate for case in lower} == {0.2, 0.4, 0.6} and {case.shape for case in lower} == {"fused"}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_rival_reaches_the_lower_rates(name: str) -> None:
    network = Network(timm.create_model(bases.TIMM_NAME, num_classes=10, **MODELS[name]))
    dims, geometry = list(network.dims), network.geometry
    reached = set()
    for part, case in rivals.cases((4,), rivals.LOWER):
        if part == "cut" and case.seed == 42:
            module = load_method(case.method)
            budget = make_budget(geometry.macs(dims), geometry.params(dims), rate=case.rate)
            config = make_config(case.method, module.Config, parted(case.options)[1])
            with suppress(BudgetError):
                module.METHOD.check(config, Target(network, budget, make_policy(case.shape), 1000))
                reached.add((case.variant, case.rate))
    assert reached == {(variant, rate) for variant in rivals.METHODS for rate in rivals.LOWER}


def test_magnitude_with_nothing_trained_has_its_default_options() -> None:
    """NuWa's paper calls it Numerical."""
    options = {case.variant: (case.method, case.options) for part, case in rivals.cases() if part == "cut"}
    assert options["magnitude"] == ("magnitude", {})
