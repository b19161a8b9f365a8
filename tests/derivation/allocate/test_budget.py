"""A derivation inside a budget in milliseconds, from the table that was measured on the benchmarks' own base."""

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from small_base import PREPROCESSING

import edgevit
from edgevit.derivation import methods
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.cost_table import load_cost_table
from edgevit.derivation.allocate.policy import POLICIES
from edgevit.errors import BudgetError, CostTableError, OptionError
from edgevit.network.network import Network
from edgevit.train.settings import Training

TABLE = Path(__file__).with_name("cost_table.yaml")
ARGS = {"img_size": 48, "patch_size": 8, "embed_dim": 192, "depth": 6, "num_heads": 3}
# The least that a method can be: widths by the allocation, each the same loss per share of its module that goes.
METHOD = """
from dataclasses import dataclass

import torch

from edgevit.derivation.allocate.knapsack import BlockMenu, Choice, allocate
from edgevit.derivation.plan import Plan
from edgevit.derivation.method import Method
from edgevit.derivation.problem import Derived
from edgevit.derivation.realise import realise
from edgevit.network.anatomy import BlockDims

QUANTITIES = ("macs", "params", "ms")


@dataclass(frozen=True)
class Config:
    pass


def default_steps(config, rate, images, batch_size):
    return 0


def derive(problem, config):
    prices, blocks = problem.budget.prices, problem.network.read()
    menus = [
        BlockMenu(
            [Choice(prices.attention(b.dims.heads, w, w), 1 - w / b.dims.qk, w) for w in range(16, 65, 8)],
            [Choice(prices.ffn(w), 1 - w / b.dims.ffn, w) for w in range(8, 769, 8)],
            None,
        )
        for b in blocks
    ]
    found = allocate(menus, problem.budget.limit - prices.fixed)
    dims = tuple(BlockDims(b.dims.heads, a.value, a.value, f.value) for b, (a, f) in zip(blocks, found))
    plan = Plan.narrowed(dims, [torch.arange(d.ffn) for d in dims])
    return Derived(realise(problem.network, plan), plan, {})


METHOD = Method(Config, default_steps, derive)
"""


@pytest.fixture
def tabled(tmp_path, monkeypatch):
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "tabled.py").write_text(METHOD)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path / "methods")])
    return "tabled"


@pytest.fixture
def derive(tmp_path):
    torch.manual_seed(0)
    network = timm.create_model("vit_tiny_patch16_224", num_classes=10, **ARGS)
    save_file(network.state_dict(), tmp_path / "base.safetensors")

    def run(**more):
        given = {"cost_table": TABLE, "model_args": ARGS, "checkpoint": tmp_path / "base.safetensors", **more}
        return edgevit.derive(
            "vit_tiny_patch16_224",
            preprocessing=PREPROCESSING,
            data="digits",
            classes="3,7,9",
            out=tmp_path / "out",
            training=Training(steps=0, batch_size=64, device="cpu"),
            cache=False,
            accept_weak_base=True,  # it is random
            **given,
        )

    return run


def test_the_measured_table_is_of_the_benchmarks_base():
    network = Network(timm.create_model("vit_tiny_patch16_224", **ARGS))
    table, dims = load_cost_table(TABLE), list(network.dims)
    table.check("vit", dims, network.geometry, POLICIES["fused"])
    prices = table.in_quantity("ms")
    assert "torch" in table.measured_on and prices.fixed < prices.base == prices.cost(dims)


@pytest.mark.slow
def test_a_model_is_derived_inside_the_milliseconds_asked_for(derive, tabled):
    table = load_cost_table(TABLE)
    prices = table.in_quantity("ms")
    limit = round(0.7 * prices.base, 3)
    made = derive(ms=limit, method=tabled)
    reached = prices.cost(made.model.spec.blocks)
    slowest_step = max(prices.ffn(w + 32) - prices.ffn(w) for w in range(8, 737, 8))
    assert limit - slowest_step < reached <= limit
    record = json.loads((made.folder / "derivation.json").read_text())["budget"]
    assert (record["quantity"], record["limit"], record["reached"]) == ("ms", limit, reached)
    assert record["table"]["measured_on"] == table.measured_on


def test_too_few_milliseconds_are_refused_with_the_least(derive, tabled, tmp_path):
    least = r"ms 0\.1 leaves 0\.1 ms, but tabled in shape 'fused' reaches no less than [\d.]+ ms \(.*FFN [\d.]+ ms"
    with pytest.raises(BudgetError, match=least):
        derive(ms=0.1, method=tabled)
    with pytest.raises(CostTableError, match=r"lists QK widths 16 to 64, and 8 to 64 can be asked for"):
        derive(ms=2.0, method=tabled, shape="paper")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_heart_is_refused_by_a_table_that_says_nothing_of_fewer_tokens(derive, tmp_path):
    with pytest.raises(CostTableError, match=r"with fewer tokens, and heart is to remove .*cost --tokens"):
        derive(ms=2.0, method="heart")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["base.safetensors"]


def test_a_rate_leaves_what_it_says_to_the_last_mac():
    rates = {0.9: 100, 0.934: 66, 0.95: 50, 0.5: 500, 0.0999: 900}
    assert {rate: make_budget(1000, 1, rate=rate).limit for rate in rates} == rates


def test_a_budget_of_the_whole_leaves_what_stays_beside_what_is_cut():
    of_rate, of_macs = make_budget(1000, 1, 250, rate=0.4), make_budget(1000, 1, 250, macs=750)
    assert (of_rate.limit, of_rate.base, of_rate.option) == (500, 1000, "rate 0.4 of the whole")
    assert (of_macs.limit, of_macs.base) == (500, 1000)
    with pytest.raises(OptionError, match=r"leaves 125 MACs, and what reads the pyramid has 250: try --rate 0.72, or"):
        make_budget(1000, 1, 250, rate=0.9)
    with pytest.raises(OptionError, match=r"--macs 1300 is not below the base's 1.25 k MACs"):
        make_budget(1000, 1, 250, macs=1300)
