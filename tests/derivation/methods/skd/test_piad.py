"""Progressive importance-aware dropout: units obey the shapes, the list grows and stays nested."""

from dataclasses import replace
from itertools import pairwise

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from edgevit.derivation.allocate.policy import POLICIES, make_policy, smallest
from edgevit.derivation.measure.embedding import measure_tokens, token_weights
from edgevit.derivation.methods.skd.dropout import Rival
from edgevit.derivation.methods.skd.masks import masked
from edgevit.derivation.methods.skd.piad import (
    DropoutSchedule,
    Importance,
    ProgressiveDropout,
    Unit,
    cut,
    dims_without,
    embed_without,
    make_units,
    measure_importance,
    score_units,
)
from edgevit.derivation.methods.skd.wpac import concentrate_embedding
from edgevit.derivation.solve.embedding import encoder
from edgevit.network.anatomy import BlockDims
from edgevit.network.network import Network
from edgevit.records.model import WIDTHS

CPU, COLUMNS = torch.device("cpu"), list(range(10))


def dims_of(network):
    return list(network.dims)


def make_dropout(network, images, passes, *, share=0.5, updates=3, steps=6, policy="fused", rival=None):
    dims, geometry = dims_of(network), network.geometry
    units = make_units(dims, geometry, POLICIES[policy], 8, 32)
    growth = DropoutSchedule(int(share * geometry.macs(dims)), updates, steps)
    return ProgressiveDropout(network.with_columns(COLUMNS), units, growth, images, passes, seed=1, rival=rival)


def test_the_first_channels_are_the_directions_that_the_answers_feel_most(small_vit, images, passes):
    """Any orthonormal basis of the same directions gives the same function."""
    base, x = small_vit(), torch.randn(4, 3, 32, 32)
    network, _ = concentrate_embedding(base.with_columns(COLUMNS), images, passes, 0)
    weights = token_weights(base.with_columns(COLUMNS), images, passes, seed=0)
    narrower = base.with_embedding(encoder(measure_tokens(base, images, weights, passes).directions[0], 24))
    with torch.no_grad():
        torch.testing.assert_close(cut(network, dims_of(network), 24)(x), narrower(x), rtol=1e-4, atol=1e-4)


def test_channels_are_units_whose_worth_is_measured_and_whose_macs_are_counted_once(small_vit, images, passes):
    network, _ = concentrate_embedding(small_vit().with_columns(COLUMNS), images, passes, 0)
    dims, geometry = dims_of(network), network.geometry
    units = make_units(dims, geometry, POLICIES["fused"], 2, 4, [64, 48, 32, 16])
    embeds = [u for u in units if u.kind == "embed"]
    assert [(u.first, u.last) for u in embeds] == [(48, 64), (32, 48), (16, 32)]
    importance = measure_importance(network.with_columns(COLUMNS), images, passes, embed=48, embeds=[32, 16])
    x, labels = next(iter(images.batches(len(images))))
    with torch.no_grad():
        for width, loss in {48: importance.loss, **importance.narrowed}.items():
            assert loss == pytest.approx(float(F.cross_entropy(cut(network, dims, width)(x), labels)), rel=1e-4)
    scored = score_units(embeds[1:], importance)
    rise = importance.narrowed[16] - importance.loss
    assert sum(s * u.macs for s, u in zip(scored, embeds[1:], strict=True)) == pytest.approx(rise / importance.loss)
    growth = DropoutSchedule(int(0.85 * geometry.macs(dims)), 2, 4)  # more than widths of blocks can save
    dropout = ProgressiveDropout(network.train().with_columns(COLUMNS), units, growth, images, passes, seed=1)
    dropout.finish()
    slim = dropout.pruned()
    left = slim.geometry.macs(dims_of(slim))
    assert growth.macs <= dropout.saved_macs() == geometry.macs(dims) - left
    assert slim.geometry.embed == embed_without(64, dropout.dropped) < 64
    with dropout.watch():
        dropout.after_step()
        network(x).sum().backward()


def test_deit_base_has_eight_groups_per_attention_and_32_per_ffn_as_far_as_fused_shapes_allow():
    with torch.device("meta"):
        network = Network(timm.create_model("deit_base_patch16_224"))
    dims, geometry = dims_of(network), network.geometry
    units = [u for u in make_units(dims, geometry, POLICIES["fused"], 8, 32) if u.block == 0]
    attention, ffn = ([u for u in units if u.kind == kind] for kind in ("attention", "ffn"))
    assert [(u.first, u.last) for u in attention] == [(w - 8, w) for w in range(64, 16, -8)]
    assert [(u.first, u.last) for u in ffn] == [(max(w - 96, 8), w) for w in range(3072, 0, -96)] and len(ffn) == 32
    of_query, of_value, of_neuron = (geometry.placed(dims)[0].unit_cost(axis, "macs") for axis in WIDTHS)
    assert attention[0].macs == 8 * (of_query + of_value) and ffn[0].macs == 96 * of_neuron


@pytest.mark.parametrize(("name", "multiple"), [("fused", None), ("fused", 64), ("paper", None), ("free", None)])
@pytest.mark.parametrize(
    "dims", [BlockDims(3, 64, 64, 768), BlockDims(3, 40, 24, 100), BlockDims(3, 12, 12, 20)], ids=str
)
def test_every_boundary_is_a_shape_that_the_policy_allows(small_vit, name, multiple, dims):
    policy, geometry = make_policy(name, multiple), small_vit().geometry
    units = make_units([dims], geometry, policy, 8, 32)
    assert dims_without([dims], units) == smallest([dims], policy, geometry) or (name == "fused" and dims.qk != dims.vo)
    for kind, step in (("attention", policy.head_step), ("ffn", policy.ffn_step)):
        mine = [u for u in units if u.kind == kind]
        assert all(u.first % step == 0 or u.first == smallest([dims], policy, geometry)[0].ffn for u in mine)
        assert all(a.first == b.last for a, b in pairwise(mine)), "one after the other"
    left = geometry.macs(dims_without([dims], units))
    assert geometry.macs([dims]) - left == sum(u.macs for u in units)


def test_importance_counts_modules_units_and_macs_and_stays_nested():
    units = [Unit(0, "ffn", 2, 4, 10), Unit(0, "ffn", 0, 2, 10), Unit(1, "ffn", 2, 4, 10), Unit(1, "ffn", 0, 2, 30)]
    taylor = {(0, "ffn"): torch.tensor([3.0, 3, 1, 1]), (1, "ffn"): torch.tensor([1.0, 1, 3, 3])}
    importance = Importance(loss=2.0, taylor=taylor, skipped={(0, "ffn"): 4.0, (1, "ffn"): 2.5})
    scores = score_units(units, importance)
    # gamma = 1: shares 1/4 and 3/4 of 10 MACs each
    assert scores[:2] == pytest.approx([0.025, 0.075])
    # gamma = 1/4: later units score higher than earlier ones, so both count with their mean over 40 MACs
    assert scores[2:] == pytest.approx([0.25 / 40] * 2)


def test_importance_is_that_of_the_slice_it_is_asked_for(small_vit, images, passes):
    network = small_vit().train()
    kept = [BlockDims(2, 16, 16, 64), BlockDims(2, 32, 32, 128)]
    importance = measure_importance(
        network.with_columns(COLUMNS), images, passes, dims=kept, skip=[(0, "ffn"), (1, "attention")]
    )
    assert network.training
    x, labels = next(iter(images.batches(len(images))))
    with torch.no_grad():
        assert importance.loss == pytest.approx(float(F.cross_entropy(cut(network.eval(), kept)(x), labels)), rel=1e-4)
        for module, dims in (((0, "ffn"), replace(kept[0], ffn=0)), ((1, "attention"), replace(kept[1], qk=0, vo=0))):
            blocks = [dims if i == module[0] else d for i, d in enumerate(kept)]
            with masked(network, blocks, CPU):
                loss = float(F.cross_entropy(network(x), labels))
            assert importance.skipped[module] == pytest.approx(loss, rel=1e-4)
    scores = importance.taylor[0, "attention"]
    assert scores.shape == (32,) and (scores[:16] > 0).all() and (scores[16:] == 0).all()


def test_the_list_grows_to_its_target_and_leaves_prefixes(small_vit, images, passes):
    network = small_vit()
    dropout = make_dropout(network, images, passes)
    for update in range(1, 4):
        dropout.grow()
        dropped = sum(u.macs for u in dropout.dropped)
        due = dropout.growth.macs * update / 3
        assert due <= dropped < due + max(u.macs for u in dropout.units)
    assert len(set(dropout.order)) == len(dropout.order)
    ends = {u.module: w for u in dropout.units for w in [256 if u.kind == "ffn" else 32]}
    for unit in dropout.dropped:
        assert unit.last == ends[unit.module]
        ends[unit.module] = unit.first
    dropout.finish()
    assert dropout.updates == 3


def test_a_module_without_influence_is_dropped_first(small_vit, digits_checkpoint, images, passes):
    network = small_vit()
    network.load_state_dict(load_file(digits_checkpoint))
    with torch.no_grad():
        network.module.blocks[1].mlp.fc2.weight.zero_()
    dropout = make_dropout(network, images, passes, share=0.15, updates=1)
    dropout.grow()
    assert {u.module for u in dropout.dropped} == {(1, "ffn")}


def test_each_step_trains_a_sub_network_that_seed_and_step_decide(small_vit, images, passes):
    network, x = small_vit().train(), torch.randn(4, 3, 32, 32)
    dropout = make_dropout(network, images, passes)
    shares = []
    with dropout.watch():
        for _ in range(8):
            network.zero_grad()
            network(x).sum().backward()
            shares.append(dropout.penalty()[1]["units_kept"])
            masks = [m for pair in dropout.masks.blocks for m in pair]
            dropped = (masks[1] == 0).nonzero().flatten()
            assert (network.module.blocks[0].mlp.fc1.weight.grad[dropped] == 0).all()
            assert (network.module.blocks[0].mlp.fc1.weight.grad != 0).any()
            dropout.after_step()
        state = dropout.state()
        network.eval()
        with torch.no_grad():
            whole = network(x)
    with torch.no_grad():
        torch.testing.assert_close(network(x), whole)  # an evaluation is of the whole network
    assert len(set(shares)) > 3 and min(shares) > 0 and dropout.updates == 3

    again = make_dropout(network.train(), images, passes)
    again.load_state(state)
    with again.watch():
        assert (again.order, again.steps, again.share) == (dropout.order, 8, dropout.share)
        for a, b in zip(again.masks.blocks, dropout.masks.blocks, strict=True):
            assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])
    assert dims_of(dropout.pruned()) == list(dims_without(dims_of(network), dropout.dropped))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["channel", "weighted", "layer", "none"])
def test_a_rival_draws_the_steps_and_the_list_grows_as_ever(small_vit, images, passes, kind):
    network, x = small_vit().train(), torch.randn(4, 3, 32, 32)
    dropout = make_dropout(network, images, passes, rival=Rival(kind, 0.0 if kind == "none" else 0.4))
    plain = make_dropout(network, images, passes)
    shares, seen = [], []
    with torch.no_grad(), dropout.watch():
        for _ in range(7):
            shares.append(dropout.penalty()[1]["units_kept"])
            seen.append(network(x))
            dropout.after_step()
        whole = network.eval()(x)
    plain.finish()
    assert dropout.order == plain.order and dropout.updates == 3
    with torch.no_grad():
        torch.testing.assert_close(network(x), whole)  # an evaluation is of the whole network
    if kind == "none":
        assert set(shares) == {1.0} and all(torch.equal(one, whole) for one in seen)
    else:
        assert len({one.sum().item() for one in seen}) > 2 and 0.2 < sum(shares) / 7 < 0.95

    again = make_dropout(network.train(), images, passes, rival=dropout.rival)
    again.load_state(dropout.state())
    with torch.no_grad(), dropout.watch():
        expected = network(x)
    with torch.no_grad(), again.watch():
        assert torch.equal(network(x), expected) and again.share == dropout.share
