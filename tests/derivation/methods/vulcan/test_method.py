"""Vulcan's constraint is the sum of Eq. 4 and 7 written out, its multipliers rise, and its state comes back."""

import collapsing
import pytest
import torch
from forks import in_two_processes
from safetensors.torch import load_file

from edgevit.derivation.methods.vulcan.collapse import Clusters
from edgevit.derivation.methods.vulcan.method import Config, Redundancy, default_steps
from edgevit.derivation.plan import AttentionPlan, BlockPlan, FfnPlan, Plan
from edgevit.train.compute import open_compute
from edgevit.train.settings import Training

LABELS = torch.arange(256) % 200  # 56 clusters of two


@pytest.fixture
def plan():
    ffn = FfnPlan(torch.arange(200), LABELS)
    return Plan(tuple(BlockPlan(i, AttentionPlan((0, 1), (16, 24)), ffn) for i in range(2)))


@pytest.fixture
def compute():
    return open_compute(Training(device="cpu", batch_size=8))


@torch.no_grad()
def sums_by_hand(network):
    """Sums of |n_i - anchor| over weights and biases, and of the singular values beyond the kept widths."""
    collapse, tails = 0.0, 0.0
    for block in network.read():
        ffn, attention = block.ffn, block.attention
        rows = torch.cat([ffn.w1, ffn.b1[:, None]], 1)
        collapse += float((rows - rows[LABELS]).abs().sum())
        queries = torch.cat([attention.wq, attention.bq[..., None]], -1)
        for matrices, kept in ((queries, 16), (attention.wv, 24)):
            tails += float(torch.linalg.svdvals(matrices)[:, kept:].sum())
    return collapse, tails


@pytest.mark.parametrize("as_published", [False, True])
def test_the_violation_is_the_sum_written_out(small_vit, plan, compute, as_published):
    network = small_vit()
    constraint = Redundancy(network, plan, Config(as_published=as_published), compute)
    with constraint.watch():
        network.train()(torch.randn(4, 3, 32, 32))
    constraint.clusters = [Clusters(LABELS, torch.arange(200))] * 2 if as_published else constraint.clusters
    collapse, tails = sums_by_hand(network)
    clusters, heads = (200, 1) if as_published else (56, 4)
    violations = constraint._violations().detach()
    assert float(violations[0, 0]) == pytest.approx(collapse / clusters, rel=1e-4)
    assert float(violations[1, 0]) == pytest.approx(tails / heads, rel=1e-3)


def test_without_a_term_its_violation_is_zero(small_vit, plan, compute):
    for config, zero in ((Config(collapse=False), "loss_collapse"), (Config(rank=False), "loss_rank")):
        _, figures = Redundancy(small_vit(), plan, config, compute).penalty()
        assert {name for name, value in figures.items() if value > 0 and name.startswith("loss")} == {
            "loss_collapse", "loss_rank",
        } - {zero}  # fmt: skip


def test_as_published_anchors_follow_each_batch_and_multipliers_ascend(small_vit, plan, compute):
    network = small_vit().train()
    inputs = []
    network.ffn_outputs[0].register_forward_pre_hook(lambda _, values: inputs.append(values[0].detach()))
    constraint, fixed = (Redundancy(network, plan, Config(as_published=p), compute) for p in (True, False))
    for images in torch.randn(2, 8, 3, 32, 32).unbind():
        before = constraint.multipliers.clone()
        with constraint.watch(), fixed.watch():
            network(images)
        constraint.penalty()
        constraint.after_step()
        activation = inputs[-1].sum(1).mean(0)
        for k in range(56):  # the clusters of two
            members = torch.tensor([k, k + 200])
            assert constraint.clusters[0].anchors[k] == members[activation[members].argmax()]
        torch.testing.assert_close(constraint.multipliers - before, constraint.violation)
    assert (constraint.clusters[0].anchors[:56] >= 200).any(), "anchors moved"
    again = Redundancy(network, plan, Config(as_published=True), compute)
    again.load_state(constraint.state())
    assert torch.equal(again.multipliers, constraint.multipliers) and again.updates == 2
    assert torch.equal(again.clusters[0].anchors, constraint.clusters[0].anchors)
    fixed.penalty()
    assert torch.equal(fixed.clusters[0].anchors, torch.arange(200)), "anchors stay"


def test_multipliers_rise_as_adam_without_weight_decay_would(small_vit, plan, compute):
    constraint = Redundancy(small_vit(), plan, Config(), compute)
    expected = constraint.multipliers.clone().requires_grad_()
    optimizer = torch.optim.Adam([expected], lr=constraint.config.rho, maximize=True)
    for _ in range(3):
        constraint.penalty()
        constraint.after_step()
        expected.grad = constraint.violation.clone()
        optimizer.step()
    torch.testing.assert_close(constraint.multipliers, expected.detach())
    again = Redundancy(small_vit(), plan, Config(), compute)
    again.load_state(constraint.state())
    assert torch.equal(again.multipliers, constraint.multipliers) and torch.equal(again.adam, constraint.adam)


def test_the_plan_that_holds_now_has_the_anchors_of_now(small_vit, plan, compute):
    constraint = Redundancy(small_vit(), plan, Config(), compute)
    assert constraint.current_plan().dims == plan.dims
    assert list(constraint.pruned().dims) == list(plan.dims)


@pytest.mark.slow
def test_anchors_are_chosen_by_the_images_of_all_processes(tmp_path):
    """Each of two processes has half of a step's images, and both end with the state of one process."""
    in_two_processes(collapsing.__file__, tmp_path / "two")
    collapsing.collapse(tmp_path / "one")
    one = load_file(tmp_path / "one")
    for rank in (0, 1):
        two = load_file(tmp_path / f"two.{rank}")
        assert two.keys() == one.keys()
        for name, tensor in one.items():
            torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


def test_steps_follow_the_published_rule():
    assert default_steps(Config(), 0.6, 1000, 64) == 3000
