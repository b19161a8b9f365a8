"""Jobs as tasks of a Ray cluster, in place of worker processes; Ray is the extra `fleet`.

Where all nodes see the folder that the command was started in, as on a network file system, models, images and records
lie in it. Where one does not, all that a job reads is sent to its node, and what it writes comes home: see `parcels`.
A node may offer a board, as by `ray start --resources '{"orin": 1}'`: then the jobs of that board run on that node.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import socket
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

import torch

from edgevit.derivation.cache import STREAMS, derivations_folder, entries
from edgevit.errors import JobsError, OptionError, OutputError
from edgevit.jobs.parcels import (
    LARGEST_BYTES,
    Changes,
    Input,
    Outputs,
    bring_home,
    changes_of,
    input_bytes,
    is_inside,
    job_folder,
    outputs_at_home,
    packed_files,
    packed_input,
    place_input,
    place_outputs,
    unpack_each,
)
from edgevit.jobs.runners import WORKER, Event, FullDisk, Job, JobQueue, Results, Retry, do_piece, work_off
from edgevit.jobs.workers import GRACE_S, Died
from edgevit.records.lock import alone_in
from edgevit.records.writing import is_of_full_disk, writing
from edgevit.version import written_by

P = TypeVar("P")
R = TypeVar("R")
Piece = tuple[Job[Any, Any], Results]
CONNECT_S = 10.0
CLIENT = "ray://"  # beginning of an address that machines outside of the cluster use
FAULT = "a fault of edgevit, please report it: "
# The frames of a traceback, which stands in the error of Ray's client; the error itself comes after them.
FRAMES = re.compile(r'^  File "[^\n]*\n(?:    [^\n]*\n)*', re.MULTILINE)
NO_RAY = "--ray needs Ray: pip install 'edgevit[fleet]'"
KILLED = Died(-9)  # the end of a task whose process or node is gone


def run_on_ray(
    jobs: Sequence[Job[P, R]], results: Results, *, address: str, threads: int
) -> Generator[Event[P, R], None, None]:
    """Do jobs on a cluster, each with so many processors; in all else as `run_in_processes`.

    Args:
        address: auto, HOST:PORT of the head from a machine of the cluster, or ray://HOST:PORT of it from any other.

    Raises:
        OptionError: Ray is not installed, or there is no cluster at the address.
        JobsError: the connection is lost that ray://HOST:PORT stands for.
    """
    due = [job for job in jobs if job.name not in results]
    if not due:
        return
    lost = _of_lost_connections(address)
    try:
        # Ray prints news of nodes to the standard output, which is a document where --json is given.
        with redirect_stdout(sys.stderr), _Cluster(address, threads) as cluster:
            yield from work_off(JobQueue(due, results, cluster.workers(due)), cluster)
    except lost as error:
        raise JobsError(f"the connection to the cluster at {address} is lost; the same command continues") from error


@dataclass(frozen=True)
class _Parcel:
    """What a job needs on a node that does not see the folder of the command."""

    home: str  # host and path of the folder of the command
    inputs: tuple[Input, ...]
    outputs: Outputs
    # Entries of the content cache, each as its file names and a reference to the files.
    entries: tuple[tuple[tuple[str, ...], Any], ...]


@dataclass(frozen=True)
class _Arrived:
    """The end of a job on such a node."""

    result: Any
    changes: Changes
    entries: tuple[str, ...]  # names of the cache entries that the job made


class _Cluster:
    def __init__(self, address: str, threads: int) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError as error:
            raise OptionError(NO_RAY) from error
        _refuse_silent(address)
        _refuse_others(address)
        try:
            with warnings.catch_warnings():  # also those about errors that are raised
                warnings.simplefilter("ignore")
                self._ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
        except (ConnectionError, ValueError, RuntimeError, self._ray.exceptions.RayError) as error:
            self._ray.shutdown()  # also ends what has begun
            raise OptionError(_refusal(address, str(error), self._ray.__version__)) from error
        self._resources = self._ray.cluster_resources()
        nodes = [node["Resources"].get("memory", 0) for node in self._ray.nodes() if node["Alive"]]
        self._largest_bytes = int(max(nodes, default=0))
        self._task = self._ray.remote(_on_node)
        self._threads = threads
        self._pieces: dict[Any, Piece] = {}
        self._ended: list[tuple[Piece, Any]] = []  # jobs for which no node has to do anything
        self._full: dict[str, set[str]] = defaultdict(set)  # nodes whose disk was full for a job, by its name
        try:
            self._blind = self._nodes_that_do_not_see_the_folder(address)
        except BaseException:
            self._ray.shutdown()
            raise
        self._sent: dict[str, Input] = {}  # by path
        self._outputs: dict[Any, Outputs] = {}  # by task
        self._locks: dict[Any, ExitStack] = {}
        self._entries: dict[str, list[tuple[tuple[str, ...], Any]]] = defaultdict(list)  # by `Job.shares`
        self._new_entries: dict[Any, Any] = {}  # references to the entries that a task makes

    def _nodes_that_do_not_see_the_folder(self, address: str) -> list[str]:
        """The names of nodes; raise OptionError if one has another edgevit, or none."""
        with ExitStack() as stack:
            path = ""
            with suppress(OSError):
                probe = stack.enter_context(NamedTemporaryFile(prefix=".edgevit-", dir="."))
                path = str(Path(probe.name).absolute())
            look = self._ray.remote(_look)
            alive = {node["NodeID"]: node["NodeManagerHostname"] for node in self._ray.nodes() if node["Alive"]}
            looks = [look.options(num_cpus=0, scheduling_strategy=self._only_on(node)).remote(path) for node in alive]
            answers = [(name, self._result(task)) for name, task in zip(alive.values(), looks, strict=True)]
        blind = []
        for name, answer in answers:
            if isinstance(answer, JobsError):  # it cannot import what was sent
                reason = str(answer).removeprefix(FAULT)
                text = f"{name} cannot load this edgevit ({reason}); install {written_by()} on all nodes"
                raise OptionError(f"the Ray cluster at {address}: {text}")
            if answer == KILLED:
                continue  # the node is lost meanwhile
            installed, sees = answer
            if other := _other_version(name, installed, written_by()):
                raise OptionError(f"the Ray cluster at {address}: {other}")
            blind += [] if sees else [name]
        return blind

    def _only_on(self, node: str) -> Any:
        """Ray's scheduling strategy that runs a task on this node only."""
        return import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(node, soft=False)

    def __enter__(self) -> _Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        running = self._pieces if self._ray.is_initialized() else {}  # else Ray would start a cluster of its own
        for task in running:
            self._ray.cancel(task)  # a KeyboardInterrupt there, on which a training saves its state
        if running:
            self._ray.wait(list(running), num_returns=len(running), timeout=GRACE_S)
        for lock in self._locks.values():
            lock.close()
        self._ray.shutdown()

    def workers(self, jobs: Sequence[Job[Any, Any]]) -> int:
        """The number of jobs that the cluster does at a time: if some use GPUs, at most its number of GPUs."""
        workers = int(self._resources.get("CPU", 1)) // self._threads
        if any(job.on_gpu for job in jobs):
            workers = min(workers, int(self._resources.get("GPU", workers)))
        return max(workers, 1)

    def begin(self, piece: Piece) -> None:
        job = piece[0]
        with ExitStack() as lock:
            parcel = None
            if self._blind:
                try:
                    parcel = self._parcel(job, lock)
                except _Busy as error:
                    self._ended.append((piece, Retry(str(error), is_elsewhere=True)))
                    return
                except (JobsError, OutputError) as error:
                    self._ended.append((piece, JobsError(str(error))))
                    return
            node_arguments = str(Path.cwd()), written_by(), self._threads
            task, new_entries = self._task.options(**self._options(job)).remote(*node_arguments, piece, parcel)
            self._pieces[task], self._new_entries[task] = piece, new_entries
            if parcel is not None:
                self._outputs[task], self._locks[task] = parcel.outputs, lock.pop_all()

    def _options(self, job: Job[Any, Any]) -> dict[str, Any]:
        options: dict[str, Any] = {"num_cpus": self._threads if job.place == WORKER else 0}  # a board takes no turn
        if memory := min(job.memory_bytes, self._largest_bytes):
            options["memory"] = memory
        if job.on_gpu and self._resources.get("GPU"):
            options["num_gpus"] = 1
        if others := self._nodes_with_room(job):
            options["scheduling_strategy"] = self._only_on(others[0])
        elif job.place != WORKER and job.place in self._ray.cluster_resources():
            options["resources"] = {job.place: 1}  # what no node offers any more, any node does
        return {**options, "max_retries": 0, "num_returns": 2}

    def _nodes_with_room(self, job: Job[Any, Any]) -> list[str]:
        """Nodes with room, most processors first, if the disk of a node was full for this job; else none."""
        if not self._full[job.name]:
            return []
        alive = [node for node in self._ray.nodes() if node["Alive"] and node["NodeID"] not in self._full[job.name]]
        return [node["NodeID"] for node in sorted(alive, key=lambda node: -node["Resources"].get("CPU", 0))]

    def _parcel(self, job: Job[Any, Any], lock: ExitStack) -> _Parcel:
        """Pack what a job needs, and hold its lock in place of the process that does it.

        Raises:
            _Busy: another command does it.
            JobsError: it would write where nothing comes home from.
            OutputError: its folder cannot be made.
        """
        _refuse_outside(job.outputs, self._blind[0])
        folder = Path(job.outputs[-1])
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        lock.enter_context(alone_in(folder, _Busy(f"another edgevit does {job.name}")))
        inputs = tuple(self._input(path) for path in sorted(job.inputs) if is_inside(path))
        home = f"{socket.gethostname()}:{Path.cwd()}"
        return _Parcel(home, inputs, outputs_at_home(job.outputs), tuple(self._entries[job.shares]))

    def _input(self, path: str) -> Input:
        """Put an input into the object store, once."""
        if path not in self._sent:
            size = input_bytes(path)
            self._sent[path] = Input(path, size)
            if size <= LARGEST_BYTES:
                content = packed_input(path)
                self._sent[path] = Input(path, size, hashlib.sha256(content).hexdigest(), self._ray.put(content))
        return self._sent[path]

    def ended(self, timeout_s: float | None) -> list[tuple[Piece, Any]]:
        if self._ended:
            ended, self._ended = self._ended, []
            return ended
        if not self._pieces:
            time.sleep(timeout_s or 0)
            return []
        tasks, _ = self._ray.wait(list(self._pieces), timeout=timeout_s)
        return [(self._pieces[task], self._end(task, self._pieces.pop(task)[0])) for task in tasks]

    def _end(self, task: Any, job: Job[Any, Any]) -> Any:
        """The result of a task, after its files came home."""
        result, new_entries = self._result(task), self._new_entries.pop(task)
        with self._locks.pop(task, ExitStack()):
            outputs = self._outputs.pop(task, None)
            if isinstance(result, _Arrived) and outputs is not None:
                bring_home(result.changes, outputs)
                if result.entries:
                    self._entries[job.shares].append((result.entries, new_entries))
                result = result.result
        if not isinstance(result, FullDisk):
            return result
        self._full[job.name].add(result.node)
        if self._nodes_with_room(job):
            return Retry(f"{result.reason}; another node tries it")
        return JobsError(result.reason)

    def _result(self, task: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(task)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError, errors.OutOfMemoryError):
            return KILLED
        except errors.TaskUnschedulableError:  # the node that it was to run on is gone
            return KILLED
        except errors.RayTaskError as error:
            return JobsError(f"{FAULT}{str(error).strip().splitlines()[-1]}")


class _Busy(JobsError):
    """The failure of a job that another command is doing."""


def _of_lost_connections(address: str) -> tuple[type[Exception], ...]:
    """The errors when the connection of Ray's client is lost; in a cluster Ray ends the process by itself."""
    if not address.startswith(CLIENT):
        return ()
    try:
        return ConnectionError, import_module("grpc").RpcError
    except ImportError as error:
        raise OptionError(NO_RAY) from error


def _refuse_silent(address: str) -> None:
    """Raise OptionError if nobody listens at an address; Ray itself would try for ten minutes."""
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if not host or not port.isdecimal():
        if address.startswith(CLIENT):
            raise OptionError(f"--ray {address} has no port; that of Ray's client is usually {address}:10001")
        return  # a word such as auto
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise OptionError(f"no Ray cluster at {address}: {error}; start one with `ray start --head`") from error


def _refuse_others(address: str) -> None:
    """Raise OptionError if it is not Ray's head that listens at HOST:PORT; Ray itself would try for ten minutes."""
    if address.startswith(CLIENT) or ":" not in address or os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    try:
        grpc = import_module("grpc")
    except ImportError as error:
        raise OptionError(NO_RAY) from error
    reasons = {
        status: "what listens there does not answer as the head of one, whose port is usually 6379"
        for status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    }
    reasons[grpc.StatusCode.NOT_FOUND] = f"this is the port of Ray's client: try --ray {CLIENT}{address}"
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:  # as Ray
        try:
            channel.unary_unary("/ray.rpc.RayletDriver/ClusterInfo")(b"", timeout=3 * CONNECT_S)  # a client's address
        except grpc.RpcError as error:
            if reason := reasons.get(error.code()):
                raise OptionError(f"no Ray cluster at {address}: {reason}") from error


def _refusal(address: str, text: str, version: str) -> str:
    """Why there is no connection, in one line, from the text of Ray's error and the version of Ray here."""
    reason = " ".join(FRAMES.split(text)[-1].split()).rstrip(".")
    if "ersion mismatch" in reason:  # the reason names the versions of Ray or Python
        return f"the Ray cluster at {address}: {reason}; install the same of both on all nodes"
    if address.startswith(CLIENT):  # somebody listens there
        return (
            f"no connection to a Ray cluster at {address}: {reason}; try again, or another port: that of Ray's client "
            f"is usually 10001; all nodes need Ray {version} and Python {platform.python_version()} as here"
        )
    return f"no Ray cluster at {address}: {reason}; start one with `ray start --head`"


def _refuse_outside(outputs: Sequence[str], node: str) -> None:
    """Raise JobsError if an output would not come home."""
    if outside := [path for path in outputs if not is_inside(path)]:
        raise JobsError(
            f"{node} does not see {outside[0]}: start the command where all nodes see its folder, or give out in the "
            "plan as a path relative to it, to which models come home"
        )


# -- on a node ---------------------------------------------------------------------------------------------------------


def _look(path: str) -> tuple[str, bool]:
    """The edgevit of this node, and whether it sees a path."""
    return written_by(), not path or os.path.exists(path)


def _other_version(node: str, installed: str, version: str) -> str:
    """How the edgevit of a node differs from that of the command; empty: it does not."""
    if installed == version:
        return ""
    return f"{node} has edgevit {installed}, and the command {version}; install the same on all nodes"


def _on_node(folder: str, version: str, threads: int, piece: Piece, parcel: _Parcel | None = None) -> tuple[Any, Any]:
    """Do a piece on a node of the cluster; give its result, and the entries of the content cache that it made."""
    node = socket.gethostname()
    if other := _other_version(node, written_by(), version):  # a node that came later has another version
        return JobsError(other), None
    torch.set_num_threads(threads)
    try:
        if parcel is not None:
            with ExitStack() as used:
                return _away(piece, parcel, node, used)
        if not os.path.isdir(folder):
            return JobsError(f"{node} does not see {folder}; start the command in a folder that all nodes see"), None
        os.chdir(folder)
        return _done(piece, node, "put it where all nodes see it, or copy it there"), None
    except (JobsError, OutputError) as error:
        text = f"on {node}: {error}"
        return (FullDisk(text, _node_id()) if is_of_full_disk(error) else JobsError(text)), None


def _done(piece: Piece, node: str, advice: str) -> Any:
    if missing := [path for path in piece[0].inputs if not os.path.exists(path)]:
        return JobsError(f"{node} does not see {missing[0]}; {advice}")
    result = do_piece(piece)
    if isinstance(result, FullDisk):
        return FullDisk(f"on {node}: {result.reason}", _node_id())
    return JobsError(f"on {node}: {result}") if isinstance(result, JobsError) else result


def _node_id() -> str:
    return str(import_module("ray").get_runtime_context().get_node_id())


def _away(piece: Piece, parcel: _Parcel, node: str, used: ExitStack) -> tuple[Any, Any]:
    """Do a piece without the folder of the command."""
    folder, get = job_folder(parcel.home, piece[0].name), import_module("ray").get
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for received in parcel.inputs:
        place_input(received, folder, parcel.home.partition(":")[2], node, get, used)
    place_outputs(parcel.outputs, folder)
    _take_entries(parcel.entries, get)
    before = {entry.file.name for entry in entries(derivations_folder())}
    os.chdir(folder)
    result = _done(piece, node, "put it where all nodes see it, or name it relative to the folder of the command")
    if isinstance(result, FullDisk):
        return result, None
    changes = changes_of(parcel.outputs, folder)
    if not isinstance(result, Retry):  # which leaves a state to continue with
        os.chdir(folder.parent)
        shutil.rmtree(folder, ignore_errors=True)
    names = tuple(_new_entries(before)) if piece[0].shares else ()
    return _Arrived(result, changes, names), packed_files(names, derivations_folder()) if names else None


def _new_entries(before: Iterable[str]) -> list[str]:
    """Names of the entries that are new, from the smallest on as many as are sent; streams are quick to make again."""
    names, total = [], 0
    for entry in sorted(entries(derivations_folder()), key=lambda entry: entry.bytes):
        total += entry.bytes if entry.kind != STREAMS and entry.file.name not in before else 0
        if entry.kind != STREAMS and entry.file.name not in before and total <= LARGEST_BYTES:
            names.append(entry.file.name)
    return names


def _take_entries(batches: Sequence[tuple[tuple[str, ...], Any]], get: Any) -> None:
    """Put entries that other nodes made into this node's cache; those of a node that is gone are made again."""
    cache = derivations_folder()
    for names, reference in batches:
        if all((cache / name).exists() for name in names):
            continue
        with suppress(OutputError, import_module("ray").exceptions.RayError):
            unpack_each(get(reference), cache)
