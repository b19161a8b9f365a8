"""`edgevit.cost`: measure the cost table of a base, and write it to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from edgevit.derivation.allocate.cost_table import READER, CostTable
from edgevit.derivation.allocate.policy import make_policy
from edgevit.errors import CostTableError, OutputError
from edgevit.latency.cost_request import CostRequest
from edgevit.latency.table import measured_table
from edgevit.network.opening import network_without_weights
from edgevit.progress import Progress
from edgevit.records.writing import write_whole, writing
from edgevit.request import takes_options


@takes_options(CostRequest, "base")
def cost(request: CostRequest, progress: Progress | None = None) -> CostTable:
    """Measure the cost of each site of a base at each size, here or on a board, for budgets in `--ms` and `--mj`.

    A base needs no weights for that. Earlier measurements are reused, so the same call continues after an interruption.

    Raises:
        OptionError: an option is unknown or invalid.
        OutputError: the output cannot be written, or is a file that is not a cost table.
        EdgeVitError: any other error, in one line.
    """
    request.check()
    if request.output is not None:
        _refuse_foreign(request.output)
    network = network_without_weights(request.base, request.model_args)
    table = measured_table(
        network,
        request,
        policy=make_policy(request.shape),
        points=request.points,
        rounds=request.rounds,
        tokens=request.tokens,
        progress=progress,
    )
    if request.output is not None:
        write_table(table, request.output)
    return table


def _refuse_foreign(file: Path) -> None:
    """Raise OutputError if the output exists and is not a cost table; a cost table of any schema is replaced."""
    if not file.is_file() or not file.stat().st_size:
        return
    try:
        content = READER.json(file, dict[str, Any]) if file.suffix == ".json" else READER.yaml(file, dict[str, Any])
    except CostTableError:
        content = {}
    if not {"measured_on", "base"} <= content.keys():
        raise OutputError(f"{file} exists and is no cost table, so it is not overwritten; choose another --output")


def write_table(table: CostTable, file: Path) -> None:
    """Write a table as `load_cost_table` reads it: JSON or, by any other name, YAML.

    Raises:
        OutputError: it cannot be written.
    """
    content = table.content()
    text = yaml.safe_dump(content, default_flow_style=None, sort_keys=False, width=120)
    with writing(file):
        write_whole(file, json.dumps(content, indent=2) + "\n" if file.suffix == ".json" else text)
