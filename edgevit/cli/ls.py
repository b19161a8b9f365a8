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
    folder: Annotated[Path, typer.Argument(help="A folder of models, with all below it.")] = Path(),
    json: JsonFlag = False,
) -> None:
    """List the models below a folder: how each was made, its accuracy, and its latency where that was measured."""
    from edgevit.errors import OptionError

    console = Console(json=json)
    if not folder.is_dir():
        raise OptionError(f"there is no folder {folder}; check the path")
    if not show_models(console, folder):
        raise OptionError(f"no model lies in {folder}; give a folder of models, or make one with edgevit derive")


def show_models(console: Console, folder: Path) -> bool:
    """The table of a folder of models; False: it holds none, and nothing is printed."""
    from dataclasses import asdict

    from edgevit.jobs.sweep.listing import list_folders

    listed = list_folders(folder)
    if listed:
        console.show(models_table(listed))
        for one in listed:
            if one.kind == "damaged":
                console.warn(str(one.note))
        console.result({"folder": str(folder), "models": [asdict(one) for one in listed]})
    return bool(listed)


def models_table(listed: Sequence[ListedFolder]) -> Table:
    """One row for each folder, narrow enough for 80 columns."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("folder", overflow="fold")
    table.add_column("what", overflow="fold")
    for heading in ("rate", "MACs", "top-1", "on", "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("exported", no_wrap=True)
    for one in listed:
        what = one.method or one.kind
        if one.note is not None and one.kind != "damaged":
            what = f"{what}: {one.note}"
        table.add_row(
            one.folder,
            what,
            "" if one.rate is None or one.kind == "base" else f"{one.rate:.2f}",
            "" if one.macs_share is None else f"{100 * one.macs_share:.1f} %",
            "" if one.top1 is None else f"{100 * one.top1:.1f} %",
            "" if one.part is None else f"{one.images} {'val' if one.part == 'validation' else one.part}",
            "" if one.latency_ms is None else f"{one.latency_ms:.3g}",
            _exported(one),
        )
    return table


def _exported(one: ListedFolder) -> str:
    engines = f" +{one.engines} trt" if one.engines else ""
    return f"{one.files} onnx{engines}" if one.files else ""
