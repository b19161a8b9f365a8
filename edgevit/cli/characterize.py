from __future__ import annotations

from typing import TYPE_CHECKING

from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.imports import importing

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.jobs.suite.record import Figure, MeasuredNetwork, SuiteRecord
    from edgevit.jobs.suite.request import CharacterizeRequest


@asks(request="edgevit.jobs.suite.request:CharacterizeRequest")
def main(
    request: CharacterizeRequest, *, json: JsonFlag = False, quiet: QuietFlag = False, verbose: VerboseFlag = False
) -> None:
    """Measure networks of many shapes on a board, without data or weights, and write one file with all figures.

    Nothing is changed on the board. The same command continues an interrupted run.
    """
    console = Console(json=json, quiet=quiet, verbose=verbose)
    request.check()  # before torch is imported

    from edgevit.jobs.suite.record import SUITE_KIND

    with importing():
        from edgevit.jobs.suite.run import characterize

    record = characterize(request, console.progress)
    show_suite(console, record)
    console.show(f"wrote {request.output}: every figure and raw run of {record.host}. Send this file back")
    console.result({**SUITE_KIND.content(record), "runs": len(record.runs)})


def show_suite(console: Console, record: SuiteRecord) -> None:
    """Show the table of figures, published figures, and what the figures mean."""
    console.show(figures_table(record))
    refused = [f"{n.name}: no engine, {n.refused}" for n in record.measured if n.refused]
    failed = [f"{n.name}: failed, {n.failed}" for n in record.measured if n.failed]
    for text in (*refused, *failed, *(f"left out for lack of time: {name}" for name in record.left_out)):
        console.show(text)
    for network in record.measured:
        for figure in network.figures:
            for reason in figure.void:
                console.warn(f"{network.name}, batch {figure.batch}: VOID: {reason}")
    if record.published:
        console.show(_published_table(record))
    for answer in record.answers:
        console.show(answer)


def figures_table(record: SuiteRecord) -> Table:
    from rich.table import Table

    from edgevit.board.comparison import three_digits
    from edgevit.text import format_count

    table = Table(title=f"{record.host} ({record.profile or 'no board that edgevit knows'})", title_justify="left")
    table.add_column("network")
    energy = any(figure.energy_mj is not None for n in record.measured for figure in n.figures)
    headings = ("precision", "MACs", "fused", "batch", "p50 ms", "of dense", "images/s")
    for heading in (*headings, *(("mJ/image",) if energy else ()), "of roofline"):
        table.add_column(heading, justify="right")
    question = None
    for network in record.measured:
        if network.question != question:
            table.add_section()
        question = network.question
        fused = "-" if network.fused is None else f"{network.fused} of {len(network.blocks)}"
        for i, figure in enumerate(network.figures):
            named = (network.name, network.precision, format_count(network.macs), fused) if i == 0 else ("", "", "", "")
            table.add_row(
                *named,
                str(figure.batch),
                three_digits(figure.p50_ms),
                _ratio_text(figure),
                three_digits(figure.images_per_s),
                *((three_digits(figure.energy_mj),) if energy else ()),
                "-" if figure.roofline_share is None else f"{figure.roofline_share:.0%}",
            )
    return table


def _ratio_text(figure: Figure) -> str:
    void = " VOID" if figure.void else ""
    if figure.ratio is None:
        return void.strip()
    if figure.low is None or figure.high is None:
        return f"{figure.ratio:.2f}{void}"
    return f"{figure.ratio:.2f} ({figure.low:.2f} to {figure.high:.2f}){void}"


def _published_table(record: SuiteRecord) -> Table:
    """Published figures with their conditions, next to those measured here at batch 1."""
    from rich.table import Table

    from edgevit.board.comparison import three_digits

    table = Table(title="published, and measured here at batch 1", title_justify="left")
    for heading in ("network", "published ms", "here ms", "source", "conditions"):
        table.add_column(heading)
    for figure in record.published:
        table.add_row(
            figure.network,
            three_digits(figure.ms),
            three_digits(_measured_ms(record.of(figure.network))),
            figure.source,
            figure.conditions,
        )
    return table


def _measured_ms(network: MeasuredNetwork | None) -> float | None:
    return (
        next((figure.p50_ms for figure in network.figures if figure.batch == 1), None) if network is not None else None
    )
