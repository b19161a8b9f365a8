"""The suite: every network is what its name says, at the MACs that make the comparison fair."""

import pytest
import torch

from edgevit.jobs.suite import suite as suite_module
from edgevit.jobs.suite.request import SIZES
from edgevit.jobs.suite.suite import SuiteNetwork, largest_of, shape_of, suite
from edgevit.network.creation import create_timm_network


@pytest.fixture(scope="module")
def whole():
    return suite(list(SIZES))


def macs(subject):
    dims, geometry = subject.cost()
    return geometry.macs(dims)


def test_every_network_has_a_name_of_its_own_and_is_cut_from_the_largest(whole):
    names = [subject.name for subjects in whole.values() for subject in subjects]
    assert len(set(names)) == len(names)
    sizes = {question: {s.size for s in subjects} for question, subjects in whole.items()}
    assert sizes.pop("windows") == {"swin-tiny"} and sizes.pop("sizes and precisions") == {"base", "small", "tiny"}
    assert all(of_question == {"base"} for of_question in sizes.values())
    assert largest_of(["small", "tiny"]) == "small"


@pytest.mark.parametrize("rate", [0.6, 0.8])
def test_shapes_are_of_equal_macs_but_where_heads_are_padded(whole, rate):
    dims, geometry = shape_of("base")
    forms = {s.name.rpartition(" ")[2]: s for s in whole[f"shapes at {rate:g}"]}
    assert tuple(forms) == ("fused", "paper", "padded", "fused4")
    budget = (1 - rate) * geometry.macs(dims)
    for form in ("fused", "fused4", "paper"):
        assert 0.99 * budget < macs(forms[form]) <= budget
    assert macs(forms["padded"]) > macs(forms["paper"])
    for form in ("fused", "fused4", "padded"):
        assert all(block.fusable for block in forms[form].dims)
    assert any(block.qk != block.vo for block in forms["paper"].dims)


def test_mixes_leave_a_fifth_of_the_macs_along_other_axes(whole):
    dims, geometry = shape_of("base")
    blocks, *narrow, tokens = whole["mixes at 0.8"]
    for subject in (*narrow, tokens):
        assert 0.19 < macs(subject) / geometry.macs(dims) <= 0.2
        assert all(block.fusable or not block.has("attention") for block in subject.dims)
    assert 0.1 < macs(blocks) / geometry.macs(dims) < 0.3 and blocks.cost()[0] == dims[:2]
    assert [len(s.dims) for s in narrow] == [12, 8, 8, 8] and {s.cost()[1].embed for s in narrow} == {512}
    assert [block.has("attention") for block in narrow[2].dims] == [True, False] * 4
    assert narrow[3].cost()[1].reaching(narrow[3].dims) == [197] * 3 + [128] * 5
    assert geometry.reaching(tokens.dims) == [197, 64] + [20] * 10 and tokens.dims[5] == dims[5]


def test_heads_of_other_widths_and_192_tokens(whole):
    assert {s.dims[0].qk for s in whole["head widths"]} == {8, 12, 16, 20, 24, 32}
    behind, *pooled = whole["tokens"]
    assert [s.cost()[1].tokens for s in pooled] == [196, 192]
    assert behind.cost()[1].reaching(behind.dims) == [197] + [192] * 11
    assert [s.precision for s in whole["sizes and precisions"]] == ["fp32", "fp16", "fp16", "fp32", "fp32"]


def test_quick_is_a_part_of_the_whole(whole):
    for question, subjects in suite(list(SIZES), quick=True).items():
        assert [s.name for s in subjects] == [s.name for s in whole[question]][: len(subjects)]


def test_a_network_is_what_its_subject_says():
    subject, fewer = [s for s in suite(["tiny"])["mixes at 0.8"] if s.name.endswith(("attention", "blocks, tokens"))]
    assert fewer.network().dims == fewer.dims
    network = subject.network()
    assert network.dims == subject.dims
    assert network(torch.zeros(1, 3, 224, 224)).shape == (1, 1000)
    again = SuiteNetwork("x", "tiny", dims=subject.dims, args=subject.args).network()
    assert torch.equal(network.module.head.weight, again.module.head.weight), "its weights are always the same"


@torch.no_grad()
def test_a_swin_keeps_its_windows_in_both_shapes_at_equal_macs(whole):
    dense, fused, paper = whole["windows"]
    assert (dense.name, fused.name, paper.name) == ("swin-tiny", "swin-tiny 0.6 fused", "swin-tiny 0.6 paper")
    assert all(0.39 < macs(subject) / macs(dense) <= 0.4 for subject in (fused, paper))
    assert all(d.fusable for d in fused.dims) and not all(d.fusable for d in paper.dims)
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    network = paper.network()
    assert network.dims == paper.dims and network.dims[1].shifted
    logits = network(images)
    assert bool(torch.isfinite(logits).all()) and not torch.equal(logits[0], logits[1])
    timms = dense.network().module.layers[0].blocks[1].attn
    whole_swin = create_timm_network(dense.timm_name, {}).layers[0].blocks[1].attn
    assert torch.equal(timms.apart, whole_swin.apart), "what a shift separates is a value and no random weight"


@torch.no_grad()
def test_what_is_cut_from_a_network_has_its_first_heads_and_neurons_and_all_of_it_is_the_network_itself():
    dense = suite_module.random_network(SIZES["tiny"], args={"depth": 2})
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    whole = SuiteNetwork("tiny", "tiny", args={"depth": 2})
    torch.testing.assert_close(whole.network(dense)(images), dense(images))
    (dims, *_), _ = whole.cost()
    cut = type(dims)
    less = SuiteNetwork("tiny less", "tiny", dims=(cut(2, 16, 24, 128, tokens=64), cut(0, 0, 0, 64)), args={"depth": 2})
    first, second = less.network(dense).read()
    of = dense.read()[0]
    assert (first.dims, second.dims) == less.dims
    assert torch.equal(first.attention.wk, of.attention.wk[:2, :16]) and torch.equal(first.ffn.w2, of.ffn.w2[:, :128])
    assert dense.read()[0].dims == dims, "which is as it was"
    assert SuiteNetwork("tiny short", "tiny", args={"depth": 1}).network(dense).read()[0].dims == dims


def test_other_tokens_embeddings_and_sizes_have_weights_of_their_own(whole):
    cut = {question: [s.is_cut_from("base") for s in subjects] for question, subjects in whole.items()}
    assert cut["mixes at 0.8"] == [True, *[False] * 4, True] and cut["tokens"] == [True, False, False]
    assert all(cut["shapes at 0.8"] + cut["head widths"])
    assert [s.is_cut_from("base") for s in whole["sizes and precisions"]] == [
        s.size == "base" for s in whole["sizes and precisions"]
    ]
