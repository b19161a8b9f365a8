"""Which derivations the accuracy benchmark does."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import accuracy
import accuracy_tables
import base
import dimensions
import fashion
import fine
import pytest
import rivals
import tables
import timm
import torch
from small_base import ARGS, NAME, PREPROCESSING, write_checkpoint
from torch import nn

from edgevit.derivation.allocate.budget import Budget, make_budget
from edgevit.derivation.allocate.policy import check_policy_reaches, make_policy
from edgevit.derivation.methods import load_method
from edgevit.derivation.options import make_config
from edgevit.errors import BudgetError
from edgevit.network.families import family_of

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


RECORDS = ("published", "rivals_fashion", "dimensions_fine", "ablations", "ablations_fine")


def rows_of(record: str) -> dict[str, dict[str, Any]]:
    return (tables.load(record) or {"rows": {}})["rows"]


@pytest.mark.parametrize("record", RECORDS)
def test_keys_of_rows_on_the_project_s_bases_stay_as_they_are(record: str) -> None:
    for key, row in rows_of(record).items():
        of = {field.name: row[field.name] for field in fields(accuracy.Case) if field.name in row}
        assert accuracy.Case(**of).key(row["base_sha256"]) == key


def test_what_is_recorded_is_not_done_again() -> None:
    def known(record: str, wanted: Iterable[accuracy.Case]) -> float:
        rows = rows_of(record)
        (sha256,) = {row["base_sha256"] for row in rows.values()}
        return len(rows.keys() & {case.key(sha256) for case in wanted}) / len(rows)

    every = [case for of in dimensions.cases().values() for case in of]
    assert known("dimensions_fine", accuracy.on_base(every, "fine")) > 0.9
    assert known("rivals_fashion", accuracy.on_base((case for _, case in rivals.cases()), "fashion")) > 0.9


def test_a_user_s_base_and_named_classes_are_another_result_whose_row_says_so(tmp_path: Path) -> None:
    start = {
        "base": NAME, "checkpoint": write_checkpoint(tmp_path), "model_args": ARGS, "preprocessing": PREPROCESSING,
        "accept_weak_base": True,
    }  # fmt: skip
    place = accuracy.Place(Path("digits"), start, tuple("0123456789"), "b", None, tmp_path)
    drawn = accuracy.Case("ablations", 3, 0.5, 42, "random", "random", {}, "paper", 1, 8, data="mine")
    named = replace(drawn, classes=("3", "7", "9"))
    assert named.key("b") != drawn.key("b")
    row = accuracy.run(named, place, 1)
    assert isinstance(row, dict) and row["classes"] == ("3", "7", "9") and row["data"] == "mine"
    assert row["worst_class"][0] in named.classes and row["base_top1"] is None and row["images_seen"] == 8
    drawn_row = accuracy.run(drawn, place, 1)
    assert isinstance(drawn_row, dict) and "classes" not in drawn_row and "device" not in drawn_row


def test_a_row_says_where_it_ran_if_not_on_the_cpu_and_is_done_once() -> None:
    assert accuracy.told_device("cuda") == {"device": "cuda"} and accuracy.told_device("cpu") == {}
    seconds, facts = {"statistics": 2.0, "training": 60.0}, {"reused": []}
    row = {"method": "m", "task": 6, "seed": 42, "seconds": seconds, "facts": facts}
    quicker = {**row, "device": "cuda", "seconds": {"training": 1.0}}
    assert accuracy_tables.duration([row, quicker], [row, quicker]) == "1.0 min"
    assert accuracy_tables.duration([row, quicker], [quicker]) == ""


def test_a_device_that_is_not_there_is_what_could_not_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    start = {"base": NAME, "checkpoint": write_checkpoint(tmp_path), "model_args": ARGS, "accept_weak_base": True}
    place = accuracy.Place(Path("digits"), start, tuple("0123456789"), "b", None, tmp_path, "cuda")
    cache = os.environ.get("XDG_CACHE_HOME")
    told = accuracy.run(accuracy.Case("main", 3, 0.5, 42, "random", "random", {}, "paper", 0), place, 1)
    assert isinstance(told, str) and "no cuda device" in told
    assert os.environ.get("XDG_CACHE_HOME") == cache, "the cache is the derivation's alone"
