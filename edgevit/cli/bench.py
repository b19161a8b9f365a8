from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgevit.cli import arguments
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.errors import OutputError

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.agent.records import Run
    from edgevit.board.bench import Bench
    from edgevit.report.gates import Verdict
    from edgevit.report.runs import Row


def main(
    model: Annotated[Path, typer.Argument(help="Model folder with an export, an ONNX file, or an engine.")],
    board: arguments.Board = None,
    ssh_config: arguments.SshConfig = None,
    profile: arguments.ProfileName = None,
    gate: Annotated[
        list[str] | None, typer.Option(metavar="METRIC<VALUE", help="Such as 'p99<8ms' or 'energy<40mJ'; repeatable.")
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Images per inference; repeatable.  [default: 1]")] = None,
    repeat: Annotated[int, typer.Option(help="Measure so many times, each in a process of its own.")] = 1,
    runner: Annotated[
        str | None,
        typer.Option(help="tensorrt, onnxruntime or fake.  [default: tensorrt on a board, onnxruntime elsewhere]"),
    ] = None,
    provider: Annotated[str | None, typer.Option(help="cpu, cuda or tensorrt, of onnxruntime.  [default: cpu]")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32 or fp16, of a model folder.  [default: fp16 on a GPU, fp32 on the CPU]")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Within one operator.  [default: all cores]")] = None,
    streams: Annotated[
        list[int] | None, typer.Option(help="Inferences under way at once; repeatable.  [default: 1]")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="The runner's own, such as cuda_graph=False; repeatable."),
    ] = None,
    samples: Annotated[int, typer.Option(help="Inferences to time, at least.")] = 200,
    duration: Annotated[
        float | None, typer.Option(help="Seconds to go on for, at least.  [default: 10 where power is read, else 1]")
    ] = None,
    idle: Annotated[
        float | None, typer.Option(help="Seconds of idle power before.  [default: 10 where power is read]")
    ] = None,
    warmup: Annotated[int, typer.Option(help="Inferences before, at least.")] = 10,
    warmup_seconds: Annotated[float, typer.Option(help="Seconds of them, at least.")] = 0.5,
    power_meter: Annotated[
        str | None, typer.Option(help="ina3221, tegrastats or jtop.  [default: the first that can be read]")
    ] = None,
    power_mode: Annotated[
        str | None, typer.Option(help="Set this power mode for the bench, and the earlier one after it.")
    ] = None,
    lock_clocks: Annotated[
        bool, typer.Option("--lock-clocks", help="Lock the clocks for the bench, and unlock them after it.")
    ] = False,
    cross_check: Annotated[
        bool, typer.Option("--cross-check", help="Let trtexec measure the same engine, too.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Append the raw runs to this JSON-lines file.")] = None,
    compare: Annotated[Path | None, typer.Option(help="Set the runs against those in this JSON-lines file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare even if the environments differ; says so.")] = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> int:
    """Measure latency, throughput, memory and energy of a model, here or on a board over SSH.

    Exit code 3: a gate failed. 4: a run is void, because clocks moved or the board held itself back.
    """
    from dataclasses import asdict

    from edgevit.board.bench import Setting, bench
    from edgevit.cli.compare import show_comparisons
    from edgevit.report.gates import check_measurable, exit_code, judge, measurable, parse_gate
    from edgevit.report.runs import compare_runs, load_runs, make_row

    console = Console(json=json, quiet=quiet, verbose=verbose)
    gates = [parse_gate(text) for text in gate or ()]
    earlier = load_runs(compare) if compare else []
    keep = append_to(output) if output else None
    batches, lanes = batch or [1], streams or [1]
    runs: list[Run] = []

    def before(setting: Setting, runner: str) -> None:
        """Refuse gates that this board cannot answer before it is kept busy."""
        if profile and setting.profile:
            gates.extend(parse_gate(text, f"profile {setting.profile.name}") for text in setting.profile.budgets)
        rails = setting.profile is not None
        given = [measurable(setting.facts, runner, streams=n, total_rails=rails, idle=idle != 0) for n in lanes]
        check_measurable(gates, set.intersection(*given), batches)

    def on_run(run: Run) -> None:
        runs.append(run)
        if keep:
            keep(run)

    done = None
    try:
        done = bench(
            model,
            board=board,
            ssh_config=ssh_config,
            profile=profile,
            batches=batches,
            repeat=repeat,
            runner=runner,
            precision=precision,
            provider=provider,
            threads=threads,
            streams=lanes,
            samples=samples,
            duration_s=duration,
            idle_s=idle,
            warmup=warmup,
            warmup_seconds=warmup_seconds,
            power_meter=power_meter,
            power_mode=power_mode,
            lock_clocks=lock_clocks,
            cross_check=cross_check,
            options=arguments.assignments(option, "--option cuda_graph=False"),
            before=before,
            on_run=on_run,
            progress=console.progress,
        )
    finally:  # a batch size that fails, a full disk or Ctrl-C does not hide what was measured before it
        rows = [make_row(run, done.least_s(run) if done else None) for run in runs]
        show_rows(console, rows)
    show_setting(console, done)
    verdicts = judge(gates, runs)
    comparisons = compare_runs(earlier, runs, force=force) if compare else []
    if verdicts:
        console.show(verdicts_table(verdicts))
    show_comparisons(console, comparisons)
    console.result(
        {
            "host": done.setting.host,
            "profile": done.setting.profile.name if done.setting.profile else None,
            "changed": done.changed,
            "runs": [asdict(row) for row in rows],
            "gates": [asdict(verdict) for verdict in verdicts],
            "comparisons": [asdict(c) for c in comparisons],
            "trtexec": list(done.cross_checks),
        }
    )
    return exit_code(verdicts, runs)


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
        if any(row.power_w is not None or row.gpu_p50_ms is not None or row.roofline_share is not None for row in rows):
            console.show(board_table(rows))
    for row in rows:
        for text in row.warnings:
            console.warn(f"{shape(row)}: {text}")
        for text in row.void:
            console.warn(f"{shape(row)}: VOID: {text}")


def shape(row: Row) -> str:
    return f"batch {row.batch}" + (f", {row.streams} streams" if row.streams > 1 else "")


def rows_table(rows: Sequence[Row]) -> Table:
    from edgevit.report.runs import three_digits

    first = rows[0]
    how = " ".join(word for word in (first.label, first.precision, "on", first.provider or first.runner) if word)
    table = _table(
        how,
        *("batch", "p50 ms", "p90 ms", "p95 ms", "p99 ms", "spread", "samples", "images/s"),
        *("peak RSS MiB", "memory taken MiB", "load ms", "first ms"),
    )
    for row in rows:
        table.add_row(
            shape(row).removeprefix("batch "),
            *(three_digits(value) for value in (row.p50_ms, row.p90_ms, row.p95_ms, row.p99_ms)),
            f"{row.spread:.1%}",
            str(row.samples),
            *(three_digits(value) for value in (row.images_per_s, row.memory_peak_mib, row.memory_taken_mib)),
            *(three_digits(value) for value in (row.load_ms, row.first_inference_ms)),
        )
    return table


def board_table(rows: Sequence[Row]) -> Table:
    """What only a board tells: the GPU's own times, power and energy, temperature, and how near it is to its limits."""
    from edgevit.report.runs import three_digits

    rails = " + ".join(rows[0].rails) or "module"
    window = rows[0].power_window_s
    over = "" if window is None else f" over {window:.1f} s"
    table = _table(
        f"GPU and power ({rails}{over})",
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
    from edgevit.report.runs import three_digits

    table = _table("gates", "gate", "batch", "seen", "margin", "verdict")
    for verdict in verdicts:
        streams = f", {verdict.streams} streams" if verdict.streams > 1 else ""
        table.add_row(
            str(verdict.gate),
            f"{verdict.batch}{streams}",
            "-" if verdict.value is None else f"{three_digits(verdict.value)} {verdict.gate.unit}",
            "-" if verdict.margin is None else f"{verdict.margin:+.1%}",
            "; ".join((verdict.state, *verdict.why)),
        )
    return table


def show_setting(console: Console, done: Bench) -> None:
    """What was set on the board for the bench, and what trtexec makes of the same engine."""
    from edgevit.report.runs import three_digits

    for text in done.remarks():
        console.show(text)
    if done.cross_checks:
        table = _table(
            "trtexec on the same engine", "batch", "streams", "queries/s", "latency p50 ms", "GPU p50 ms", "p99"
        )
        for check in done.cross_checks:
            latency, gpu = check["latency_ms"], check["gpu_ms"]
            figures = (check["throughput_qps"], latency["median"], gpu["median"], gpu.get("p99"))
            table.add_row(str(check["batch"]), str(check["streams"]), *map(three_digits, figures))
        console.show(table)


def _table(title: str, *headings: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
