from __future__ import annotations

from typing import TYPE_CHECKING

from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.imports import importing

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.jobs.suite.record import Figure, MeasuredNetwork, Proof
    from edgevit.jobs.suite.request import ProveRequest


@asks(request="edgevit.jobs.suite.request:ProveRequest")
def main(
    request: ProveRequest, *, json: JsonFlag = False, quiet: QuietFlag = False, verbose: VerboseFlag = False
) -> None:
    """Prove a board: build and measure networks of many shapes, without data or weights, and write one file of it all.

    Nothing is changed on the board. The same command goes on where it was interrupted.
    """
    console = Console(json=json, quiet=quiet, verbose=verbose)
    request.check()  # before torch is imported

    from edgevit.jobs.suite.record import PROOF_KIND

    with importing():
        from edgevit.jobs.suite.run import run

    proof = run(request, console.progress)
    show_proof(console, proof)
    console.show(f"wrote {request.output}: every figure and raw run of {proof.host}. Send this file back")
    console.result({**PROOF_KIND.content(proof), "runs": len(proof.runs)})


def show_proof(console: Console, proof: Proof) -> None:
    """The table a person reads, what others published, and what the figures say."""
    console.show(figures_table(proof))
    refused = [f"{one.name}: no engine, {one.refused}" for one in proof.measured if one.refused]
    failed = [f"{one.name}: not measured to the end, {one.failed}" for one in proof.measured if one.failed]
    for text in (*refused, *failed, *(f"not begun, for want of time: {name}" for name in proof.left_out)):
        console.show(text)
    for one in proof.measured:
        for figure in one.figures:
            for why in figure.void:
                console.warn(f"{one.name}, batch {figure.batch}: VOID: {why}")
    if proof.published:
        console.show(published_table(proof))
    for answer in proof.answers:
        console.show(answer)


def figures_table(proof: Proof) -> Table:
    from rich.table import Table

    from edgevit.board.comparison import three_digits
    from edgevit.text import format_count

    table = Table(title=f"{proof.host} ({proof.profile or 'no board that edgevit knows'})", title_justify="left")
    table.add_column("network")
    energy = any(figure.energy_mj is not None for one in proof.measured for figure in one.figures)
    headings = ("precision", "MACs", "fused", "batch", "p50 ms", "of dense", "images/s")
    for heading in (*headings, *(("mJ/image",) if energy else ()), "of roofline", "trtexec GPU ms"):
        table.add_column(heading, justify="right")
    question = None
    for one in proof.measured:
        if one.question != question:
            table.add_section()
        question = one.question
        fused = "-" if one.fused is None else f"{one.fused} of {len(one.blocks)}"
        for i, figure in enumerate(one.figures):
            named = (one.name, one.precision, format_count(one.macs), fused) if i == 0 else ("", "", "", "")
            table.add_row(
                *named,
                str(figure.batch),
                three_digits(figure.p50_ms),
                ratio_told(figure),
                three_digits(figure.images_per_s),
                *((three_digits(figure.energy_mj),) if energy else ()),
                "-" if figure.roofline_share is None else f"{figure.roofline_share:.0%}",
                three_digits(figure.trtexec_ms),
            )
    return table


def ratio_told(figure: Figure) -> str:
    void = " VOID" if figure.void else ""
    if figure.ratio is None:
        return void.strip()
    if figure.low is None or figure.high is None:
        return f"{figure.ratio:.2f}{void}"
    return f"{figure.ratio:.2f} ({figure.low:.2f} to {figure.high:.2f}){void}"


def published_table(proof: Proof) -> Table:
    """What others found, with their conditions, beside what was found here at batch 1."""
    from rich.table import Table

    from edgevit.board.comparison import three_digits

    table = Table(title="published, beside what was measured here at batch 1", title_justify="left")
    for heading in ("network", "published ms", "here ms", "source", "conditions"):
        table.add_column(heading)
    for one in proof.published:
        table.add_row(
            one.network, three_digits(one.ms), three_digits(_here(proof.of(one.network))), one.source, one.conditions
        )
    return table


def _here(one: MeasuredNetwork | None) -> float | None:
    return next((figure.p50_ms for figure in one.figures if figure.batch == 1), None) if one is not None else None
