"""Tables of a bench: rows of runs, models in turns, figures of a board, gates, and profiled layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from rich.table import Table

from edgevit.agent.records import CLOSED_LOOP, PARTS
from edgevit.board.comparison import Comparison, Row, decisive, three_digits
from edgevit.board.gates import Verdict
from edgevit.reporting.layers import PARTS as MODULES
from edgevit.reporting.layers import Breakdown

NAMES = 5  # number of layers that are listed


def over_rounds(rows: Sequence[Row]) -> Row:
    """Combine rounds: medians of times, sums of inferences and of missed periods."""
    first = rows[0]
    parts = first.parts_ms and {name: median((row.parts_ms or {})[name] for row in rows) for name in first.parts_ms}
    missed = None if first.missed is None else sum(row.missed or 0 for row in rows)
    samples = sum(row.samples for row in rows)
    return replace(first, p50_ms=median(row.p50_ms for row in rows), parts_ms=parts, missed=missed, samples=samples)


def turns_table(comparisons: Sequence[Comparison]) -> Table:

    judged = sorted(decisive(comparisons), key=lambda c: (c.batch, c.streams))
    times = {(c.after, c.batch, c.streams, c.figure): (c.before_value, c.after_value) for c in comparisons}
    rounds, first = max(c.rounds or 1 for c in judged), judged[0].before
    headings = ("model", "batch", "p50 ms", "mean ms", f"ratio to {first}", "95 % interval", "verdict")
    table = _table(used(f"in turns, {rounds} rounds", judged[0].use), *headings)
    table.columns[0].justify = table.columns[-1].justify = "left"
    batch = None
    for c in judged:
        load = f"{c.batch}, {c.streams} streams" if c.streams > 1 else str(c.batch)
        p50, mean = (times[c.after, c.batch, c.streams, figure] for figure in ("p50", "mean"))
        if load != batch:
            table.add_section()
            table.add_row(first, load, three_digits(p50[0]), three_digits(mean[0]))
        interval = "-" if c.low is None or c.high is None else f"{c.low:.3f} to {c.high:.3f}"
        verdict = c.outcome if c.outcome in ("better", "worse", "void") else ""
        values = (three_digits(p50[1]), three_digits(mean[1]), f"{c.ratio:.3f}")
        table.add_row(c.after, load, *values, interval, verdict)
        batch = load
    return table


def used(title: str, use: str) -> str:
    """Add the use of the models to a title, unless it was one inference after another."""
    return title if use == CLOSED_LOOP else f"{title}, {use}"


def use_table(rows: Sequence[Row]) -> Table:
    """Periods, and the parts of an inference from the picture to the logits; `other` is the rest."""
    names = [name for name in PARTS if any(name in (row.parts_ms or {}) for row in rows)]
    table = _table(f"{rows[0].label} as used: {rows[0].use}", "batch", "period ms", "missed", "of periods")
    for name in [f"{name} ms" for name in names] + (["other ms", "all, p50 ms"] if names else []):
        table.add_column(name, justify="right")
    for row in rows:
        parts = [(row.parts_ms or {}).get(name, 0.0) for name in names]
        whole = [row.p50_ms - sum(parts), row.p50_ms] if names else []
        periods = "-" if row.missed is None else str(row.samples + row.missed)
        missed = "-" if row.missed is None else str(row.missed)
        table.add_row(
            shape(row).removeprefix("batch "),
            three_digits(row.period_ms),
            missed,
            periods,
            *map(three_digits, (*parts, *whole)),
        )
    return table


def shape(row: Row) -> str:
    return f"batch {row.batch}" + (f", {row.streams} streams" if row.streams > 1 else "")


def rows_table(rows: Sequence[Row]) -> Table:

    first = rows[0]
    title = " ".join(word for word in (first.label, first.precision, "on", first.provider or first.runner) if word)
    table = _table(
        used(title, first.use),
        *("batch", "p50 ms", "p90 ms", "p95 ms", "p99 ms", "spread", "samples", "images/s"),
        *("peak RSS MiB", "memory taken MiB", "load ms", "first ms"),
    )
    for row in rows:
        table.add_row(
            shape(row).removeprefix("batch "),
            *(three_digits(value) for value in (row.p50_ms, row.p90_ms, row.p95_ms, row.p99_ms)),
            f"{row.spread:.1%}",
            str(row.samples),
            *(three_digits(value) for value in (row.images_per_s, row.memory_peak_mib, row.memory_drop_mib)),
            *(three_digits(value) for value in (row.load_ms, row.first_inference_ms)),
        )
    return table


def board_table(rows: Sequence[Row]) -> Table:
    """Figures that only a board has: GPU times, power and energy, temperature, and the share of the roofline."""
    rails = " + ".join(rows[0].rails) or "module"
    window, ticks = rows[0].power_window_s, rows[0].ticks_share
    over = "" if window is None else f" over {window:.1f} s"
    over += f" less {ticks:.0%} for the meters" if ticks and ticks >= 0.005 else ""
    table = _table(
        used(f"GPU and power ({rails}{over})", rows[0].use),
        *("batch", "GPU p50 ms", "GPU p99 ms", "engine MiB", "W", "idle W", "mJ/image", "net mJ/image"),
        *("GPU load", "max C", "power mode", "of roofline"),
    )
    for row in rows:
        table.add_row(
            shape(row).removeprefix("batch "),
            *(three_digits(value) for value in (row.gpu_p50_ms, row.gpu_p99_ms, row.memory_engine_mib)),
            *(three_digits(value) for value in (row.power_w, row.idle_power_w, row.energy_mj, row.energy_net_mj)),
            "-" if row.gpu_load is None else f"{row.gpu_load:.0%}",
            three_digits(row.temperature_max_c),
            row.power_mode or "-",
            "-" if row.roofline_share is None else f"{row.roofline_share:.1%}",
        )
    return table


def verdicts_table(verdicts: Sequence[Verdict]) -> Table:

    several = len({verdict.label for verdict in verdicts}) > 1
    table = _table(
        used("gates", verdicts[0].use), *(["model"] if several else []), "gate", "batch", "seen", "margin", "verdict"
    )
    for verdict in verdicts:
        streams = f", {verdict.streams} streams" if verdict.streams > 1 else ""
        table.add_row(
            *([verdict.label] if several else []),
            str(verdict.gate),
            f"{verdict.batch}{streams}",
            "-" if verdict.value is None else f"{three_digits(verdict.value)} {verdict.gate.unit}",
            "-" if verdict.margin is None else f"{verdict.margin:+.1%}",
            "; ".join((verdict.state, *verdict.reasons)),
        )
    return table


def _table(title: str, *headings: str) -> Table:

    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def trtexec_table(checks: Sequence[Mapping[str, Any]]) -> Table:
    """The figures of trtexec for the engines of a bench."""
    headings = ("model", "batch", "streams", "queries/s", "latency p50 ms", "GPU p50 ms", "p99")
    table = _table("trtexec on the same engines", *headings)
    for check in checks:
        latency, gpu = check["latency_ms"], check["gpu_ms"]
        figures = (check["throughput_qps"], latency["median"], gpu["median"], gpu.get("p99"))
        table.add_row(check["label"], str(check["batch"]), str(check["streams"]), *map(three_digits, figures))
    return table


def breakdown_text(breakdown: Breakdown) -> str:
    """Describe how far the profiler slowed the model down, and its slowest layers."""
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
    table = _breakdown_table(
        f"where the time goes, profiled, batch {breakdowns[0].batch}", "module", breakdowns, "ms", "share"
    )
    if len(breakdowns) > 1:
        table.add_column(f"{breakdowns[1].label} over {breakdowns[0].label}", justify="right")
    for part in MODULES:
        values = [b.ms(part, anywhere=True) for b in breakdowns]
        if any(values):
            _add_breakdowns(table, part, values, breakdowns)
    table.add_section()
    _add_breakdowns(table, breakdowns[0].between, [b.between_ms for b in breakdowns], breakdowns)
    _add_breakdowns(table, "inference", [b.inference_ms for b in breakdowns], breakdowns)
    table.add_section()
    _add_breakdowns(table, "unexplained: interruptions", [b.interrupted_ms for b in breakdowns], breakdowns)
    return table


def block_times_table(breakdowns: Sequence[Breakdown]) -> Table:
    """Time per block."""
    table = _breakdown_table("block by block, ms", "block", breakdowns, "attention", "FFN", "other", "all", "share")
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


def _add_breakdowns(table: Table, name: str, values: Sequence[float], breakdowns: Sequence[Breakdown]) -> None:
    cells = [
        cell for ms, b in zip(values, breakdowns, strict=True) for cell in (three_digits(ms), f"{b.share(ms):.1%}")
    ]
    ratio = [f"{values[1] / values[0]:.2f}" if values[0] > 0 else "-"] if len(breakdowns) > 1 else []
    table.add_row(name, *cells, *ratio)


def _breakdown_table(title: str, first: str, breakdowns: Sequence[Breakdown], *headings: str) -> Table:
    table = Table(first, title=title, title_justify="left")
    for breakdown in breakdowns:
        for number, heading in enumerate(headings):
            label = (
                f"{breakdown.label}\n" if len(breakdowns) > 1 and not number else "\n" if len(breakdowns) > 1 else ""
            )
            table.add_column(label + heading, justify="right")
    return table
