from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgevit.cli.console import Console, JsonFlag

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.jobs.sweep.listing import ListedFolder


def main(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]", help="Folder to search for models.  [default: this folder]", show_default=False
        ),
    ] = Path(),
    json: JsonFlag = False,
) -> None:
    """List the models below a folder with their methods, accuracies and measured latencies."""
    from edgevit.errors import OptionError

    console = Console(json=json)
    if not folder.is_dir():
        raise OptionError(f"there is no folder {folder}; check the path")
    if not show_models(console, folder):
        raise OptionError(f"no model lies in {folder}; give a folder of models, or make one with edgevit derive")


def show_models(console: Console, folder: Path) -> bool:
    """Show the models below a folder; False: there are none, and nothing is printed."""
    from dataclasses import asdict

    from edgevit.jobs.sweep.listing import list_folders

    listed = list_folders(folder)
    if listed:
        console.show(_models_table(listed))
        for item in listed:
            if item.kind == "damaged":
                console.warn(str(item.note))
        console.result({"folder": str(folder), "models": [asdict(item) for item in listed]})
    return bool(listed)


def _models_table(listed: Sequence[ListedFolder]) -> Table:
    """One row per folder, within 80 columns."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("folder", overflow="fold")
    table.add_column("what", overflow="fold")
    for heading in ("rate", "MACs", "top-1", "on", "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("exported", no_wrap=True)
    for item in listed:
        description = item.method or item.kind
        if item.note is not None and item.kind != "damaged":
            description = f"{description}: {item.note}"
        table.add_row(
            item.folder,
            description,
            "" if item.rate is None or item.kind == "base" else f"{item.rate:.2f}",
            "" if item.macs_share is None else f"{100 * item.macs_share:.1f} %",
            "" if item.top1 is None else f"{100 * item.top1:.1f} %",
            "" if item.part is None else f"{item.images} {'val' if item.part == 'validation' else item.part}",
            "" if item.latency_ms is None else f"{item.latency_ms:.3g}",
            _exported(item),
        )
    return table


def _exported(item: ListedFolder) -> str:
    engines = f" +{item.engines} trt" if item.engines else ""
    return f"{item.files} onnx{engines}" if item.files else ""
