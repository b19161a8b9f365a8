"""The table of two boards at once: what a site takes of both, weighted, as if it were what it takes on one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from edgevit.derivation.allocate.cost_table import READER, SCHEMA, CostTable
from edgevit.derivation.allocate.prices import DECIMALS, Measured, Prices
from edgevit.errors import CostTableError
from edgevit.version import written_by

Parts = Sequence[tuple[Prices, float]]  # of tables in one quantity, each with its weight


def mixed(parts: Sequence[tuple[CostTable, float]]) -> CostTable:
    """The table whose every cost is the sum of what these tables say, each times its weight.

    It lists every size that any of them lists. Between sizes it says what the sum says: on the finer grid, lines stay
    lines. A table of weight 0 adds nothing to the costs, and still decides which embeddings are known.

    Raises:
        CostTableError: they are of different bases, or one has no lines between its sizes.
    """
    tables = [table for table, _ in parts]
    first = tables[0]
    if any(table.base != first.base for table in tables):
        raise CostTableError("cost tables: they are of different bases; measure the same base on every board")
    if any(table.between != "linear" for table in tables):
        raise CostTableError("cost tables: one has `between: above`, and only lines can be mixed; leave it out")
    both: list[Measured] = [q for q in first.quantities if all(q in table.quantities for table in tables)]
    priced = {q: [(table.in_quantity(q), weight) for table, weight in parts] for q in both}
    count = max(len(table.blocks) for table in tables)
    widest, *narrower = _embeds([prices for prices, _ in priced["ms"]])
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "measured_on": " and ".join(dict.fromkeys(table.measured_on for table in tables)),
        "between": "linear",
        "edgevit": written_by(),
        "base": first.base.model_dump(mode="json"),
        **_costs(priced, widest, count),
    }
    for index, block in enumerate(content["blocks"]):
        block["base"] = first.block(index).base.model_dump(mode="json")
    if all(prices.fewer for parts in priced.values() for prices, _ in parts):
        content["fewer_tokens"] = [_of_fewer(priced, tokens) for tokens in _counts([p for p, _ in priced["ms"]])]
    if narrower:
        content["narrower"] = [{"embed": embed, **_costs(priced, embed, count)} for embed in narrower]
    return READER.checked(content, CostTable, "the cost table of two boards")


def _embeds(priced: Sequence[Prices]) -> list[int]:
    """Widths of the embedding that any lists and all know of, the widest first."""
    least = max(prices.embeds[0] for prices in priced)
    listed = {rung.embed for prices in priced for rung in (prices, *prices.narrower)}
    return sorted((embed for embed in listed if embed >= least), reverse=True)


def _counts(priced: Sequence[Prices]) -> list[int]:
    """Numbers of tokens that any lists, the most first."""
    return sorted({one.tokens for prices in priced for one in prices.fewer}, reverse=True)


def _of_fewer(priced: dict[Measured, list[tuple[Prices, float]]], tokens: int) -> dict[str, Any]:
    """What a table says of one number of tokens: for each site the line through its smallest and its largest size.

    The sum of two such lines is no line in the sum of the costs, unless both boards save the same share; what a plan
    takes on either board is by its own table.
    """
    cuts = {f"cut_{q}": _sum((prices.cut(tokens), weight) for prices, weight in parts) for q, parts in priced.items()}
    laws: dict[str, dict[str, float]] = {"attention": {}, "ffn": {}}
    for q, parts in priced.items():
        given = [(prices.at(prices.embed, tokens), weight) for prices, weight in parts]
        for site, law in laws.items():
            (low, low_given), (high, high_given) = (
                (_at_end(parts, site, end), _at_end(given, site, end)) for end in (0, -1)
            )
            slope = (high_given - low_given) / (high - low) if high > low else high_given / high
            start = low_given - slope * low
            law[q], law[f"share_{q}"] = (start, slope) if start >= 0 and slope > 0 else (0.0, high_given / high)
    return {"tokens": tokens, **cuts, **laws}


def _at_end(parts: Parts, site: str, end: int) -> float:
    """What the smallest (0) or largest (-1) attention or FFN of the first block takes."""
    costs = ((p.of(0).attentions if site == "attention" else p.of(0).ffns, weight) for p, weight in parts)
    return _sum((float(sorted(listed)[end]), weight) for listed, weight in costs)


def _costs(priced: dict[Measured, list[tuple[Prices, float]]], embed: int, count: int) -> dict[str, Any]:
    """What a table says at one width of the embedding, of so many entries of blocks."""
    at = {q: [(prices.at(embed), weight) for prices, weight in parts] for q, parts in priced.items()}
    fixed = {f"fixed_{q}": _sum((prices.fixed, weight) for prices, weight in parts) for q, parts in at.items()}
    return {**fixed, "blocks": [_block(at, index) for index in range(count)]}


def _block(at: dict[Measured, list[tuple[Prices, float]]], index: int) -> dict[str, Any]:
    listed = [prices.of(index) for prices, _ in at["ms"]]
    heads, widths = (sorted({int(size) for one in listed for size in one.sizes[:, column]}) for column in (0, 1))
    neurons = sorted({int(width) for one in listed for width in one.widths})

    def attention(parts: Parts, heads: int, width: int) -> float:
        return _sum((prices.attention(index, heads, width, width), weight) for prices, weight in parts)

    def ffn(parts: Parts, width: int) -> float:
        return _sum((prices.ffn(index, width), weight) for prices, weight in parts)

    return {
        **{f"block_{q}": _sum((prices.together(index), weight) for prices, weight in parts) for q, parts in at.items()},
        "attention": [
            {"heads": h, "width": w, **{q: attention(parts, h, w) for q, parts in at.items()}}
            for h, w in product(heads, widths)
        ],
        "ffn": [{"width": w, **{q: ffn(parts, w) for q, parts in at.items()}} for w in neurons],
    }


def _sum(weighted: Any) -> float:
    """Rounded as what is interpolated is, so that costs that are equal stay equal."""
    return float(sum(weight * round(cost, DECIMALS) for cost, weight in weighted))
