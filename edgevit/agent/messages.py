"""What host and agent send each other, and what the agent keeps in its files; `__main__` states the protocol."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, TypedDict

# `stage`, `done` (its share that is done, 0 to 1) and figures to show beside them. While it waits (stage "wait"), the
# `holder` of the board, or the `stale` one that left it locked: a `Holder`.
ProgressMessage = Dict[str, object]


class Failed(TypedDict):
    """Why a method failed."""

    message: str
    traceback: str


class Reply(TypedDict, total=False):
    """A line of the agent: exactly one of these."""

    result: Any
    error: Failed
    progress: ProgressMessage


Send = Callable[[Reply], None]


class Holder(TypedDict):
    """Who holds the board, and since when; with an age, because the clocks of boards are often wrong."""

    owner: str
    method: str
    pid: int
    since: float
    age_s: float


class JobRequest(TypedDict):
    """What a job has to do, and for whom."""

    method: str
    args: Dict[str, Any]
    owner: str
    root: str
    started: str  # time of the start as ISO 8601


class JobReply(Reply, total=False):
    """What came of a job: its `result` or its `error`."""

    started: Optional[str]
    collected_late: bool  # whether the job had ended before any host followed it


class JobEntry(TypedDict, total=False):
    """A job in a list; None: its request cannot be read."""

    job: str
    state: str
    method: Optional[str]
    owner: Optional[str]
    started: Optional[str]
    # Seconds since the start; None: the request cannot be read, or the board's clock was set back.
    age_s: Optional[float]
    message: str  # why a damaged job cannot be read


class JobEntries(TypedDict):
    jobs: List[JobEntry]


class CancelledJobs(TypedDict):
    cancelled: List[str]
    others: List[JobEntry]  # running jobs of other owners, which were not cancelled


class BoardState(TypedDict):
    """Power mode and clocks of the board during a bench, and what was reported about setting them."""

    power_mode: Optional[str]
    clocks_locked: Optional[bool]
    messages: List[str]


class CudaDevice(TypedDict):
    device: str  # name of the GPU
    sms: int
    capability: str  # compute capability, such as "8.7"
    runtime: str  # version of the CUDA runtime


class CudaState(TypedDict):
    """The GPU and its binding, or in `error` why there is none."""

    binding: Optional[str]
    error: Optional[str]
    device: Optional[str]
    sms: Optional[int]
    capability: Optional[str]
    runtime: Optional[str]
