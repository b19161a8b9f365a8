"""The record of `edgevit characterize`: one board, what was measured on it, every figure, and every raw run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgevit.agent.records import RecordError, Run
from edgevit.errors import RunsError
from edgevit.records.documents import Reader
from edgevit.records.kinds import RecordKind
from edgevit.records.model import BlockDims
from edgevit.records.writing import write_whole, writing

_READER = Reader(RunsError, hint="remove it to measure again")
_ANY = Reader(RunsError, hint="give a file that `edgevit characterize` wrote")  # another file is not ours to remove


@dataclass(frozen=True)
class Figure:
    """The figures of a network at one batch size: medians over the rounds."""

    batch: int
    p50_ms: float
    mean_ms: float
    images_per_s: float
    energy_mj: float | None  # energy of one image; None: no power could be read
    ratio: float | None  # p50 over the p50 of the dense network in the same rounds; None: no such rounds
    low: float | None  # lower end of the ratio's 95 % interval; None: no interval
    high: float | None
    roofline_share: float | None  # lower bound of the time on this board over the p50; None: the board has no profile
    void: tuple[str, ...]  # why runs of the network at this batch size do not count; empty: they do


@dataclass(frozen=True)
class MeasuredNetwork:
    """One network of the suite."""

    name: str
    question: str
    size: str
    precision: str
    tokens: int
    macs: int
    params: int
    blocks: tuple[BlockDims, ...]
    fusable: int  # blocks whose attention TensorRT should fuse
    fused: int | None  # blocks whose attention is one kernel in the engine; None: no engine, or unknown
    build_s: float | None
    refused: str | None  # why there is no engine; None: there is one, or the network runs without one
    figures: tuple[Figure, ...]
    failed: str | None = None  # at which batch size the last run failed, and why; None: it did not fail


@dataclass(frozen=True)
class Published:
    """A published figure of such a network on such a board."""

    network: str  # name of the network in the suite
    ms: float
    source: str
    conditions: str


@dataclass(frozen=True)
class SuiteRecord:
    """The record of a suite: its request, its board, the measured networks and the answers."""

    created: str
    edgevit: str  # version of edgevit and, in a checkout, the commit
    request: dict[str, Any]  # the options that must be the same to continue an unfinished suite
    host: str
    profile: str | None  # name of the board's profile; None: no profile fits
    environment: dict[str, Any]  # module, JetPack, TensorRT, power mode and clocks, as the agent found them
    seconds: float  # time that the suite took so far, over all commands
    measured: tuple[MeasuredNetwork, ...] = ()
    left_out: tuple[str, ...] = ()  # networks that were not measured, for lack of time
    published: tuple[Published, ...] = ()
    answers: tuple[str, ...] = ()
    runs: tuple[dict[str, Any], ...] = ()  # raw, as `edgevit bench --output` writes them

    def measurements(self) -> list[Run]:
        """Return the raw runs of the suite.

        Raises:
            RunsError: a run is damaged.
        """
        try:
            return [Run.from_dict(run) for run in self.runs]
        except RecordError as error:
            raise RunsError(f"a run in the record of {self.host} is damaged: {error}; {_READER.hint}") from error

    def of(self, name: str) -> MeasuredNetwork | None:
        """The network of this name."""
        return next((network for network in self.measured if network.name == name), None)


SUITE_KIND = RecordKind("characterize", SuiteRecord, _READER)


def read_suite_record(file: Path) -> SuiteRecord:
    """Read the record of a suite.

    Raises:
        RunsError: it is missing, damaged, of another schema, or another kind of file.
    """
    content = _ANY.json(file, dict[str, Any])
    if "measured" not in content:
        raise RunsError(f"{file} is no record of a suite; {_ANY.hint}")
    return SUITE_KIND.checked(content, str(file))


def write_suite_record(record: SuiteRecord, file: Path) -> None:
    """Write the record of a suite.

    Raises:
        OutputError: it cannot be written.
    """
    with writing(file):
        write_whole(file, SUITE_KIND.text(record))
