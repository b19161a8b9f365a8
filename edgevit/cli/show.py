from __future__ import annotations

import json as json_
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgevit.cli.console import Console, JsonFlag

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.models.checkpoint import Model


def main(
    folder: Annotated[Path, typer.Argument(help="Model folder.")],
    json: JsonFlag = False,
) -> None:
    """Show a model block by block, its classes, its accuracy and how it was made."""
    from edgevit.cli.derive import accuracy_table
    from edgevit.models.checkpoint import load

    console = Console(json=json)
    model = load(folder)
    file = folder / "derivation.json"
    record: dict[str, Any] | None = json_.loads(file.read_text()) if file.is_file() else None
    console.result({"model": asdict(model.spec), "derivation": record})
    console.show(_blocks_table(model))
    spec = model.spec
    console.show(f"{spec.timm_name}, {len(spec.classes)} classes, {spec.head} head: {', '.join(spec.class_names)}")
    fusable = sum(b.fusable for b in spec.blocks)
    console.show(
        f"attention of a fusable shape in {fusable} of {len(spec.blocks)} blocks; base {spec.base.weights_sha256[:12]}"
    )
    if record is not None:
        console.show(accuracy_table(spec, record))
        console.show(
            f"method {record['method']}, {record['budget']['asked']}, shape {record['shape']['name']}, "
            f"seed {record['training']['seed']}, {record['facts'].get('steps', 0)} steps, made {record['created']} "
            f"with edgevit {record['versions']['edgevit']} from {record['data']['data']}"
        )


def _blocks_table(model: Model) -> Table:
    """Dimensions and MACs of each block beside the base's."""
    from rich.table import Table

    from edgevit.derive.budget import readable
    from edgevit.models.families import load_family

    spec = model.spec
    geometry = load_family(spec.family).geometry(model.network)
    table = Table("block", "heads", "qk", "vo", "ffn", "MACs", "of the base")
    for column in table.columns[1:]:
        column.justify = "right"

    def pair(now: int, before: int) -> str:
        return f"{now}/{before}"

    for i, (now, before) in enumerate(zip(spec.blocks, spec.base.blocks, strict=True)):
        macs = geometry.block_cost(now, "macs")
        widths = [pair(getattr(now, n), getattr(before, n)) for n in ("heads", "qk", "vo", "ffn")]
        table.add_row(str(i), *widths, readable(macs), f"{100 * macs / geometry.block_cost(before, 'macs'):.1f} %")
    table.add_section()
    total = (f"{readable(spec.params)} parameters", "", "", "", readable(spec.macs), f"{100 * (1 - spec.rate):.1f} %")
    table.add_row("all", *total)
    return table
