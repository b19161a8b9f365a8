"""Stacks of equal blocks: the base's own stem and head, blocks of any size, weights that no two blocks share."""

import numpy as np
import onnx
import pytest
import torch

from edgevit.derivation.allocate.policy import POLICIES
from edgevit.errors import UnsupportedModelError
from edgevit.latency.grid import Grid
from edgevit.latency.stacks import Cut, Stack, network_of, whole_blocks, write_stack
from edgevit.network.anatomy import BlockDims

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
    assert list(network.dims) == stack.blocks
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
    assert block.ffn.gated and block.dims == BlockDims(2, 16, 24, 24) and block.attention.bq is None


def test_a_base_whose_blocks_lost_their_sites_is_refused(small_vit):
    network = small_vit()
    halves = [BlockDims(2, 32, 32, 0), BlockDims(2, 32, 32, 256)]
    network.resize(halves)
    with pytest.raises(UnsupportedModelError, match="this model has 1 blocks with both attention and FFN"):
        whole_blocks(network)


def test_a_network_of_several_stages_has_no_table(small_vit):
    with pytest.raises(UnsupportedModelError, match="this model has 2 stages; give --rate, --macs or --params"):
        whole_blocks(small_vit("swin_tiny_patch4_window7_224"))


@pytest.mark.slow
def test_the_file_has_every_block_and_a_free_batch(base, tmp_path):
    write_stack(base, Stack(2, 1, 16, 0), tmp_path / "s.onnx", precision="fp16", opset=17)
    model = onnx.load(tmp_path / "s.onnx")
    assert sum(node.op_type == "Softmax" for node in model.graph.node) == 2
    assert not any("mlp" in node.name for node in model.graph.node)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.helper.np_dtype_to_tensor_dtype(np.dtype("float16"))


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
