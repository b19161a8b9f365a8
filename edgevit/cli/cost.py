from __future__ import annotations

import shlex
from itertools import zip_longest
from typing import TYPE_CHECKING

from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.imports import importing

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.derivation.allocate.prices import Prices
    from edgevit.latency.cost_request import CostRequest


@asks(request="edgevit.latency.cost_request:CostRequest")
def main(
    request: CostRequest, *, json: JsonFlag = False, quiet: QuietFlag = False, verbose: VerboseFlag = False
) -> None:
    """Measure the cost of each block size, here or on a board, for budgets in --ms and --mj.

    Stacks of equal blocks are measured in turns with the base. No weights are needed. The same command continues an
    interrupted run, and measures nothing twice.
    """
    console = Console(json=json, quiet=quiet, verbose=verbose)
    request.check()  # before torch is imported

    with importing():
        from edgevit.latency.cost import cost

    table = cost(request, console.progress)
    console.show(f"{table.measured_on}; standard error {table.noise:.1%} of a figure")
    for quantity in table.quantities:
        for prices in table.in_quantity(quantity).of_stages:
            if any(dims.stage == prices.stage for dims in prices.base_blocks):
                console.show(prices_table(prices))
    if request.output is not None:
        derive = shlex.join(["edgevit", "derive", str(request.base), "--cost-table", str(request.output)])
        console.show(f"wrote {request.output}. Next: {derive} --ms ...")
    console.result({"output": request.output and str(request.output), **table.content()})


def prices_table(prices: Prices) -> Table:
    """List the costs of all sizes in a stage, and of a whole block of the base."""
    from rich.table import Table

    from edgevit.derivation.allocate.prices import UNITS

    base, unit = next(d for d in prices.base_blocks if d.stage == prices.stage), UNITS[prices.quantity]
    title = f"{unit}; the base takes {prices.base:.4g}, {prices.fixed:.3g} of it outside its blocks"
    if len(prices.stages) > 1:
        title = f"stage {prices.stage}, embedding of {prices.embed}, {prices.tokens} tokens; {title}"
    table = Table("attention, heads x width", title=title, title_justify="left")
    table.add_column(unit, justify="right")
    table.add_column("FFN, neurons")
    table.add_column(unit, justify="right")
    (counts, widths), costs = prices.attentions.sizes, prices.attentions.costs
    attentions = [(f"{h} x {w}", f"{costs[i, j]:.3g}") for i, h in enumerate(counts) for j, w in enumerate(widths)]
    ffns = [(str(w), f"{cost:.3g}") for w, cost in zip(*prices.ffns.sizes, prices.ffns.costs, strict=True)]
    for attention, ffn in zip_longest(attentions, ffns, fillvalue=("", "")):
        table.add_row(*attention, *ffn)
    table.add_section()
    for embed in reversed(prices.embeds):
        at = prices.at(embed)
        row = "block of the base, both" if embed == prices.embed else f"the same, embedding of {embed}"
        table.add_row(row, f"{at.block(base):.3g}", "of it beyond their sum", f"{at.together:.2g}")
    for tokens in reversed(prices.token_counts[:-1]):
        block, cut = prices.at(prices.embed, tokens).block(base), prices.cut(tokens)
        row = f"the same, {tokens} of {prices.tokens} tokens"
        table.add_row(row, f"{block:.3g}", "passing on so many", f"{cut:.2g}")
    return table
