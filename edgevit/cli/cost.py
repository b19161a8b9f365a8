from __future__ import annotations

import shlex
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
        from edgevit.latency.cost import run

    table = run(request, console.progress)
    console.show(f"{table.measured_on}; standard error {table.noise:.1%} of a figure")
    for quantity in table.quantities:
        console.show(prices_table(table.in_quantity(quantity)))
    if request.output is not None:
        derive = shlex.join(["edgevit", "derive", str(request.base), "--cost-table", str(request.output)])
        console.show(f"wrote {request.output}. Next: {derive} --ms ...")
    console.result({"output": request.output and str(request.output), **table.content()})


def prices_table(prices: Prices) -> Table:
    """Costs of a block at a few sizes, and of the rest of the network."""
    from rich.table import Table

    from edgevit.derivation.allocate.prices import UNITS

    of, base, unit = prices.of(0), prices.base_blocks[0], UNITS[prices.quantity]
    table = Table(title=f"{unit}; the base takes {prices.base:.4g}, {prices.fixed:.3g} of it outside its blocks",
                  title_justify="left")  # fmt: skip
    table.add_column("attention, heads x width")
    table.add_column(unit, justify="right")
    table.add_column("FFN, neurons")
    table.add_column(unit, justify="right")
    attentions = [
        (f"{h} x {w}", f"{cost:.3g}") for (h, w, _), cost in zip(of.sizes.tolist(), of.attentions.tolist(), strict=True)
    ]
    ffns = [(str(w), f"{cost:.3g}") for w, cost in zip(of.widths.tolist(), of.ffns.tolist(), strict=True)]
    for i in range(max(len(attentions), len(ffns))):
        attention, right = attentions[i : i + 1] or [("", "")], ffns[i : i + 1] or [("", "")]
        table.add_row(*attention[0], *right[0])
    table.add_section()
    for at in (prices, *prices.narrower):
        which = "block of the base, both" if at is prices else f"the same, embedding of {at.embed}"
        together = f"{at.together(0):.2g}"
        table.add_row(which, f"{at.block(0, base):.3g}", "of it beyond their sum", together)
    for fewer in prices.fewer:
        block, cut = prices.at(prices.embed, fewer.tokens).block(0, base), prices.cut(fewer.tokens)
        table.add_row(
            f"the same, {fewer.tokens} of {prices.tokens} tokens", f"{block:.3g}", "passing on so many", f"{cut:.2g}"
        )
    return table
