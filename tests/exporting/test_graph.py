"""The ONNX file: old operator sets, types, and nodes named by their modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from dense_networks import write_depth
from small_models import random_base, slimmed, with_fewer_tokens
from torch import nn
from torch.nn import functional

from edgevit.errors import ExportError
from edgevit.exporting.gates import HEAD_OPERATORS, OPERATORS, check_graph
from edgevit.exporting.graph import write_onnx
from edgevit.exporting.onnx import open_model_source
from edgevit.exporting.session import OnnxModel, open_session
from edgevit.network.classifier import with_features
from edgevit.network.opening import open_network
from edgevit.records.export import ExportRecord

pytestmark = pytest.mark.usefixtures("traced_anew")


@pytest.mark.quick("16-avg-dynamic")
@pytest.mark.parametrize(("opset", "pool", "batch"), [(16, "avg", "dynamic"), (17, "token", "dynamic"), (18, "avg", 2)])
def test_older_operator_sets_compute_the_same(tmp_path: Path, opset: int, pool: str, batch: Any) -> None:
    network = slimmed(random_base(depth=1, global_pool=pool, reg_tokens=1, init_values=0.1), 24, 16)
    path, images = tmp_path / "model.onnx", torch.randn(3, 3, 32, 32)
    write_onnx(network, path, input_size=(3, 32, 32), batch=batch, opset=opset, metadata={})
    counts = check_graph(path, opset)
    assert ("LayerNormalization" in counts) == (opset >= 17)
    torch.testing.assert_close(OnnxModel(path).predict(images), network(images).detach(), rtol=1e-5, atol=1e-4)


@pytest.mark.quick("16-args0")
@pytest.mark.parametrize(
    ("opset", "args"),
    [(16, {}), (16, {"class_token": False, "global_pool": "avg"}), (17, {"reg_tokens": 2}), (20, {"reg_tokens": 2})],
)
def test_no_shape_is_taken_in_part_which_tensorrt_8_would_give_the_whole_of(
    tmp_path: Path, opset: int, args: Any
) -> None:
    network, path, images = random_base(depth=1, **args), tmp_path / "model.onnx", torch.randn(3, 3, 32, 32)
    write_onnx(network, path, input_size=(3, 32, 32), batch="dynamic", opset=opset, metadata={})
    check_graph(path, opset)
    model = onnx.load(path)
    assert not [node for node in model.graph.node if node.op_type == "Shape" and node.attribute]
    torch.testing.assert_close(OnnxModel(path).predict(images), network(images).detach(), rtol=1e-5, atol=1e-4)


HEADS = {
    "normalised": "F.normalize(x, dim=1) + x.abs().sum(1, keepdim=True).log1p() + x.norm(p=1, dim=1, keepdim=True)",
    "reduced": "x - x.amin(1, keepdim=True) + x.logsumexp(1, keepdim=True) + x.prod(1, keepdim=True)",
    "angles": "torch.cat([x.sin(), x.cos(), x.atan(), F.elu(x)], 1)[:, ::4] + x.floor() + x.sign()",
    "classes": "F.log_softmax(x, 1) * ((x.argmax(1, keepdim=True) >= 3).to(x.dtype) + 1)",
    "masked": "torch.where((x > 0) & ~(x >= 1), x, -x.tile(1, 2, 1, 1)[:, :16]) + "
    "torch.einsum('bchw,cd->bdhw', x, self.w)",
    "resized": "F.interpolate(x, size=(5, 7), mode='bilinear')[..., :4, :4] + F.interpolate(x, size=(4, 4)) + "
    "F.interpolate(x, scale_factor=2, mode='bicubic', align_corners=True)[..., ::2, ::2]",
    "padded": "F.pad(x, (1, 2, 1, 2), mode='reflect')[..., :4, :4] + F.pad(x, (1, 0), value=2.0)[..., :4] + "
    "F.pad(x, (0, 0, 2, 1), mode='replicate')[..., 3:, :] + F.pixel_shuffle(x, 2).repeat(1, 4, 1, 1)[..., ::2, ::2]",
    "sampled": "F.grid_sample(x, x[:, :2].tanh().permute(0, 2, 3, 1), align_corners=False) + x.mean((2, 3), True)",
    "grouped": "self.group(x).cumsum(2) + F.mish(x) + F.hardswish(x) + F.layer_norm(x, x.shape[1:])",
}


@pytest.mark.quick("normalised-16", "reduced-20")
@pytest.mark.parametrize("opset", [16, 17, 20])
@pytest.mark.parametrize("head", HEADS)
def test_heads_of_usual_layers_are_written_in_operators_of_tensorrt(tmp_path: Path, head: str, opset: int) -> None:
    text = (
        write_depth(tmp_path).read_text()
        + f"""
class Other(Depth):
    def __init__(self):
        super().__init__()
        self.group, self.last = nn.GroupNorm(4, 16), nn.Conv2d(16, 1, 1)
        self.w = nn.Parameter(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)))

    def forward(self, images):
        maps = self.backbone.forward_intermediates(images, indices=[0, 2], intermediates_only=True)
        x = self.reduce(torch.cat(maps, 1))
        return self.last({HEADS[head]})
"""
    )
    (tmp_path / "other.py").write_text(text)
    network, path = open_network(f"{tmp_path / 'other.py'}:Other").eval(), tmp_path / "m.onnx"
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    write_onnx(network, path, input_size=(3, 32, 32), batch="dynamic", opset=opset, metadata={})
    check_graph(path, opset, operators=OPERATORS | HEAD_OPERATORS)
    (outputs,) = open_session(path).run(None, {"images": images.numpy()})
    torch.testing.assert_close(torch.from_numpy(outputs), network(images).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("args", [{"class_token": False, "global_pool": "avg"}, {"no_embed_class": True}])
def test_a_base_that_takes_images_of_any_size_is_written_for_its_own(tmp_path: Path, args: Any) -> None:
    network, path = random_base(depth=1, img_size=128, dynamic_img_size=True, **args), tmp_path / "model.onnx"
    images = torch.randn(3, 3, 128, 128)
    write_onnx(network, path, input_size=(3, 128, 128), batch="dynamic", opset=20, metadata={})
    assert "Resize" not in check_graph(path, 20)
    torch.testing.assert_close(OnnxModel(path).predict(images), network(images).detach(), rtol=1e-5, atol=1e-4)
    network(torch.randn(1, 3, 64, 64))  # as it could before


@pytest.mark.quick("class,patches-depths3-args3-shapes3")
@pytest.mark.parametrize(("tokens", "depths", "args", "shapes"), [
    ("patches", (), {}, {"patch_tokens": [16, 64]}),
    ("class,patches", (), {"reg_tokens": 2}, {"class_token": [64], "patch_tokens": [16, 64]}),
    ("patches", (2,), {}, {"patch_tokens_2": [16, 64]}),
    ("class", (), {"global_pool": "avg", "fc_norm": False}, {"class_token": [64]}),
    ("class", (1, 2), {"reg_tokens": 2}, {"class_token_1": [64], "class_token_2": [64]}),
    ("class,patches", (1, 2), {}, {
        "class_token_1": [64], "patch_tokens_1": [16, 64], "class_token_2": [64], "patch_tokens_2": [16, 64],
    }),
])  # fmt: skip
def test_features_of_tokens_are_outputs_with_names(
    tmp_path: Path, tokens: Any, depths: tuple[int, ...], args: Any, shapes: dict[str, list[int]]
) -> None:
    network, path = with_features(random_base(depth=2, **args), tokens, depths).eval(), tmp_path / "model.onnx"
    asked: dict[str, Any] = {"input_size": (3, 32, 32), "batch": "dynamic", "metadata": {"output": '"features"'}}
    write_onnx(network, path, opset=16, **asked)
    check_graph(path, 16)
    model, images = OnnxModel(path), torch.randn(3, 3, 32, 32)
    assert {output.name: output.shape[1:] for output in model.outputs} == shapes
    with torch.inference_mode():
        whole = network(images)  # as before the export
    torch.testing.assert_close(model.predict(images).reshape(whole.shape), whole, rtol=1e-4, atol=1e-4)
    if "class" in tokens:
        first = torch.from_numpy(model.session.run(None, {"images": images.numpy()})[0])
        torch.testing.assert_close(first, whole.reshape(3, -1, 64)[:, 0], rtol=1e-4, atol=1e-4)


class _Counting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(1).expand(len(x), 1)


def test_code_that_takes_the_number_of_images_as_a_constant_is_refused_for_any_batch(tmp_path: Path) -> None:
    network, path = random_base(depth=1), tmp_path / "model.onnx"
    network.module.head_drop = _Counting()
    asked: dict[str, Any] = {"input_size": (3, 32, 32), "opset": 20, "metadata": {}}
    with pytest.raises(ExportError, match=r"a file of 2 images alone, as with len\(images\) in a head; give --batch 1"):
        write_onnx(network, path, batch="dynamic", **asked)
    write_onnx(network, path, batch=1, **asked)
    assert OnnxModel(path).batch == 1


class _Masked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.unflatten(1, (2, -1))
        mask = torch.tensor([[True, False], [True, True]])
        apart = functional.scaled_dot_product_attention(parts, parts, parts, attn_mask=mask)  # of three axes
        parts = apart[:, None]
        return functional.scaled_dot_product_attention(parts, 2 * parts, parts, is_causal=True).flatten(1)


def test_attention_of_a_head_with_a_mask_or_a_causal_one_computes_the_same(tmp_path: Path) -> None:
    network, path, images = random_base(depth=1), tmp_path / "model.onnx", torch.randn(3, 3, 32, 32)
    network.module.head_drop = _Masked()
    write_onnx(network, path, input_size=(3, 32, 32), batch="dynamic", opset=16, metadata={})
    check_graph(path, 16)
    torch.testing.assert_close(OnnxModel(path).predict(images), network(images).detach(), rtol=1e-5, atol=1e-4)


def test_a_shape_that_is_taken_in_part_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_onnx(random_base(depth=1), path, input_size=(3, 32, 32), batch="dynamic", opset=20, metadata={})
    model = onnx.load(path)
    shape = next(node for node in model.graph.node if node.op_type == "Shape")
    shape.attribute.append(onnx.helper.make_attribute("start", 0))
    onnx.save(model, path)
    with pytest.raises(ExportError, match="a part of a shape in model/Shape"):
        check_graph(path, 20)


@pytest.mark.slow
@pytest.mark.parametrize(("opset", "merged", "args"), [
    (16, True, {"class_token": False, "global_pool": "avg"}), (20, False, {}),
])  # fmt: skip
def test_tokens_leave_in_a_file_of_any_batch_as_they_do_in_torch(
    tmp_path: Path, opset: int, merged: bool, args: Any
) -> None:
    network = with_fewer_tokens(random_base(depth=3, **args), 9, 4, 0, merged=merged)
    path = tmp_path / "model.onnx"
    write_onnx(network, path, input_size=(3, 32, 32), batch="dynamic", opset=opset, metadata={})
    assert check_graph(path, opset)["TopK"] == 2
    sizes = {i.name: onnx.numpy_helper.to_array(i).tolist() for i in onnx.load(path).graph.initializer if i.dims == [1]}
    topk = [node for node in onnx.load(path).graph.node if node.op_type == "TopK"]
    assert [sizes[node.input[1]] for node in topk] == [[16], [9 - (not args)]]  # constant, of any batch
    for count in (1, 3):
        images = torch.randn(count, 3, 32, 32)
        torch.testing.assert_close(OnnxModel(path).predict(images), network(images).detach(), rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_of_tokens_that_are_looked_at_alike_the_first_go_on_in_a_file_too(tmp_path: Path) -> None:
    network = with_fewer_tokens(random_base(), 6, 0)
    with torch.no_grad():  # no query: all tokens are looked at alike
        network.module.blocks[0].attn.qkv.weight[:64] = network.module.blocks[0].attn.qkv.bias[:64] = 0
    path, images = tmp_path / "model.onnx", torch.randn(2, 3, 32, 32)
    write_onnx(network, path, input_size=(3, 32, 32), batch="dynamic", opset=20, metadata={})
    torch.testing.assert_close(OnnxModel(path).predict(images), network(images).detach(), rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_a_fp16_file_of_an_older_operator_set_is_fp16(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    how = {"input_size": (3, 32, 32), "batch": "dynamic", "metadata": {}}
    write_onnx(random_base(depth=1), path, opset=16, precision="fp16", **how)
    check_graph(path, 16)
    assert onnx.TensorProto.FLOAT not in {i.data_type for i in onnx.load(path).graph.initializer}


def test_every_node_is_named_by_its_module(exported: tuple[Path, ExportRecord]) -> None:
    folder, report = exported
    modules = {name for name, _ in open_model_source(folder).model.module.named_modules()}
    for file in report.files:
        nodes = onnx.load(folder / "export" / file).graph.node
        names = [node.name for node in nodes]
        assert len(set(names)) == len(names)
        for node in nodes:
            module, _, rest = node.name.partition("/")
            assert module in modules | {"model"} and rest.split("_")[0] == node.op_type
        assert {"blocks.0.norm1/LayerNormalization", "blocks.1.attn/Softmax", "head/Gemm"} <= set(names)
        inside = [n for n in nodes if n.name.startswith(("blocks.0.", "blocks.0/"))]
        assert len(inside) == len([n for n in nodes if n.name.startswith(("blocks.1.", "blocks.1/"))])
