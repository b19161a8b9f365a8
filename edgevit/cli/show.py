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
    record = _derivation(folder / "derivation.json")
    console.result({"model": asdict(model.spec), "derivation": record})
    console.show(_blocks_table(model))
    spec = model.spec
    classes = f"{len(spec.classes)} classes, {spec.head} head: {', '.join(spec.class_names)}"
    console.show(f"{spec.timm_name}, {classes if spec.classes else f'{spec.base.outputs} outputs'}")
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


def _derivation(file: Path) -> dict[str, Any] | None:
    """How the model was made; None if it is a base.

    Raises:
        CheckpointError: the file cannot be read.
    """
    from edgevit.derive.pipeline import SCHEMA
    from edgevit.errors import CheckpointError

    if not file.is_file():
        return None
    try:
        record = json_.loads(file.read_text())
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON ({error}); copy the folder again, or derive it again") from error
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA:
        raise CheckpointError(f"{file} has schema {schema!r}, this edgevit reads {SCHEMA}; update edgevit")
    return dict(record)


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
