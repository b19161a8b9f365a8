"""A plan says what stays; one that cannot be realised says in a line why; as a record it comes back the same."""

from dataclasses import replace

import pytest
import torch

from edgevit.derivation.plan import AttentionPlan, BlockPlan, EmbedPlan, FfnPlan, Plan, load_plan, planned, save_plan
from edgevit.errors import PlanError
from edgevit.network.anatomy import Block, Decoder

LABELS = [*range(40), *[39] * 216]


@pytest.fixture
def blocks(small_vit):
    return small_vit().read()


@pytest.fixture
def plan():
    ffns = [FfnPlan(torch.arange(40), torch.tensor(LABELS)), FfnPlan(torch.tensor([5, 0, 255]))]
    return Plan(tuple(BlockPlan(i, AttentionPlan((0, 1), (16, 16)), ffn) for i, ffn in enumerate(ffns)))


def changed(plan, site, **values):
    """The plan with something else in block 0."""
    first = plan.blocks[0]
    return Plan((replace(first, **{site: replace(getattr(first, site), **values)}), plan.blocks[1]))


@pytest.mark.parametrize(
    ("site", "values", "said"),
    [
        ("attention", {"heads": (0, 2)}, "heads [0, 2], expected some of 0 to 1, each once"),
        ("attention", {"heads": (1, 1)}, "heads [1, 1], expected some of 0 to 1, each once"),
        ("attention", {"heads": ()}, "heads [], expected some of 0 to 1, each once"),
        ("attention", {"widths": (33, 16)}, "QK width 33, expected 1 to 32"),
        ("attention", {"widths": (16, 0)}, "VO width 0, expected 1 to 32"),
        ("attention", {"moment": torch.zeros(64, 64)}, "a moment [64, 64], expected [65, 65]"),
        ("ffn", {"neurons": torch.arange(0)}, "neurons [0] torch.int64, expected at least one index"),
        (
            "ffn",
            {"neurons": torch.ones(256, dtype=torch.bool)},
            "neurons [256] torch.bool, expected at least one index",
        ),
        ("ffn", {"neurons": torch.tensor([3, 256])}, "neurons from 3 to 256, expected 0 to 255"),
        ("ffn", {"neurons": torch.tensor([-1, 3])}, "neurons from -1 to 3, expected 0 to 255"),
        ("ffn", {"neurons": torch.tensor([7, 3, 7])}, "neuron 7 more than once, expected every neuron at most once"),
        ("ffn", {"labels": torch.tensor(LABELS[:-1])}, "labels [255] torch.int64, expected [256] torch.int64"),
        ("ffn", {"labels": torch.tensor(LABELS).float()}, "labels [256] torch.float32, expected [256] torch.int64"),
        ("ffn", {"labels": torch.tensor([*LABELS[:-1], 40])}, "cluster labels from 0 to 40, expected 0 to 39"),
        ("ffn", {"labels": torch.tensor([-1, *LABELS[1:]])}, "cluster labels from -1 to 39, expected 0 to 39"),
        ("ffn", {"labels": torch.tensor([7, *LABELS[1:]])}, "neuron 0 for cluster 0, expected one of the cluster's"),
    ],
)
def test_what_cannot_be_realised_names_the_block_and_what_was_expected(plan, blocks, site, values, said):
    plan.check(blocks)
    with pytest.raises(PlanError) as error:
        changed(plan, site, **values).check(blocks)
    assert str(error.value).startswith(f"the plan of block 0 has {said}") and "\n" not in str(error.value)


def test_weights_of_other_sizes_than_planned_are_refused(plan, blocks):
    for site in ("attention", "ffn"):
        with pytest.raises(PlanError, match="the plan of block 0 has weights of"):
            changed(plan, site, weights=getattr(blocks[0], site)).check(blocks)


@pytest.mark.parametrize(
    ("numbers", "said"), [((), "none"), ((1, 0), "1,0"), ((0, 0), "0,0"), ((0, 2), "0,2"), ((-1,), "-1")]
)
def test_blocks_that_are_not_there_or_out_of_order_are_refused(plan, blocks, numbers, said):
    with pytest.raises(PlanError, match=rf"keeps the blocks {said}, expected some of 0 to 1, each once and in order"):
        Plan(tuple(replace(plan.blocks[0], block=n) for n in numbers)).check(blocks)


def test_a_block_without_either_site_or_with_one_that_the_network_lacks_is_refused(plan, blocks):
    empty = replace(plan, blocks=(replace(plan.blocks[0], attention=None, ffn=None),))
    with pytest.raises(PlanError, match="neither attention nor FFN; leave the block out"):
        empty.check(blocks)
    with pytest.raises(PlanError, match="block 0 has an attention, and the network has none there"):
        plan.check([Block(None, blocks[0].ffn), blocks[1]])


def test_a_record_gives_back_what_stays_and_what_is_merged_into_what(plan):
    record = plan.record("vulcan")
    assert record.blocks[0].ffn.neurons == "0-39" and record.blocks[0].ffn.merged == {"39": "40-255"}
    assert record.blocks[1].ffn.neurons == "5,0,255" and record.blocks[1].ffn.merged is None
    again = planned(record)
    assert again.dims == plan.dims and again.record("vulcan") == record
    assert torch.equal(again.blocks[0].ffn.labels, plan.blocks[0].ffn.labels)


def test_merging_into_a_neuron_that_does_not_stay_is_no_plan(plan):
    record = plan.record("vulcan")
    block = record.blocks[0]
    for merged, said in (
        ({"40": "41-255"}, "into 40, which does not stay"),
        ({"39": "41-255"}, "some neuron below 255"),
    ):
        wrong = replace(record, blocks=(replace(block, ffn=replace(block.ffn, merged=merged)), record.blocks[1]))
        with pytest.raises(PlanError, match=said):
            planned(wrong)


def test_the_plan_of_an_unfinished_run_is_found_again_moments_included(plan, tmp_path):
    assert load_plan(tmp_path) is None
    with_moment = changed(plan, "attention", moment=torch.rand(65, 65, dtype=torch.float64))
    decoders = (Decoder(torch.rand(64, 8).double()), Decoder(torch.rand(64, 8).double(), torch.rand(64).double()))
    with_moment = replace(with_moment, embed=EmbedPlan(8, (torch.rand(8, 64, dtype=torch.float64),), decoders))
    save_plan(with_moment, "vulcan", tmp_path)
    found = load_plan(tmp_path)
    assert found.dims == plan.dims and found.blocks[1].attention.moment is None
    assert torch.equal(found.blocks[0].attention.moment, with_moment.blocks[0].attention.moment)
    assert torch.equal(found.embed.encode, with_moment.embed.encode)
    assert found.embed.decoders[0].bias is None and torch.equal(found.embed.decoders[1].bias, decoders[1].bias)
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(found.embed.decoders, decoders, strict=True))


@pytest.mark.parametrize(
    ("width", "encoders", "said"),
    [
        (65, (torch.ones(65, 64).double(),), "width 65, expected 2 to 64"),
        (8, None, "no matrix"),
        (8, (torch.ones(8, 64).double(), torch.ones(8, 64).double()), "2 matrices for its embedding, expected 1"),
        (8, (torch.ones(8, 63).double(),), r"\[8, 63\] torch.float64 .* expected \[8, 64\]"),
        (8, (torch.ones(8, 64),), r"torch.float32"),
    ],
)
def test_an_embedding_that_does_not_fit_is_refused(width, encoders, said):
    with pytest.raises(PlanError, match=said):
        EmbedPlan(width, encoders).check([64])


def test_a_record_says_how_wide_the_embedding_is(plan):
    assert plan.record("forge").embed is None
    record = replace(plan, embed=EmbedPlan(8, (torch.ones(8, 64).double(),))).record("forge")
    assert record.embed == 8 and planned(record).embed == EmbedPlan(8)
