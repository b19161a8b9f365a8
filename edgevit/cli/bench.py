from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from os.path import abspath
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from edgevit.cli import arguments
from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag

if TYPE_CHECKING:
    from edgevit.agent.records import Run
    from edgevit.board.bench import Bench, Setting
    from edgevit.board.comparison import Comparison, Row
    from edgevit.board.gates import Gate, Verdict
    from edgevit.board.request import BenchRequest
    from edgevit.reporting.request import JudgingRequest

_RUNS = "runs.jsonl"  # the example of a file for runs, in hints


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

    Several models are measured in turns and compared with the first, so that a slow machine slows all of them alike.

    Exit code 3: a gate failed. 4: a run is void, because the clocks changed or the board throttled.
    """
    from edgevit.board.bench import bench
    from edgevit.board.comparison import compare_runs, compare_within, load_runs, make_row
    from edgevit.board.gates import exit_code, parse_gate, verdicts_of
    from edgevit.board.layers import line_of
    from edgevit.board.run_file import writers

    console = Console(json=json, quiet=quiet, verbose=verbose)
    gates = [parse_gate(text) for text in judging.gate]
    earlier = load_runs(judging.compare) if judging.compare else []
    keep, keep_layers = writers(judging.output, layers=request.conditions.layers)
    runs: list[Run] = []

    def on_run(run: Run) -> None:
        runs.append(run)
        keep(run.to_json() + "\n")

    done = None
    try:
        done = bench(
            request,
            before=lambda setting, runner: _check_gates(gates, request, setting, runner),
            on_run=on_run,
            on_profile=lambda profile: keep_layers(line_of(profile)),
            progress=console.progress,
        )
    finally:  # a batch size that fails, a full disk or Ctrl-C does not hide what was measured before it
        rows = [make_row(run, done.least_s(run) if done else None) for run in runs]
        if len(request.models) == 1 or done is None:
            _show_rows(console, rows)
    in_turns = compare_within(runs) if len(request.models) > 1 else []
    _show_in_turns(console, runs, in_turns)
    _show_setting(console, done)
    layers = _show_layers(console, done)
    verdicts = verdicts_of(gates, runs)
    comparisons = compare_runs(earlier, runs, force=judging.force) if earlier else []
    _show_judged(console, verdicts, comparisons)
    console.show(page_command(request, judging))
    if command := next_command(context, request.models, judging.output):
        console.show(command)
    console.result({**_result_of(done, rows, verdicts, in_turns, comparisons), "layers": layers})
    return exit_code(verdicts, runs)


def _show_layers(console: Console, done: Bench) -> list[dict[str, object]]:
    """Show the profiled layers; return them for JSON."""
    from edgevit.cli.layers import show_breakdowns
    from edgevit.reporting.layers import break_down

    breakdowns = [break_down(profile) for profile in done.profiles]
    show_breakdowns(console, breakdowns)
    return list(map(asdict, breakdowns))


def _check_gates(gates: list[Gate], request: BenchRequest, setting: Setting, runner: str) -> None:
    """Add the budgets of the given profile, and refuse gates that this bench cannot evaluate.

    Raises: GateError.
    """
    from edgevit.board.gates import check_measurable, check_paced, measurable, parse_gate

    conditions = request.conditions
    if conditions.period_ms is not None:
        check_paced(gates)
    is_alone = not (conditions.used or request.alternate)  # the budgets of a profile are for a single model
    if request.profile and setting.profile and is_alone:
        gates.extend(parse_gate(text, f"profile {setting.profile.name}") for text in setting.profile.budgets)
    rails = setting.profile is not None
    metrics = [
        measurable(setting.facts, runner, streams=n, total_rails=rails, idle=conditions.idle_s != 0)
        for n in conditions.streams
    ]
    check_measurable(gates, set.intersection(*metrics), conditions.batches)


def _show_judged(console: Console, verdicts: Sequence[Verdict], comparisons: Sequence[Comparison]) -> None:
    from edgevit.cli.compare import show_comparisons
    from edgevit.reporting.bench import verdicts_table

    if verdicts:
        console.show(verdicts_table(verdicts))
    show_comparisons(console, comparisons)


def _result_of(
    done: Bench,
    rows: Sequence[Row],
    verdicts: Sequence[Verdict],
    in_turns: Sequence[Comparison],
    comparisons: Sequence[Comparison],
) -> dict[str, object]:
    """The whole result as JSON."""
    from edgevit.version import written_by

    return {
        "edgevit": written_by(),
        "host": done.setting.host,
        "profile": done.setting.profile.name if done.setting.profile else None,
        "changed": asdict(done.changed),
        "runs": [asdict(row) for row in rows],
        "gates": [asdict(verdict) for verdict in verdicts],
        "in_turns": [asdict(c) for c in in_turns],
        "comparisons": [asdict(c) for c in comparisons],
        "trtexec": list(done.cross_checks),
    }


def page_command(request: BenchRequest, judging: JudgingRequest) -> str:
    """The command that makes a page of these models, their files and the gates."""
    from edgevit.board.run_file import layers_file

    if judging.output is None:
        return f"These runs are not in a file: --output {_RUNS} writes them to one, for `edgevit compare` and a page"
    folders = [arguments.among(model) for model in request.models if model.is_dir()]
    files = [judging.output, layers_file(judging.output)] if request.conditions.layers else [judging.output]
    return arguments.page_line(*folders, *files, gates=judging.gate)


def next_command(context: typer.Context, models: Sequence[Path], output: Path | None) -> str | None:
    """The next command: a comparison with another model, or of a derived model with its base."""
    from shlex import quote

    if len(models) == 1:
        if against := _against_base(context, models[0]):
            return against
        output_option = f" --output {quote(str(output))}" if output else ""
        return (
            f"Next: edgevit bench {quote(str(models[0]))} OTHER{output_option} sets another model against it, in turns"
        )
    return f"Next: edgevit compare {quote(str(output))} tells p99, throughput and energy, too" if output else None


def _against_base(context: typer.Context, model: Path) -> str | None:
    """Commands that write the base of a derived model and bench both in turns; None: it is not a derived model."""
    from shlex import join

    origin = _derived_from(model)
    if origin is None:
        return None
    sibling, base = _sibling_base(model), base_of(model)
    both = arguments.repeated(context, "bench", models=(base or sibling, model), labels=None)
    if base is not None:
        return f"Next: {both} sets it against its base, in turns"
    command = join(["edgevit", "base", origin, "--out", str(sibling)])
    return (
        f"Next: {command}, with the --checkpoint and --model-arg that it was derived with, and "
        f"{join(['edgevit', 'export', str(sibling)])}; then {both} sets it against its base, in turns"
    )


def base_of(model: Path) -> Path | None:
    """The model folder of the base: the one next to the model, or the one that the model names."""
    from edgevit.records.model_folder import ModelFolder

    origin = _derived_from(model)
    if origin is None:
        return None
    return next((p for p in (_sibling_base(model), Path(origin)) if ModelFolder(p).is_model), None)


def _sibling_base(model: Path) -> Path:
    """The folder where `edgevit sweep` and its next command put the base of a model."""
    return (model if model.name not in ("", "..") else Path(abspath(model))).with_name("base")


def _derived_from(model: Path) -> str | None:
    """The name of the base of a model; None: not a derived model."""
    from edgevit.records.model_folder import ModelFolder

    folder = ModelFolder(model)
    derived = folder.derivation() if folder.is_model else None
    return None if derived is None else derived.base


def _show_rows(console: Console, rows: Sequence[Row]) -> None:
    """Show the runs of each model, their use and the figures of the board, with warnings."""
    from edgevit.reporting.bench import board_table, rows_table, shape, use_table

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


def _show_in_turns(console: Console, runs: Sequence[Run], comparisons: Sequence[Comparison]) -> None:
    """Show each model's ratio to the first, and summarise disturbances of the machine."""
    from edgevit.board.comparison import decisive, group
    from edgevit.board.intervals import LEAST_ROUNDS
    from edgevit.reporting.bench import turns_table

    if not comparisons:
        return
    console.show(turns_table(comparisons))
    text = "medians of the rounds; the ratio is that of the p50"
    if decisive(comparisons)[0].figure == "processor":
        text = (
            "medians of the rounds; the ratio is that of processor time: other programs were busy, which makes an "
            "inference wait, and not compute more"
        )
    if decisive(comparisons)[0].figure == "mean":
        text = (
            "medians of the rounds; the ratio is that of the means: other programs were busy, and interrupt long "
            "inferences more often than short ones"
        )
    if max(c.rounds or 1 for c in comparisons) < LEAST_ROUNDS:
        text += f"; an interval needs {LEAST_ROUNDS} rounds: try --repeat 10"
    console.show(text)
    _show_use(console, runs)
    for alike in group(runs):
        for text in dict.fromkeys(reason for run in alike for reason in run.void()):
            console.warn(f"{alike[0].label}, batch {alike[0].batch}: VOID: {text}")
    if busy := sum(run.is_busy() for run in runs):
        console.warn(
            f"other programs were busy in {busy} of {len(runs)} runs: the ratios hold, as all models met them alike; "
            "the milliseconds are those of a busy machine"
        )


def _show_use(console: Console, runs: Sequence[Run]) -> None:
    """Show the missed periods and the parts of an inference for each model, over all rounds."""
    from edgevit.board.comparison import group, make_row
    from edgevit.reporting.bench import over_rounds, shape, use_table

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


def _show_setting(console: Console, done: Bench) -> None:
    """Show the settings of the board during the bench, and trtexec's figures for the same engine."""
    from edgevit.reporting.bench import trtexec_table

    for text in done.remarks():
        console.show(text)
    if done.cross_checks:
        console.show(trtexec_table(done.cross_checks))
