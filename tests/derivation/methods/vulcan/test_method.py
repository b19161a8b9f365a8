"""Vulcan's constraint is the sum of Eq. 4 and 7 written out, its multipliers rise, and its state comes back."""

import collapsing
import pytest
import torch
from forks import in_two_processes
from safetensors.torch import load_file
from small_base import NAME, assert_same_weights, derive, press_ctrl_c_in_step, write_checkpoint

import edgevit
from edgevit.derivation.methods.vulcan.method import Config, Redundancy, default_steps
from edgevit.derivation.plan import AttentionPlan, BlockPlan, FfnPlan, Plan
from edgevit.errors import Interrupted, OptionError
from edgevit.network.families import vit
from edgevit.train.compute import open_compute
from edgevit.train.settings import Training

LABELS = torch.arange(256) % 200  # 56 clusters of two


@pytest.fixture
def plan():
    ffn = FfnPlan(torch.arange(200), LABELS)
    return Plan(tuple(BlockPlan(i, AttentionPlan((0, 1), 16, 24), ffn) for i in range(2)))


@pytest.fixture
def compute():
    return open_compute(Training(device="cpu", batch_size=8))


@torch.no_grad()
def sums_by_hand(network):
    """Sums of |n_i - anchor| over weights and biases, and of the singular values beyond the kept widths."""
    collapse, tails = 0.0, 0.0
    for block in vit.read(network):
        ffn, attention = block.ffn, block.attention
        rows = torch.cat([ffn.w1, ffn.b1[:, None]], 1)
        collapse += float((rows - rows[LABELS]).abs().sum())
        queries = torch.cat([attention.wq, attention.bq[..., None]], -1)
        for matrices, kept in ((queries, 16), (attention.wv, 24)):
            tails += float(torch.linalg.svdvals(matrices)[:, kept:].sum())
    return collapse, tails


@pytest.mark.parametrize("reduction", ["released", "paper"])
def test_the_violation_is_the_sum_written_out(small_vit, plan, compute, reduction):
    network = small_vit()
    constraint = Redundancy(network, plan, Config(reduction=reduction), compute)
    _, figures = constraint.penalty()
    collapse, tails = sums_by_hand(network)
    clusters, heads = (56, 4) if reduction == "released" else (200, 1)
    assert figures["loss_collapse"] == pytest.approx(collapse / clusters, rel=1e-4)
    assert figures["loss_rank"] == pytest.approx(tails / heads, rel=1e-3)


@pytest.mark.parametrize("update", ["ascent", "adam"])
def test_multipliers_rise_while_the_constraint_is_violated_and_come_back_with_the_state(
    small_vit, plan, compute, update
):
    network, config = small_vit(), Config(multiplier_update=update)
    constraint = Redundancy(network, plan, config, compute)
    for _ in range(2):
        before = constraint.multipliers.clone()
        constraint.penalty()
        constraint.after_step()
        assert (constraint.multipliers > before).all()
    again = Redundancy(network, plan, config, compute)
    again.load_state(constraint.state())
    assert torch.equal(again.multipliers, constraint.multipliers) and again.updates == 2


def test_multipliers_rise_as_adam_without_weight_decay_would(small_vit, plan, compute):
    constraint = Redundancy(small_vit(), plan, Config(multiplier_update="adam"), compute)
    expected = constraint.multipliers.clone().requires_grad_()
    optimizer = torch.optim.Adam([expected], lr=constraint.config.rho, maximize=True)
    for _ in range(3):
        constraint.penalty()
        constraint.after_step()
        expected.grad = constraint.violation.clone()
        optimizer.step()
    torch.testing.assert_close(constraint.multipliers, expected.detach())


def test_the_plan_that_holds_now_has_the_anchors_of_now(small_vit, plan, compute):
    constraint = Redundancy(small_vit(), plan, Config(), compute)
    assert constraint.current_plan().dims == plan.dims
    assert [b.dims for b in vit.read(constraint.pruned())] == list(plan.dims)


def test_activations_are_compared_over_the_images_of_all_processes(tmp_path):
    """Each process has its half of a step's images; together they raise the multipliers as one process does."""
    in_two_processes(collapsing.__file__, tmp_path / "two")
    collapsing.collapse(tmp_path / "one")
    one = load_file(tmp_path / "one")
    for rank in (0, 1):
        two = load_file(tmp_path / f"two.{rank}")
        assert two.keys() == one.keys()
        for name, tensor in one.items():
            torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


def test_activations_of_a_step_in_parts_are_refused_before_anything_is_opened(tmp_path):
    options, unreadable = {"calibration_images": 48, "collapse": "activation"}, tmp_path / "x.safetensors"
    unreadable.touch()
    told = r"--grad-accum 2 computes .*; leave it at 1, or .*vulcan\.collapse=weight$"
    with pytest.raises(OptionError, match=told):
        derive(unreadable, tmp_path / "m", training={"grad_accum": 2}, options=options)
    with pytest.raises(OptionError, match=told):
        asked = {"ms": 5, "method": "vulcan", "options": options, "training": Training(grad_accum=2)}
        edgevit.meet(NAME, checkpoint=unreadable, data="digits", out=tmp_path / "m", **asked)
    derive(write_checkpoint(tmp_path), tmp_path / "n", options=options, training={"steps": 1})


def test_steps_follow_the_published_rule_or_the_data():
    assert default_steps(Config(), 0.6, 1000, 64) == 3000
    assert default_steps(Config(steps_rule="data"), 0.6, 1000, 64) == round(3000 * 256 / 32_500 * 1000 / 64)


def test_the_embedding_is_narrowed_before_anything_collapses(tmp_path, monkeypatch):
    """Also where it is interrupted and gone on with; and its teacher's tokens have the base's width."""
    checkpoint = write_checkpoint(tmp_path)
    options = {"calibration_images": 48, "embed_width": 32, "teacher": "restricted", "token_weight": 1.0}
    given = {"rate": 0.8, "options": options, "training": {"steps": 4}}
    whole = derive(checkpoint, tmp_path / "m", **given)
    assert vit.geometry(whole.model.network).embed == 32 and 0.8 <= whole.model.spec.rate < 0.82
    press_ctrl_c_in_step(2, monkeypatch)
    with pytest.raises(Interrupted):
        derive(checkpoint, tmp_path / "n", **given)
    resumed = derive(checkpoint, tmp_path / "n", resume=True, **given)
    assert_same_weights(whole.model.network.state_dict(), resumed.model.network.state_dict())


def test_an_embedding_that_cannot_be_narrowed_is_refused_with_the_reason(tmp_path):
    checkpoint = write_checkpoint(tmp_path)
    few = {"calibration_images": 2, "embed_width": 32}
    with pytest.raises(OptionError, match=r"vulcan.embed_width=32: the embedding cannot be narrowed: 2 calibration"):
        derive(checkpoint, tmp_path / "m", options=few)
    with pytest.raises(OptionError, match=r"vulcan.embed_width=65 is wider than the base's embedding, which has 64"):
        derive(checkpoint, tmp_path / "m", options={"embed_width": 65})
