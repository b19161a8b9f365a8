"""Tables of where the time of an inference goes, and of the layers of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgevit.cli.console import Console

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.agent.layers import Layer
    from edgevit.reporting.layers import Breakdown

NAMES = 5  # of layers that are listed


def show_breakdowns(console: Console, breakdowns: Sequence[Breakdown]) -> None:
    """Show the models side by side, for each batch size."""
    for batch in dict.fromkeys(b.batch for b in breakdowns):
        alike = [b for b in breakdowns if b.batch == batch]
        console.show(modules_table(alike))
        console.show(block_times_table(alike))
        for breakdown in alike:
            console.show(remark(breakdown))


def remark(breakdown: Breakdown) -> str:
    from edgevit.board.comparison import three_digits

    slowest = ", ".join(f"{name} {three_digits(ms)} ms" for name, ms in breakdown.slowest)
    slowdown = breakdown.profiled_ms / breakdown.plain_ms
    text = (
        f"{breakdown.label}: the profiler made an inference {slowdown:.2f} times as long, "
        f"{three_digits(breakdown.profiled_ms)} ms in place of {three_digits(breakdown.plain_ms)}: read these times as "
        f"shares, not as latencies; slowest layers: {slowest}"
    )
    if breakdown.unknown:
        more = f" and {len(breakdown.unknown) - NAMES} more" if len(breakdown.unknown) > NAMES else ""
        text += f"; names that map to nothing: {', '.join(breakdown.unknown[:NAMES])}{more}"
    return text


def modules_table(breakdowns: Sequence[Breakdown]) -> Table:
    """Time per kind of module."""
    from edgevit.reporting.layers import PARTS

    table = _table(f"where the time goes, profiled, batch {breakdowns[0].batch}", "module", breakdowns, "ms", "share")
    if len(breakdowns) > 1:
        table.add_column(f"{breakdowns[1].label} over {breakdowns[0].label}", justify="right")
    for part in PARTS:
        values = [b.ms(part, anywhere=True) for b in breakdowns]
        if any(values):
            _add(table, part, values, breakdowns)
    table.add_section()
    _add(table, breakdowns[0].between, [b.between_ms for b in breakdowns], breakdowns)
    _add(table, "inference", [b.inference_ms for b in breakdowns], breakdowns)
    table.add_section()
    _add(table, "unexplained: interruptions", [b.interrupted_ms for b in breakdowns], breakdowns)
    return table


def block_times_table(breakdowns: Sequence[Breakdown]) -> Table:
    """Time per block."""
    from edgevit.board.comparison import three_digits

    table = _table("block by block, ms", "block", breakdowns, "attention", "FFN", "other", "all", "share")
    for block in sorted({number for b in breakdowns for number in b.blocks}):
        cells = []
        for breakdown in breakdowns:
            attention, ffn, both = (
                breakdown.ms("attention", block=block),
                breakdown.ms("FFN", block=block),
                breakdown.ms(block=block),
            )
            shown = [three_digits(ms) if ms else "" for ms in (attention, ffn, both - attention - ffn, both)]
            cells += [*shown, f"{breakdown.share(both):.1%}" if both else ""]
        table.add_row(str(block), *cells)
    return table


def _add(table: Table, name: str, values: Sequence[float], breakdowns: Sequence[Breakdown]) -> None:
    from edgevit.board.comparison import three_digits

    cells = [
        cell for ms, b in zip(values, breakdowns, strict=True) for cell in (three_digits(ms), f"{b.share(ms):.1%}")
    ]
    ratio = [f"{values[1] / values[0]:.2f}" if values[0] > 0 else "-"] if len(breakdowns) > 1 else []
    table.add_row(name, *cells, *ratio)


def _table(title: str, first: str, breakdowns: Sequence[Breakdown], *headings: str) -> Table:
    from rich.table import Table

    table = Table(first, title=title, title_justify="left")
    for breakdown in breakdowns:
        for number, heading in enumerate(headings):
            label = (
                f"{breakdown.label}\n" if len(breakdowns) > 1 and not number else "\n" if len(breakdowns) > 1 else ""
            )
            table.add_column(label + heading, justify="right")
    return table


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
    console.show(layers_table(layers, str(path)))
    fused = "unknown, as this TensorRT does not say" if record.fused is None else f"{record.fused} of {record.blocks}"
    console.show(
        f"{record.precision_level}, {len(layers)} layers, for {record.fingerprint}; attention in one kernel: {fused}"
    )
    console.result({"engine": ENGINE_KIND.content(record), "layers": [asdict(layer) for layer in layers]})


def layers_table(layers: Sequence[Layer], title: str) -> Table:
    from rich.table import Table

    table = Table("", "layer", "kind", "precision", "tactic", "computes", title=title, title_justify="left")
    for number, layer in enumerate(layers):
        nodes = f"{layer.nodes[0]} and {len(layer.nodes) - 1} more" if len(layer.nodes) > 1 else "".join(layer.nodes)
        name = f"{layer.name} (fused attention)" if layer.fused else layer.name
        table.add_row(str(number), name, layer.kind or "", layer.precision or "", layer.tactic or "", nodes)
    return table
