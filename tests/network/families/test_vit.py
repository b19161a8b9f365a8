"""One contract, checked for every family file, and what only timm's ViT has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from family_examples import EXAMPLES, images, slimmed, sweep_vits
from timm.models.vision_transformer import ParallelScalingBlock
from torch import nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import Attention, BlockDims, Ffn
from edgevit.network.families import family_names, load_family
from edgevit.network.network import Network

DIMS = [BlockDims(2, 16, 16, 40), BlockDims(2, 24, 8, 64), BlockDims(2, 32, 32, 256), BlockDims(2, 1, 3, 1)]


def attention_by_hand(part: Attention, x: torch.Tensor) -> torch.Tensor:
    """The docstring of Attention, word for word."""

    def project(w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        out = torch.einsum("bnd,hwd->bhnw", x, w)
        return out if b is None else out + b[None, :, None]

    q, k, v = project(part.wq, part.bq), project(part.wk, part.bk), project(part.wv, part.bv)
    if part.rotary is not None:
        cos, sin = part.rotary
        q, k = (cos * r + sin * torch.cat(r.chunk(2, -1)[::-1], -1) for r in (q, k))
    weights = (q @ k.mT / part.qk**0.5).softmax(-1)
    out = torch.einsum("bhnv,hdv->bnd", weights @ v, part.wo)
    return out if part.bo is None else out + part.bo


def neurons_by_hand(part: Ffn, x: torch.Tensor, act: nn.Module) -> torch.Tensor:
    """The docstring of Ffn, up to the output layer."""

    def project(w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        return x @ w.mT if b is None else x @ w.mT + b

    neurons = act(project(part.w1, part.b1))
    return neurons if part.wg is None else neurons * project(part.wg, part.bg)


def numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_every_family_file_has_an_example() -> None:
    assert sorted([*EXAMPLES, "bert"]) == family_names()  # bert reads ids, and has a file of its own: test_bert.py


@sweep_vits
def test_reading_and_building_changes_nothing(small_vit: Any, family_name: str, name: str, args: Any) -> None:
    network = small_vit(name, **args)
    assert network.family is load_family(family_name)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    built = network.build(network.read()).eval()
    with torch.inference_mode():
        torch.testing.assert_close(built(images()), network(images()), atol=0, rtol=0)
    for key, value in before.items():
        torch.testing.assert_close(built.state_dict()[key], value, atol=0, rtol=0)
        assert built.state_dict()[key].data_ptr() != network.state_dict()[key].data_ptr(), f"{key} is shared"
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())


@sweep_vits
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_slim_shapes_run_and_cost_what_geometry_says(
    small_vit: Any, family_name: str, name: str, args: Any, dims: BlockDims
) -> None:
    network = small_vit(name, **args)
    if "qk" in network.geometry.frozen(0):
        dims = replace(dims, qk=32)
    slim = slimmed(network, dims)
    assert list(slim.dims) == [dims] * 2
    assert slim(images()).isfinite().all()
    for geometry in (network.geometry, slim.geometry):
        assert geometry.params([dims] * 2) == numel(slim)
        assert geometry.macs([dims] * 2) == slim.geometry.macs([dims] * 2)


@sweep_vits
def test_geometry_counts_the_base_itself(small_vit: Any, family_name: str, name: str, args: Any) -> None:
    network = small_vit(name, **args)
    added = 0
    if args.get("proj_bias") is False and args.get("qkv_bias", True):
        added = 2 * 64  # factors fold the value bias into an output bias, which this base does not have
    dims = list(network.dims)
    assert network.geometry.params(dims) == numel(network) + added
    network.keep_classes([4, 2, 7])
    assert network.geometry.params(dims) == numel(network) + added


@sweep_vits
@pytest.mark.parametrize("dims", [None, BlockDims(2, 24, 8, 64)], ids=str)
def test_attention_is_what_the_tensors_say(
    small_vit: Any, family_name: str, name: str, args: Any, dims: BlockDims | None
) -> None:
    network = small_vit(name, **args)
    if dims is not None:
        network = slimmed(network, dims)
    seen: dict[str, list[Any]] = {"attention": [], "ffn": [], "neurons": []}

    def keep(what: str) -> Callable[..., None]:
        return lambda _, x, y: seen[what].append((x[0], y))

    watched = {
        "attention": network.attention_inputs,
        "ffn": [block.mlp for block in network.module.blocks],
        "neurons": network.ffn_outputs,
    }
    for what, modules in watched.items():
        for module in modules:
            module.register_forward_hook(keep(what))
    network(images())
    blocks = network.read()
    assert {len(of) for of in seen.values()} == {len(blocks)}
    for i, block in enumerate(blocks):
        x, y = seen["attention"][i]
        torch.testing.assert_close(attention_by_hand(block.attention, x), y, atol=1e-4, rtol=1e-4)
        x, y = seen["ffn"][i]
        neurons = neurons_by_hand(block.ffn, x, network.module.blocks[i].mlp.act)
        torch.testing.assert_close(neurons, seen["neurons"][i][0], atol=1e-4, rtol=1e-4)
        out = neurons @ block.ffn.w2.mT + (0 if block.ffn.b2 is None else block.ffn.b2)
        torch.testing.assert_close(out, y, atol=1e-4, rtol=1e-4)


@sweep_vits
def test_tensors_are_views_that_gradients_pass_through(small_vit: Any, family_name: str, name: str, args: Any) -> None:
    network = small_vit(name, **args)
    for block in network.read():
        tensors = [*vars(block.attention).values(), *vars(block.ffn).values()]
        sum(t.square().sum() for t in tensors if t is not None).backward()
    for block in network.module.blocks:
        for layer in (m for part in (block.attn, block.mlp) for m in part.modules() if isinstance(m, nn.Linear)):
            torch.testing.assert_close(layer.weight.grad, 2 * layer.weight.detach())


@sweep_vits
def test_kept_classes_give_the_same_logits_in_the_order_given(
    small_vit: Any, family_name: str, name: str, args: Any
) -> None:
    network = small_vit(name, **args)
    with torch.inference_mode():
        before = network(images())
        network.keep_classes([7, 0, 3])
        torch.testing.assert_close(network(images()), before[:, [7, 0, 3]])


def _refused() -> list[Any]:
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 1, "num_heads": 2, "num_classes": 10}
    rope = {**small, "use_abs_pos_emb": False}
    return [
        ("vit_tiny_patch16_224", {**small, "qk_norm": True}, "block 0, qk-norm"),
        ("vit_tiny_patch16_224", {**small, "scale_attn_norm": True}, "a normalisation is between values"),
        ("vit_tiny_patch16_224", {**small, "scale_mlp_norm": True}, "a normalisation inside the FFN"),
        ("vit_tiny_patch16_224", {**small, "mlp_layer": timm.layers.GatedMlp}, "FFN is GatedMlp"),
        ("vit_tiny_patch16_224", {**small, "mlp_layer": timm.layers.SwiGLU, "scale_mlp_norm": True}, "inside the FFN"),
        ("vit_tiny_patch16_224", {**small, "attn_layer": "diff"}, "attention is DiffAttention"),
        ("vit_tiny_patch16_224", {**small, "global_pool": "map", "class_token": False, "fc_norm": True}, "a norm"),
        ("vit_tiny_patch16_224", {**small, "block_fn": ParallelScalingBlock}, "ParallelSc"),
        ("vit_tiny_patch16_224", {**small, "in_chans": 1}, "1 channel"),
        ("vit_tiny_r_s16_p8_224", {"img_size": 32, "depth": 1}, "HybridEmbed"),
        ("vit_small_patch16_rope_224", rope, "rotary"),
        ("eva02_tiny_patch14_224", {**small, "img_size": 28, "patch_size": 14}, "rotary"),
        ("resnet10t", {"num_classes": 4}, "ResNet"),
        ("levit_128s", {}, "Levit"),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "reason"), _refused(), ids=lambda v: v if isinstance(v, str) else "")
def test_what_the_algebra_would_break_is_refused_by_name(name: str, args: Any, reason: str) -> None:
    from edgevit.network.model import describe

    with torch.device("meta"):
        network = timm.create_model(name, **args)
    with pytest.raises(UnsupportedModelError, match=reason) as refusal:
        describe(Network(network), name, args)
    assert "\n" not in str(refusal.value)
    assert name in str(refusal.value) or type(network).__name__ in str(refusal.value)


@pytest.mark.parametrize("how", [{"dynamic_img_size": True}, {"dynamic_img_pad": True}], ids=str)
def test_images_that_are_no_whole_patches_are_refused_where_timm_takes_none(small_vit: Any, how: Any) -> None:
    small_vit(img_size=36)  # whose rest is cut off
    small_vit(img_size=32, **how)
    with pytest.raises(UnsupportedModelError, match=r"36 x 36 do not divide into .* 8 x 8.*'img_size=\(32, 32\)'"):
        small_vit(img_size=36, **how)


def test_a_gate_is_refused(small_vit: Any) -> None:
    network = small_vit()
    network.module.blocks[1].attn = timm.layers.Attention(64, num_heads=2, qkv_bias=True, gated=True)
    with pytest.raises(UnsupportedModelError, match="block 1, a gate is between values and output projection"):
        Network(network.module)
