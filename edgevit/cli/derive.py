from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import typer

from edgevit.cli import arguments
from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.imports import importing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgevit.derivation.session.derive import Derivation
    from edgevit.latency.request import MeetRequest

_OVER = 3  # exit code: the model was written, and exceeds its budget


@asks(request="edgevit.latency.request:MeetRequest")
def main(
    context: typer.Context,
    request: MeetRequest,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> int:
    """Derive a small class-specific model from a large base, within a budget.

    Budgets in --ms, --mj and --fps are met by measuring, here or on --board. Exit code 3: the model exceeds its budget.
    """
    from edgevit.jobs.budgets.request import check_budgets, continued

    console = Console(json=json, quiet=quiet, verbose=verbose)
    stated = request.names_a_folder_alone
    request = request.begun() if stated else continued(request)
    check_budgets(request)  # before torch is imported

    from edgevit.cli.tables import met_table

    derivations = _carried_out(request, console)
    for derivation in derivations:
        show_derived(console, derivation)
    if len(derivations) > 1:
        console.show(met_table({derivation.folder: derivation.record for derivation in derivations}))
    _next(console, None if stated else context, request, derivations)
    return _OVER if any(derivation.record.met and not derivation.record.met.keeps for derivation in derivations) else 0


def _carried_out(request: MeetRequest, console: Console) -> list[Derivation]:
    """Derive, and measure if the budget needs it. Only the main process returns derivations."""
    if request.is_measured:
        with importing():
            from edgevit.jobs.budgets.run import meet

        return list(meet(request, console.progress))
    with importing():
        from edgevit.derivation.session.derive import derive

    derivation = derive(request.derivation(), console.progress)
    return [derivation] if derivation.is_main else []


def show_derived(console: Console, derivation: Derivation) -> None:
    """Show the blocks of a model, its accuracy, and its folder."""
    from edgevit.cli.tables import blocks_table, outcome
    from edgevit.records.derivation import DERIVATION_KIND

    spec, record, out = derivation.model.spec, derivation.record, derivation.folder
    console.show(blocks_table(derivation.model, record))
    if spec.embedding_text is not None:
        console.show(spec.embedding_text)
    for shown in outcome(spec, record):
        console.show(shown)
    unit = {"ms": "ms", "mj": "mJ"}.get(record.budget.quantity)
    timed = f", {record.budget.reached:.4g} {unit} by the cost table" if unit and record.met is None else ""
    console.show(f"wrote {out}: {100 * spec.rate:.1f} % fewer MACs{timed}")
    figures = {"folder": str(out), "macs": spec.macs, "params": spec.params, "rate": spec.rate}
    console.result({**figures, **DERIVATION_KIND.content(record)})


def _next(
    console: Console, context: typer.Context | None, request: MeetRequest, derivations: Sequence[Derivation]
) -> None:
    """Show the next commands. Without `context`, the typed options do not say how to write the base."""
    if not derivations:
        return
    from edgevit.data.neighbours import hint_in

    out = derivations[-1].folder
    if (hint := hint_in(derivations[-1].record)) is not None:
        console.warn(hint)
    console.show(arguments.page_line(arguments.among(out)))
    console.show(f"Next: {shlex.join(_following(derivations[-1], request))}")
    unpruned = out.with_name("base")
    if context is not None and request.base is not None and not unpruned.exists():
        # Steps of `derive` distil the model; those of `base` would train the base.
        command = arguments.repeated(context, "base", name=request.base, out=unpruned, steps=None)
        console.show(f"To set it against its base: {command}")


def _following(derivation: Derivation, request: MeetRequest) -> list[str]:
    """The next command; for a slice whose accuracy was not measured, the one that measures it."""
    from edgevit.records.model_folder import ModelFolder

    out, record = str(derivation.folder), derivation.record
    if record.met:
        return ["edgevit", "bench", out]
    supernet = request.supernet_folder()
    if record.accuracy.derived is not None or supernet is None:
        return ["edgevit", "export", out]
    return ["edgevit", "evaluate", out, "--data", ModelFolder(supernet).supernet().data.data]
