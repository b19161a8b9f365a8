from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from edgevit.cli.console import Console, JsonFlag

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.derivation.cache import CacheEntry


def main(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all entries.", rich_help_panel="Cache")] = False,
    json: JsonFlag = False,
) -> None:
    """Show or clear cached statistics, measured costs, unpacked data, and data given from Python on this machine."""
    from edgevit.derivation import cache
    from edgevit.latency import store

    console = Console(json=json)
    folder, costs = cache.derivations_folder(), store.costs_folder()
    entries = [*cache.clear(folder), *store.clear(costs)] if clear else [*cache.entries(folder), *store.entries(costs)]
    entries += cache.folders(clear=clear)
    total = sum(entry.bytes for entry in entries)
    if entries and not clear:
        console.show(_bases_table(entries))
    console.show(f"{'removed' if clear else 'holding'} {len(entries)} entries, {total / 1e6:.1f} MB, in {folder}")
    shown = [
        {"entry": e.file.stem, "what": e.kind, "base": e.base, "task": e.task, "bytes": e.bytes, "used_s": e.used_s}
        for e in entries
    ]
    console.result({"folder": str(folder), "cleared": clear, "bytes": total, "entries": shown})


def _bases_table(entries: Sequence[CacheEntry]) -> Table:
    """One row per base, the most recently used first."""
    from rich.table import Table

    by_base: dict[str, list[CacheEntry]] = {}
    for entry in sorted(entries, key=lambda entry: -entry.used_s):
        by_base.setdefault(entry.base, []).append(entry)
    table = Table("base", "entries", "MB", "last used")
    for column in table.columns[1:]:
        column.justify = "right"
    for base, of_base in by_base.items():
        size = sum(entry.bytes for entry in of_base)
        table.add_row(base or "not stated", str(len(of_base)), f"{size / 1e6:.1f}", _age(of_base[0]))
    return table


def _age(entry: CacheEntry) -> str:
    return f"{(time.time() - entry.used_s) / 3600:.1f} h ago"
