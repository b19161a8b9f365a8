from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from errno import ENOSPC
from hashlib import blake2b
from os import SEEK_END, strerror
from os.path import abspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from edgevit.cli import arguments
from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.errors import EdgeVitError, OutputError, RunsError

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.agent.records import Run
    from edgevit.board.bench import Bench, Setting
    from edgevit.board.comparison import Comparison, Row
    from edgevit.board.gates import Gate, Verdict
    from edgevit.board.layers import LayerProfile
    from edgevit.board.request import BenchRequest
    from edgevit.reporting.request import JudgingRequest

RUNS = "runs.jsonl"  # a file for runs, in what is told of commands that would have one
Write = Callable[[str], None]


@dataclass(frozen=True)
class Lines:
    """By what the lines of a file are known, whichever edgevit wrote them."""

    what: str
    key: str  # that every line has
    begins: bytes  # how one begins that was cut off


RUN_LINES = Lines("runs", "latencies_ns", b'{"batch"')  # keys of runs are sorted
LAYER_LINES = Lines("profiled layers", "profiled", b'{"schema"')


@asks(request="edgevit.board.request:BenchRequest", judging="edgevit.reporting.request:JudgingRequest")
def main(
    context: typer.Context,
    request: BenchRequest,
    judging: JudgingRequest,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> int:
    """Measure latency, throughput, memory and energy of a model, here or on a board over SSH.

    Several models take turns, and are set against the first: what slows the machine slows all of them alike.

    Exit code 3: a gate failed. 4: a run is void, because clocks moved or the board held itself back.
    """
    from edgevit.board.bench import run
    from edgevit.board.comparison import compare_runs, compare_within, load_runs, make_row
    from edgevit.board.gates import exit_code, parse_gate, verdicts_of
    from edgevit.board.layers import line_of

    console = Console(json=json, quiet=quiet, verbose=verbose)
    gates = [parse_gate(text) for text in judging.gate]
    earlier = load_runs(judging.compare) if judging.compare else []
    keep, keep_layers = writers(judging.output, layers=request.conditions.layers)
    runs: list[Run] = []

    def on_run(run: Run) -> None:
        runs.append(run)
        keep(run.to_json() + "\n")

    def keep_profile(profile: LayerProfile) -> None:
        keep_layers(line_of(profile))

    done = None
    try:
        done = run(
            request,
            before=lambda setting, runner: check_gates(gates, request, setting, runner),
            on_run=on_run,
            on_profile=keep_profile,
            progress=console.progress,
        )
    finally:  # a batch size that fails, a full disk or Ctrl-C does not hide what was measured before it
        rows = [make_row(run, done.least_s(run) if done else None) for run in runs]
        if len(request.models) == 1 or done is None:
            show_rows(console, rows)
    in_turns = compare_within(runs) if len(request.models) > 1 else []
    show_in_turns(console, runs, in_turns)
    show_setting(console, done)
    layers = told_layers(console, request, done, keep_profile)
    verdicts = verdicts_of(gates, runs)
    comparisons = compare_runs(earlier, runs, force=judging.force) if earlier else []
    show_judged(console, verdicts, comparisons)
    console.show(page_command(request, judging))
    if command := next_command(context, request.models, judging.output):
        console.show(command)
    console.result({**result_of(done, rows, verdicts, in_turns, comparisons), "layers": layers})
    return exit_code(verdicts, runs)


def told_layers(
    console: Console, request: BenchRequest, done: Bench, keep: Callable[[LayerProfile], None]
) -> list[dict[str, Any]]:
    """Show where the time goes, if that was asked for, beside the base of a derived model; return the same for JSON."""
    from edgevit.cli.layers import show_breakdowns
    from edgevit.reporting.layers import break_down

    of_base = profiles_of_base(console, request, keep)
    breakdowns = [break_down(profile) for profile in (*of_base, *done.profiles)]
    show_breakdowns(console, breakdowns)
    return list(map(asdict, breakdowns))


def profiles_of_base(
    console: Console, request: BenchRequest, keep: Callable[[LayerProfile], None]
) -> Sequence[LayerProfile]:
    """Where the time of its base goes, if one derived model is asked for; its runs are neither kept nor judged."""
    from edgevit.board.bench import run

    if not request.conditions.layers or len(request.models) > 1:
        return ()
    base = base_of(request.models[0])
    if base is None:
        if derived_from(request.models[0]):
            console.warn(
                "its base is not beside it, as there is no model folder of it; the last line says how to make one"
            )
        return ()
    try:
        alone = replace(request, models=(base,), labels=None)
        return run(alone, on_profile=keep, progress=console.progress).profiles
    except EdgeVitError as error:
        console.warn(f"its base is not beside it: {error}")
        return ()


def check_gates(gates: list[Gate], request: BenchRequest, setting: Setting, runner: str) -> None:
    """Add the budgets of a profile that was named, and refuse gates that this bench cannot answer.

    Raises: GateError.
    """
    from edgevit.board.gates import check_measurable, check_paced, measurable, parse_gate

    how = request.conditions
    if how.period_ms is not None:
        check_paced(gates)
    if request.profile and setting.profile and not (how.used or request.alternate):  # its budgets are for a model alone
        gates.extend(parse_gate(text, f"profile {setting.profile.name}") for text in setting.profile.budgets)
    rails = setting.profile is not None
    given = [measurable(setting.facts, runner, streams=n, total_rails=rails, idle=how.idle_s != 0) for n in how.streams]
    check_measurable(gates, set.intersection(*given), how.batches)


def show_judged(console: Console, verdicts: Sequence[Verdict], comparisons: Sequence[Comparison]) -> None:
    from edgevit.cli.compare import show_comparisons

    if verdicts:
        console.show(verdicts_table(verdicts))
    show_comparisons(console, comparisons)


def result_of(
    done: Bench,
    rows: Sequence[Row],
    verdicts: Sequence[Verdict],
    in_turns: Sequence[Comparison],
    comparisons: Sequence[Comparison],
) -> dict[str, Any]:
    """All of it as JSON."""
    from edgevit.version import written_by

    return {
        "edgevit": written_by(),
        "host": done.setting.host,
        "profile": done.setting.profile.name if done.setting.profile else None,
        "changed": done.changed,
        "runs": [asdict(row) for row in rows],
        "gates": [asdict(verdict) for verdict in verdicts],
        "in_turns": [asdict(c) for c in in_turns],
        "comparisons": [asdict(c) for c in comparisons],
        "trtexec": list(done.cross_checks),
    }


def page_command(request: BenchRequest, judging: JudgingRequest) -> str:
    """The command that makes a page of these models, with all that was kept of them and the gates that were asked."""
    if judging.output is None:
        return f"These runs are not in a file: --output {RUNS} writes them to one, for `edgevit compare` and a page"
    folders = [arguments.among(model) for model in request.models if model.is_dir()]
    files = [judging.output, layers_file(judging.output)] if request.conditions.layers else [judging.output]
    return arguments.page_line(*folders, *files, gates=judging.gate)


def next_command(context: typer.Context, models: Sequence[Path], output: Path | None) -> str | None:
    """What to do with the figures: set them against others, of a derived model against its base."""
    from shlex import quote

    if len(models) == 1:
        if against := against_base(context, models[0]):
            return against
        kept = f" --output {quote(str(output))}" if output else ""
        return f"Next: edgevit bench {quote(str(models[0]))} OTHER{kept} sets another model against it, in turns"
    return f"Next: edgevit compare {quote(str(output))} tells p99, throughput and energy, too" if output else None


def against_base(context: typer.Context, model: Path) -> str | None:
    """The same bench of a derived model and its base, in turns, and how to make that; None: it was not derived."""
    from shlex import join

    origin = derived_from(model)
    if origin is None:
        return None
    beside, base = base_beside(model), base_of(model)
    both = arguments.repeated(context, "bench", models=(base or beside, model), labels=None)
    if base is not None:
        return f"Next: {both} sets it against its base, in turns"
    made = join(["edgevit", "base", origin, "--out", str(beside)])
    return (
        f"Next: {made}, with the --checkpoint and --model-arg that it was derived with, and "
        f"{join(['edgevit', 'export', str(beside)])}; then {both} sets it against its base, in turns"
    )


def base_of(model: Path) -> Path | None:
    """The model folder of what a model was derived from: the one beside it, or the one that it names."""
    from edgevit.records.model_folder import ModelFolder

    origin = derived_from(model)
    if origin is None:
        return None
    return next((p for p in (base_beside(model), Path(origin)) if ModelFolder(p).is_model), None)


def base_beside(model: Path) -> Path:
    """Where the base of a model lies that `edgevit sweep` derived, or whoever goes by its next command."""
    return (model if model.name not in ("", "..") else Path(abspath(model))).with_name("base")


def derived_from(model: Path) -> str | None:
    """The name of what a model was derived from; None: it was not derived."""
    from edgevit.records.model_folder import ModelFolder

    folder = ModelFolder(model)
    derived = folder.derivation() if folder.is_model else None
    return None if derived is None else derived.base


def writers(output: Path | None, *, layers: bool) -> tuple[Write, Write]:
    """What keeps a line of a run, and of profiled layers."""
    if output is None:
        return _forget, _forget
    keep = append_to(output)
    return keep, append_to(layers_file(output), LAYER_LINES) if layers else _forget


def _forget(_: str) -> None:
    """Keep nothing."""


def layers_file(output: Path) -> Path:
    """Where profiled layers are kept: beside the plain runs, and never among them."""
    return output.with_name(f"{output.stem}.layers{output.suffix or '.jsonl'}")


def append_to(path: Path, lines: Lines = RUN_LINES) -> Write:
    """Find out at once whether the file can be written; then append each line as soon as it is there.

    A line that does not fit on the disk leaves no half, and one that is there is not written twice: the board tells
    all of them once more if the last could not be written. After a half that a killed run left a new line begins.

    Raises:
        OutputError: it cannot be written, or is somebody else's: there is text in it, and no such line.
        RunsError: it cannot be read.
    """
    from edgevit.board.comparison import READER

    def write(text: str) -> None:
        try:
            with path.open("ab", buffering=0) as file:
                end = path.stat().st_size
                line = b"\n" * _is_cut_off(path) + text.encode()
                if text and _digest(text.encode()) not in there and file.write(line) != len(line):
                    file.truncate(end)
                    raise OSError(ENOSPC, strerror(ENOSPC))
        except OSError as error:
            raise OutputError(f"cannot write runs to {path}: {error.strerror}; choose another --output") from error

    there: set[bytes] = set()  # hashes of lines: the file may be larger than memory
    write("")
    ours = False
    for _, line in READER.lines(path) if path.is_file() else ():
        there.add(_digest(line))
        ours = ours or _is_of(lines, line)
    if there and not ours:
        raise OutputError(f"{path} is no file of {lines.what}, so nothing is added to it; choose another --output")
    return write


def _digest(line: bytes) -> bytes:
    return blake2b(line, digest_size=16).digest()


def _is_cut_off(path: Path) -> bool:
    """Whether the last line of a file has no end; one that is no file, such as a pipe, has no last line."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, SEEK_END)
        return file.read() != b"\n"


def _is_of(lines: Lines, line: bytes) -> bool:
    """Whether a line of a file, perhaps cut off or of another schema, is one of these."""
    from edgevit.board.comparison import READER

    try:
        return lines.key in READER.parse(line, dict[str, Any], "a line")
    except RunsError:
        return line.startswith(lines.begins)


def show_rows(console: Console, rows: Sequence[Row]) -> None:
    for label in dict.fromkeys(row.label for row in rows):
        alike = [row for row in rows if row.label == label]
        console.show(rows_table(alike))
        if alike[0].period_ms is not None or alike[0].parts_ms is not None:
            console.show(use_table(alike))
        if any(r.power_w is not None or r.gpu_p50_ms is not None or r.roofline_share is not None for r in alike):
            console.show(board_table(alike))
    if rows:
        console.show(
            "spread: standard deviation over mean; peak RSS: memory of the process, Python and the runtime included; "
            "memory taken: how far the machine's free memory fell"
        )
    for row in rows:
        for text in row.warnings:
            console.warn(f"{shape(row)}: {text}")
        for text in row.void:
            console.warn(f"{shape(row)}: VOID: {text}")


def show_in_turns(console: Console, runs: Sequence[Run], comparisons: Sequence[Comparison]) -> None:
    """Each model's ratio to the first, and what befell the machine, in one line for all runs."""
    from edgevit.board.comparison import decisive, group
    from edgevit.board.intervals import LEAST_ROUNDS

    if not comparisons:
        return
    console.show(turns_table(comparisons))
    told = "medians of the rounds; the ratio is that of the p50"
    if decisive(comparisons)[0].figure == "processor":
        told = (
            "medians of the rounds; the ratio is that of processor time: other programs were busy, which makes an "
            "inference wait, and not compute more"
        )
    if decisive(comparisons)[0].figure == "mean":
        told = (
            "medians of the rounds; the ratio is that of the means: other programs were busy, and interrupt long "
            "inferences more often than short ones"
        )
    if max(c.rounds or 1 for c in comparisons) < LEAST_ROUNDS:
        told += f"; an interval needs {LEAST_ROUNDS} rounds: try --repeat 10"
    console.show(told)
    show_use(console, runs)
    for alike in group(runs):
        for text in dict.fromkeys(reason for run in alike for reason in run.void()):
            console.warn(f"{alike[0].label}, batch {alike[0].batch}: VOID: {text}")
    if busy := sum(run.is_busy() for run in runs):
        console.warn(
            f"other programs were busy in {busy} of {len(runs)} runs: the ratios hold, as all models met them alike; "
            "the milliseconds are those of a busy machine"
        )


def show_use(console: Console, runs: Sequence[Run]) -> None:
    """Of each model in turns, the periods that were missed and the parts of an inference, over all rounds."""
    from edgevit.board.comparison import group, make_row

    by_label: dict[str, list[Row]] = {}
    for alike in group(runs):
        rows = [make_row(run, None) for run in alike]
        by_label.setdefault(rows[0].label, []).append(over_rounds(rows))
    for label, rows in by_label.items():
        if rows[0].period_ms is None and rows[0].parts_ms is None:
            continue
        console.show(use_table(rows))
        for row in rows:
            if row.missed:
                periods = row.samples + row.missed
                console.warn(f"{label}, {shape(row)}: {row.missed} of {periods} periods were missed; try a longer one")


def over_rounds(rows: Sequence[Row]) -> Row:
    """The medians of what an inference took, and the sums of inferences and of missed periods."""
    from statistics import median

    first = rows[0]
    parts = first.parts_ms and {name: median((row.parts_ms or {})[name] for row in rows) for name in first.parts_ms}
    missed = None if first.missed is None else sum(row.missed or 0 for row in rows)
    samples = sum(row.samples for row in rows)
    return replace(first, p50_ms=median(row.p50_ms for row in rows), parts_ms=parts, missed=missed, samples=samples)


def turns_table(comparisons: Sequence[Comparison]) -> Table:
    from edgevit.board.comparison import decisive, three_digits

    judged = sorted(decisive(comparisons), key=lambda c: (c.batch, c.streams))
    times = {(c.after, c.batch, c.streams, c.figure): (c.before_value, c.after_value) for c in comparisons}
    rounds, first = max(c.rounds or 1 for c in judged), judged[0].before
    headings = ("model", "batch", "p50 ms", "mean ms", f"ratio to {first}", "95 % interval", "verdict")
    table = _table(used(f"in turns, {rounds} rounds", judged[0].use), *headings)
    table.columns[0].justify = table.columns[-1].justify = "left"
    batch = None
    for c in judged:
        where = f"{c.batch}, {c.streams} streams" if c.streams > 1 else str(c.batch)
        p50, mean = (times[c.after, c.batch, c.streams, figure] for figure in ("p50", "mean"))
        if where != batch:
            table.add_section()
            table.add_row(first, where, three_digits(p50[0]), three_digits(mean[0]))
        interval = "-" if c.low is None or c.high is None else f"{c.low:.3f} to {c.high:.3f}"
        verdict = c.outcome if c.outcome in ("better", "worse", "void") else ""
        values = (three_digits(p50[1]), three_digits(mean[1]), f"{c.ratio:.3f}")
        table.add_row(c.after, where, *values, interval, verdict)
        batch = where
    return table


def used(title: str, use: str) -> str:
    """The title of a table, with how the models were used where that was not one inference after another."""
    from edgevit.agent.records import CLOSED_LOOP

    return title if use == CLOSED_LOOP else f"{title}, {use}"


def use_table(rows: Sequence[Row]) -> Table:
    """The periods, and the parts of an inference from the picture to the logits; `other` is what no part names."""
    from edgevit.agent.records import PARTS
    from edgevit.board.comparison import three_digits

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
    from edgevit.board.comparison import three_digits

    first = rows[0]
    how = " ".join(word for word in (first.label, first.precision, "on", first.provider or first.runner) if word)
    table = _table(
        used(how, first.use),
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
    """What only a board tells: the GPU's own times, power and energy, temperature, and how near it is to its limits."""
    from edgevit.board.comparison import three_digits

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
    from edgevit.board.comparison import three_digits

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


def show_setting(console: Console, done: Bench) -> None:
    """What was set on the board for the bench, and what trtexec makes of the same engine."""
    from edgevit.board.comparison import three_digits

    for text in done.remarks():
        console.show(text)
    if done.cross_checks:
        table = _table(
            "trtexec on the same engines",
            "model",
            "batch",
            "streams",
            "queries/s",
            "latency p50 ms",
            "GPU p50 ms",
            "p99",
        )
        for check in done.cross_checks:
            latency, gpu = check["latency_ms"], check["gpu_ms"]
            figures = (check["throughput_qps"], latency["median"], gpu["median"], gpu.get("p99"))
            table.add_row(check["label"], str(check["batch"]), str(check["streams"]), *map(three_digits, figures))
        console.show(table)


def _table(title: str, *headings: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
