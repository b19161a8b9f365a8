"""`edgevit compare`: the runs of two files side by side, or the models of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgevit.board.comparison import Comparison, compare_runs, compare_within, load_runs
from edgevit.reporting.request import CompareRequest
from edgevit.request import as_request, takes_options


@takes_options(CompareRequest)
def compare(before: str | Path | CompareRequest | None = None, **options: Any) -> list[Comparison]:
    """Set the runs of two files side by side, and say what of the difference is more than chance.

    Of one file, each model is set against the first one in it.

    Args:
        before: a file of runs, as `edgevit bench --output` writes it, or a whole request.
        options: the fields of `CompareRequest`.

    Raises:
        OptionError: of an option that there is not.
        RunsError: a file cannot be read, or holds nothing that can be compared.
    """
    return run(as_request(CompareRequest, "before", before, options))


def run(request: CompareRequest) -> list[Comparison]:
    """Do what is asked; `compare` says what is raised."""
    runs = load_runs(request.before)
    if request.after is None:
        return compare_within(runs, force=request.force)
    return compare_runs(runs, load_runs(request.after), force=request.force)
