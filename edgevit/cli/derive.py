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

    from edgevit.derive.session import Derivation
    from edgevit.meet.request import MeetRequest

OVER = 3  # exit code: the model is there, and takes more than the budget


@asks(request="edgevit.meet.request:MeetRequest")
def main(
    context: typer.Context,
    request: MeetRequest,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> int:
    """Derive a small class-specific model from a large base, inside a budget.

    Budgets in --ms, --mj and --fps are met by measuring, here or on --board; exit code 3: the model takes more.
    """
    console = Console(json=json, quiet=quiet, verbose=verbose)
    request = request.going_on()
    request.check()  # before torch is imported

    from edgevit.cli.tables import met_table

    derivations = _carried_out(request, console)
    for derivation in derivations:
        show_derived(console, derivation)
    if len(derivations) > 1:
        console.show(met_table({one.folder: one.record for one in derivations}))
    _next(console, context, request, derivations)
    return OVER if any(one.record.met and not one.record.met.keeps for one in derivations) else 0


def _carried_out(request: MeetRequest, console: Console) -> list[Derivation]:
    """Derive, and measure where the budget asks for it; of several processes one speaks."""
    if request.is_measured:
        with importing():
            from edgevit.meet.run import run

        return list(run(request, console.progress))
    with importing():
        from edgevit.derive.session import run as derive

    derivation = derive(request.derivation(), console.progress)
    return [derivation] if derivation.is_main else []


def show_derived(console: Console, derivation: Derivation) -> None:
    """The blocks of a model, what it is worth, and where it lies."""
    from edgevit.cli.tables import blocks_table, outcome
    from edgevit.folder.derivation import DERIVATION_KIND

    spec, record, out = derivation.model.spec, derivation.record, derivation.folder
    console.show(blocks_table(derivation.model, record))
    if spec.embedding_text is not None:
        console.show(spec.embedding_text)
    for shown in outcome(spec, record):
        console.show(shown)
    unit = {"ms": "ms", "mj": "mJ"}.get(record.budget.quantity)
    timed = f", {record.budget.reached:.4g} {unit} by the cost table" if unit and record.met is None else ""
    console.show(f"wrote {out}: {100 * spec.rate:.1f} % fewer MACs{timed}")
    told = {"folder": str(out), "macs": spec.macs, "params": spec.params, "rate": spec.rate}
    console.result({**told, **DERIVATION_KIND.content(record)})


def _next(console: Console, context: typer.Context, request: MeetRequest, derivations: Sequence[Derivation]) -> None:
    """Name the commands that go on from here."""
    if not derivations:
        return
    from edgevit.data.neighbours import hint_in

    out = derivations[-1].folder
    if (hint := hint_in(derivations[-1].record)) is not None:
        console.warn(hint)
    console.show(arguments.page_line(arguments.among(out)))
    command = "bench" if derivations[-1].record.met else "export"
    console.show(f"Next: {shlex.join(['edgevit', command, str(out)])}")
    unpruned = out.with_name("base")
    if request.base is not None and not unpruned.exists():
        told = arguments.repeated(context, "base", name=request.base, out=unpruned)
        console.show(f"To set it against its base: {told}")
