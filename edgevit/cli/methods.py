from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from edgevit.cli import arguments
from edgevit.cli.console import NARROW, Console, JsonFlag, console_width

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.derivation.options import MethodDescription


def main(
    method: Annotated[
        str | None,
        typer.Argument(metavar="[METHOD]", help="Method to show the options of; supernet has options as well."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """List the methods of `edgevit derive`, or the options of one for `--set METHOD.OPTION=VALUE`."""
    from dataclasses import asdict

    from edgevit.derivation.methods import baseline_names, own_method_names
    from edgevit.derivation.options import describe

    console = Console(json=json)
    if method is None:
        own_methods, baselines = [
            [describe(name) for name in names] for names in (own_method_names(), baseline_names())
        ]
        console.show(_methods_table(own_methods))
        console.show("\nBaselines, published methods to compare with:")
        console.show(_methods_table(baselines))
        console.show("Next: edgevit methods METHOD lists its options.")
        console.result(
            [
                {
                    "name": m.name,
                    "summary": m.summary,
                    "baseline": m in baselines,
                }
                for m in (*own_methods, *baselines)
            ]
        )
        return
    shown = describe(method)
    console.show(shown.summary)
    console.show(_options_table(shown))
    options = [{**asdict(option), "kind": arguments.kind_name(option.kind)} for option in shown.options]
    console.result({"name": shown.name, "summary": shown.summary, "options": options})


def _methods_table(methods: Sequence[MethodDescription]) -> Table:
    from rich.table import Table

    table = Table("method", "what it does")
    table.columns[0].no_wrap = True
    for method in methods:
        table.add_row(method.name, method.summary)
    return table


def _options_table(method: MethodDescription) -> Table:
    from rich.table import Table

    narrow = console_width() < NARROW  # leave the width to the meaning
    table = Table("option", "meaning") if narrow else Table("option", "default", "takes", "meaning")
    for column in table.columns[:-1]:
        column.no_wrap = True
    for option in method.options:
        name, takes = f"{method.name}.{option.name}", arguments.kind_name(option.kind)
        if narrow:
            table.add_row(f"{name}\n= {option.default}", f"{option.explanation} Takes {takes}.")
        else:
            table.add_row(name, option.default, takes, option.explanation)
    return table
