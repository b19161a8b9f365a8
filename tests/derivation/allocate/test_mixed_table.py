"""A table that is mixed of two."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.derivation.allocate.mixed_table import mixed
from edgevit.errors import CostTableError
from edgevit.network.anatomy import BlockDims
from edgevit.version import written_by

BASE = BlockDims(4, 64, 64, 256)


def listed(
    heads: Iterable[int], widths: Iterable[int], neurons: Iterable[int], rate: float, mj: bool
) -> dict[str, Any]:
    def cost(ms: float) -> dict[str, float]:
        return {"ms": ms * rate, **({"mj": ms * rate * rate * 7} if mj else {})}

    widths = list(widths)
    return {
        "block_ms": -0.01 * rate,
        "attention": [{"heads": h, "width": w, **cost(0.1 + (h * w) ** 1.3 / 900)} for h in heads for w in widths],
        "ffn": [{"width": n, **cost(0.2 + n**0.8 / 40)} for n in neurons],
    }


def a_table(
    sizes: tuple[list[int], list[int], list[int]], rate: float, *, embeds: list[int], mj: bool = True
) -> CostTable:
    def fixed(share: float) -> dict[str, float]:
        return {"fixed_ms": 0.3 * rate * share, **({"fixed_mj": 2 * rate * share} if mj else {})}

    content: dict[str, Any] = {
        "schema": 3,
        "measured_on": f"board {rate:g}",
        "between": "linear",
        "base": {"family": "vit", "embed": 256, "tokens": 17, "patch_values": 192, "depth": 3},
        **fixed(1),
        "blocks": [{"base": BASE.sizes, **listed(*sizes, rate, mj)}],
        "narrower": [
            {"embed": embed, **fixed(embed / 256), "blocks": [listed(*sizes, rate * embed / 256, mj)]}
            for embed in embeds
        ],
    }
    return CostTable.model_validate(content)


ONE = a_table(([1, 4], [16, 64], [8, 64, 256]), 1.0, embeds=[128, 64])
OTHER = a_table(([2, 3, 4], [16, 40, 64], [8, 100, 256]), 2.5, embeds=[160, 96])


@given(
    blocks=st.lists(
        st.builds(lambda h, w, n: BlockDims(h, w, w, n), st.integers(1, 4), st.integers(8, 64), st.integers(4, 256)),
        min_size=1,
        max_size=3,
    ),
    embed=st.integers(96, 256),
    weights=st.tuples(st.floats(0, 3), st.floats(0.1, 3)),
)
def test_a_plan_costs_by_it_what_it_costs_by_both(
    blocks: list[BlockDims], embed: int, weights: tuple[float, float]
) -> None:
    both = mixed([(ONE, weights[0]), (OTHER, weights[1])])
    for quantity in both.quantities:
        seen, *each = (table.in_quantity(quantity).at(embed).cost(blocks) for table in (both, ONE, OTHER))
        assert seen == pytest.approx(sum(w * cost for w, cost in zip(weights, each, strict=True)), abs=1e-6)


def test_it_rises_with_every_width_as_its_parts_do() -> None:
    both = mixed([(ONE, 0.37), (OTHER, 1 / 3)])
    assert all(both.in_quantity(quantity).fault(0) is None for quantity in ("ms", "mj"))
    assert both.measured_on == "board 1 and board 2.5" and both.where is None
    assert [costs.embed for costs in both.narrower] == [160, 128, 96], "64 is known on one board alone"


def test_energy_is_listed_where_both_list_it() -> None:
    silent = a_table(([1, 4], [16, 64], [8, 256]), 3.0, embeds=[], mj=False)
    both = mixed([(ONE, 1.0), (silent, 0.0)])
    assert both.quantities == ("ms",) and both.narrower == ()
    assert both.in_quantity("ms").base == pytest.approx(ONE.in_quantity("ms").base)


def test_tables_of_two_bases_and_tables_without_lines_are_not_mixed() -> None:
    content = ONE.content()
    deeper = CostTable.model_validate({**content, "base": {**content["base"], "depth": 4}})
    with pytest.raises(CostTableError, match="of different bases; measure the same base"):
        mixed([(ONE, 0.5), (deeper, 0.5)])
    steps = CostTable.model_validate({**content, "between": "above"})
    with pytest.raises(CostTableError, match="one has `between: above`, and only lines can be mixed"):
        mixed([(ONE, 0.5), (steps, 0.5)])


def test_fewer_tokens_are_known_where_both_boards_say_so_and_exact_where_both_save_the_same() -> None:
    def saving(table: CostTable, start: float, share: float) -> CostTable:
        law = {"ms": start, "share_ms": share, "mj": start, "share_mj": share}
        one = {"tokens": 8, "cut_ms": 0.02, "cut_mj": 0.1, "attention": law, "ffn": law}
        return CostTable.model_validate({**table.content(), "schema": 4, "fewer_tokens": [one]})

    first, second = saving(ONE, 0.01, 0.5), saving(ONE, 0.03, 0.5)
    blocks = [BlockDims(4, 64, 64, 256, tokens=8), BlockDims(2, 40, 40, 100), BlockDims(4, 16, 16, 8)]
    table = mixed([(first, 0.5), (second, 2.0)])
    for quantity in ("ms", "mj"):
        a, b, both = (one.in_quantity(quantity).cost(blocks) for one in (first, second, table))
        assert both == pytest.approx(0.5 * a + 2 * b)
    assert not mixed([(first, 0.5), (ONE, 2.0)]).fewer_tokens
    unlike = mixed([(first, 0.5), (saving(OTHER, 0.0, 0.3), 0.5)])
    assert 0.3 < unlike.in_quantity("ms").at(256, 8).ffn(0, 256) / unlike.in_quantity("ms").ffn(0, 256) < 0.5


def test_it_says_which_edgevit_mixed_it_and_is_the_same_table_whichever_did() -> None:
    table = mixed([(ONE, 0.5), (OTHER, 0.5)])
    assert table.content()["edgevit"] == written_by() and ONE.edgevit is None
    assert table.corrected(ffn=2.0).edgevit == written_by()
    assert table.record() == table.model_copy(update={"edgevit": "0.0.1"}).record() != ONE.record()
