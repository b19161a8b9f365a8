from __future__ import annotations

from typing import Annotated

import typer

from edgevit.cli.console import Console, JsonFlag


def main(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove every entry instead of showing it.", rich_help_panel="Cache")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Show what derivations share on this machine and what was measured for cost tables, or clear it."""
    import time

    from rich.table import Table

    from edgevit.cost import store
    from edgevit.derive import cache

    console = Console(json=json)
    folder, costs = cache.derivations_folder(), store.costs_folder()
    held = [*cache.clear(folder), *store.clear(costs)] if clear else [*cache.entries(folder), *store.entries(costs)]
    total = sum(entry.bytes for entry in held)
    table = Table("what", "base", "first made for", "MB", "last used", "entry")
    table.columns[3].justify = "right"
    for entry in held:
        hours = (time.time() - entry.used_s) / 3600
        name = entry.file.stem.rpartition("-")[2][:12]
        table.add_row(entry.what, entry.base, entry.task, f"{entry.bytes / 1e6:.1f}", f"{hours:.1f} h ago", name)
    if held and not clear:
        console.show(table)
    console.show(f"{'removed' if clear else 'holding'} {len(held)} entries, {total / 1e6:.1f} MB, in {folder}")
    shown = [
        {"entry": e.file.stem, "what": e.what, "base": e.base, "task": e.task, "bytes": e.bytes, "used_s": e.used_s}
        for e in held
    ]
    console.result({"folder": str(folder), "cleared": clear, "bytes": total, "entries": shown})
