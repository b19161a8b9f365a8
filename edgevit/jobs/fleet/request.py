"""The options of `edgevit fleet`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from edgevit.errors import OptionError
from edgevit.request import COMPUTING, JOBS, Option


def read_part(text: str, _: Mapping[str, Any]) -> tuple[int, int]:
    """Parse a part such as 3/16."""
    numbers = text.split("/")
    if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
        part, parts = map(int, numbers)
        if 1 <= part <= parts:
            return part, parts
    raise OptionError(f"--only {text} is not a part such as 3/16, the third of sixteen")


@dataclass(frozen=True, kw_only=True)
class FleetRequest:
    """The request of `edgevit.fleet`."""

    plan: Annotated[Path, Option("YAML file of the fleet; --example prints one.", None)]
    only: Annotated[
        tuple[int, int] | None,
        Option(
            "Do one of several equal parts, such as 3/16: derivations with all that is made of them.",
            JOBS,
            metavar="PART/PARTS",
            read=read_part,
            common=True,
        ),
    ] = None
    workers: Annotated[
        int | None,
        Option("Number of jobs in parallel, beside those on boards.  [default: as the plan states]", COMPUTING),
    ] = None
    ray: Annotated[
        str | None,
        Option(
            "Ray cluster to run on: auto, head:6379, or ray://head:10001.  [default: processes on this machine]",
            COMPUTING,
            metavar="ADDRESS",
            common=True,
        ),
    ] = None
    status: Annotated[bool, Option("List the jobs and their states, and do nothing.", JOBS, common=True)] = False
