from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgevit.cli import arguments
from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.imports import importing

if TYPE_CHECKING:
    from edgevit.jobs.jobs_file import DeriveManyRequest


@asks(request="edgevit.jobs.jobs_file:DeriveManyRequest")
def main(
    request: DeriveManyRequest,
    *,
    example: Annotated[bool, arguments.example_option("edgevit.jobs.jobs_file", "file")] = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> None:
    """Derive many models from one jobs file. The same command continues an interrupted run.

    Begin with: edgevit derive-many --example > jobs.yaml
    """
    from edgevit.jobs.jobs_file import read_jobs

    _, layout = read_jobs(request.jobs)  # before torch is imported

    from dataclasses import asdict

    from rich.table import Table

    with importing():
        from edgevit.jobs.many import HEAD, cells, derive_many

    console = Console(json=json, quiet=quiet, verbose=verbose)
    rows = derive_many(request, console.progress)
    table = Table(*HEAD)
    for row in rows:
        table.add_row(*cells(row))
    console.show(table)
    console.show(arguments.page_line(Path(layout.out)))
    console.result({"rows": [asdict(row) for row in rows]})
    if any(row.state == "failed" for row in rows):
        raise typer.Exit(1)
