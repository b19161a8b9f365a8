from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.imports import importing

if TYPE_CHECKING:
    from edgevit.derivation.supernet_request import SupernetRequest


@asks(request="edgevit.derivation.supernet_request:SupernetRequest")
def main(
    request: SupernetRequest, *, json: JsonFlag = False, quiet: QuietFlag = False, verbose: VerboseFlag = False
) -> None:
    """Train a super-network, from which `edgevit derive --method skd` cuts models of any size."""
    console = Console(json=json, quiet=quiet, verbose=verbose)
    request.check()  # before torch is imported

    with importing():
        from edgevit.derivation.session.supernet import supernet

    net = supernet(request, console.progress)
    if not net.is_main:
        return  # only the main process prints
    from edgevit.cli.show import curve_table
    from edgevit.data.neighbours import hint_in

    console.show(curve_table(net.record))
    out, middle = request.out, net.curve[-1].rate / 2
    derive = f"edgevit derive --method skd --supernet {shlex.quote(str(out))} --rate {middle:.2g} --out DIR"
    if (hint := hint_in(net.record)) is not None:
        console.warn(hint)
    console.show(f"wrote {out}. Next: {derive}")
    from edgevit.records.supernet import SUPERNET_KIND

    console.result({"folder": str(out), **SUPERNET_KIND.content(net.record)})
