"""Cost tables: what a file says, and every way in which it may not be the right one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from some_tables import rows, table

from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.cost_table import CostTable, Origin, load_cost_table
from edgevit.derivation.allocate.policy import POLICIES, check_policy_reaches, smallest
from edgevit.errors import BudgetError, CostTableError, OptionError

ATTENTION = {(h, w): round(h / 10 + w / 100, 3) for h in (1, 2) for w in (16, 24, 32)}
FFN = {w: round(0.05 + w / 1000, 3) for w in (8, 64, 128, 256)}
COSTS = rows(0.125, ATTENTION, FFN)
SIZES = {"heads": 2, "qk": 32, "vo": 32, "ffn": 256}
ORIGIN = {"board": "orin-x", "power_mode": "25W", "clocks_locked": True, "runner": "tensorrt", "precision": "fp16"}


def both(share: float, block: float, **at: int) -> list[dict[str, Any]]:
    """Costs in both quantities, mJ ten times as many as ms."""

    def pair(cost: float) -> tuple[float, float]:
        return share * cost, 10 * share * cost

    attention = {(h, w): pair(h * w / 100) for h in (1, 2) for w in (16, 32)}
    block_costs = (block, 10 * block)
    return rows(pair(0.1), attention, {w: pair(w / 100) for w in (8, 256)}, block=block_costs, **at)


MEASURED = [*both(1, -0.02), *both(0.5, -0.01, embed=32)]


def measured(**more: Any) -> CostTable:
    return CostTable.model_validate(table(MEASURED, origin={**ORIGIN, "batch": 2}, noise=0.01, **more))


@pytest.fixture(scope="module")
def base(small_vit: Any) -> Any:
    network = small_vit()
    return list(network.dims), network.geometry


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., CostTable]:
    def run(costs: Any = COSTS, suffix: str = "yaml", **more: Any) -> CostTable:
        file, content = tmp_path / f"table.{suffix}", {**table(costs), **more}
        file.write_text(yaml.safe_dump(content) if suffix == "yaml" else json.dumps(content))
        return load_cost_table(file)

    return run


def test_json_and_yaml_are_one_table(load: Any, base: Any) -> None:
    read, dims = load(suffix="json"), base[0]
    assert read == load() and read.record() == load().record() and CostTable.model_validate(read.content()) == read
    prices = read.in_quantity("ms")
    assert prices.base == prices.cost(dims) == pytest.approx(0.125 + 2 * (0.52 + 0.306))
    assert prices.ffn(64) == 0.114 and prices.attention(2, 16, 16) == 0.36
    slower = load([*COSTS[:-1], {**COSTS[-1], "ms": 2.0}])
    assert slower.record() != read.record() and slower.in_quantity("ms").base > prices.base


def test_a_table_of_the_base_passes_for_every_policy_that_it_covers(load: Any, base: Any) -> None:
    dims, geometry = base
    load().check("vit", dims, geometry, POLICIES["fused"])
    with pytest.raises(CostTableError, match="lists QK widths 16 to 32, and 8 to 32 can be asked for by shape 'paper'"):
        load().check("vit", dims, geometry, POLICIES["paper"])


def of_base(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = table([])["base"]
    return {"base": {**base, **more}}


@pytest.mark.parametrize(
    ("costs", "more", "text"),
    [
        (COSTS, of_base(embed=192), "the base was measured with embed 192 (the base has 64)"),
        (COSTS, of_base(depth=12, tokens=5), "tokens 5 (the base has 17), depth 12 (the base has 2)"),
        (COSTS, of_base(family="swin"), "family 'swin' (the base has vit)"),
        (COSTS, of_base(blocks=[{**SIZES, "ffn": 128}]), "block 0 was measured with ffn 128 (the base has 256)"),
        (COSTS, of_base(blocks=[SIZES, {**SIZES, "qk": 16}]), "block 1 was measured with qk 16 (the base has 32)"),
        (
            rows(0.1, ATTENTION, {8: 3, 64: 2, 256: 4}),
            {},
            "ffn (width 64, embed 64, tokens 17) costs 2 ms, less than the 3 ms of ffn (width 8, embed 64, tokens 17); "
            "measure again",
        ),
        (
            rows(0.1, {(1, 32): 3, (2, 32): 2.5}, FFN),
            {},
            "attention (heads 2, width 32, embed 64, tokens 17) costs 2.5 ms, less than the 3 ms of attention (heads 1",
        ),
        (rows(0.1, ATTENTION, {64: 1, 256: 2}), {}, "lists FFN widths 64 to 256, and 8 to 256 can be asked for"),
        (rows(0.1, ATTENTION, {8: 1, 128: 2}), {}, "lists FFN widths 8 to 128, and 8 to 256 can be asked for"),
        (rows(0.1, {(1, 32): 1}, FFN), {}, "lists attentions of up to 1 heads, and the base has 2"),
        (rows(0.1, {(2, 24): 1}, FFN), {}, "lists QK widths 24 to 24, and 16 to 32 can be asked for"),
        (
            [*COSTS, *rows(0.5, ATTENTION, FFN, embed=32)],
            {},
            "fixed (embed 64) costs 0.125 ms, less than the 0.5 ms of fixed (embed 32)",
        ),
        (
            [*COSTS, *rows(None, ATTENTION, {**FFN, 8: 0.06}, tokens=8)],
            {},
            "ffn (width 8, embed 64, tokens 17) costs 0.058 ms, less than the 0.06 ms of ffn (width 8, embed 64, ",
        ),
    ],
)
def test_a_table_of_another_base_or_with_faults_is_refused(
    load: Any, base: Any, costs: Any, more: dict[str, Any], text: str
) -> None:
    with pytest.raises(CostTableError) as error:
        load(costs, **more).check("vit", *base, POLICIES["fused"])
    assert text in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("costs", "more", "text"),
    [
        (COSTS, {"schema": 4}, "has 4 as schema, expected 1"),
        (COSTS, {"measured": "x"}, "has the unknown key 'measured'; did you mean 'measured_on'?"),
        (COSTS, {"measured_on": ""}, "has '' as measured_on"),
        (COSTS, {"origin": {**ORIGIN, "mode": 1}}, "has the unknown key 'origin.mode'"),
        (COSTS, of_base(blocks=[SIZES] * 3), "base has 3 blocks; give one for all, or 2"),
        (COSTS[1:], {}, "fixed is missing"),
        (COSTS[:1] + COSTS[2:], {}, "attention (heads 1, width 16, embed 64, tokens 17) is missing; list every"),
        ([*COSTS, COSTS[-1]], {}, "ffn (width 256, embed 64, tokens 17) is listed twice"),
        (
            [*COSTS, {"part": "fixed", "embed": 32, "ms": 0.1}],
            {},
            "attention (heads 1, width 16, embed 32, tokens 17) is",
        ),
        (
            [*COSTS, {"part": "cut", "tokens": 17, "ms": 0.1}],
            {},
            "cut (tokens 17) is listed, and all tokens stay there",
        ),
        ([*COSTS, *rows(0.2, ATTENTION, FFN, embed=80)], {}, "embed is listed up to 80, and the base has 64"),
        (rows(None, ATTENTION, FFN, tokens=8), {}, "tokens is listed up to 8, and the base has 17"),
        (rows(-1, ATTENTION, FFN), {}, "fixed costs -1, less than 0"),
        (rows(0.1, ATTENTION, {8: 0}), {}, "ffn costs 0; a site costs more than 0"),
        (rows(0.1, ATTENTION, {8: float("nan")}), {}, "has nan as costs.7.ms"),
        ([{"part": "attention", "heads": 2, "ms": 1}], {}, "attention lacks width"),
        ([{"part": "fixed", "tokens": 8, "ms": 1}], {}, "fixed has tokens, which it does not depend on"),
        ([*MEASURED[:-1], {**MEASURED[-1], "mj": None}], {}, "mj is missing in some costs"),
        (rows(0.1, ATTENTION, FFN, block=-0.3), {}, "block saves 1.154 times the ms of the smallest attention"),
    ],
)
def test_a_file_that_is_not_a_table_or_contradicts_itself_is_refused_in_one_line(
    load: Any, costs: Any, more: dict[str, Any], text: str
) -> None:
    with pytest.raises(CostTableError) as error:
        load(costs, **more)
    assert text in str(error.value) and "\n" not in str(error.value)


def test_a_measured_table_says_where_it_holds_and_counts_both_quantities(base: Any) -> None:
    t = measured()
    t.check("vit", *base, POLICIES["fused"])
    assert (t.batch, t.noise, t.origin and t.origin.board, t.quantities) == (2, 0.01, "orin-x", ("ms", "mj"))
    ms = 0.1 + 2 * (0.64 + 2.56 - 0.02)
    assert t.in_quantity("ms").base == pytest.approx(ms) and t.in_quantity("mj").base == pytest.approx(10 * ms)
    budgets = [make_budget(1, 1, table=t, mj=30), make_budget(1, 1, table=t, fps=500)]
    assert [(b.quantity, b.limit, b.option) for b in budgets] == [("mj", 30, "mj 30"), ("ms", 4.0, "fps 500")]
    assert budgets[0].text(12.5) == "12.5 mJ" and budgets[0].record().quantity == "mj"


def test_a_corrected_table_has_each_part_multiplied_and_is_otherwise_the_same() -> None:
    cut = {"part": "cut", "tokens": 8, "ms": 0.02, "mj": 0.2}
    fewer = [{**row, "tokens": 8, "ms": row["ms"] / 4, "mj": row["mj"] / 4} for row in MEASURED if "width" in row]
    t = CostTable.model_validate(table([*MEASURED, *fewer, cut], origin=ORIGIN))
    other = t.corrected(fixed=2, attention=3, ffn=0.5, block=-1)
    for quantity in t.quantities:
        for embed, tokens in ((64, 17), (48, 17), (32, 8)):
            was, now = (one.in_quantity(quantity).at(embed, tokens) for one in (t, other))
            assert (now.fixed, now.together) == (2 * was.fixed, -was.together)
            assert now.attention(2, 20, 24) == pytest.approx(3 * was.attention(2, 20, 24))
            assert now.ffn(100) == pytest.approx(0.5 * was.ffn(100)) and now.cut(8) == pytest.approx(3 * was.cut(8))
    assert t.corrected() == t and other.origin == t.origin and other.record() != t.record()
    saving = t.corrected(attention=0.5, block=10_000).in_quantity("ms")
    assert saving.together == pytest.approx(-0.9 * saving.attention(1, 16, 16)), "a block costs what its FFN does"


STAGES = [{"embed": 64, "tokens": 64, "pairs": 256, "depth": 1}, {"embed": 128, "tokens": 16, "pairs": 64, "depth": 1}]
OF_STAGES = [*rows(0.5, {(1, 16): 1, (2, 32): 2, (1, 32): 1.5, (2, 16): 1.25}, {8: 0.1, 256: 1.1}),
             *rows(None, {(1, 16): 1, (1, 32): 2, (4, 16): 5, (4, 32): 7}, {8: 0.25, 512: 4}, stage=1)]  # fmt: skip


def staged(costs: list[dict[str, Any]] = OF_STAGES, **more: Any) -> dict[str, Any]:
    blocks = [SIZES, {"heads": 4, "qk": 32, "vo": 32, "ffn": 512}]
    of = {"family": "swin", "tokens": 64, "patch_values": 48, "stages": STAGES, "blocks": blocks, **more}
    return table(costs, base=of)


def test_each_stage_has_its_own_costs_and_a_network_is_their_sum(small_vit: Any) -> None:
    network = small_vit("swin_tiny_patch4_window7_224", window_size=2)
    dims, geometry = list(network.dims), network.geometry
    listed = CostTable.model_validate(staged())
    listed.check("swin", dims, geometry, POLICIES["fused"])
    prices = listed.in_quantity("ms")
    assert prices.base == prices.cost(dims) == pytest.approx(0.5 + (2 + 1.1) + (7 + 4))
    assert prices.parts(dims) == pytest.approx((0.5, 9, 5.1, 0))
    budget = make_budget(1, 1, ms=5, table=listed)
    assert [budget.prices_at(geometry, stage).ffn(256) for stage in (0, 1)] == [1.1, 2.095238095]  # type: ignore[union-attr]
    other = listed.corrected(attention=2, ffn=3).in_quantity("ms")
    assert other.cost(dims) == pytest.approx(0.5 + 2 * 9 + 3 * 5.1)
    other_windows = small_vit("swin_tiny_patch4_window7_224").geometry
    with pytest.raises(CostTableError, match=r"the base was measured with stages .*'pairs': 64"):
        listed.check("swin", dims, other_windows, POLICIES["fused"])


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            staged([c for c in OF_STAGES if c["ms"] != 5]),
            "attention (heads 4, width 16, embed 128, tokens 16) is missing",
        ),
        (staged(OF_STAGES[:-2]), "ffn is missing in stage 1"),
        (
            staged([*OF_STAGES, {"part": "ffn", "width": 8, "stage": 2, "ms": 1}]),
            "stage 2 is listed, and the base has 2",
        ),
        (staged([*OF_STAGES, {"part": "fixed", "stage": 1, "ms": 1}]), "fixed has stage, which it does not depend on"),
        (staged(stages=STAGES[:1]), "the stages have 1 blocks together, and depth is 2"),
        (staged(tokens=49), "tokens is 49, and 64 in the first stage"),
    ],
)
def test_costs_of_stages_that_contradict_each_other_are_refused(load: Any, content: dict[str, Any], text: str) -> None:
    with pytest.raises(CostTableError) as error:
        load(content["costs"], base=content["base"])
    assert text in str(error.value) and "\n" not in str(error.value)


def test_costs_by_a_corrected_table_are_decimal_numbers(load: Any) -> None:
    prices = load().corrected(attention=1.0987654321, ffn=1.0123456789).in_quantity("ms")
    for cost in (prices.attention(2, 20, 24), prices.ffn(100)):
        assert cost == round(cost, 9)


@pytest.mark.parametrize(
    ("here", "text"),
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
def test_a_table_of_other_conditions_is_refused_with_what_differs(here: dict[str, Any], text: str) -> None:
    Origin(**ORIGIN, edgevit="1").check(Origin(**ORIGIN, edgevit="2"))
    with pytest.raises(CostTableError) as error:
        Origin(**ORIGIN).check(Origin(**{**ORIGIN, **here}))
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.yaml", None, "there is no .*missing.yaml"),
        ("list.yaml", "- 1", "has a list, expected an object"),
        ("broken.yaml", "a: [", "is not YAML"),
        ("broken.json", "{", "is not JSON"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(CostTableError, match=message):
        load_cost_table(tmp_path / name)


def test_a_budget_in_milliseconds_is_counted_by_its_table(load: Any, base: Any) -> None:
    (dims, geometry), read = base, load()
    prices = read.in_quantity("ms")
    budget = make_budget(geometry.macs(dims), geometry.params(dims), ms=1.2, table=read)
    assert (budget.quantity, budget.limit, budget.base, budget.option) == ("ms", 1.2, prices.base, "ms 1.2")
    assert budget.rate == pytest.approx(1 - 1.2 / prices.base)
    shape = smallest(dims, POLICIES["fused"], geometry)
    least = prices.cost(shape)
    assert budget.cost(shape, geometry) == least == pytest.approx(0.125 + 2 * (0.36 + 0.058))
    check_policy_reaches(dims, geometry, budget, POLICIES["fused"])
    check_policy_reaches(dims, geometry, make_budget(1, 1, ms=least, table=read), POLICIES["fused"])
    with pytest.raises(BudgetError, match=r"ms 0\.9 leaves 0\.9 ms, but shape 'fused' reaches no less than 0\.961 ms"):
        check_policy_reaches(dims, geometry, make_budget(1, 1, ms=0.9, table=read), POLICIES["fused"])
    record = budget.record().table
    assert record is not None and record.measured_on == "made up for a test" and len(record.sha256) == 64


@pytest.mark.parametrize(
    ("number", "with_table", "text"),
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
def test_bad_budgets_in_milliseconds_say_what_to_try(
    load: Any, number: dict[str, Any], with_table: bool, text: str
) -> None:
    with pytest.raises((OptionError, CostTableError)) as error:
        make_budget(1000, 1000, **number, table=load() if with_table else None)
    assert text in str(error.value)
