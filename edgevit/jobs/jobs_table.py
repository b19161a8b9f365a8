"""results.json of a jobs file: the state of each of its jobs, written whenever one starts or ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from edgevit.errors import JobsError
from edgevit.records.derivation import Share
from edgevit.records.documents import Reader
from edgevit.records.kinds import RecordKind, Versions
from edgevit.records.model import Count, Sha256

READER = Reader(JobsError, hint="the rows of models that are there are read from their folders")


@dataclass(frozen=True)
class JobRow:
    """The state and result of a job."""

    job: str
    task: str
    budget: str
    method: str
    out: str  # folder of the model
    sha256: Sha256  # hash of the job with all its arguments
    state: Literal["started", "done", "failed"]
    seconds: Annotated[float, Field(ge=0)] | None = None
    error: str | None = None
    # Accuracy of the model on the test part; None: not measured, as of a slice without images.
    top1: Share | None = None
    base_restricted: Share | None = None  # accuracy of the restricted base on the test part; None: not measured
    macs: Count | None = None
    params: Count | None = None
    rate: Share | None = None
    reused: tuple[str, ...] = ()  # kinds of results that were taken from the cache
    warnings: tuple[str, ...] = ()  # warnings of the derivation


@dataclass(frozen=True)
class JobsTable:
    """The contents of results.json."""

    rows: tuple[JobRow, ...] = ()
    # Versions of edgevit and its libraries that wrote the table last; None: not written yet.
    versions: Versions | None = None


TABLE_KIND = RecordKind("results", JobsTable, READER)
