"""Stacks of equal blocks: the base's own stem and head, blocks of any size, weights that no two blocks share."""

import numpy as np
import onnx
import pytest
import torch
from dense_networks import write_depth
from detectors import write_detectors

from edgevit.derivation.allocate.policy import POLICIES
from edgevit.errors import UnsupportedModelError
from edgevit.latency.grid import Grid
from edgevit.latency.stacks import Cut, Stack, network_of, whole_blocks, write_stack
from edgevit.network.anatomy import BlockDims
from edgevit.network.opening import open_network

SIZES = [
    (2, 2, 32, 256), (1, 2, 16, 0), (2, 0, 0, 40), (2, 1, 24, 8), (2, 2, 16, 40, 32), (1, 0, 0, 8, 16),
    (1, 2, 24, 0, None, Cut(8, 2, 16)), (0, 0, 0, 0, None, Cut(16, 1, 32)), (1, 0, 0, 8, 32, Cut(8, 2, 16)),
]  # fmt: skip


@pytest.fixture(scope="module")
def base(small_vit):
    return small_vit()


@pytest.mark.parametrize("sizes", SIZES)
def test_a_stack_is_so_many_blocks_of_its_size_in_the_base_s_own_context(base, sizes):
    stack = Stack(*sizes)
    network = network_of(base, stack.blocks, stack.embed)
    assert [dims for dims in network.dims if dims.sites] == stack.blocks
    assert stack.blocks[-stack.count :] == [stack.dims] * stack.count or not stack.count
    mine, its = network.geometry, base.geometry
    assert (mine.embed, mine.tokens, mine.patch_values, mine.outputs) == (
        stack.embed or its.embed, its.tokens, its.patch_values, its.outputs,
    )  # fmt: skip
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    assert Stack.of(stack.label) == stack


def test_a_stack_is_named_in_words():
    words = [Stack(*sizes).text for sizes in SIZES]
    assert words[0] == "2 blocks of 2 heads of 32 and 256 neurons" and words[1] == "1 block of 2 heads of 16"
    assert words[4] == "2 blocks of 2 heads of 16 and 40 neurons, embedding 32"
    assert words[-1] == "1 block of 8 neurons, embedding 32, after a cut to 8 tokens"
    assert words[-2] == "a cut to 16 tokens"


def test_no_two_blocks_have_equal_weights_and_biases_are_where_the_base_has_them(base):
    first, second = network_of(base, [Stack(2, 2, 16, 64).dims] * 2).read()
    assert not torch.equal(first.attention.wq, second.attention.wq) and not torch.equal(first.ffn.w1, second.ffn.w1)
    assert first.attention.bq is not None and first.ffn.b2 is not None


def test_a_stack_is_the_same_every_time_and_random_numbers_go_on_as_they_were(base):
    torch.manual_seed(5)
    one, after = (network_of(base, [BlockDims(2, 16, 16, 8)]).state_dict() for _ in range(2))
    drawn = torch.rand(1)
    assert all(torch.equal(one[name], after[name]) for name in one)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn)


def test_gated_ffns_and_bases_without_biases_keep_their_kind(small_vit):
    from timm.layers import SwiGLU

    network = network_of(small_vit(mlp_layer=SwiGLU, qkv_bias=False), [BlockDims(2, 16, 24, 24)] * 2)
    (block, _) = network.read()
    assert block.ffn.wg is not None and block.dims == BlockDims(2, 16, 24, 24) and block.attention.bq is None


def test_a_base_whose_blocks_lost_their_sites_is_refused(small_vit):
    network = small_vit()
    halves = [BlockDims(2, 32, 32, 0), BlockDims(2, 32, 32, 256)]
    network.resize(halves)
    with pytest.raises(UnsupportedModelError, match="this model has 1 blocks with both attention and FFN"):
        whole_blocks(network)


SWIN = "swin_tiny_patch4_window7_224"


def test_blocks_of_a_stage_are_in_its_tokens_and_windows_and_all_layers_that_merge_stay(small_vit):
    base = small_vit(SWIN, depths=[1, 4], window_size=2)
    stack = Stack(2, 2, 16, 0, stage=1)
    network = network_of(base, stack.blocks)
    assert [(i, d.sizes, d.shifted) for i, d in enumerate(network.dims) if d.sites] == [
        (1, stack.dims.sizes, False), (4, stack.dims.sizes, True),
    ]  # fmt: skip
    assert network.geometry.outside("macs") == base.geometry.outside("macs")
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    whole = Stack.joined([Stack(1, 2, 32, 256), Stack(4, 4, 32, 512, stage=1)])
    assert [d.sizes for d in network_of(base, whole.blocks).dims] == [d.sizes for d in base.dims]
    for labelled in (stack, whole):
        assert Stack.of(labelled.label) == labelled
    assert whole.text.endswith("256 neurons, and 4 blocks of 4 heads of 32 and 512 neurons, stage 1")


def test_the_head_of_a_dense_network_reads_the_tokens_between_the_blocks_of_a_stack(tmp_path):
    base = open_network(f"{write_depth(tmp_path)}:build")
    network = network_of(base, Stack(2, 2, 16, 64).blocks)
    assert [len(d.sites) for d in network.dims] == [2, 0, 2], "it reads them after blocks 0 and 2"
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 1, 32, 32)


def test_a_stack_of_a_detector_gives_every_level_of_its_pyramid(tmp_path):
    base = open_network(f"{write_detectors(tmp_path)}:masks")
    stages = [dims.stage for dims in base.dims]
    network = network_of(base, Stack(stages.count(1), 2, 16, 0, stage=1).blocks)
    assert [bool(dims.sites) for dims in network.dims] == [stage == 1 for stage in stages]
    images = torch.zeros(1, *base.input_size)
    assert network(images).shape == base(images).shape


def test_a_stage_without_a_whole_block_is_refused(small_vit):
    network = small_vit(SWIN, depths=[2, 1])
    network.resize([*network.dims[:2], network.dims[2].without("ffn")])
    with pytest.raises(UnsupportedModelError, match="stage 1 of this model has no block with both attention and FFN"):
        whole_blocks(network)


@pytest.mark.slow
def test_the_file_has_every_block_and_a_free_batch(base, tmp_path):
    write_stack(base, Stack(2, 1, 16, 0), tmp_path / "s.onnx", precision="fp16", opset=17)
    model = onnx.load(tmp_path / "s.onnx")
    assert sum(node.op_type == "Softmax" for node in model.graph.node) == 2
    assert not any("mlp" in node.name for node in model.graph.node)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.helper.np_dtype_to_tensor_dtype(np.dtype("float16"))


@pytest.mark.slow
@pytest.mark.parametrize("for_engine", [False, True])
def test_every_linear_layer_of_a_stack_is_in_int8_and_for_an_engine_all_else_in_fp16(base, tmp_path, for_engine):
    path = tmp_path / "s.onnx"
    write_stack(base, Stack(2, 1, 16, 8), path, precision="int8", opset=20, for_engine=for_engine)
    graph = onnx.load(path).graph
    nodes, images = graph.node, onnx.helper.tensor_dtype_to_np_dtype(graph.input[0].type.tensor_type.elem_type)
    assert images == np.dtype("float16" if for_engine else "float32")
    quantised = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
    linear = [node for node in nodes if node.op_type in ("MatMul", "Gemm") and {*node.input} & quantised]
    assert len(linear) == 2 * 4 + 1, "four in each block, and the classifier"


@pytest.mark.parametrize(
    "label",
    ["dense", "6 of 3x40", "of 3x40+1", "6 of 3x40+1 more", "6 of 3x40+1 at", "at 6", "6 of 3x40+1 behind 2x16"],
)
def test_other_labels_are_of_no_stack(label):
    assert Stack.of(label) is None


@pytest.mark.parametrize(("name", "widths"), [("fused", {32}), ("paper", {20, 24, 32}), ("free", {16, 24, 32})])
def test_queries_and_keys_that_are_rotated_stay_and_values_make_up_for_them(small_vit, name, widths):
    network = small_vit("vit_small_patch16_dinov3")
    dims = list(network.dims)
    grid = Grid.of(dims, POLICIES[name], frozen=network.geometry.frozen(0))
    assert {s.width for s in grid.coarse() if s.heads} == widths
    slim = network_of(network, [grid.attention(2, min(widths)).dims] * 2)
    assert [(b.dims.qk, b.dims.vo) for b in slim.read()] == [(32, 2 * min(widths) - 32)] * 2
    assert slim(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
