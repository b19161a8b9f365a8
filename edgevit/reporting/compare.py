"""`edgevit compare`: the runs of two files side by side, or the models of one."""

from __future__ import annotations

from edgevit.board.comparison import Comparison, compare_runs, compare_within, load_runs
from edgevit.reporting.request import CompareRequest
from edgevit.request import takes_options


@takes_options(CompareRequest, "before")
def compare(request: CompareRequest) -> list[Comparison]:
    """Compare the runs of two files, and judge which differences are more than chance.

    For one file, compare each model with the first.

    Raises:
        OptionError: an option does not exist.
        RunsError: a file cannot be read, or nothing in it can be compared.
    """
    runs = load_runs(request.before)
    if request.after is None:
        return compare_within(runs, force=request.force)
    return compare_runs(runs, load_runs(request.after), force=request.force)
