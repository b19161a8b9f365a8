"""Which derivations the accuracy benchmark does."""

from __future__ import annotations

from dataclasses import replace

import accuracy
import base
import fashion
import fine
import pytest
import timm
from torch import nn

from edgevit.derive.allocate.budget import Budget, make_budget
from edgevit.derive.allocate.policy import check_policy_reaches, make_policy
from edgevit.derive.methods import load_method
from edgevit.derive.options import make_config
from edgevit.errors import BudgetError
from edgevit.models.families import family_of

ALL = list(accuracy.cases())
ON_OTHERS = [case for name in accuracy.OTHER_SIZES for case in accuracy.cases_on(name)]  # type: ignore[arg-type]
MODELS = {
    "rendered": (base.RENDERED_ARGS, 24), "digits": (base.DIGITS_ARGS, 10), "fashion": (fashion.FASHION_ARGS, 10),
    "fine": (fine.FINE_ARGS, 48),
}  # fmt: skip


def budget_of(network: nn.Module, rate: float) -> Budget:
    family = family_of(network)
    dims = [block.dims for block in family.read(network)]
    geometry = family.geometry(network)
    return make_budget(geometry.macs(dims), geometry.params(dims), rate=rate)


def check(case: accuracy.Case) -> None:
    arguments, outputs = MODELS[case.data]
    network = timm.create_model(base.TIMM_NAME, num_classes=outputs, **arguments)
    family = family_of(network)
    dims = [block.dims for block in family.read(network)]
    budget = budget_of(network, case.rate)
    check_policy_reaches(dims, family.geometry(network), budget, make_policy(case.shape))


def test_every_case_has_a_key_of_its_own_and_of_its_base() -> None:
    assert len({case.key("a") for case in [*ALL, *ON_OTHERS]}) == len([*ALL, *ON_OTHERS])
    assert ALL[0].key("a") != ALL[0].key("b")
    assert replace(ALL[0], steps=3).key("a") != ALL[0].key("a")


@pytest.mark.parametrize("method", sorted({case.method for case in ALL}))
def test_every_option_that_a_case_gives_is_one_of_its_method(method: str) -> None:
    for case in ALL:
        if case.method == method:
            module = load_method(method)
            assert isinstance(make_config(method, module.Config, case.options), module.Config)


def test_methods_that_keep_every_head_and_block_have_a_shape_that_reaches_their_rate() -> None:
    keep = [c for c in [*ALL, *ON_OTHERS] if c.method in ("vulcan", "nuwa") or "allocation" in c.options]
    kept = {(c.data, c.rate, c.shape): c for c in keep}
    for base_of_all_rates in ("rendered", *accuracy.OTHER_SIZES):
        assert {rate for data, rate, _ in kept if data == base_of_all_rates} >= set(accuracy.RATES)
    for case in kept.values():
        check(case)


def test_the_fused_shape_would_not_reach_the_highest_rate_with_every_head_and_block() -> None:
    case = next(c for c in ALL if c.method == "vulcan" and c.rate == max(accuracy.RATES))
    assert case.shape == "paper"
    with pytest.raises(BudgetError, match=r"rate 0\.892"):
        check(replace(case, shape="fused"))


def test_the_most_telling_cases_come_first() -> None:
    first = [c for c in ALL if c.table == "main" and c.seed == accuracy.SEEDS[0] and c.rate in (0.8, 0.9)]
    assert ALL[: len(first)] == first


def test_the_fine_tuned_base_is_trained_once_per_data_set_task_and_seed() -> None:
    taken = [(c.data, c.task, c.seed) for c in ALL if c.takes_finetuned_base]
    assert len(taken) == len(set(taken))
    assert {(c.data, c.task, c.seed) for c in ALL if c.table in ("main", "digits")} == set(taken)


def test_whatever_trains_beside_one_another_sees_equally_many_images() -> None:
    for table in ("main", "forge", "digits"):
        assert len({c.steps * c.batch_size for c in ALL if c.table == table and c.steps}) == 1


def test_a_trial_shortens_only_what_trains() -> None:
    for case in ALL:
        short = accuracy.shortened(case, 2)
        assert (short.steps > 0) == (case.steps > 0)
        assert bool(short.supernet_steps) == bool(case.supernet_steps)
        assert max(short.steps, short.supernet_steps or 0) <= 2


def test_the_first_base_has_every_table_and_another_the_two_that_compare_methods_and_steps() -> None:
    assert accuracy.cases_on("rendered") == ALL
    for name, sizes in accuracy.OTHER_SIZES.items():
        mine = [case for case in ON_OTHERS if case.data == name]
        assert {case.table for case in mine} == {"main", "forge"} and {case.task for case in mine} == set(sizes)
        assert len(mine) == sum(case.table in ("main", "forge") for case in ALL)
