from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, write

if TYPE_CHECKING:
    from edgevit.reporting.choice import Panel
    from edgevit.reporting.gather import Evidence
    from edgevit.reporting.request import ReportRequest

_SHOWN = 3  # number of skipped files that are shown
_ANSWERS = 5  # number of panels whose answers are shown


@asks(request="edgevit.reporting.request:ReportRequest")
def main(request: ReportRequest, *, json: JsonFlag = False) -> None:
    """Make one page of models and runs that recommends a model: accuracy against latency, energy and size.

    The page is one file that needs no network. Different tasks, seeds, boards and power modes are not compared. Files
    that cannot be read are left out and listed.
    """
    from edgevit.reporting.page import LIMIT_BYTES
    from edgevit.reporting.run import report
    from edgevit.reporting.tables import content, heading, split_reasons

    console = Console(json=json)
    written = report(request, console.progress)
    _show_skipped(console, written.evidence)
    if written.file is None and not json:
        write(written.text.rstrip("\n"))
    if written.file is not None:
        for text in split_reasons(written.panels):
            console.show(text)
        size = len(written.text.encode())
        if written.format == "html" and size > LIMIT_BYTES:
            fewer = "give fewer folders, or fewer --thumbnails"
            console.warn(f"the page has {size / 1e6:.1f} MB, too large for most mail servers; {fewer}")
        wrote = f"wrote {written.file}, {size / 1e6:.2g} MB"
        if len(written.panels) == 1:
            console.show(f"{heading(written.panels[0])}: {wrote}")
        else:
            _show_choices(console, written.panels)
            console.show(wrote)
    console.result(
        {
            "file": written.file and str(written.file),
            **content(written.panels, written.evidence.skipped, written.evidence.costs),
        }
    )


def _show_choices(console: Console, panels: Sequence[Panel]) -> None:
    """Show the recommendation of each panel."""
    from edgevit.reporting.tables import heading
    from edgevit.reporting.views import tabs

    for panel, tab in list(zip(panels, tabs(panels), strict=True))[:_ANSWERS]:
        console.show(f"{tab}: {heading(panel)}")
    if (more := len(panels) - _ANSWERS) > 0:
        console.show(f"{more} more {'answer is' if more == 1 else 'answers are'} in the report")


def _show_skipped(console: Console, evidence: Evidence) -> None:
    """Warn about what was left out: the number, and the first few by name."""
    for skipped in evidence.skipped[:_SHOWN]:
        console.warn(f"left out: {skipped.source}: {skipped.reason}")
    if len(evidence.skipped) > _SHOWN:
        console.warn(f"left out: {len(evidence.skipped) - _SHOWN} more, which the report names")
