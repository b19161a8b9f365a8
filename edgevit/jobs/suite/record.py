"""The file of `edgevit prove`: one board, what ran on it, every figure, and every raw run behind them."""

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

READER = Reader(RunsError, hint="remove it to measure again")
ANY = Reader(RunsError, hint="give a file that `edgevit prove` wrote")  # what is no proof is not ours to remove


@dataclass(frozen=True)
class Figure:
    """One network at one batch size; medians over the rounds."""

    batch: int
    p50_ms: float
    mean_ms: float
    images_per_s: float
    energy_mj: float | None  # of an image; None: no power could be read
    ratio: float | None  # of its p50 to that of the dense network, in the same rounds; None: there is none of these
    low: float | None  # of the ratio's 95 % interval
    high: float | None
    roofline_share: float | None  # the board's least time over the p50; None: no profile of the board
    trtexec_ms: float | None  # GPU time by trtexec on the same engine; None: it did not run
    void: tuple[str, ...]  # why runs of it do not count


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
    fusable: int  # blocks whose attention has dimensions that should fuse
    fused: int | None  # blocks whose attention the engine has as one kernel; None: nothing was built, or it is not told
    build_s: float | None
    refused: str | None  # why there is no engine
    figures: tuple[Figure, ...]
    failed: str | None = None  # at which batch size and why a run of it failed, which was the last of it


@dataclass(frozen=True)
class Waiting:
    """An engine that lies on the board and is not measured yet."""

    name: str  # of the network in the suite
    engine: str  # path there
    sha256: str
    fused: int | None  # blocks whose attention it has as one kernel; None: TensorRT does not tell
    build_s: float


@dataclass(frozen=True)
class Published:
    """What somebody else published of such a network on such a board."""

    network: str  # name in the suite
    ms: float
    source: str
    conditions: str


@dataclass(frozen=True)
class Proof:
    """The whole file."""

    created: str
    edgevit: str  # version and, in a checkout, commit
    request: dict[str, Any]  # options, which must be the same to resume an unfinished file
    host: str
    profile: str | None  # of the board
    environment: dict[str, Any]  # module, JetPack, TensorRT, power mode and clocks, as the agent found them
    seconds: float  # that the work took so far
    measured: tuple[MeasuredNetwork, ...] = ()
    left_out: tuple[str, ...] = ()  # networks that were not begun, for want of time
    published: tuple[Published, ...] = ()
    answers: tuple[str, ...] = ()
    runs: tuple[dict[str, Any], ...] = ()  # raw, as `edgevit bench --output` writes them
    waiting: tuple[Waiting, ...] = ()  # none, once it has ended
    build_s: float | None = None  # that the longest build took so far, writing and sending included; not the first
    run_s: float | None = None  # that a run took, starting its process included, on average of the last question

    def measurements(self) -> list[Run]:
        """The raw runs.

        Raises:
            RunsError: one is none.
        """
        try:
            return [Run.from_dict(run) for run in self.runs]
        except RecordError as error:
            raise RunsError(f"a run of the proof of {self.host} is damaged: {error}; {READER.hint}") from error

    def of(self, name: str) -> MeasuredNetwork | None:
        """The network of this name."""
        return next((one for one in self.measured if one.name == name), None)

    def waits(self, name: str) -> Waiting | None:
        """The engine of the network of this name, if it waits on the board."""
        return next((one for one in self.waiting if one.name == name), None)


PROOF_KIND = RecordKind("prove", Proof, READER)


def read_proof(file: Path) -> Proof:
    """Read the file.

    Raises:
        RunsError: it is missing, damaged, of another schema, or no proof.
    """
    content = ANY.json(file, dict[str, Any])
    if "measured" not in content:
        raise RunsError(f"{file} is no proof; {ANY.hint}")
    return PROOF_KIND.checked(content, str(file))


def write_proof(proof: Proof, file: Path) -> None:
    """Write the file.

    Raises:
        OutputError: it cannot be written.
    """
    with writing(file):
        write_whole(file, PROOF_KIND.text(proof))
