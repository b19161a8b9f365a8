"""The type of the answer to each call of the agent. Answers are checked here, once, when they arrive.

A board may run a damaged agent. An answer of the wrong type raises an `AgentError` that names the board, the call and
the field. The result of a job is read as its record; the answer to another call stays a dict, as `agent.messages`
declares it, and fields that are not declared here are passed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from edgevit.agent.layers import Layer
from edgevit.agent.methods import MODULES
from edgevit.agent.records import RecordError
from edgevit.errors import AgentError, RunsError
from edgevit.records.documents import Reader
from edgevit.records.engine import EngineTensor, TimingCacheUse

READER = Reader(AgentError, hint="try again, and report it where it comes back")


@dataclass(frozen=True)
class Failure:
    message: str
    traceback: str


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of a job: exactly one of the two fields is set."""

    result: Any = None
    error: Failure | None = None


@dataclass(frozen=True)
class Hello:
    cache: str


@dataclass(frozen=True)
class Size:
    bytes: int | None


@dataclass(frozen=True)
class Offer:
    present: bool
    free_bytes: int


@dataclass(frozen=True)
class Started:
    state: Literal["new", "running", "finished", "failed", "dead", "damaged"]
    message: str
    owner: str | None


@dataclass(frozen=True)
class ListedJob:
    job: str
    state: str
    method: str | None
    owner: str | None
    started: str | None
    age_s: float | None
    message: str | None = None


@dataclass(frozen=True)
class Jobs:
    jobs: tuple[ListedJob, ...]


@dataclass(frozen=True)
class Cancelled:
    cancelled: tuple[str, ...]
    others: tuple[ListedJob, ...]


@dataclass(frozen=True)
class Changed:
    power_mode: str | None
    clocks_locked: bool | None
    messages: tuple[str, ...]


@dataclass(frozen=True)
class FailedRun(Failure):
    labels: tuple[str, ...]
    batch: int


@dataclass(frozen=True)
class ProfileAnswer:
    inferences_ns: tuple[int, ...]
    clock: Literal["gpu", "host"]
    layers: tuple[Layer, ...]
    provider: str | None
    environment: dict[str, str]
    session: str


@dataclass(frozen=True)
class BenchAnswer:
    runs: tuple[dict[str, Any], ...]  # unchecked runs, which `records.Run` reads
    profiles: tuple[ProfileAnswer, ...]
    changed: Changed
    failed: FailedRun | None
    alone: str | None


@dataclass(frozen=True)
class Refusal:
    refused: str
    seconds: float


@dataclass(frozen=True)
class Built:
    refused: None
    seconds: float
    engine: str
    sha256: str
    bytes: int
    tensorrt: str
    strongly_typed: bool
    workspace_bytes: int | None
    device_memory_bytes: int
    timing_cache: TimingCacheUse | None
    layers: tuple[Any, ...]
    fused: int | None
    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Classified:
    nonfinite: int
    rows: Any = None  # unchecked outputs of all images, of many figures with NaN among them


@dataclass(frozen=True)
class Piped:
    bytes: int  # number of bytes that follow


@dataclass(frozen=True)
class Times:
    median: float
    p99: float


@dataclass(frozen=True)
class Trtexec:
    throughput_qps: float
    latency_ms: Times
    gpu_ms: Times


ANSWERS: Mapping[str, Any] = {
    # Nothing of these answers is read, or they are records that are read elsewhere.
    **dict.fromkeys(MODULES, dict[str, Any]),
    "follow": JobOutcome,
    "hello": Hello,
    "size": Size,
    "offer": Offer,
    "start": Started,
    "jobs": Jobs,
    "cancel": Cancelled,
    "bench": BenchAnswer,
    "build": Built,
    "classify": Classified,
    "pipe": Piped,
    "trtexec": Trtexec,
}


def check_answer(host: str, method: str, answer: Any) -> Any:
    """Check that an answer has the type that `method` returns, and return it unchanged.

    Raises:
        AgentError: it has another type.
    """
    if method != "follow":  # an outcome is read where its job can be forgotten
        _read(host, method, answer, ANSWERS[method])
    return answer


def read_outcome(host: str, outcome: Any) -> JobOutcome:
    """Read what `follow` returned; what is in the result, `read_result` checks.

    Raises: AgentError.
    """
    result = outcome.get("result") if isinstance(outcome, dict) else None
    ending = {**outcome, "result": None} if isinstance(outcome, dict) else outcome
    read: JobOutcome = _read(host, "follow", ending, JobOutcome)
    return replace(read, result=result)


def read_result(host: str, method: str, result: Any) -> Any:
    """Read the result of a job as the record of `method`.

    Raises:
        AgentError: it has another type.
    """
    if method == "trtexec":  # a summary that is shown as it is, with fields that not every version prints
        return check_answer(host, method, result)
    expected = ANSWERS[method]
    if isinstance(result, dict):
        if method == "build" and result.get("refused") is not None:
            expected = Refusal
        if method == "classify":
            checked = {name: value for name, value in result.items() if name != "rows"}
            return replace(_read(host, method, checked, expected), rows=result.get("rows"))
    return _read(host, method, result, expected)


def _read(host: str, method: str, answer: Any, kind: Any) -> Any:
    return READER.checked(answer, kind, f"the answer of {host} to {method!r}")


@contextmanager
def answer_records(host: str, method: str) -> Iterator[None]:
    """Convert errors of records that are built from an answer to errors of the answer.

    Raises: AgentError.
    """
    try:
        yield
    except (RecordError, RunsError) as error:
        raise wrong_answer(host, method, str(error)) from error


def wrong_answer(host: str, method: str, problem: str) -> AgentError:
    return AgentError(f"the answer of {host} to {method!r} is wrong: {problem}; {READER.hint}")
