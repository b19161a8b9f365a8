from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgevit.cli.arguments import option
from edgevit.cli.console import Console, JsonFlag, write
from edgevit.request import JUDGING, OUTPUT

if TYPE_CHECKING:
    from edgevit.report.gather import Found

SHOWN = 3  # of what was left out


def main(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Folders of models, with all below them, and files that `edgevit bench --output` wrote."),
    ],
    output: Annotated[
        Path | None,
        option("--output", "-o", panel=OUTPUT, help="File to write.  [default: report.html; else standard output]"),
    ] = None,
    format: Annotated[
        str | None,
        option(panel=OUTPUT, help="One of html, md, csv and json.  [default: what the output's suffix says, or html]"),
    ] = None,
    gate: Annotated[
        list[str] | None,
        option(
            panel=JUDGING, metavar="METRIC<VALUE",
            help="Limit that must hold for a model to be taken, such as 'p99<8ms'; repeatable.",
        ),
    ] = None,
    thumbnails: Annotated[
        int,
        option(
            panel=OUTPUT, metavar="N",
            help="Show small copies of N validation images that each model gets wrong; images may be private.",
        ),
    ] = 0,
    json: JsonFlag = False,
) -> None:  # fmt: skip
    """Make one page of models and runs that says which model to take: accuracy against latency, energy, size.

    The page is one file that needs no network. What must not be compared is kept apart: other tasks, seeds, boards,
    power modes. Files that cannot be read are left out, and named.
    """
    from edgevit.report.page import LIMIT_BYTES
    from edgevit.report.run import report
    from edgevit.report.tables import content, heading, kept_apart

    console = Console(json=json)
    made = report(
        paths, output=output, format=format, gates=gate or (), thumbnails=thumbnails, progress=console.progress
    )
    tell_skipped(console, made.found)
    if made.file is None and not json:
        write(made.text.rstrip("\n"))
    if made.file is not None:
        for text in kept_apart(made.panels):
            console.show(text)
        size = len(made.text.encode())
        if made.format == "html" and size > LIMIT_BYTES:
            console.warn(f"the page has {size / 1e6:.1f} MB, more than mail likes; give fewer folders")
        console.show(f"{heading(made.panels[0])}: wrote {made.file}, {size / 1e6:.2g} MB")
    console.result({"file": made.file and str(made.file), **content(made.panels, made.found.skipped)})


def tell_skipped(console: Console, found: Found) -> None:
    """Say what was left out: how much, and the first few by name."""
    for one in found.skipped[:SHOWN]:
        console.warn(f"left out: {one.where}: {one.why}")
    if len(found.skipped) > SHOWN:
        console.warn(f"left out: {len(found.skipped) - SHOWN} more, which the report names")
