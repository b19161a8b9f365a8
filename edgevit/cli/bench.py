from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.errors import OutputError

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.agent.records import Run
    from edgevit.report.runs import Comparison, Row


def main(
    model: Annotated[Path, typer.Argument(help="Model folder with an export, or an ONNX file.")],
    batch: Annotated[list[int] | None, typer.Option(help="Images per inference; repeatable.  [default: 1]")] = None,
    runner: Annotated[str, typer.Option(help="What runs the model, such as onnxruntime or fake.")] = "onnxruntime",
    provider: Annotated[str | None, typer.Option(help="cpu, cuda or tensorrt.  [default: cpu]")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32 or fp16, of a model folder.  [default: fp16 on a GPU, fp32 on the CPU]")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Within one operator.  [default: all cores]")] = None,
    samples: Annotated[int, typer.Option(help="Inferences to time, at least.")] = 200,
    min_seconds: Annotated[float, typer.Option(help="Time to go on for, at least.")] = 1.0,
    warmup: Annotated[int, typer.Option(help="Inferences before, at least.")] = 10,
    output: Annotated[Path | None, typer.Option(help="Append the raw runs to this JSON-lines file.")] = None,
    compare: Annotated[Path | None, typer.Option(help="Set the runs against those in this JSON-lines file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare even if the environments differ; says so.")] = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> None:
    """Measure latency, throughput and memory of an exported model on this machine."""
    from dataclasses import asdict

    from edgevit.board.bench import bench
    from edgevit.report.runs import compare_runs, load_runs, make_row

    console = Console(json=json, quiet=quiet, verbose=verbose)
    earlier = load_runs(compare) if compare else []
    keep = append_to(output) if output else None
    runs: list[Run] = []

    def on_run(run: Run) -> None:
        runs.append(run)
        if keep:
            keep(run)

    try:
        bench(
            model,
            batches=batch or (1,),
            runner=runner,
            provider=provider,
            precision=precision,
            threads=threads,
            samples=samples,
            min_seconds=min_seconds,
            warmup=warmup,
            on_run=on_run,
            progress=console.progress,
        )
    finally:  # a batch size that fails, a full disk or Ctrl-C does not hide what was measured before it
        rows = [make_row(run) for run in runs]
        show_rows(console, rows)
    comparisons = compare_runs(earlier, runs, force=force) if compare else []
    if comparisons:
        console.show(comparisons_table(comparisons))
        for text in sorted({f"environments differ in {', '.join(c.differing)}" for c in comparisons if c.differing}):
            console.warn(f"{text}: the ratios say little about the models")
    console.result({"runs": [asdict(row) for row in rows], "comparisons": [asdict(c) for c in comparisons]})


def append_to(path: Path) -> Callable[[Run], None]:
    """Find out at once whether the file can be written; then append each run as soon as it is there."""

    def write(text: str) -> None:
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise OutputError(f"cannot write runs to {path}: {error.strerror}; choose another --output") from error

    write("")
    return lambda run: write(run.to_json() + "\n")


def show_rows(console: Console, rows: Sequence[Row]) -> None:
    if rows:
        console.show(rows_table(rows))
    for row in rows:
        for text in row.warnings:
            console.warn(f"batch {row.batch}: {text}")


def rows_table(rows: Sequence[Row]) -> Table:
    from rich.table import Table

    from edgevit.report.runs import three_digits

    first = rows[0]
    how = " ".join(word for word in (first.label, first.precision, "on", first.provider or first.runner) if word)
    table = Table(title=how, title_justify="left")
    for heading in ("batch", "p50 ms", "p90 ms", "p99 ms", "spread", "samples", "images/s"):
        table.add_column(heading, justify="right")
    for heading in ("peak RSS MiB", "memory taken MiB", "load ms", "first ms"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row.batch),
            three_digits(row.p50_ms),
            three_digits(row.p90_ms),
            three_digits(row.p99_ms),
            f"{row.spread:.1%}",
            str(row.samples),
            three_digits(row.images_per_s),
            three_digits(row.memory_peak_mib),
            three_digits(row.memory_taken_mib),
            three_digits(row.load_ms),
            three_digits(row.first_inference_ms),
        )
    return table


def comparisons_table(comparisons: Sequence[Comparison]) -> Table:
    from rich.table import Table

    from edgevit.report.runs import three_digits

    table = Table(title="p50 against before; below 1 is faster", title_justify="left")
    for heading in ("before", "after"):
        table.add_column(heading)
    for heading in ("batch", "before ms", "after ms", "ratio", "quartiles"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for c in comparisons:
        remarks = ("environments differ" if c.differing else "", "within the spread" if c.within_spread() else "")
        table.add_row(
            c.before,
            c.after,
            str(c.batch),
            three_digits(c.before_p50_ms),
            three_digits(c.after_p50_ms),
            three_digits(c.ratio),
            f"{three_digits(c.low)} to {three_digits(c.high)}",
            ", ".join(remark for remark in remarks if remark),
        )
    return table
