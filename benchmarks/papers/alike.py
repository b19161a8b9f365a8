"""Name the rows of an ablation that are equal to the first row because what they take away was not at work."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from benchmarks.markdown import Row, picked


def text(rows: Sequence[Row], names: Sequence[str]) -> str:
    """A paragraph of the variants that are the first one, by widths and answers, wherever both were run at a rate.

    Args:
        names: the variants, the one from which the others take something away first.
    """
    first, *others = names
    alike = [line for name in others if (line := _alike(rows, first, name))]
    if not alike:
        return ""
    reasons = "; ".join(_reasons(rows, first))
    message = (
        f"Equal to `{first}` in widths and accuracy in every pair of sub-task and seed, and so no evidence: "
        f"{'; '.join(alike)}.{f' Reason: {reasons}.' if reasons else ''}"
    )
    return "\n" + "\n".join(textwrap.wrap(message, 118)) + "\n"


def _alike(rows: Sequence[Row], first: str, name: str) -> str:
    at, n = [], 0
    for rate in dict.fromkeys(row["rate"] for row in rows):
        whole = {(row["task"], row["seed"]): row for row in picked(rows, rate=rate, variant=first)}
        rows_of_variant = {(row["task"], row["seed"]): row for row in picked(rows, rate=rate, variant=name)}
        both = whole.keys() & rows_of_variant.keys()
        if both and all(_equal(whole[place], rows_of_variant[place]) for place in both):
            at.append(rate)
            n += len(both)
    return f"`{name}` at {', '.join(f'{rate:g}' for rate in sorted(at))} (n = {n})" if at else ""


def _equal(row: Row, second: Row) -> bool:
    names = ("macs", "params", "embed", "blocks", "accuracy", "worst_class")
    return all(row[name] == second[name] for name in names)


def _reasons(rows: Sequence[Row], first: str) -> Iterator[str]:
    """What the rows tell of it: masks that let no neuron go, and FFNs that stay whole."""
    whole = picked(rows, variant=first)
    shares = {row["facts"].get("anchor_neurons") for row in whole}
    if shares == {1.0}:
        yield f"the masks of `{first}` drop no neuron, so the anchor is the base"
    widest = max(block["ffn"] for row in rows for block in row["blocks"])
    for rate in dict.fromkeys(row["rate"] for row in whole):
        if all(block["ffn"] == widest for row in picked(whole, rate=rate) for block in row["blocks"]):
            yield f"at {rate:g} `{first}` cuts attention alone, and no FFN"
