"""Constructed weights that satisfy both constraints exactly: pruning must then change nothing, biases included."""

from dataclasses import replace

import pytest
import timm
import torch

from edgevit.derive import surgery
from edgevit.derive.measure.statistics import calibrate
from edgevit.derive.methods.vulcan.collapse import Clusters
from edgevit.derive.plan import Plan, load_plan, save_plan
from edgevit.errors import PlanError
from edgevit.models.anatomy import BlockDims
from edgevit.models.families import vit
from edgevit.models.slim import SlimAttention

KINDS = {
    "vit": ("vit_tiny_patch16_224", {}),
    "no qkv bias": ("vit_tiny_patch16_224", {"qkv_bias": False}),
    "layer scale, average pooling": ("vit_tiny_patch16_224", {"init_values": 0.1, "global_pool": "avg"}),
    "registers": ("vit_tiny_patch16_224", {"reg_tokens": 2, "no_embed_class": True}),
    "distilled deit": ("deit_tiny_distilled_patch16_224", {}),
}
SHAPES = {"fused": (16, 16, 40), "paper": (8, 24, 24), "free": (13, 5, 17), "whole": (32, 32, 128)}


def random_vit(kind, depth=3):
    name, more = KINDS[kind]
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": depth, "num_heads": 2, "mlp_ratio": 2.0}
    model = timm.create_model(name, **sizes, num_classes=7, **more).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))  # biases start at zero, where mistakes do not show
    return model


def satisfy(model, dims):
    """Give W_Q (with its bias) and W_V the rank that is kept, and every neuron the weights of its cluster's anchor."""
    clusters = []
    with torch.no_grad():
        for block, d in zip(vit.read(model), dims, strict=True):
            low = torch.randn(d.heads, block.wq.shape[1], d.qk) / d.qk**0.5
            block.wq.copy_(low @ torch.randn(d.heads, d.qk, 64) / 4)
            if block.bq is not None:
                joint = low @ torch.randn(d.heads, d.qk, 65) / 4
                block.wq.copy_(joint[..., :64])
                block.bq.copy_(joint[..., 64])
            low = torch.randn(d.heads, block.wv.shape[1], d.vo) / d.vo**0.5
            block.wv.copy_(low @ torch.randn(d.heads, d.vo, 64) / 4)
            labels = torch.cat([torch.arange(d.ffn), torch.randint(0, d.ffn, (block.dims.ffn - d.ffn,))])
            anchors = torch.arange(d.ffn)
            block.w1.copy_(block.w1[anchors[labels]])
            if block.b1 is not None:
                block.b1.copy_(block.b1[anchors[labels]])
            clusters.append(Clusters(labels, anchors))
    return Plan(tuple(dims), tuple(clusters))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_pruning_is_exact_where_both_constraints_hold(kind, shape):
    model = random_vit(kind)
    qk, vo, ffn = SHAPES[shape]
    plan = satisfy(model, [BlockDims(2, qk, vo, ffn)] * 3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    slim = surgery.apply(model, plan)
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        logits, pruned = model(images), slim(images)
    assert logits.std() > 0.1
    torch.testing.assert_close(pruned, logits, rtol=1e-5, atol=1e-5 * float(logits.abs().max()))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items()), "the model itself was changed"
    assert [b.dims for b in vit.read(slim)] == list(plan.dims)
    assert sum(p.numel() for p in slim.parameters()) == vit.geometry(slim).params(plan.dims)
    assert isinstance(slim.blocks[0].attn, SlimAttention) == (qk != vo)


@pytest.mark.parametrize("kind", KINDS)
def test_keeping_neurons_is_masking_the_others(kind):
    model = random_vit(kind)
    masks = [
        torch.rand(128, generator=torch.Generator().manual_seed(i)) < share for i, share in enumerate((0.1, 0.5, 1))
    ]
    kept = [mask.nonzero().flatten() for mask in masks]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    slim = surgery.rebuild(model, [surgery.keep_neurons(b, k) for b, k in zip(vit.read(model), kept, strict=True)])
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        masked, pruned = surgery.without_neurons(model, masks)(images), slim(images)
    torch.testing.assert_close(pruned, masked, rtol=1e-5, atol=1e-5 * float(masked.abs().max()))
    assert [b.dims.ffn for b in vit.read(slim)] == [len(k) for k in kept]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items()), "the model itself was changed"


def test_neurons_are_kept_in_the_order_given_and_can_be_trained_through():
    (block,) = vit.read(random_vit("vit", depth=1))
    for kept in ([5, 0, 127], (5, 0, 127), torch.tensor([5, 0, 127])):
        slim = surgery.keep_neurons(block, kept)
        assert torch.equal(slim.w1, block.w1[[5, 0, 127]]) and torch.equal(slim.w2, block.w2[:, [5, 0, 127]])
        assert torch.equal(slim.b1, block.b1[[5, 0, 127]]) and slim.w1.requires_grad


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ([], "neurons to keep are [0] torch.float32, expected at least one index"),
        (torch.ones(128, dtype=torch.bool), "neurons to keep are [128] torch.bool, expected at least one index"),
        ([0.5], "neurons to keep are [1] torch.float32, expected at least one index"),
        ([3, 128], "neurons to keep run from 3 to 128, expected 0 to 127"),
        ([-1, 3], "neurons to keep run from -1 to 3, expected 0 to 127"),
        ([7, 3, 7], "neurons to keep have 7 more than once, expected every neuron at most once"),
    ],
)
def test_neurons_that_cannot_be_kept_are_refused(kept, said):
    (block,) = vit.read(random_vit("vit", depth=1))
    with pytest.raises(PlanError) as error:
        surgery.keep_neurons(block, kept)
    assert str(error.value).startswith(said) and "\n" not in str(error.value)


def changed(plan, *, dims=None, moments=None, **clusters):
    """The plan with other dimensions, labels or anchors in block 1."""
    one = replace(plan.clusters[1], **{k: torch.tensor(v) for k, v in clusters.items()})
    dims = (plan.dims[0], replace(plan.dims[1], **(dims or {})), *plan.dims[2:])
    return replace(plan, dims=dims, clusters=(plan.clusters[0], one, *plan.clusters[2:]), moments=moments)


LABELS = [*range(40), *[39] * 88]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"dims": {"heads": 1}}, "1 heads, expected all 2; surgery.keep_heads drops heads"),
        ({"dims": {"qk": 33}}, "qk width 33, expected 1 to 32"),
        ({"dims": {"vo": 0}}, "vo width 0, expected 1 to 32"),
        ({"dims": {"ffn": 129}}, "ffn width 129, expected 1 to 128"),
        ({"labels": LABELS[:-1]}, "labels [127] torch.int64, expected [128] torch.int64"),
        ({"labels": [float(label) for label in LABELS]}, "labels [128] torch.float32, expected [128] torch.int64"),
        ({"anchors": list(range(41))}, "anchors [41] torch.int64, expected [40] torch.int64"),
        ({"labels": [*LABELS[:-1], 40]}, "cluster labels from 0 to 40, expected 0 to 39: a plan merges every neuron"),
        ({"labels": [-1, *LABELS[1:]]}, "cluster labels from -1 to 39, expected 0 to 39: a plan merges every neuron"),
        (
            {"labels": [7, 1, 2, 7, *LABELS[4:]]},
            "2 empty clusters, the first of them 0, expected a neuron in each of 40",
        ),
        ({"anchors": [*range(39), 128]}, "anchors from 0 to 128, expected neurons 0 to 127"),
        ({"anchors": [0, *range(39)]}, "neuron 0 for the anchor of cluster 1, expected one of the cluster's members"),
        ({"moments": (None, torch.zeros(64, 64), None)}, "a moment [64, 64], expected [65, 65]"),
    ],
)
def test_a_plan_that_cannot_be_realised_names_the_block_and_what_was_expected(fault, said):
    model = random_vit("vit")
    plan = satisfy(model, [BlockDims(2, 16, 16, 40)] * 3)
    plan.check(vit.read(model))
    with pytest.raises(PlanError) as error:
        surgery.apply(model, changed(plan, **fault))
    assert str(error.value).startswith(f"the plan of block 1 has {said}") and "\n" not in str(error.value)


def test_a_plan_for_another_depth_is_refused():
    model = random_vit("vit")
    plan = satisfy(model, [BlockDims(2, 16, 16, 40)] * 3)
    for short, said in (
        (replace(plan, dims=plan.dims[:2]), "the plan has dims for 2 blocks, expected 3"),
        (replace(plan, clusters=plan.clusters * 2), "the plan has clusters for 6 blocks, expected 3"),
        (replace(plan, moments=(torch.zeros(65, 65),)), "the plan has moments for 1 blocks, expected 3"),
    ):
        with pytest.raises(PlanError, match=said):
            short.check(vit.read(model))


def test_blocks_of_different_shapes_are_each_cut_to_their_own():
    model = random_vit("vit")
    dims = [BlockDims(2, 16, 16, 40), BlockDims(2, 8, 24, 64), BlockDims(2, 32, 32, 128)]
    once = surgery.apply(model, satisfy(model, dims))
    again = [BlockDims(2, 8, 16, 24), BlockDims(2, 8, 8, 64), BlockDims(2, 24, 16, 100)]
    plan = satisfy(once, again)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        logits, twice = once(images), surgery.apply(once, plan)(images)
    torch.testing.assert_close(twice, logits, rtol=1e-5, atol=1e-5 * float(logits.abs().max()))


def test_gradients_reach_the_live_parameters_through_the_blocks():
    model = random_vit("vit")
    for block in vit.read(model):
        (block.wq.sum() + block.wo.square().sum() + block.w1.sum()).backward()
    assert all(b.attn.qkv.weight.grad is not None and b.attn.proj.weight.grad is not None for b in model.blocks)


def test_factorising_for_the_inputs_beats_factorising_for_the_weights_on_them():
    from edgevit.data.task import open_task
    from edgevit.train.passes import open_passes
    from edgevit.train.settings import Training

    model = random_vit("vit", depth=1)
    preprocessing = {
        "input_size": (3, 32, 32), "interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "center",
        "mean": (0.5,) * 3, "std": (0.5,) * 3,
    }  # fmt: skip
    task = open_task("digits", "1,7", preprocessing=preprocessing, base_outputs=10)
    taken = calibrate(model, task.train.subset(64), open_passes(Training(device="cpu")), factorisation="activations")
    images = torch.cat([batch for batch, _ in task.test.batches(32)])
    whole = Clusters(torch.arange(128), torch.arange(128))

    def error(moments):
        plan = Plan((BlockDims(2, 8, 8, 128),), (whole,), moments)
        with torch.no_grad():
            return float((surgery.apply(model, plan)(images) - model(images)).square().mean())

    assert error((taken[0].moment,)) < 0.8 * error(None)


def test_a_plan_is_stored_and_found_again(tmp_path):
    model = random_vit("vit")
    plan = satisfy(model, [BlockDims(2, 16, 16, 40)] * 3)
    assert load_plan(tmp_path) is None
    save_plan(plan, tmp_path)
    found = load_plan(tmp_path)
    assert found.dims == plan.dims and found.moments is None
    for a, b in zip(found.clusters, plan.clusters, strict=True):
        assert torch.equal(a.labels, b.labels) and torch.equal(a.anchors, b.anchors)


def test_dropping_classes_keeps_their_logits():
    model = random_vit("distilled deit")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        subset = surgery.with_classes(model, [5, 2])(images)
        torch.testing.assert_close(subset, model(images)[:, [5, 2]])
    assert model.head.out_features == 7


MOMENTS = {"one token": 1, "class tokens of 5 images": 5, "fewer tokens than features": 40, "all tokens": 900}


@pytest.mark.parametrize("tokens", MOMENTS.values(), ids=MOMENTS.keys())
@pytest.mark.parametrize("kind", ["vit", "no qkv bias"])
def test_moments_of_any_rank_give_finite_factors_no_worse_in_their_own_norm(kind, tokens):
    block = vit.read(random_vit(kind, depth=1))[0]
    x = torch.randn(tokens, 64, dtype=torch.float64) @ torch.randn(64, 64, dtype=torch.float64) / 8 + 0.5
    ones = torch.cat([x, x.new_ones(tokens, 1)], dim=1)
    moment = ones.mT @ ones / tokens
    dims = [BlockDims(2, 8, 8, 128)]
    errors = {}
    with torch.no_grad():
        for name, moments in (("weights", None), ("activations", [moment])):
            (slim,) = surgery.narrow_attention([block], dims, moments)
            assert all(torch.isfinite(t).all() for t in vars(slim).values() if t is not None)
            errors[name] = attention_errors(block, slim, x)
    for plain, aware in zip(errors["weights"], errors["activations"], strict=True):
        assert aware <= plain * (1 + 1e-6) + 1e-9


def attention_errors(block, slim, x):
    """Mean square error of the logits, less what a query's keys share, and of the outputs of every head together."""
    centred = x - x.mean(0)

    def logits(b):
        q = torch.einsum("td,hqd->htq", x, b.wq.double()) + (0 if b.bq is None else b.bq.double()[:, None])
        return q @ torch.einsum("td,hqd->htq", centred, b.wk.double()).mT / b.wq.shape[1] ** 0.5

    def outputs(b):
        return torch.einsum("td,hvd,hov->hto", x, b.wv.double(), b.wo.double())

    lost = outputs(block) - outputs(slim)
    lost = lost - lost.mean(1, keepdim=True)  # the mean is in the output bias
    return float((logits(block) - logits(slim)).square().mean()), float(lost.square().sum())
