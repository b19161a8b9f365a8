from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from edgevit.cli import arguments
from edgevit.cli.arguments import option
from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.errors import OptionError
from edgevit.request import TRAINING

if TYPE_CHECKING:
    from edgevit.derive.request import DeriveRequest


@asks(request="edgevit.derive.request:DeriveRequest")
def main(
    context: typer.Context,
    request: DeriveRequest,
    *,
    finetune_epochs: Annotated[
        int | None,
        option(
            panel=TRAINING,
            help="Passes over the training images after the cut, in place of --steps; for --method nuwa only.",
        ),
    ] = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> None:
    """Derive a small class-specific model from a large base, inside a budget."""
    console = Console(json=json, quiet=quiet, verbose=verbose)
    request = with_epochs(request, finetune_epochs)
    request.check()  # before torch is imported

    from edgevit.derive.session import run

    derivation = run(request, console.progress)
    if not derivation.is_main:
        return  # of several processes one speaks
    spec = derivation.model.spec
    from edgevit.cli.tables import accuracy_table, blocks_table, classes_line, rejection_table
    from edgevit.folder.derivation import DERIVATION_KIND

    record = derivation.record
    console.show(blocks_table(derivation.model, record))
    if measured := record.accuracy.derived:
        console.show(accuracy_table(spec, record.accuracy))
        console.show(classes_line(record.accuracy))
        if spec.rejection is not None and measured.rejection is not None:
            console.show(rejection_table(spec.rejection, measured.rejection))
    unit = {"ms": "ms", "mj": "mJ"}.get(record.budget.quantity)
    timed = f", {record.budget.reached:.4g} {unit} by the cost table" if unit else ""
    out = request.out
    console.show(f"wrote {out}: {100 * spec.rate:.1f} % fewer MACs{timed}. Next: edgevit export {out}")
    unpruned = out.with_name("base")
    if request.base is not None and not unpruned.exists():
        told = arguments.repeated(context, "base", name=request.base, out=unpruned)
        console.show(f"To set it against its base: {told}")
    console.result(
        {
            "folder": str(out),
            "macs": spec.macs,
            "params": spec.params,
            "rate": spec.rate,
            **DERIVATION_KIND.content(record),
        }
    )


def with_epochs(request: DeriveRequest, epochs: int | None) -> DeriveRequest:
    """The request with the length of training in passes, which one method counts in."""
    if epochs is None:
        return request
    if request.method != "nuwa":
        raise OptionError(f"--finetune-epochs is for --method nuwa, and the method is {request.method!r}; give --steps")
    if request.training.steps is not None:
        raise OptionError("--steps and --finetune-epochs exclude each other; give one of them")
    return replace(request, options={**request.options, "finetune_epochs": epochs})
