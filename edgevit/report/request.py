"""How measured runs are judged and kept: gates, earlier runs to set them against, and a file for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from edgevit.request import JUDGING, OUTPUT, Option


@dataclass(frozen=True, kw_only=True)
class JudgingRequest:
    """What becomes of the runs of a bench."""

    gate: Annotated[
        Sequence[str],
        Option(
            "Limit that must hold, such as 'p99<8ms' or 'energy<40mJ'; repeatable.",
            JUDGING,
            metavar="METRIC<VALUE",
            repeated=True,
        ),
    ] = ()
    compare: Annotated[Path | None, Option("JSON-lines file of earlier runs that these are set against.", JUDGING)] = (
        None
    )
    force: Annotated[bool, Option("Compare even if the environments differ; a warning says in what.", JUDGING)] = False
    output: Annotated[Path | None, Option("JSON-lines file that the raw runs are appended to.", OUTPUT)] = None
