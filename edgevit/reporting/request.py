"""The requests of `compare` and `report`, and how a bench judges and stores its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from edgevit.exporting.request import ReadyMade
from edgevit.request import JUDGING, OUTPUT, Option

Format = Literal["html", "md", "csv", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True, kw_only=True)
class JudgingRequest:
    """How the runs of a bench are judged and stored."""

    gate: Annotated[
        Sequence[str],
        Option(
            "Limit to enforce, such as 'p99<8ms' or 'energy<40mJ'; repeatable.",
            JUDGING,
            metavar="METRIC<VALUE",
            repeated=True,
            common=True,
        ),
    ] = ()
    compare: Annotated[
        Path | None, Option("JSON-lines file of earlier runs to compare with.", JUDGING, common=True)
    ] = None
    force: Annotated[bool, Option("Compare even if the environments differ; a warning says in what.", JUDGING)] = False
    output: Annotated[
        Path | None, Option("JSON-lines file that the raw runs are appended to.", JUDGING, common=True)
    ] = None


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """The request of `edgevit.compare`."""

    before: Annotated[Path, Option("JSON-lines file of runs, as `edgevit bench --output` writes it.", None)]
    after: Annotated[
        Path | None,
        Option("Second file; without it, the models of the first file are compared with its first model.", None),
    ] = None
    force: Annotated[
        bool,
        Option("Judge even void runs, busy machines and different environments; a warning says which.", JUDGING),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """The request of `edgevit.report`."""

    paths: Annotated[
        Sequence[Path],
        Option(
            "Folders to search for models, plans of `edgevit fleet`, and files written by `edgevit bench --output`.",
            None,
            repeated=True,
        ),
    ]
    output: Annotated[
        Path | None,
        Option(
            "File to write, or - for standard output.  [default: report.html; else standard output]",
            OUTPUT,
            short="-o",
            common=True,
        ),
    ] = None
    format: Annotated[
        str | None,
        Option(f"One of {', '.join(FORMATS)}.  [default: what the output's suffix says, or html]", OUTPUT),
    ] = None
    gates: Annotated[
        Sequence[str],
        Option(
            "Limit that a recommended model must meet, such as 'p99<8ms'; repeatable.",
            JUDGING,
            name="--gate",
            metavar="METRIC<VALUE",
            repeated=True,
        ),
    ] = ()
    ready_made: ReadyMade = ()
    thumbnails: Annotated[
        int,
        Option(
            "Show small copies of N misclassified validation images per model; images may be private.",
            OUTPUT,
            metavar="NUMBER",
        ),
    ] = 0
