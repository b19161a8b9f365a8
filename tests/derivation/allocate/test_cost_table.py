"""Cost tables: what one says, and every way in which it may not be the right one."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.cost_table import CostTable, Where, load_cost_table
from edgevit.derivation.allocate.policy import POLICIES, check_policy_reaches, smallest
from edgevit.errors import BudgetError, CostTableError, OptionError
from edgevit.network.anatomy import BlockDims
from edgevit.network.families import vit

SIZES = {"heads": 2, "qk": 32, "vo": 32, "ffn": 256}


def block(**more):
    return {
        "base": SIZES,
        "attention": [{"heads": h, "width": w, "ms": round(h / 10 + w / 100, 3)} for h in (1, 2) for w in (16, 24, 32)],
        "ffn": [{"width": w, "ms": round(0.05 + w / 1000, 3)} for w in (8, 64, 128, 256)],
        **more,
    }  # fmt: skip


def content(**more):
    return {
        "schema": 1,
        "measured_on": "a board, a power mode, fp16, batch 1",
        "base": {"family": "vit", "embed": 64, "tokens": 17, "patch_values": 192, "depth": 2},
        "fixed_ms": 0.125,
        "blocks": [block()],
        **more,
    }


@pytest.fixture(scope="module")
def base(small_vit):
    network = small_vit()
    return [b.dims for b in vit.read(network)], vit.geometry(network)


@pytest.fixture
def table(tmp_path):
    def make(suffix="yaml", **more):
        file = tmp_path / f"table.{suffix}"
        file.write_text(yaml.safe_dump(content(**more)) if suffix == "yaml" else json.dumps(content(**more)))
        return load_cost_table(file)

    return make


def test_a_width_between_two_that_are_listed_takes_what_the_next_above_takes(table):
    t = table().in_quantity("ms")
    assert t.ffn(0, 64) == 0.114 and t.ffn(1, 65) == t.ffn(1, 128) == 0.178 and t.ffn(0, 1) == 0.058
    assert t.attention(0, 2, 16, 16) == 0.36 and t.attention(0, 2, 17, 8) == t.attention(0, 2, 24, 24) == 0.44
    assert t.attention(0, 1, 8, 32) == t.attention(0, 1, 32, 32) == 0.42, "the wider of QK and VO decides"
    with pytest.raises(CostTableError, match="block 1 lists nothing as wide as FFN width 257; measure that as well"):
        t.ffn(1, 257)
    with pytest.raises(CostTableError, match="nothing as wide as attention of 3 heads, QK 16, VO 16"):
        t.attention(0, 3, 16, 16)


@given(heads=st.integers(1, 2), qk=st.integers(1, 32), vo=st.integers(1, 32), ffn=st.integers(1, 256))
def test_no_width_takes_more_than_a_wider_one(heads, qk, vo, ffn):
    t = CostTable.model_validate(content()).in_quantity("ms")
    more = BlockDims(2, min(qk + 5, 32), min(vo + 3, 32), min(ffn + 40, 256))
    assert t.block(0, BlockDims(heads, qk, vo, ffn)) <= t.block(0, more) <= t.block(0, BlockDims(**SIZES))


def test_json_and_yaml_are_one_table_and_blocks_may_differ(table, base):
    read, dims = table("json"), base[0]
    assert read == table("yaml") and read.record() == table("yaml").record()
    t = read.in_quantity("ms")
    assert t.base == t.cost(dims) == pytest.approx(0.125 + 2 * (0.52 + 0.306))
    other = table(blocks=[block(), block(ffn=[{"width": 8, "ms": 1}, {"width": 256, "ms": 2}])])
    slow = other.in_quantity("ms")
    assert slow.cost(dims) == pytest.approx(0.125 + 2 * 0.52 + 0.306 + 2) and other.record() != read.record()
    assert slow.cost(dims[:1], kept=[1]) == pytest.approx(0.125 + 0.52 + 2)
    pairs = [{"heads": 2, "qk": qk, "vo": vo, "ms": qk + 2 * vo} for qk in (16, 32) for vo in (16, 32)]
    separate = table(blocks=[block(attention=pairs)]).in_quantity("ms")
    assert separate.attention(0, 2, 24, 16) == 64 and separate.attention(0, 2, 16, 24) == 80


def test_a_table_of_the_base_passes_for_every_policy_it_covers(table, base):
    dims, geometry = base
    table().check("vit", dims, geometry, POLICIES["fused"])
    with pytest.raises(
        CostTableError, match="lists QK widths 16 to 32 of 2 heads, and 8 to 32 can be asked for by sha"
    ):
        table().check("vit", dims, geometry, POLICIES["paper"])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"base": {**content()["base"], "embed": 192}}, "the base was measured with embed 192 (the base has 64)"),
        (
            {"base": {**content()["base"], "depth": 12, "tokens": 5}},
            "tokens 5 (the base has 17), depth 12 (the base has 2)",
        ),
        ({"base": {**content()["base"], "family": "swin"}}, "family 'swin' (the base has vit)"),
        ({"blocks": [block(base={**SIZES, "ffn": 128})]}, "block 0 was measured with ffn 128 (the base has 256)"),
        (
            {"blocks": [block(), block(ffn=[{"width": 8, "ms": 3}, {"width": 64, "ms": 2}, {"width": 256, "ms": 4}])]},
            "block 1: FFN width 64 takes 2 ms, less than the 3 ms of width 8; measure again",
        ),
        (
            {"blocks": [block(attention=[{"heads": 1, "width": 32, "ms": 3}, {"heads": 2, "width": 32, "ms": 2.5}])]},
            "block 0: attention of 2 heads, QK 32, VO 32 takes 2.5 ms, less than the 3 ms of attention of 1 heads",
        ),
        ({"blocks": [block(ffn=[{"width": 8, "ms": 1}] * 2)]}, "block 0: lists FFN width 8 twice"),
        ({"blocks": [block(attention=[{"heads": 2, "width": 8, "ms": 1}] * 2)]}, "QK 8, VO 8 twice"),
        (
            {"blocks": [block(ffn=[{"width": 64, "ms": 1}, {"width": 256, "ms": 2}])]},
            "FFN widths 64 to 256, and 8 to 256",
        ),
        (
            {"blocks": [block(ffn=[{"width": 8, "ms": 1}, {"width": 128, "ms": 2}])]},
            "FFN widths 8 to 128, and 8 to 256",
        ),
        ({"blocks": [block(attention=[{"heads": 1, "width": 64, "ms": 1}])]}, "lists no attention of 2 heads"),
        (
            {"blocks": [block(attention=[{"heads": 2, "width": 24, "ms": 1}])]},
            "QK widths 24 to 24 of 2 heads, and 16 to 32",
        ),
        (
            {
                "blocks": [
                    block(
                        attention=[{"heads": 2, "qk": 16, "vo": 32, "ms": 1}, {"heads": 2, "qk": 32, "vo": 16, "ms": 1}]
                    )
                ]
            },
            "lists nothing as wide as attention of 2 heads, QK 32, VO 32",
        ),
    ],
)
def test_a_table_of_another_base_or_with_faults_is_refused(table, base, more, said):
    with pytest.raises(CostTableError) as error:
        table(**more).check("vit", *base, POLICIES["fused"])
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"schema": 5}, "has 5 as schema, expected 1"),
        ({"fixd_ms": 1}, "has the unknown key 'fixd_ms'; did you mean 'fixed_ms'?"),
        ({"measured_on": ""}, "has '' as measured_on"),
        ({"fixed_ms": -1}, "has -1 as fixed_ms"),
        ({"blocks": [block()] * 3}, "blocks has 3 entries; give one for all, or 2"),
        ({"blocks": [block(ffn=[])]}, "as blocks.0.ffn, "),
        ({"blocks": [block(ffn=[{"width": 8, "ms": 0}])]}, "has 0 as blocks.0.ffn.0.ms, expected greater than 0"),
        ({"blocks": [block(ffn=[{"width": 8, "ms": float("nan")}])]}, "has nan as blocks.0.ffn.0.ms"),
        ({"blocks": [block(attention=[{"heads": 2, "ms": 1}])]}, "attention of 2 heads needs width, or qk and vo"),
        ({"blocks": [block(attention=[{"heads": 2, "width": 8, "vo": 8, "ms": 1}])]}, "needs width, or qk and vo"),
        ({"blocks": [block(attention=[{"heads": 2, "qk": 8, "ms": 1}])]}, "needs width, or qk and vo"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_line(table, more, said):
    with pytest.raises(CostTableError) as error:
        table(**more)
    assert said in str(error.value) and "\n" not in str(error.value)


WHERE = {"board": "orin-x", "power_mode": "25W", "clocks_locked": True, "runner": "tensorrt", "precision": "fp16"}
BOTH = {
    "attention": [{"heads": h, "width": w, "ms": h * w / 100, "mj": h * w / 10} for h in (1, 2) for w in (16, 32)],
    "ffn": [{"width": w, "ms": w / 100, "mj": w / 10} for w in (8, 256)],
}


def half(**more):
    """Half of what BOTH takes, in another order."""
    told = {
        site: [{**c, "ms": c["ms"] / 2, "mj": c["mj"] / 2} for c in reversed(costs)] for site, costs in BOTH.items()
    }
    return {**told, "block_ms": 0.0, "block_mj": 0.5, **more}


def narrower(embed, **more):
    return {"embed": embed, "fixed_ms": 0.025, "fixed_mj": 2.0, "blocks": [half()], **more}


def measured(**more):
    return content(**{
        "schema": 1, "between": "linear", "where": {**WHERE, "batch": 2}, "noise": 0.01, "fixed_mj": 3.0,
        "blocks": [block(**BOTH, block_ms=-0.02, block_mj=0.5)], **more,
    })  # fmt: skip


def test_a_measured_table_says_where_it_holds_and_counts_both_quantities():
    t = CostTable.model_validate(measured())
    assert (t.batch, t.noise, t.where.board, t.quantities) == (2, 0.01, "orin-x", ("ms", "mj"))
    base = 2 * (0.64 + 2.56)
    assert t.in_quantity("ms").base == pytest.approx(0.125 + base - 0.04)
    assert t.in_quantity("mj").base == pytest.approx(3 + 10 * base + 1)
    budgets = [make_budget(1, 1, table=t, **asked) for asked in ({"mj": 30}, {"fps": 500})]
    assert [(b.quantity, b.limit, b.asked) for b in budgets] == [("mj", 30, "mj 30"), ("ms", 4.0, "fps 500")]
    assert budgets[0].told(12.5) == "12.5 mJ" and budgets[0].record().quantity == "mj"


def test_a_corrected_table_has_each_term_multiplied_and_is_otherwise_the_same():
    t = CostTable.model_validate(measured())
    other = t.corrected(fixed=2, attention=3, ffn=0.5, block=-1)
    for quantity in t.quantities:
        was, now = t.in_quantity(quantity), other.in_quantity(quantity)
        assert (now.fixed, now.together(0)) == (2 * was.fixed, -was.together(0))
        assert now.attention(1, 2, 20, 24) == pytest.approx(3 * was.attention(1, 2, 20, 24))
        assert now.ffn(0, 100) == pytest.approx(0.5 * was.ffn(0, 100))
    assert t.corrected() == t and other.where == t.where and other.record() != t.record()
    saving = t.corrected(attention=0.5, block=10_000).in_quantity("ms")
    assert saving.together(0) == pytest.approx(-0.9 * saving.attention(0, 1, 16, 16)), "a block takes what its FFN does"


def test_what_a_site_takes_by_a_corrected_table_of_steps_is_as_exact_as_costs_are_added(table):
    t = table().corrected(attention=1.0987654321, ffn=1.0123456789)
    prices = t.in_quantity("ms")
    for cost in (prices.attention(0, 2, 20, 24), prices.ffn(0, 100)):
        assert cost == round(cost, 9)


def fewer(tokens, share, **more):
    law = {"ms": 0.01, "share_ms": share, "mj": 0.1, "share_mj": share}
    return {"tokens": tokens, "cut_ms": 0.02, "cut_mj": 0.2, "attention": law, "ffn": law, **more}


def test_blocks_that_are_given_fewer_tokens_are_priced_and_so_is_the_cut(base):
    listed = [fewer(16, 0.9), fewer(8, 0.4)]
    t = CostTable.model_validate(measured(narrower=[narrower(32)], fewer_tokens=listed))
    t.check("vit", *base, POLICIES["fused"])
    assert CostTable.model_validate(t.content()) == t
    for quantity, unit in (("ms", 1), ("mj", 10)):
        prices = t.in_quantity(quantity)
        assert prices.at(64, 17) is prices and prices.at(64, 16).ffn(0, 256) == pytest.approx(
            unit * (0.01 + 2.56 * 0.9)
        )
        assert prices.at(64, 12).ffn(0, 256) == pytest.approx(unit * (0.01 + 2.56 * 0.65)), "halfway"
        assert prices.at(32, 8).ffn(1, 256) == pytest.approx(unit * (0.01 + 1.28 * 0.4)), "of any embedding"
        whole, cut = BlockDims(2, 32, 32, 256), BlockDims(2, 32, 32, 256, tokens=8)
        block = prices.block(0, whole)
        behind = prices.at(64, 8).block(1, whole)
        assert behind < 0.45 * block
        assert prices.cost([cut, whole]) == pytest.approx(prices.fixed + block + unit * 0.02 + behind)
        assert sum(prices.parts([cut, whole])) == pytest.approx(prices.cost([cut, whole]))
    other = t.corrected(attention=2, ffn=3).in_quantity("ms")
    assert other.cut(8) == pytest.approx(0.04)
    assert other.at(64, 8).ffn(0, 256) == pytest.approx(3 * (0.01 + 2.56 * 0.4))
    assert other.at(64, 8).attention(0, 2, 32, 32) == pytest.approx(2 * (0.01 + 0.64 * 0.4))
    silent = CostTable.model_validate(measured()).in_quantity("ms")
    with pytest.raises(CostTableError, match=r"given 17 tokens, and these get 8; `edgevit cost --tokens`"):
        silent.cost([cut, whole])


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ([fewer(17, 0.9)], r"tokens are listed as \[17, 17\]; give each once, below the base's"),
        ([fewer(8, 0.4), fewer(16, 0.9)], "the most first"),
        (
            [fewer(8, 0.4, attention={"share_ms": 0.5})],
            "8 tokens list energy where the base does not, or no",
        ),
        ([fewer(8, 0.0)], "share_ms"),
    ],
)
def test_tokens_that_contradict_themselves_are_refused(table, listed, said):
    with pytest.raises(CostTableError, match=said):
        table(**measured(fewer_tokens=listed))


def test_a_table_with_other_embeddings_has_prices_of_all_between_them(base):
    t = CostTable.model_validate(measured(narrower=[narrower(32)]))
    t.check("vit", *base, POLICIES["fused"])
    assert CostTable.model_validate(t.content()) == t
    whole = t.in_quantity("ms")
    assert whole.at(64) is whole and whole.embeds == (32, 64)
    below, between = whole.at(32), whole.at(48)
    assert (below.fixed, between.fixed, between.embed) == (0.025, 0.075, 48)
    assert below.ffn(0, 100) == pytest.approx(0.5) and between.ffn(1, 100) == pytest.approx(0.75)
    assert between.attention(0, 1, 24, 24) == pytest.approx(0.18) and between.together(0) == pytest.approx(-0.01)
    assert t.in_quantity("mj").at(40).fixed == pytest.approx(2.25)
    assert t.corrected(ffn=3).in_quantity("ms").at(48).ffn(0, 100) == pytest.approx(2.25)
    with pytest.raises(CostTableError, match="it lists embeddings of 32 to 64, and this one has 31; measure that"):
        whole.at(31)
    with pytest.raises(CostTableError, match="embeddings of 64 to 64, and this one has 48"):
        CostTable.model_validate(measured()).in_quantity("ms").at(48)
    above = CostTable.model_validate(measured(narrower=[narrower(32)], between="above")).in_quantity("ms")
    assert (above.at(48).fixed, above.at(32).fixed) == (0.125, 0.025), "hardware works in steps"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"fixed_ms": 0.5}, "what lies outside the blocks takes 0.125 ms at an embedding of 64, less than the 0.5 ms"),
        (
            {"blocks": [half(ffn=[{"width": 8, "ms": 0.04, "mj": 1}, {"width": 256, "ms": 3, "mj": 1}])]},
            "at an embedding of 64, FFN width 256 takes 2.56 ms, less than the 3 ms at 32",
        ),
        (
            {"blocks": [half(ffn=[{"width": 8, "ms": 2, "mj": 1}, {"width": 256, "ms": 1, "mj": 1}])]},
            "at an embedding of 32: FFN width 256 takes 1 ms, less than the 2 ms of width 8; measure again",
        ),
    ],
)
def test_costs_that_fall_with_the_embedding_are_refused(base, more, said):
    t = CostTable.model_validate(measured(narrower=[narrower(32, **more)]))
    with pytest.raises(CostTableError) as error:
        t.check("vit", *base, POLICIES["fused"])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ({"power_mode": "15W", "clocks_locked": False}, "power_mode 25W (here it is 15W), clocks_locked True (here"),
        ({"board": "orin-y"}, "board orin-x (here it is orin-y)"),
        ({"precision": "fp32", "batch": 8}, "precision fp16 (here it is fp32), batch 1 (here it is 8)"),
        (
            {"board": None, "processor": "a CPU", "runner": "onnxruntime"},
            "board orin-x (here it is none), processor none (here it is a CPU), runner",
        ),
    ],
)
def test_a_table_of_another_place_is_refused_with_what_differs(here, said):
    Where(**WHERE, edgevit="1").check(Where(**WHERE, edgevit="2"))
    with pytest.raises(CostTableError) as error:
        Where(**WHERE).check(Where(**{**WHERE, **here}))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"narrower": [narrower(64)]}, "embeddings are listed as [64, 64]; give each once"),
        (
            {"narrower": [narrower(16), narrower(32)]},
            "[64, 16, 32]; give each once, below the base's, the",
        ),
        ({"narrower": [narrower(32, fixed_mj=None)]}, "of 32 lists energy where the base's does not, or"),
        (
            {"narrower": [narrower(32, blocks=[half()] * 2)]},
            "of 32 has 2 entries of blocks; give 1, as at",
        ),
        (
            {"narrower": [narrower(32, blocks=[half(ffn=BOTH["ffn"][:1])])]},
            "the embedding of 32 lists other sizes in block 0 than at the base's width; give the same",
        ),
        (
            {"narrower": [narrower(32, blocks=[half(block_ms=-1.0)])]},
            "the embedding of 32 in block 0 has -1 as block_ms, and an attention that takes less",
        ),
        ({"fixed_mj": None}, "block 0 lists mj of some figures"),
        ({"blocks": [block(**BOTH, block_ms=-0.2)]}, "block 0 has -0.2 as block_ms, and an attention that takes less"),
        ({"blocks": [block(**{**BOTH, "attention": BOTH["attention"][1:]})]}, "no full grid of heads and widths"),
        ({"where": {**WHERE, "mode": 1}}, "has the unknown key 'where.mode'"),
        ({"between": "below"}, "has 'below' as between, expected 'above' or 'linear'"),
    ],
)
def test_a_measured_table_that_contradicts_itself_is_refused(tmp_path, more, said):
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(measured(**more)))
    with pytest.raises(CostTableError) as error:
        load_cost_table(tmp_path / "table.yaml")
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("missing.yaml", None, "there is no .*missing.yaml"),
        ("list.yaml", "- 1", "has a list, expected an object"),
        ("broken.yaml", "a: [", "is not YAML"),
        ("broken.json", "{", "is not JSON"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(CostTableError, match=said):
        load_cost_table(tmp_path / name)


def test_a_budget_in_milliseconds_is_counted_by_its_table(table, base):
    (dims, geometry), read = base, table()
    t = read.in_quantity("ms")
    budget = make_budget(geometry.macs(dims), geometry.params(dims), ms=1.2, table=read)
    assert (budget.quantity, budget.limit, budget.base, budget.asked) == ("ms", 1.2, t.base, "ms 1.2")
    assert budget.rate == pytest.approx(1 - 1.2 / t.base)
    least = t.cost(smallest(dims, POLICIES["fused"], geometry))
    assert (
        budget.cost(smallest(dims, POLICIES["fused"], geometry), geometry)
        == least
        == pytest.approx(0.125 + 2 * (0.36 + 0.058))
    )
    check_policy_reaches(dims, geometry, budget, POLICIES["fused"])
    check_policy_reaches(dims, geometry, make_budget(1, 1, ms=least, table=read), POLICIES["fused"])
    with pytest.raises(BudgetError, match=r"ms 0\.9 leaves 0\.9 ms, but shape 'fused' reaches no less than 0\.961 ms"):
        check_policy_reaches(dims, geometry, make_budget(1, 1, ms=0.9, table=read), POLICIES["fused"])
    listed = budget.record().table
    assert listed.measured_on == "a board, a power mode, fp16, batch 1" and len(listed.sha256) == 64


@pytest.mark.parametrize(
    ("given_", "with_table", "said"),
    [
        ({"ms": 1.0}, False, "--ms 1 needs --cost-table FILE"),
        ({"fps": 30}, False, "--fps 30 needs --cost-table FILE"),
        ({"mj": 30}, True, "lists no energy; measure on a board whose power can be read"),
        ({"fps": 30}, True, "--fps 30, 33.33 ms for 1, is not below the base's 1.777 ms by the cost table; give more"),
        ({"fps": 0}, True, "--fps 0 is not a positive number of images per second"),
        ({"rate": 0.5}, True, "--cost-table is for --ms, --mj and --fps, not --rate"),
        ({"ms": 1.0, "rate": 0.5}, True, "not --rate and --ms"),
        ({"ms": 9.0}, True, "--ms 9 is not below the base's 1.777 ms by the cost table"),
        ({"ms": 0.0}, True, "--ms 0 is not a positive number of milliseconds"),
        ({"ms": float("nan")}, True, "--ms nan is not a positive number"),
    ],
)
def test_bad_budgets_in_milliseconds_say_what_to_try(table, given_, with_table, said):
    with pytest.raises((OptionError, CostTableError)) as error:
        make_budget(1000, 1000, **given_, table=table() if with_table else None)
    assert said in str(error.value)
