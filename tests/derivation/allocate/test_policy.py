from dataclasses import replace

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from some_tables import rows, table

from edgevit.baselines.common import ranked
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.derivation.allocate.embedding import candidate_widths
from edgevit.derivation.allocate.policy import POLICIES, fit, make_policy, smallest, uniform
from edgevit.derivation.allocate.widths import adaptive_widths
from edgevit.errors import BudgetError, OptionError, UnknownNameError
from edgevit.network.anatomy import BlockDims
from edgevit.network.network import Network
from edgevit.numbers import parse_count
from edgevit.text import format_count

DEITS = ("deit_tiny_patch16_224", "deit_small_patch16_224", "deit_base_patch16_224")


@pytest.fixture(scope="module")
def geometries():
    found = {}
    for name in DEITS:
        with torch.device("meta"):
            model = Network(timm.create_model(name))
        found[name] = model.geometry, list(model.dims)
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", DEITS)
@given(rate=st.floats(0.1, 0.85), seed=st.integers(0, 2**31))
@settings(max_examples=5)  # of each model and shape: 60 in all
def test_macs_are_at_or_within_half_a_percent_under_the_budget(geometries, name, policy, rate, seed):
    geometry, base = geometries[name]
    generator = torch.Generator().manual_seed(seed)
    scores = [torch.randn(base[0].ffn, generator=generator) * s for s in torch.rand(12, generator=generator)]
    tilt = torch.rand(12, 2, generator=generator) + 0.5

    neurons_at = adaptive_widths(scores, POLICIES[policy].minimum("ffn"))

    def wishes_at(r):
        return [
            {"qk": max(64 * (1 - r * a), 1), "vo": max(64 * (1 - r * b), 1), "ffn": e}
            for (a, b), e in zip(tilt.tolist(), neurons_at(r), strict=True)
        ]

    budget = make_budget(geometry.macs(base), geometry.params(base), rate=rate)
    dims = fit(wishes_at, base, geometry, budget, make_policy(policy))
    macs = geometry.macs(dims)
    assert 0.995 * budget.limit <= macs <= budget.limit
    for new, old in zip(dims, base, strict=True):
        assert new.heads == old.heads and new.qk <= old.qk and new.vo <= old.vo and new.ffn <= old.ffn
        step, least = {"fused": (8, 16), "fused4": (4, 12), "paper": (8, 8), "free": (1, 1)}[policy]
        assert new.qk % step == new.vo % step == 0 and min(new.qk, new.vo) >= least
        assert policy == "free" or (new.ffn % 8 == 0 and new.ffn >= 8)
        assert new.fusable or not policy.startswith("fused")


@pytest.mark.parametrize(("name", "reachable"), list(zip(DEITS, (0.865, 0.889, 0.902), strict=True)))
def test_beyond_what_fused_shapes_reach_the_minimum_is_printed(geometries, name, reachable):
    geometry, base = geometries[name]
    macs = geometry.macs(base)
    assert 1 - geometry.macs(smallest(base, POLICIES["fused"], geometry)) / macs == pytest.approx(reachable, abs=5e-4)
    fit(uniform(base), base, geometry, make_budget(macs, 1, rate=reachable - 0.001), POLICIES["fused"])
    with pytest.raises(BudgetError, match=rf"reaches no less than .* \(rate {reachable}\); raise the budget"):
        fit(uniform(base), base, geometry, make_budget(macs, 1, rate=reachable + 0.002), POLICIES["fused"])


@pytest.mark.parametrize("multiple", [16, 32, 64])
def test_ffn_multiples_are_kept(geometries, multiple):
    geometry, base = geometries[DEITS[2]]
    budget = make_budget(geometry.macs(base), 1, rate=0.6)
    dims = fit(uniform(base), base, geometry, budget, make_policy("fused", multiple))
    assert all(d.ffn % multiple == 0 for d in dims)
    assert 0.99 * budget.limit <= geometry.macs(dims) <= budget.limit


@pytest.mark.parametrize(("multiple", "narrower"), [(None, 10), (8, 10), (32, 5), (64, 2)])
def test_the_embedding_keeps_its_multiple(multiple, narrower):
    """DeiT-Tiny's, of 192: up to ten widths below, the narrowest a sixth of it."""
    policy = make_policy("fused", None, multiple)
    whole, *candidates = candidate_widths(192, policy.embed_step)
    assert whole == 192 and len(candidates) == narrower and all(width % (multiple or 16) == 0 for width in candidates)
    assert policy.ffn_step == POLICIES["fused"].ffn_step and ranked.narrowest_by_rank(48, policy) <= 48


def test_a_parameter_budget_is_kept(geometries):
    geometry, base = geometries[DEITS[1]]
    budget = make_budget(geometry.macs(base), geometry.params(base), params="9M")
    dims = fit(uniform(base), base, geometry, budget, POLICIES["fused"])
    assert 0.995 * 9e6 <= geometry.params(dims) <= 9e6


def test_a_base_that_is_already_slim_keeps_what_cannot_shrink(geometries):
    geometry, _ = geometries[DEITS[0]]
    base = [BlockDims(3, 16, 16, 96 + 8 * i) for i in range(12)]
    budget = make_budget(geometry.macs(base), 1, rate=0.2)
    dims = fit(uniform(base), base, geometry, budget, POLICIES["fused"])
    assert all(d.qk == d.vo == 16 for d in dims) and geometry.macs(dims) <= budget.limit


def test_budgets_are_read_as_people_write_them():
    assert parse_count("6.8G", "macs") == 6_800_000_000 and parse_count("34M", "params") == 34_000_000
    assert parse_count("1.5e6", "params") == 1_500_000
    assert format_count(17.567e9) == "17.57 G" and format_count(512) == "512"
    assert make_budget(1000, 10, rate=0.6).limit == 400


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({}, "a budget is one of --rate, --macs, --params, --ms, --mj and --fps, not none"),
        ({"rate": 0.5, "macs": "1G"}, "not --rate and --macs"),
        ({"rate": 0.0}, "--rate 0 is not between 0 and 1"),
        ({"rate": 1.0}, "--rate 1 is not between 0 and 1"),
        ({"macs": "abc"}, "--macs abc is not a positive count"),
        ({"macs": "-3G"}, "--macs -3G is not a positive count"),
        ({"params": "2k"}, "--params 2k is not below the base's 1 k parameters"),
    ],
)
def test_bad_budgets_say_what_to_try(given_, message):
    with pytest.raises(OptionError, match=message.replace("(", r"\(")):
        make_budget(1000, 1000, **given_)


def test_unknown_policies_and_multiples_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'fused'"):
        make_policy("fusd")
    with pytest.raises(OptionError, match="FFN multiple 24 is not one of"):
        make_policy("fused", 24)


@pytest.mark.parametrize("shape", ["fused", "paper"])
@pytest.mark.parametrize("axis", ["qk", "ffn"])
def test_an_axis_that_is_frozen_stays_and_what_is_tied_to_it_too(small_vit, shape, axis):

    network, policy = small_vit(), POLICIES[shape]
    base, geometry = list(network.dims), network.geometry
    sites = tuple(replace(site, frozen={**site.frozen, axis: "rotary"}) for site in geometry.sites)
    frozen = replace(geometry, sites=sites)
    budget = make_budget(geometry.macs(base), 1, rate=0.15)
    for before, free, held in zip(
        base, fit(uniform(base), base, geometry, budget, policy), fit(uniform(base), base, frozen, budget, policy),
        strict=True,
    ):  # fmt: skip
        stays, cut = ("qk", "ffn") if axis == "qk" else ("ffn", "qk")
        assert getattr(held, stays) == getattr(before, stays)
        assert (free.vo, free.ffn) != (held.vo, held.ffn) and getattr(held, cut) < getattr(before, cut)
        assert axis != "qk" or (held.vo == before.vo) == policy.equal
    assert budget.allows(frozen.macs(fit(uniform(base), base, frozen, budget, policy)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ms", [1.5, 2.5, 3.9])
def test_widths_by_rate_spend_a_table_until_no_step_fits(geometries, policy, ms):
    """A table that goes in steps: half of an FFN is hardly cheaper than all of it."""
    geometry, _ = geometries["deit_tiny_patch16_224"]
    base = [BlockDims(3, 64, 64, 768)] * 2
    costs = rows(0.2, {(3, w): 0.1 + 0.01 * w for w in (1, 64)}, {1: 0.05, 384: 1.1, 768: 1.2}, block=0.05)
    of = {"embed": 192, "tokens": 197, "patch_values": 768, "blocks": [base[0].sizes]}
    content = table(costs, base=of)
    budget = make_budget(1, 1, ms=ms, table=CostTable.model_validate(content))
    chosen = fit(uniform(base), base, geometry, budget, POLICIES[policy])
    assert budget.allows(budget.cost(chosen, geometry)) and budget.cost(chosen, geometry) > 0.93 * ms
    for i, dims in enumerate(chosen):
        wider = replace(dims, ffn=dims.ffn + POLICIES[policy].ffn_step)
        larger = [wider if j == i else other for j, other in enumerate(chosen)]
        assert wider.ffn > 768 or not budget.allows(budget.cost(larger, geometry))


def test_no_width_falls_below_what_a_plan_is_to_contain(geometries):
    geometry, base = geometries[DEITS[0]]
    policy, limit = POLICIES["fused"], make_budget(geometry.macs(base), geometry.params(base), rate=0.5)
    plain = fit(uniform(base), base, geometry, limit, policy)
    floor = {3: replace(base[3], ffn=704)}
    grown = fit(uniform(base), base, geometry, replace(limit, at_least=floor), policy)
    assert plain[3].ffn < 704 <= grown[3].ffn and geometry.macs(grown) <= limit.limit
    assert sum(d.ffn for d in grown) <= sum(d.ffn for d in plain) + 8 * len(base), "the others give way"
    with pytest.raises(BudgetError, match="reaches no less"):
        fit(uniform(base), base, geometry, replace(limit, at_least=dict(enumerate(base))), policy)
