"""DINOv3 as a ViT: the function that timm's own class computes, and what its rotation allows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import timm
import torch
from family_examples import narrowed
from safetensors.torch import save_file
from small_models import ARGS
from torch import Tensor, nn

from edgevit.derivation.plan import Plan
from edgevit.derivation.realise import realise
from edgevit.derivation.solve.embedding import encoder, flat_basis, nested_basis
from edgevit.errors import CheckpointError, PlanError, UnsupportedModelError
from edgevit.exporting.graph import write_onnx
from edgevit.exporting.session import OnnxModel
from edgevit.network.anatomy import BlockDims
from edgevit.network.copies import bare_copy, shape_copy
from edgevit.network.families import vit
from edgevit.network.families.vit.rotary import RotaryAttention
from edgevit.network.folder import load, save
from edgevit.network.model import Headless, Model, derived_spec, describe
from edgevit.network.opening import network_without_weights, open_network

NAME = "vit_small_patch16_dinov3"
KINDS: list[tuple[str, dict[str, Any]]] = [
    (NAME, {}),
    (NAME, {"init_values": None, "num_classes": 0, "dynamic_img_size": False}),
    (f"{NAME}_qkvb", {"global_pool": "token", "img_size": (32, 48)}),
    ("vit_small_plus_patch16_dinov3", {"img_size": (48, 16)}),
    ("vit_large_patch16_dinov3", {"class_token": False, "num_reg_tokens": 0, "rope_temperature": 30.0}),
]


def of_timm(name: str = NAME, seed: int = 0, **args: Any) -> Any:
    """A small one of timm's own class, all of its weights random."""
    torch.manual_seed(seed)
    network = timm.create_model(name, **{**ARGS, **args}).eval()
    for parameter in network.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return network


def images(network: Any, count: int = 3) -> Tensor:
    size = getattr(network, "module", network).patch_embed.img_size
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(1))


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.detach().abs().max()))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("name", "args"), KINDS, ids=str)
@torch.no_grad()
def test_it_computes_what_timms_own_class_does(name: str, args: dict[str, Any], seed: int) -> None:
    network = of_timm(name, seed, **args)
    seen = images(network)
    expected = network(seen)
    close(vit.interchange.adopted(network)(seen), expected)


@pytest.mark.parametrize(
    ("name", "args", "why"),
    [
        (NAME, {"use_abs_pos_emb": True}, "learned positions"),
        (NAME, {"rope_rotate_half": False}, "rotate"),
        (NAME, {"global_pool": "map"}, "pools by attention"),
        (NAME, {"patch_drop_rate": 0.5}, "leaves out patches"),
        (NAME, {"dynamic_img_pad": True}, "pads images"),
        (NAME, {"qkv_fused": False}, "not all with one qkv layer"),
        (NAME, {"use_post_norm": True}, "EvaBlockPostNorm"),
        (NAME, {"scale_attn_inner": True}, "a norm or a gate"),
        (NAME, {"scale_mlp": True}, "normalisation inside the FFN"),
        ("eva02_tiny_patch14_224", {}, "RotaryEmbeddingCat"),
        (NAME, {"attn_type": "rope"}, "AttentionRope"),
        ("eva_giant_patch14_224", {}, "EvaBlock"),
    ],
    ids=str,
)
def test_others_of_its_class_are_refused_with_the_reason(name: str, args: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"cannot prune {name}: .*{why}") as error:
        network_without_weights(name, {**ARGS, **args})
    assert "\n" not in str(error.value)


def test_timms_own_class_is_refused_as_it_is() -> None:
    network = of_timm()
    with pytest.raises(UnsupportedModelError, match="`adopted` of its family"):
        vit.check(network)
    network.rope.grid_offset = 1.0
    assert vit.interchange.adopted(network) is network
    with pytest.raises(UnsupportedModelError, match=r"grid_offset=1\.0"):
        vit.check(network)


@torch.no_grad()
def test_its_constants_are_no_weights_and_go_wherever_it_goes(small_vit: Callable[..., Any]) -> None:
    network = small_vit(NAME)
    seen, expected = images(network), network(images(network))
    assert not any("table" in name for name in network.state_dict())
    close(bare_copy(network)(seen), expected)
    assert all(buffer.is_meta for buffer in shape_copy(network).buffers())
    half = network.half()
    assert half(seen.half()).dtype == torch.float16
    close(half(seen.half()).float(), expected, 0.02)


@pytest.fixture
def turned(small_vit: Callable[..., Any]) -> Any:
    """One whose keys have biases, which a change of the embedding's basis gives them."""
    network = small_vit(NAME)
    changed = network.with_embedding(encoder(flat_basis(64), 64, nested_basis)).eval()
    assert all(block.attention is not None and block.attention.bk.abs().max() > 0.01 for block in changed.read())  # type: ignore[union-attr]
    with torch.no_grad():
        close(changed(images(network)), network(images(network)), 1e-4)
    return changed


@torch.no_grad()
def test_factors_at_full_width_leave_queries_and_keys_alone(turned: Any) -> None:
    blocks = turned.read()
    whole = Plan.narrowed([b.dims for b in blocks], [torch.arange(b.dims.ffn) for b in blocks])
    slim = realise(turned, whole)
    close(slim(images(turned)), turned(images(turned)), 1e-4)
    for before, after in zip(blocks, slim.read(), strict=True):
        one, other = before.attention, after.attention
        assert one is not None and other is not None and not torch.equal(one.wv, other.wv)
        assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("wq", "bq", "wk", "bk"))


def test_what_would_cut_queries_and_keys_is_refused(turned: Any) -> None:
    first, *others = Plan.narrowed([BlockDims(2, 16, 16, 40)] * 2, [torch.arange(40)] * 2).blocks
    with pytest.raises(PlanError, match="the plan of block 0 has QK width 16, expected 32 to 32"):
        realise(turned, Plan((first, *others)))
    part = turned.read()[0].attention
    assert part is not None
    for cut in (lambda: part.first(16, 16), lambda: part.padded(40, 40)):
        with pytest.raises(UnsupportedModelError, match="so that the QK width stays 32, not"):
            cut()
    whole = part.keep([1], torch.arange(31, -1, -1).expand(1, 32))
    assert torch.equal(whole.wq, part.wq[1:]), "in the order in which they are rotated"


@torch.no_grad()
def test_macs_are_those_of_the_matrix_products(small_vit: Callable[..., Any]) -> None:
    network = small_vit(NAME)
    network = network.build([narrowed(block, BlockDims(2, 32, 8, 40)) for block in network.read()]).eval()
    counted = 0

    def count(module: Any, inputs: Any, output: Tensor) -> None:
        nonlocal counted
        if isinstance(module, RotaryAttention):
            counted += inputs[0].shape[1] ** 2 * module.num_heads * (module.qk_dim + module.vo_dim)
        else:
            counted += output.numel() * module.weight[0].numel()

    for module in network.modules():
        if isinstance(module, (RotaryAttention, nn.Linear, nn.Conv2d)):
            module.register_forward_hook(count)
    network(images(network, 1))
    geometry, dims = network.geometry, list(network.dims)
    assert geometry.tokens == 16 + 5
    assert geometry.macs(dims) == counted + (2 * 2 * geometry.tokens + 1) * 64  # of norms, and of pooling
    assert geometry.params(dims) == sum(p.numel() for p in network.parameters())


@torch.no_grad()
def test_a_folder_holds_its_weights_and_makes_the_rest_anew(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    args = {**ARGS, "img_size": (32, 48)}
    network = small_vit(NAME, **args)
    base = describe(network, NAME, args)
    slim = network.build([narrowed(block, BlockDims(2, 32, 8, 40)) for block in network.read()])
    slim = slim.with_embedding(encoder(flat_basis(64), 40)).eval()  # 40 wide, and one head of timm's would be so
    save(Model(slim, derived_spec(base.spec, slim, "full", ())), tmp_path / "m")
    close(load(tmp_path / "m")(images(network)), slim(images(network)))
    assert base.spec.preprocessing["input_size"] == [3, 32, 48]


# -- weights of others -------------------------------------------------------------------------------------------------


def official(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names of the official release, of what timm's own class holds. It has biases of keys, and a mask over them."""
    found = {"mask_token": torch.zeros(1, 64), "rope_embed.periods": torch.ones(8)}
    for name, value in state.items():
        for ours, theirs in (
            ("reg_token", "storage_tokens"), ("gamma_1", "ls1.gamma"), ("gamma_2", "ls2.gamma"),
            ("mlp.fc1_g", "mlp.w1"), ("mlp.fc1_x", "mlp.w2"),
        ):  # fmt: skip
            name = name.replace(ours, theirs)
        found[name.replace("mlp.fc2", "mlp.w3") if "blocks.0.mlp.fc1_g.weight" in state else name] = value
    for name in [name for name in found if name.endswith("attn.qkv.weight")]:
        block, like = name.removesuffix("qkv.weight"), torch.zeros(64)
        query, value = (found.pop(f"{block}{one}_bias", like) for one in ("q", "v"))
        found[f"{block}qkv.bias"] = torch.cat([query, torch.full((64,), 7.0), value])
        found[f"{block}qkv.bias_mask"] = torch.cat([torch.ones(64), torch.zeros(64), torch.ones(64)])
    return found


def hugging_face(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names of transformers' files, of what timm's own class holds."""
    gated = "blocks.0.mlp.fc1_g.weight" in state
    found = {"embeddings.mask_token": torch.zeros(1, 1, 64)}
    for name, value in state.items():
        if name.endswith("attn.qkv.weight"):
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                found[name.replace("attn.qkv", f"attention.{part}_proj").replace("blocks", "layer")] = rows
            continue
        for ours, theirs in (
            ("cls_token", "embeddings.cls_token"), ("reg_token", "embeddings.register_tokens"),
            ("patch_embed.proj", "embeddings.patch_embeddings"), ("blocks", "layer"), ("attn.proj", "attention.o_proj"),
            ("attn.q_bias", "attention.q_proj.bias"), ("attn.v_bias", "attention.v_proj.bias"),
            ("gamma_1", "layer_scale1.lambda1"), ("gamma_2", "layer_scale2.lambda1"), ("mlp.fc1_g", "mlp.gate_proj"),
            ("mlp.fc1_x", "mlp.up_proj"), ("mlp.fc1", "mlp.up_proj"), ("mlp.fc2", "mlp.down_proj"),
        ):  # fmt: skip
            name = name.replace(ours, theirs)
        found[name] = value
    assert any("gate_proj" in name for name in found) == gated
    return found


@pytest.mark.parametrize("renamed", [dict, official, hugging_face], ids=["timm", "official", "hugging face"])
@pytest.mark.parametrize("name", [NAME, f"{NAME}_qkvb", "vit_small_plus_patch16_dinov3_qkvb"])
@torch.no_grad()
def test_weights_are_known_by_the_names_that_others_give_them(
    name: str, renamed: Callable[[dict[str, Tensor]], dict[str, Tensor]], tmp_path: Path
) -> None:
    network = of_timm(name, num_classes=0)
    seen, expected = images(network), network(images(network))
    file = tmp_path / "given.safetensors"
    save_file({key: value.contiguous() for key, value in renamed(network.state_dict()).items()}, file)
    args = {key: value for key, value in ARGS.items() if key != "num_classes"}
    found = open_network(name, checkpoint=file, model_args=args)
    assert isinstance(found, Headless)
    close(found.network(seen), expected)


def test_biases_that_are_not_zero_are_not_left_out(tmp_path: Path) -> None:
    file = tmp_path / "given.safetensors"
    save_file(of_timm(f"{NAME}_qkvb").state_dict(), file)
    with pytest.raises(CheckpointError, match=r"has unknown blocks\.0\.attn\.qkv\.bias"):
        open_network(NAME, checkpoint=file, model_args=ARGS)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("opset", "precision", "tolerance"), [(16, "fp32", 1e-5), (20, "fp16", 0.02)])
@torch.no_grad()
def test_a_file_holds_the_rotation_as_constants(
    small_vit: Callable[..., Any], tmp_path: Path, opset: int, precision: str, tolerance: float
) -> None:
    network, path = small_vit(NAME, img_size=(32, 48)), tmp_path / "model.onnx"
    network = network.build([narrowed(block, BlockDims(2, 32, 8, 40)) for block in network.read()]).eval()
    write_onnx(network, path, input_size=(3, 32, 48), batch="dynamic", opset=opset, metadata={}, precision=precision)
    operators = {node.op_type for node in onnx.load(path).graph.node}
    assert not operators & {"Sin", "Cos", "Range", "Cast", "ConstantOfShape"}
    close(OnnxModel(path).predict(images(network)), network(images(network)), tolerance)
