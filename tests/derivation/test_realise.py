"""Constructed weights that satisfy both constraints exactly: pruning must then change nothing, biases included."""

from dataclasses import replace

import pytest
import timm
import torch

from edgevit.derivation.measure.statistics import calibrate
from edgevit.derivation.plan import AttentionPlan, BlockPlan, EmbedPlan, FfnPlan, Plan
from edgevit.derivation.realise import leave_tokens, realise
from edgevit.derivation.solve.embedding import encoder, flat_basis
from edgevit.errors import PlanError
from edgevit.network.anatomy import BlockDims, Decoder
from edgevit.network.families.vit.slim import SlimAttention, SlimBlock
from edgevit.network.network import Network

KINDS = {
    "vit": ("vit_tiny_patch16_224", {}),
    "no qkv bias": ("vit_tiny_patch16_224", {"qkv_bias": False}),
    "layer scale, average pooling": ("vit_tiny_patch16_224", {"init_values": 0.1, "global_pool": "avg"}),
    "registers": ("vit_tiny_patch16_224", {"reg_tokens": 2, "no_embed_class": True}),
    "distilled deit": ("deit_tiny_distilled_patch16_224", {}),
    "residual after the norm": ("vit_base_patch16_rpn_224", {}),
    "SwiGLU": ("vit_tiny_patch16_224", {"mlp_layer": timm.layers.SwiGLU}),
    "SwiGLUPacked": ("vit_tiny_patch16_224", {"mlp_layer": timm.layers.SwiGLUPacked, "mlp_ratio": 4.0}),
    "GluMlp": ("vit_tiny_patch16_224", {"mlp_layer": timm.layers.GluMlp, "mlp_ratio": 4.0}),
}
SHAPES = {"fused": (16, 16, 40), "paper": (8, 24, 24), "free": (13, 5, 17), "whole": (32, 32, 128)}


def random_vit(kind, depth=3):
    name, more = KINDS[kind]
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": depth, "num_heads": 2, "mlp_ratio": 2.0}
    model = Network(timm.create_model(name, **{**sizes, "num_classes": 7, **more}).eval())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))  # biases start at zero, where mistakes do not show
    return model


def satisfy(model, dims):
    """Give W_Q (with its bias) and W_V the rank that is kept, and every neuron the weights of its cluster's anchor."""
    plans = []
    with torch.no_grad():
        for i, (block, d) in enumerate(zip(model.read(), dims, strict=True)):
            a, f = block.attention, block.ffn
            low = torch.randn(d.heads, a.qk, d.qk) / d.qk**0.5
            a.wq.copy_(low @ torch.randn(d.heads, d.qk, 64) / 4)
            if a.bq is not None:
                joint = low @ torch.randn(d.heads, d.qk, 65) / 4
                a.wq.copy_(joint[..., :64])
                a.bq.copy_(joint[..., 64])
            low = torch.randn(d.heads, a.vo, d.vo) / d.vo**0.5
            a.wv.copy_(low @ torch.randn(d.heads, d.vo, 64) / 4)
            labels = torch.cat([torch.arange(d.ffn), torch.randint(0, d.ffn, (f.neurons - d.ffn,))])
            anchors = torch.arange(d.ffn)
            for tensor in f.inputs():
                tensor.copy_(tensor[anchors[labels]])
            heads = tuple(range(d.heads))
            plans.append(BlockPlan(i, AttentionPlan(heads, d.head_widths), FfnPlan(anchors, labels)))
    return Plan(tuple(plans))


@pytest.mark.quick("vit-*", "*-fused", "*-free")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_pruning_is_exact_where_both_constraints_hold(kind, shape):
    model = random_vit(kind)
    qk, vo, ffn = SHAPES[shape]
    plan = satisfy(model, [BlockDims(2, qk, vo, ffn)] * 3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    slim = realise(model, plan)
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        logits, pruned = model(images), slim(images)
    assert logits.std() > 0.1
    torch.testing.assert_close(pruned, logits, rtol=1e-5, atol=1e-5 * float(logits.abs().max()))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items()), "the model itself was changed"
    assert list(slim.dims) == list(plan.dims)
    assert sum(p.numel() for p in slim.parameters()) == slim.geometry.params(plan.dims)
    assert isinstance(slim.module.blocks[0].attn, SlimAttention) == (qk != vo)


@pytest.mark.parametrize("kind", KINDS)
def test_keeping_neurons_is_masking_the_others(kind):
    model = random_vit(kind)
    masks = [
        torch.rand(128, generator=torch.Generator().manual_seed(i)) < share for i, share in enumerate((0.1, 0.5, 1))
    ]
    kept = [mask.nonzero().flatten() for mask in masks]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    slim = realise(model, Plan.narrowed([BlockDims(2, 32, 32, len(k)) for k in kept], kept))
    images = torch.randn(4, 3, 32, 32)
    hooks = [
        layer.register_forward_pre_hook(lambda _, given, mask=mask: (given[0] * mask,))
        for layer, mask in zip(model.ffn_outputs, masks, strict=True)
    ]
    with torch.no_grad():
        masked, pruned = model(images), slim(images)
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(pruned, masked, rtol=1e-5, atol=1e-5 * float(masked.abs().max()))
    assert [b.dims.ffn for b in slim.read()] == [len(k) for k in kept]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items()), "the model itself was changed"


def test_heads_without_a_moment_leave_with_what_they_put_out():
    model = random_vit("vit", depth=1)
    whole = Plan.narrowed([BlockDims(2, 32, 32, 128)], [torch.arange(128)])
    (block,) = whole.blocks
    fewer = Plan((replace(block, attention=replace(block.attention, heads=(1,))),))
    slim = realise(model, fewer)
    with torch.no_grad():
        for head in model.read():
            head.attention.wv[0] = 0
            head.attention.bv[0] = 0
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(slim(images), model(images), rtol=1e-4, atol=1e-4)


@pytest.mark.quick("vit*", "distilled*", "*SwiGLU*", "registers*")
@pytest.mark.parametrize("kind", KINDS)
def test_an_attention_or_an_ffn_that_goes_adds_nothing_any_more(kind):
    model = random_vit(kind)
    blocks = model.read()
    whole = Plan.narrowed([b.dims for b in blocks], [torch.arange(128)] * 3)
    plan = Plan((replace(whole.blocks[0], attention=None), whole.blocks[1], replace(whole.blocks[2], ffn=None)))
    slim = realise(model, plan)
    assert isinstance(slim.module.blocks[0], SlimBlock) and isinstance(slim.module.blocks[2], SlimBlock)
    assert sum(p.numel() for p in slim.parameters()) == slim.geometry.params(plan.dims)
    assert slim.geometry.macs(plan.dims) < model.geometry.macs([b.dims for b in blocks])
    with torch.no_grad():
        if kind == "residual after the norm":  # the norm goes with what it normalises
            model.module.blocks[0].norm1.bias.zero_()
            model.module.blocks[2].norm2.bias.zero_()
        for part in (blocks[0].attention, blocks[2].ffn):
            for name in ("wo", "bo", "w2", "b2", "bv"):
                if getattr(part, name, None) is not None:
                    getattr(part, name).zero_()
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(slim(images), model(images), rtol=1e-4, atol=1e-4 * float(model(images).abs().max()))
    assert list(slim.dims) == list(plan.dims)
    again = realise(slim, Plan(tuple(replace(b, block=i) for i, b in enumerate(plan.blocks))))
    with torch.no_grad():
        torch.testing.assert_close(again(images), slim(images), rtol=1e-4, atol=1e-4)


def test_blocks_of_different_shapes_are_each_cut_to_their_own():
    model = random_vit("vit")
    dims = [BlockDims(2, 16, 16, 40), BlockDims(2, 8, 24, 64), BlockDims(2, 32, 32, 128)]
    once = realise(model, satisfy(model, dims))
    again = [BlockDims(2, 8, 16, 24), BlockDims(2, 8, 8, 64), BlockDims(2, 24, 16, 100)]
    plan = satisfy(once, again)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        logits, twice = once(images), realise(once, plan)(images)
    torch.testing.assert_close(twice, logits, rtol=1e-5, atol=1e-5 * float(logits.abs().max()))


def test_gradients_reach_the_live_parameters_through_the_blocks():
    model = random_vit("vit")
    for block in model.read():
        (block.attention.wq.sum() + block.attention.wo.square().sum() + block.ffn.w1.sum()).backward()
    assert all(b.attn.qkv.weight.grad is not None and b.attn.proj.weight.grad is not None for b in model.module.blocks)


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

    def error(moment):
        plan = Plan((BlockPlan(0, AttentionPlan((0, 1), (8, 8), moment), FfnPlan(torch.arange(128))),))
        with torch.no_grad():
            return float((realise(model, plan)(images) - model(images)).square().mean())

    assert error(taken[0].moment) < 0.8 * error(None)


def test_the_embedding_is_narrowed_after_the_blocks():
    model = random_vit("layer scale, average pooling")
    plan = satisfy(model, [BlockDims(2, 16, 16, 40)] * 3)
    encode = encoder(flat_basis(64), 24)
    slim = realise(model, replace(plan, embed=EmbedPlan(24, (encode,))))
    assert slim.geometry.embed == 24 and list(slim.dims) == list(plan.dims)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(slim(images), realise(model, plan).with_embedding(encode)(images))


def test_tokens_of_a_narrower_embedding_are_read_through_the_decoders_of_the_norms_that_stay():
    """Constants alone, one per norm of the base: each must reach what its own site reads, and no other's."""
    model = random_vit("layer scale, average pooling")
    whole = Plan.narrowed(list(model.dims), [torch.arange(b.dims.ffn) for b in model.read()])
    plan = replace(whole, blocks=(whole.blocks[0], replace(whole.blocks[2], attention=None)))
    encode, count = encoder(flat_basis(64), 24), len(model.token_norms)
    constants = torch.randn(count, 64, dtype=torch.float64)
    decoders = tuple(Decoder(torch.zeros(64, 24, dtype=torch.float64), constant) for constant in constants)
    slim = realise(model, replace(plan, embed=EmbedPlan(24, (encode,), decoders)))
    kept = realise(model, plan)
    readers = [
        kept.module.blocks[0].attn.qkv,
        kept.module.blocks[0].mlp.fc1,
        kept.module.blocks[1].mlp.fc1,
        kept.module.head,
    ]
    made = [
        slim.module.blocks[0].attn.qkv,
        slim.module.blocks[0].mlp.fc1,
        slim.module.blocks[1].mlp.fc1,
        slim.module.head,
    ]
    assert count == 7
    for old, new, norm, i in zip(readers, made, kept.token_norms, (0, 1, 5, 6), strict=True):
        assert not new.weight.any()
        seen = constants[i].float() * norm.module.weight + norm.module.bias
        torch.testing.assert_close(new.bias, old(seen), rtol=1e-4, atol=1e-5)


def test_an_embedding_that_cannot_be_narrowed_is_refused():
    model = random_vit("residual after the norm")
    plan = satisfy(model, [BlockDims(2, 16, 16, 40)] * 3)
    with pytest.raises(PlanError, match="stays as it is: a norm after each site"):
        realise(model, replace(plan, embed=EmbedPlan(24, (encoder(flat_basis(64), 24),))))


def passing_on(plan, *tokens, merged=False):
    blocks = zip(plan.blocks, tokens, strict=True)
    return replace(plan, blocks=tuple(replace(b, tokens=n, merged=merged and n > 0) for b, n in blocks))


@pytest.mark.parametrize("merged", [False, True])
def test_tokens_that_leave_afterwards_leave_as_if_realised_at_once(merged):
    model = random_vit("vit")
    first, _, last = satisfy(model, [BlockDims(2, 16, 16, 40)] * 3).blocks
    whole = Plan((first, last))
    plan = passing_on(whole, 9, 0, merged=merged)
    later, at_once = leave_tokens(realise(model, whole), plan), realise(model, plan)
    assert list(later.dims) == list(plan.dims)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(later(images), at_once(images))
    network = realise(model, whole)
    assert leave_tokens(network, whole) is network


def test_tokens_leave_only_the_network_of_the_plan_and_no_more_than_reach_a_block():
    model = random_vit("vit")
    plan = satisfy(model, [BlockDims(2, 16, 16, 40)] * 3)
    with pytest.raises(PlanError, match=r"tokens are to leave a network of the blocks .* expected the plan's"):
        leave_tokens(model, passing_on(plan, 9, 0, 0))
    slim = realise(model, plan)
    with pytest.raises(PlanError, match="the plan of block 1 has 9 tokens to pass on, expected 2 to 8"):
        leave_tokens(slim, passing_on(plan, 9, 9, 0))
