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
    """The models beside each other, batch size by batch size."""
    for batch in dict.fromkeys(one.batch for one in breakdowns):
        alike = [one for one in breakdowns if one.batch == batch]
        console.show(modules_table(alike))
        console.show(block_times_table(alike))
        for one in alike:
            console.show(remark(one))


def remark(found: Breakdown) -> str:
    from edgevit.board.comparison import three_digits

    slowest = ", ".join(f"{name} {three_digits(ms)} ms" for name, ms in found.slowest)
    told = (
        f"{found.label}: the profiler made an inference {found.profiled_ms / found.plain_ms:.2f} times as long, "
        f"{three_digits(found.profiled_ms)} ms in place of {three_digits(found.plain_ms)}: these are shares, and no "
        f"latencies; slowest layers: {slowest}"
    )
    if found.unknown:
        more = f" and {len(found.unknown) - NAMES} more" if len(found.unknown) > NAMES else ""
        told += f"; names that map to nothing: {', '.join(found.unknown[:NAMES])}{more}"
    return told


def modules_table(found: Sequence[Breakdown]) -> Table:
    """Kind of module by kind of module."""
    from edgevit.reporting.layers import PARTS

    table = _table(f"where the time goes, profiled, batch {found[0].batch}", "module", found, "ms", "share")
    if len(found) > 1:
        table.add_column(f"{found[1].label} over {found[0].label}", justify="right")
    for part in PARTS:
        values = [one.ms(part, anywhere=True) for one in found]
        if any(values):
            _add(table, part, values, found)
    table.add_section()
    _add(table, found[0].between, [one.between_ms for one in found], found)
    _add(table, "inference", [one.inference_ms for one in found], found)
    table.add_section()
    _add(table, "unexplained: interruptions", [one.interrupted_ms for one in found], found)
    return table


def block_times_table(found: Sequence[Breakdown]) -> Table:
    """Block by block."""
    from edgevit.board.comparison import three_digits

    table = _table("block by block, ms", "block", found, "attention", "FFN", "other", "all", "share")
    for block in sorted({number for one in found for number in one.blocks}):
        cells = []
        for one in found:
            attention, ffn, both = one.ms("attention", block=block), one.ms("FFN", block=block), one.ms(block=block)
            shown = [three_digits(ms) if ms else "" for ms in (attention, ffn, both - attention - ffn, both)]
            cells += [*shown, f"{one.share(both):.1%}" if both else ""]
        table.add_row(str(block), *cells)
    return table


def _add(table: Table, name: str, values: Sequence[float], found: Sequence[Breakdown]) -> None:
    from edgevit.board.comparison import three_digits

    cells = [cell for ms, one in zip(values, found, strict=True) for cell in (three_digits(ms), f"{one.share(ms):.1%}")]
    ratio = [f"{values[1] / values[0]:.2f}" if values[0] > 0 else "-"] if len(found) > 1 else []
    table.add_row(name, *cells, *ratio)


def _table(title: str, first: str, found: Sequence[Breakdown], *headings: str) -> Table:
    from rich.table import Table

    table = Table(first, title=title, title_justify="left")
    for one in found:
        for number, heading in enumerate(headings):
            own = f"{one.label}\n" if len(found) > 1 and not number else "\n" if len(found) > 1 else ""
            table.add_column(own + heading, justify="right")
    return table


def show_engine(console: Console, path: Path) -> None:
    """The layers of an engine, as its inspector told them when it was built.

    Raises:
        EngineError: there is no record beside it, it cannot be read, or is of another model than the folder around it.
    """
    from dataclasses import asdict
    from typing import Any

    from edgevit.agent.layers import describe_layer
    from edgevit.records.engine import ENGINE_KIND, READER
    from edgevit.records.model_folder import model_of

    record = model_of(path.absolute()).engine_record(path)
    layers = [describe_layer(layer) for layer in READER.json(record.layers_path, list[Any])]
    console.show(layers_table(layers, str(path)))
    fused = "not told by this TensorRT" if record.fused is None else f"{record.fused} of {record.blocks}"
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
