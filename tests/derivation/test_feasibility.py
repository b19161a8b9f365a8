"""A budget that a method cannot reach is refused with the axis that ends it, and with what would let more go."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_networks import write_depth
from example_method import EXAMPLE, with_the_example
from problems import untrained
from small_base import ARGS, write_cost_table

from edgevit.data.task import open_task
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.cost_table import load_cost_table
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.feasibility import Target, cheapest
from edgevit.derivation.method import find_method
from edgevit.derivation.methods import method_names
from edgevit.derivation.methods.heart.choose import Candidates
from edgevit.derivation.methods.heart.scores import HessianScores
from edgevit.derivation.solve.embedding import encoder, flat_basis
from edgevit.errors import BudgetError, DataError, OptionError
from edgevit.network.model import describe
from edgevit.network.opening import open_network

ALL_OFF: dict[str, Any] = {"drop_blocks": False, "drop_heads": False, "drop_sites": False, "cut_embedding": False}
RANKED = ("nvit", "snapvit", "taylor", "torch_pruning", "magnitude", "wanda", "random")
OUTSIDE = r"lies outside the blocks, and the embedding ends at (\d+) channels"
ATTENTION = r"is attention, which ends at (\d+) heads of 16 and 16 in 3 blocks"


def asked(small_vit: Any, rate: float, shape: str = "fused", images: int = 1000, **args: Any) -> Target:
    network = small_vit(depth=3, num_heads=4, **args)
    dims, geometry = list(network.dims), network.geometry
    budget = make_budget(geometry.macs(dims), geometry.params(dims), rate=rate)
    return Target(network, budget, make_policy(shape), images)


def refused(method: str, options: dict[str, Any], of: Target) -> BudgetError:
    found = find_method(method)
    with pytest.raises(BudgetError) as error:
        found.check(found.make_config(options), of)
    assert error.value.least is not None and "\n" not in str(error.value)
    return error.value


def least(method: str, options: dict[str, Any], of: Target) -> float:
    found = find_method(method)
    return cheapest(of, found.search_space(of.network, found.make_config(options), of.policy)).cost


CASES: list[tuple[str, dict[str, Any], str, int, Sequence[str]]] = [
    ("forge", {}, OUTSIDE, 16, ()),
    ("forge", {"cut_embedding": False}, OUTSIDE, 64, ["cut_embedding=true"]),
    (
        "forge",
        ALL_OFF,
        ATTENTION,
        4,
        ["cut_embedding=true", "drop_blocks=true", "drop_heads=true", "drop_sites=true"],
    ),
    ("nuwa", {}, ATTENTION, 4, ["cut_embedding=true"]),
    ("vulcan", {}, ATTENTION, 4, ()),
    ("corp", {}, ATTENTION, 4, ()),
    ("mdp", {"drop_heads": False}, ATTENTION, 4, ["drop_heads=true"]),
    ("xpruner", {}, ATTENTION, 2, ()),
    ("dcvit", {}, OUTSIDE, 64, ()),
    *((name, {"attention": "both", "cut_embedding": True}, ATTENTION, 2, ()) for name in RANKED),
    *((name, {"attention": "widths", "cut_embedding": False}, ATTENTION, 4, ["cut_embedding=true", "attention=both"])
      for name in RANKED),
    ("heart", {}, r"is the FFN, which ends at (\d+) neurons in 3 blocks", 256, ()),
]  # fmt: skip


@pytest.mark.parametrize(("method", "options", "ends", "at", "more"), CASES)
def test_the_axis_that_ends_a_budget_is_told_and_what_would_let_more_go(
    small_vit: Any, method: str, options: dict[str, Any], ends: str, at: int, more: Sequence[str]
) -> None:
    one = asked(small_vit, 0.9999)
    said = str(refused(method, options, one))
    found = re.search(rf"but {method} in shape 'fused' reaches .* \(rate 0\.\d+\): \d+% of it {ends}; raise", said)
    assert found is not None and int(found[1]) == at, said
    allowed = re.search(r"let more go \((.*?)\)", said)
    assert (allowed[1].split(", ") if allowed else []) == [f"{method}.{option}" for option in more]
    assert ("cut widths with another method first" in said) == (method == "heart")
    assert "or try another --shape" in said


@pytest.mark.parametrize("method", sorted({case[0] for case in CASES}))
def test_a_budget_a_little_above_the_least_is_not_refused(small_vit: Any, method: str) -> None:
    one = asked(small_vit, 0.9999)
    error, found = refused(method, {}, one), find_method(method)
    for least, holds in ((error.least, True), (error.least - 1, False)):
        of = replace(one, budget=replace(one.budget, limit=least))
        assert one.budget.base > least == of.budget.limit
        if holds:
            found.check(found.make_config({}), of)
        else:
            refused(method, {}, of)


@pytest.mark.quick("corp", "example")
@pytest.mark.parametrize("method", ["corp", "dcvit", "random", "xpruner", EXAMPLE])
def test_the_least_is_what_a_method_makes_of_it(small_vit: Any, tmp_path: Path, method: str) -> None:
    """Of those that need few images or none; forge's is held to its word in its own tests."""
    base = describe(small_vit(depth=3, num_heads=4), "vit_tiny_patch16_224", {"depth": 3, "num_heads": 4})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    one = untrained(base, task, 0.5, tmp_path, "fused")
    target = Target(one.network, one.budget, one.policy, len(one.task.train))
    with with_the_example(tmp_path):
        found = find_method(method)
        config = found.make_config({})
        least = cheapest(target, found.search_space(one.network, config, one.policy)).cost
        made = found.derive(replace(one, budget=replace(one.budget, limit=least)), config).network
    assert made.geometry.macs(list(made.dims)) == least


def test_every_method_says_what_ends_it(small_vit: Any) -> None:
    """Slices of a super-network have sizes of their own, and refuse before this."""
    assert {case[0] for case in CASES} == set(method_names()) - {"skd"}


@pytest.mark.parametrize(("method", "options"), [("forge", ALL_OFF), ("random", {}), ("corp", {})])
def test_axes_switched_off_until_nothing_is_left_are_told(small_vit: Any, method: str, options: dict[str, Any]) -> None:
    """A base that is already as small as the shape policy allows."""
    small = asked(small_vit, 0.1, mlp_ratio=0.125)
    said = str(refused(method, options, small))
    assert re.search(rf"{method} may cut nothing of it in shape 'fused' with the options as they are; .*--shape", said)
    assert ("let more go" in said) == (method != "corp")


def test_an_embedding_whose_directions_too_few_images_tell_stays(small_vit: Any) -> None:
    """64 channels and 17 tokens an image: four images tell them."""
    few, enough = (asked(small_vit, 0.9999, images=images) for images in (3, 4))
    options = {"cut_embedding": True}
    assert least("nuwa", options, enough) < least("nuwa", options, few) == least("nuwa", {}, few)
    assert least("taylor", {}, few) == least("taylor", {}, enough), "channels are chosen, and no directions looked for"


@pytest.mark.usefixtures("own_cache")
def test_an_embedding_narrowed_before_that_a_head_reads_is_told(tmp_path: Path) -> None:
    base: Any = open_network(f"{write_depth(tmp_path)}:build")
    network = base.with_embedding(encoder(flat_basis(64), 16))
    geometry = network.geometry
    budget = make_budget(geometry.macs(network.dims), geometry.params(network.dims), rate=0.9)
    said = str(refused("forge", {}, Target(network, budget, make_policy("fused"), 1000)))
    assert re.search(OUTSIDE + r" \(it was narrowed before, and .*\); raise the budget, ", said)
    assert said.endswith(", or derive from the network that this base was made of, whose embedding can be narrowed")


def test_tokens_that_may_leave_reach_further(small_vit: Any) -> None:
    one = asked(small_vit, 0.5)
    options: dict[str, Any] = {"drop_blocks": False, "drop_sites": False}
    assert least("forge", {**options, "cut_tokens": "predicted"}, one) < least("forge", options, one)


@pytest.mark.parametrize("shape", ["fused", "free"])
def test_what_heart_reaches_is_its_smallest_choice(small_vit: Any, shape: str) -> None:
    one = asked(small_vit, 0.5, shape)
    geometry, dims = one.network.geometry, list(one.network.dims)
    rows, heads = torch.ones(2, geometry.patches).double(), (torch.ones(4).double(),) * 3
    found = Candidates(
        dims, geometry, one.budget, HessianScores(rows, rows, heads, rows[:, 0]), tokens=rows,
        least_heads=2 if shape == "fused" else 1,
    )  # fmt: skip
    smallest = found.choice([geometry.patches] * 2, found.most_heads)
    assert least("heart", {}, one) == found.cost(smallest)


def test_no_other_method_is_suggested_for_a_budget_by_a_table(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit(**ARGS)
    budget = make_budget(1, 1, ms=0.2, table=load_cost_table(write_cost_table(tmp_path)))
    said = str(refused("heart", {}, Target(network, budget, make_policy("fused"), 1000)))
    assert "another method first" not in said
    assert re.search(r"reaches no less than [\d.]+ ms \(rate 0\.\d+\): FFN [\d.]+ ms, .*; raise the budget", said)


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("nuwa", {"cut_embedding": True}, "3 calibration images give 51 tokens, .*; add images$"),
        ("heart", {"selection": "percentile", "ratios": "uniform", "head_ratio": 0.9}, "leaves 1 of the 4 heads of"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused_before_anything_is_measured(
    small_vit: Any, method: str, options: dict[str, Any], said: str
) -> None:
    """By sizes alone: nobody has opened an image yet."""
    found = find_method(method)
    with pytest.raises((DataError, OptionError), match=said):
        found.check(found.make_config(options), asked(small_vit, 0.2, images=3))
    found.check(
        found.make_config({**options, "head_ratio": 0.4} if method == "heart" else options), asked(small_vit, 0.2)
    )
