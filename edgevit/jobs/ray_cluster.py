"""Jobs as tasks of a Ray cluster, in place of worker processes; Ray is the extra `fleet`.

All nodes see the folder that the command was started in, as on a network file system: models, images and records lie in
it. A node may offer a board, as by `ray start --resources '{"orin": 1}'`: then the jobs of that board run on that node.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch

from edgevit.errors import JobsError, OptionError
from edgevit.jobs.runners import Event, Job, JobQueue, Results, do_piece, work_off
from edgevit.jobs.workers import GRACE_S, Died
from edgevit.version import written_by

P = TypeVar("P")
R = TypeVar("R")
Piece = tuple[Job[Any, Any], Results]
KILLED = Died(-9)  # the end of a task whose process or node is gone


def run_on_ray(
    jobs: Sequence[Job[P, R]], results: Results, *, address: str, threads: int
) -> Generator[Event[P, R], None, None]:
    """Do jobs on a cluster, each with so many processors; in all else as `run_in_processes`.

    Raises:
        OptionError: Ray is not installed, or there is no cluster at the address.
    """
    due = [job for job in jobs if job.name not in results]
    if due:
        with _Cluster(address, threads) as cluster:
            yield from work_off(JobQueue(due, results, cluster.workers), cluster)


class _Cluster:
    def __init__(self, address: str, threads: int) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError as error:
            raise OptionError("--ray needs Ray: pip install 'edgevit[fleet]'") from error
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
        except (ConnectionError, ValueError, RuntimeError) as error:
            if "ersion mismatch" in str(error):  # of Ray or Python, each named
                raise OptionError(f"the Ray cluster at {address}: {' '.join(str(error).split())}") from error
            reason = str(error).partition("\n")[0]
            raise OptionError(f"no Ray cluster at {address}: {reason}; start one with `ray start --head`") from error
        self._offered: dict[str, float] = self._ray.cluster_resources()
        self.workers = max(int(self._offered.get("CPU", 1)) // threads, 1)
        nodes = [node["Resources"].get("memory", 0) for node in self._ray.nodes() if node["Alive"]]
        self._largest_bytes = int(max(nodes, default=0))
        self._task = self._ray.remote(_on_node)
        self._threads = threads
        self._pieces: dict[Any, Piece] = {}

    def __enter__(self) -> _Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._pieces:
            self._ray.cancel(task)  # a KeyboardInterrupt there, on which a training saves its state
        if self._pieces:
            self._ray.wait(list(self._pieces), num_returns=len(self._pieces), timeout=GRACE_S)
        self._ray.shutdown()

    def begin(self, piece: Piece) -> None:
        place = piece[0].place
        board = {place: 1} if place in self._offered else {}
        memory = min(piece[0].memory_bytes, self._largest_bytes)
        task = self._task.options(num_cpus=self._threads, memory=memory or None, resources=board, max_retries=0)
        task = task.remote(str(Path.cwd()), written_by(), self._threads, piece)
        self._pieces[task] = piece

    def ended(self, timeout_s: float | None) -> list[tuple[Piece, Any]]:
        if not self._pieces:
            time.sleep(timeout_s or 0)
            return []
        tasks, _ = self._ray.wait(list(self._pieces), timeout=timeout_s)
        return [(self._pieces.pop(task), self._result(task)) for task in tasks]

    def _result(self, task: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(task)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError, errors.OutOfMemoryError):
            return KILLED
        except errors.RayTaskError as error:
            return JobsError(f"a fault of edgevit, please report it: {str(error).strip().splitlines()[-1]}")


def _on_node(folder: str, version: str, threads: int, piece: Piece) -> Any:
    """Do a piece on a node of the cluster."""
    node = socket.gethostname()
    if version != written_by():
        return JobsError(f"{node} has edgevit {written_by()}, and the command {version}; install the same on all nodes")
    if not os.path.isdir(folder):
        return JobsError(f"{node} does not see {folder}; start the command in a folder that all nodes see")
    os.chdir(folder)
    if missing := [path for path in piece[0].inputs if not os.path.exists(path)]:
        return JobsError(f"{node} does not see {missing[0]}; put it where all nodes see it, or copy it there")
    torch.set_num_threads(threads)
    result = do_piece(piece)
    return JobsError(f"on {node}: {result}") if isinstance(result, JobsError) else result
