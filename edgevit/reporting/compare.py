"""`edgevit compare`: the runs of two files side by side, or the models of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgevit.board.comparison import Comparison, compare_runs, compare_within, load_runs
from edgevit.reporting.request import CompareRequest
from edgevit.request import as_request, takes_options


@takes_options(CompareRequest)
def compare(before: str | Path | CompareRequest | None = None, **options: Any) -> list[Comparison]:
    """Compare the runs of two files, and judge which differences are more than chance.

    For one file, compare each model with the first.

    Args:
        before: a file of runs, as `edgevit bench --output` writes it, or a whole request.
        options: the fields of `CompareRequest`.

    Raises:
        OptionError: an option does not exist.
        RunsError: a file cannot be read, or nothing in it can be compared.
    """
    return run(as_request(CompareRequest, "before", before, options))


def run(request: CompareRequest) -> list[Comparison]:
    """Carry out a request; see `compare` for errors."""
    runs = load_runs(request.before)
    if request.after is None:
        return compare_within(runs, force=request.force)
    return compare_runs(runs, load_runs(request.after), force=request.force)
