"""Show where the time of an inference goes, and the layers of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgevit.cli.console import Console

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.agent.layers import Layer
    from edgevit.reporting.layers import Breakdown


def show_breakdowns(console: Console, breakdowns: Sequence[Breakdown]) -> None:
    """Show the models side by side, for each batch size."""
    from edgevit.reporting.bench import block_times_table, breakdown_text, modules_table

    for batch in dict.fromkeys(b.batch for b in breakdowns):
        alike = [b for b in breakdowns if b.batch == batch]
        console.show(modules_table(alike))
        console.show(block_times_table(alike))
        for breakdown in alike:
            console.show(breakdown_text(breakdown))


def show_engine(console: Console, path: Path) -> None:
    """Show the layers of an engine, as its inspector listed them after the build.

    Raises:
        EngineError: the engine's record is missing, unreadable, or of another model than its folder.
    """
    from dataclasses import asdict
    from typing import Any

    from edgevit.agent.layers import describe_layer
    from edgevit.records.engine import ENGINE_KIND, READER
    from edgevit.records.model_folder import model_of

    record = model_of(path.absolute()).engine_record(path)
    layers = [describe_layer(layer) for layer in READER.json(record.layers_path, list[Any])]
    console.show(_layers_table(layers, str(path)))
    fused = "unknown, as this TensorRT does not say" if record.fused is None else f"{record.fused} of {record.blocks}"
    console.show(
        f"{record.precision_level}, {len(layers)} layers, for {record.fingerprint}; attention in one kernel: {fused}"
    )
    console.result({"engine": ENGINE_KIND.content(record), "layers": [asdict(layer) for layer in layers]})


def _layers_table(layers: Sequence[Layer], title: str) -> Table:
    from rich.table import Table

    table = Table("", "layer", "kind", "precision", "tactic", "computes", title=title, title_justify="left")
    for number, layer in enumerate(layers):
        nodes = f"{layer.nodes[0]} and {len(layer.nodes) - 1} more" if len(layer.nodes) > 1 else "".join(layer.nodes)
        name = f"{layer.name} (fused attention)" if layer.fused else layer.name
        table.add_row(str(number), name, layer.kind or "", layer.precision or "", layer.tactic or "", nodes)
    return table
