"""results.json of a jobs file: what became of each of its jobs, told anew whenever one starts or ends.

Schema history: 1  first version
                2  versions, of the edgevit that wrote it last; tables of schema 1 are still read
                3  warnings of each job; tables of schema 2 are still read
                4  record and content_sha256, of all the rest of the file
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from edgevit.errors import JobsError
from edgevit.records.derivation import Share
from edgevit.records.documents import Reader
from edgevit.records.kinds import RecordKind, Seal, Versions
from edgevit.records.model import Count, Sha256

READER = Reader(JobsError, mend="the rows of models that are there are read from their folders")


@dataclass(frozen=True)
class JobRow:
    """What became of a job."""

    job: str
    task: str
    budget: str
    method: str
    out: str  # its model folder
    sha256: Sha256  # of all that it was asked
    state: Literal["started", "done", "failed"]
    seconds: Annotated[float, Field(ge=0)] | None = None
    error: str | None = None
    top1: Share | None = None  # on the test part; None: not measured, as of a slice without images
    base_restricted: Share | None = None  # the same of the base
    macs: Count | None = None
    params: Count | None = None
    rate: Share | None = None
    reused: tuple[str, ...] = ()  # what was found in the cache
    warnings: tuple[str, ...] = ()  # what its derivation warned of


@dataclass(frozen=True)
class JobsTable:
    """What results.json says."""

    rows: tuple[JobRow, ...] = ()
    earlier: tuple[JobRow, ...] = ()  # older versions kept those of a jobs file that another replaced
    versions: Versions | None = None  # None: of an older edgevit


TABLE_KIND = RecordKind("results", JobsTable, READER, schemas=(1, 2, 3, 4), seal=Seal(since=4))
