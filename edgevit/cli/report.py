from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, write

if TYPE_CHECKING:
    from edgevit.reporting.choice import Panel
    from edgevit.reporting.gather import Evidence
    from edgevit.reporting.request import ReportRequest

SHOWN = 3  # of what was left out
ANSWERS = 5  # of panels


@asks(request="edgevit.reporting.request:ReportRequest")
def main(request: ReportRequest, *, json: JsonFlag = False) -> None:
    """Make one page of models and runs that says which model to take: accuracy against latency, energy, size.

    The page is one file that needs no network. What must not be compared is kept apart: other tasks, seeds, boards,
    power modes. Files that cannot be read are left out, and named.
    """
    from edgevit.reporting.page import LIMIT_BYTES
    from edgevit.reporting.run import run
    from edgevit.reporting.tables import content, heading, split_reasons

    console = Console(json=json)
    made = run(request, console.progress)
    tell_skipped(console, made.evidence)
    if made.file is None and not json:
        write(made.text.rstrip("\n"))
    if made.file is not None:
        for text in split_reasons(made.panels):
            console.show(text)
        size = len(made.text.encode())
        if made.format == "html" and size > LIMIT_BYTES:
            fewer = "give fewer folders, or fewer --thumbnails"
            console.warn(f"the page has {size / 1e6:.1f} MB, more than mail likes; {fewer}")
        wrote = f"wrote {made.file}, {size / 1e6:.2g} MB"
        if len(made.panels) == 1:
            console.show(f"{heading(made.panels[0])}: {wrote}")
        else:
            show_choices(console, made.panels)
            console.show(wrote)
    console.result({"file": made.file and str(made.file), **content(made.panels, made.evidence.skipped)})


def show_choices(console: Console, panels: Sequence[Panel]) -> None:
    """The answer of each panel, with what it is of."""
    from edgevit.reporting.tables import heading
    from edgevit.reporting.views import tabs

    for panel, told in list(zip(panels, tabs(panels), strict=True))[:ANSWERS]:
        console.show(f"{told}: {heading(panel)}")
    if (more := len(panels) - ANSWERS) > 0:
        console.show(f"{more} more {'answer is' if more == 1 else 'answers are'} in the report")


def tell_skipped(console: Console, found: Evidence) -> None:
    """Say what was left out: how much, and the first few by name."""
    for one in found.skipped[:SHOWN]:
        console.warn(f"left out: {one.source}: {one.reason}")
    if len(found.skipped) > SHOWN:
        console.warn(f"left out: {len(found.skipped) - SHOWN} more, which the report names")
