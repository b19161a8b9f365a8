"""The connection to a board, or to this machine: calls, files, and jobs that outlive the connection."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from edgevit.agent.__main__ import MARK, user
from edgevit.agent.messages import CancelledJobs, ProgressMessage
from edgevit.board.answers import read_outcome, read_result
from edgevit.board.client import LOCAL, Agent, Explain, in_sh, is_full, pack_agent, stderr_of
from edgevit.board.ssh import Ssh
from edgevit.errors import (
    AgentError,
    BoardError,
    ConnectionLostError,
    Interrupted,
    OptionError,
    OutputError,
    UnfitBoardError,
    UnreachableError,
)
from edgevit.progress import Progress, Stage, WithoutRepeats
from edgevit.text import shortened

THIS_MACHINE = "this machine"
SILENCE_S = 120.0  # a connection is given up after this time without a message; a job sends one every few seconds
_RETRY_S = 60.0  # time in which a lost connection is tried again
_PAUSES_S = (0.5, 8.0)  # first and longest pause between two tries
_STEADY_S = 10.0  # a connection that lasts so long counts as restored
_CHUNK = 1 << 18
_MIB = 1 << 20
_MOST_FIGURE = 1e300  # largest figure that is shown beside a bar

T = TypeVar("T")
Exchange = Callable[[Mapping[str, object], memoryview, memoryview], None]  # `Agent.exchange` of an agent


@contextmanager
def open_board(
    host: str | None,
    *,
    ssh_config: Path | None = None,
    python: str | None = None,
    connect_seconds: float = 10,
    retry_seconds: float = _RETRY_S,
) -> Iterator[Board]:
    """Connect to a host by SSH, or to this machine if it is None.

    A connection that breaks later is tried again for `retry_seconds`.

    Raises:
        OptionError: the name is not that of a host.
        UnreachableError: the host cannot be reached, or has no Python that can run the agent.
        UnfitBoardError: there is no space for the agent.
    """
    if host is not None and (not host.isprintable() or not host or host[0] == "-" or " " in host):
        raise OptionError(
            f"the board {shortened(host)!r} has a name that no host can have; try user@host, as ssh knows it"
        )
    with ExitStack() as stack:
        if host is None:
            board = Board(THIS_MACHINE, LOCAL, python or sys.executable, retry_seconds=retry_seconds)
        else:
            ssh = stack.enter_context(Ssh(host, config=ssh_config, connect_seconds=connect_seconds))
            board = Board(host, ssh.argv, python or "python3", explain=ssh.explain, retry_seconds=retry_seconds)
        yield stack.enter_context(board)


class Board:
    """A machine with an agent that runs for the duration of the block; see `open_board`."""

    def __init__(
        self,
        host: str,
        shell: tuple[str, ...],
        python: str,
        *,
        explain: Explain = lambda stderr, code: None,
        retry_seconds: float = _RETRY_S,
        silence_seconds: float = SILENCE_S,
    ) -> None:
        self.host = host  # what messages call it
        self._shell = shell
        self._explain = explain
        self._retry_seconds = retry_seconds
        self._agent = Agent(python=python, shell=shell, host=host, explain=explain, silence_seconds=silence_seconds)
        self._running = ExitStack()  # holds the agent
        self._announced: set[str] = set()  # waits that were announced: many jobs may wait for one holder
        self._lost_at: float | None = None  # when the connection was lost that is being tried again

    def __enter__(self) -> Board:
        self._running.enter_context(self._agent)
        return self

    def __exit__(self, *error: Any) -> None:
        self._running.__exit__(*error)

    def call(self, method: str, /, on_progress: Callable[[ProgressMessage], None] | None = None, **args: Any) -> Any:
        """Call a method of the agent, and again if the connection breaks.

        Raises:
            AgentError: the method failed, or the agent died.
            ConnectionLostError: the connection broke and did not come back.
        """
        return self._persist(lambda: self._connected().call(method, on_progress, **args))

    def examine(self, progress: Progress) -> Any:
        """Read all facts of the board, once no other job runs there.

        Raises:
            AgentError: the method failed, or the agent died.
            ConnectionLostError: the connection broke and did not come back.
        """
        with _Show("examine", self.host, progress, self._announced) as show:
            return self.call("examine", show.waits, owner=_owner())

    @contextmanager
    def _alone(self, method: str, progress: Progress) -> Iterator[None]:
        """Lock the board like a job: a copy takes memory and processor time that a measurement would notice."""
        agent = self._connected()
        with _Show(method, self.host, progress, self._announced) as show:
            agent.call("take", show.waits, owner=_owner(), method=method)
        try:
            yield
        except BaseException:
            if agent.idle:
                with suppress(BoardError):  # the reason why the copy failed is what counts
                    agent.call("release")
            raise
        if agent.idle:
            agent.call("release")

    def put(self, path: Path, sha256: str, progress: Progress) -> str:
        """Send a file unless the board has it, named by its hash, and return its path there.

        Raises: UnfitBoardError (no space), ConnectionLostError, AgentError.
        """
        return self._persist(lambda: self._put(path, sha256, progress))

    def fetch(self, remote: str, path: Path, sha256: str, progress: Progress) -> None:
        """Fetch a file; `path` is written, or replaced, once the file has arrived whole.

        Raises: AgentError (missing, or altered), ConnectionLostError, OutputError.
        """
        self._persist(lambda: self._fetch(remote, path, sha256, progress))

    def run_job(
        self,
        method: str,
        args: Mapping[str, object],
        *,
        name: str,
        progress: Progress,
        read: Callable[[Any], Any] = lambda result: result,
        keep: Callable[[Any], Any] = lambda result: result,
    ) -> Any:
        """Run a method as a job and return `keep(read(result))`.

        A job of the same method and arguments that runs or has finished is collected instead. A job on a board outlives
        the connection, this process and Ctrl-C; one on this machine ends with this process. The board keeps its result
        until `keep` has returned: if `keep` fails, or this process is killed, the next call collects the result again.
        A result for which `read` raises AgentError is deleted. `name` is shown with the job's progress.

        Raises:
            AgentError: the job failed or died, or its result is wrong; the next call starts it anew.
            ConnectionLostError: the connection broke and did not come back; the next call collects.
            Interrupted: Ctrl-C; the job goes on, but on this machine it is cancelled.
        """
        identity = json.dumps([method, args, pack_agent()[0]], sort_keys=True)
        job = hashlib.sha256(identity.encode()).hexdigest()[:16]
        with _Show(name, self.host, progress, self._announced) as show:
            try:
                outcome = self._persist(lambda: self._start_and_follow(job, method, args, show), method)
            except KeyboardInterrupt as stop:
                if not show.started:
                    raise
                raise self._interrupted(job, method, show.owner) from stop
        try:
            result = read(self._result(method, outcome))
        except AgentError:
            self._forget(job)
            raise
        returned = keep(result)
        self._forget(job)
        return returned

    @contextmanager
    def pipe(self, args: Mapping[str, Any], progress: Progress) -> Iterator[Exchange]:
        """Give a function that runs an engine, which stays open there from its first call to the end of the block.

        It is `Agent.exchange`, with the board locked like a job. After a lost connection the engine is opened again.
        `args` are those of the agent's `pipe`.
        """
        agent = Agent(
            python=self._agent.python, shell=self._shell, host=self.host, explain=self._explain,
            silence_seconds=self._agent.silence_seconds,
        )  # fmt: skip
        with ExitStack() as running:

            def exchange(request: Mapping[str, object], content: memoryview, answers: memoryview) -> None:
                try:
                    with self._alone("classify", progress):
                        if not agent.idle:  # it was not started yet, or it failed
                            running.pop_all().__exit__(ConnectionLostError, None, None)
                            running.enter_context(agent)
                            agent.call("pipe", **args)
                        agent.exchange(request, content, answers)
                except BoardError:
                    agent.idle = False  # also where the other agent found their connection lost
                    raise

            yield lambda *asked: self._persist(lambda: exchange(*asked))

    def _result(self, method: str, outcome: Any) -> Any:
        """Return the result of a job that has ended, as the record of `method`.

        Raises: AgentError (it failed, or the result is not one of `method`).
        """
        ended = read_outcome(self.host, outcome)
        if ended.error:
            raise AgentError(ended.error.message, remote_traceback=ended.error.traceback)
        return read_result(self.host, method, ended.result)

    def _forget(self, job: str) -> None:
        with suppress(BoardError):  # what matters has been collected
            self.call("forget", job=job)

    def _start_and_follow(self, job: str, method: str, args: Mapping[str, object], show: _Show) -> Any:
        agent = self._connected()
        if not show.started:
            show.start(method, agent.call("start", job=job, method=method, args=args, owner=_owner()))

        began = time.monotonic()

        def on_progress(progress: ProgressMessage) -> None:
            if time.monotonic() - began > _STEADY_S:
                self._lost_at = None
            show(progress)

        try:
            return agent.call("follow", on_progress, job=job, attached=self.host == THIS_MACHINE)
        except AgentError as error:
            if agent.idle:  # it lives, so this is its answer
                raise
            raise ConnectionLostError(str(error)) from error  # the agent died, which is not the job

    def cancel(self, *, everybodys: bool = False) -> CancelledJobs:
        """Cancel the jobs that this user started from here, or all; return the cancelled and the remaining ones.

        Raises: AgentError, ConnectionLostError.
        """
        ended: CancelledJobs = self.call("cancel", owner=None if everybodys else _owner())
        return ended

    def _interrupted(self, job: str, method: str, owner: object) -> Interrupted:
        if self.host != THIS_MACHINE:
            ends = f"`edgevit board {shlex.quote(self.host)} --cancel` ends it"
            if owner != _owner():  # an earlier command asked for the same
                ends = f"it is for {owner} to end, who started it"
            return Interrupted(f"{method} goes on on {self.host}: the same command collects its result, and {ends}")
        self.call("cancel", job=job)
        return Interrupted(f"{method} was cancelled")

    def _connected(self) -> Agent:
        """Return the agent; start it again if it died or was interrupted within an answer."""
        if not self._agent.idle:
            self._running.pop_all().__exit__(ConnectionLostError, None, None)  # not asked to end: it may hang
            self._running.enter_context(self._agent)
        return self._agent

    def _persist(self, act: Callable[[], T], job: str | None = None) -> T:
        """Run `action`; repeat it each time that a lost connection is back."""
        self._lost_at, pause = None, _PAUSES_S[0]
        while True:
            try:
                return act()
            except ConnectionLostError as error:
                lost: BoardError = error
            except UnreachableError as error:
                if self._lost_at is None:  # the connection was not lost: there has been none
                    raise
                lost = error
            now = time.monotonic()
            if self._lost_at is None:
                self._lost_at, pause = now, _PAUSES_S[0]
            if now + pause > self._lost_at + self._retry_seconds:
                hint = f"{job} goes on there, and the same command collects its result" if job else "try again"
                raise ConnectionLostError(f"the connection to {self.host} is lost ({lost}); {hint}") from lost
            time.sleep(pause)
            pause = min(_PAUSES_S[1], 2 * pause)

    def _put(self, path: Path, sha256: str, progress: Progress) -> str:
        agent = self._connected()
        size = path.stat().st_size
        target = f"{agent.hello['cache']}/files/{sha256}{path.suffix}"
        part = f"{target}.{hashlib.sha256(_owner().encode()).hexdigest()[:8]}.part"  # another host sends its own
        offered = agent.call("offer", path=target, part=part, sha256=sha256)
        if offered["present"]:
            return target
        free = offered["free_bytes"]
        full = f"{self.host} has {free / _MIB:.1f} MiB free in {os.path.dirname(target)}, and {path.name} needs "
        full += f"{size / _MIB:.1f} MiB; make room there"
        if free < size:
            raise UnfitBoardError(full)
        with (
            self._alone("send", progress),
            progress.stage(f"send {path.name}", total=math.ceil(size / _MIB), unit="MiB") as stage,
            path.open("rb") as file,
            self._command(f"cat >{shlex.quote(part)}", full, stdin=subprocess.PIPE) as process,
            suppress(BrokenPipeError),  # the exit code says why
        ):
            assert process.stdin
            while chunk := file.read(_CHUNK):
                while chunk:
                    chunk = chunk[process.stdin.write(chunk) :]
                stage.update(file.tell() // _MIB)
            process.stdin.close()
        agent.call("keep", path=target, part=part, sha256=sha256)
        return target

    def _fetch(self, remote: str, path: Path, sha256: str, progress: Progress) -> None:
        size: int | None = self._connected().call("size", path=remote)["bytes"]
        if size is None:
            raise AgentError(f"{remote} is not on {self.host}")
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        digest, done = hashlib.sha256(), 0
        try:
            with (
                self._alone("fetch", progress),
                part.open("wb") as file,
                progress.stage(f"fetch {path.name}", total=math.ceil(size / _MIB), unit="MiB") as stage,
                self._command(f'echo; echo "{MARK}"; cat <{shlex.quote(remote)}', stdout=subprocess.PIPE) as process,
            ):
                assert process.stdout
                while (line := process.stdout.readline()) and not line.startswith(MARK.encode()):
                    pass  # a login shell may print, too
                while chunk := process.stdout.read(_CHUNK):
                    if done + len(chunk) > size:  # a board without end would fill this disk
                        raise AgentError(f"{remote} on {self.host} is longer than the {size} bytes that it announced")
                    file.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    stage.update(done // _MIB)
            if digest.hexdigest() != sha256:
                raise AgentError(
                    f"{remote} on {self.host} is not what it was: its sha256 is {digest.hexdigest()[:12]}..."
                )
            part.replace(path)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}") from error
        finally:
            part.unlink(missing_ok=True)

    @contextmanager
    def _command(
        self, script: str, full: str = "", *, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.DEVNULL
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run one shell command line there. `full` is the message for a disk that has no space left."""
        with (
            tempfile.TemporaryFile() as stderr,
            subprocess.Popen(
                [*self._shell, in_sh(script)],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                bufsize=0,  # what could not be written is not tried again on closing
                start_new_session=True,
            ) as process,
        ):
            try:
                yield process
            except BaseException:
                process.kill()
                raise
            code = process.wait()
            stderr.seek(0)
            text = stderr_of(stderr.read())
        if not code:
            return
        if reason := self._explain(text, code):
            raise ConnectionLostError(str(reason))
        if is_full(text):
            raise UnfitBoardError(full)
        raise AgentError(f"`{script}` failed on {self.host}: {' | '.join(text.splitlines()) or f'exit code {code}'}")


class _Show:
    """Shows the progress of a job: a bar for each of its stages, and a line for whatever it waits for."""

    def __init__(self, name: str, host: str, progress: Progress, messages: set[str]) -> None:
        self.started = False  # it is known that the job exists
        self.owner: object = None  # who started it
        self._name, self._host, self._progress = name, host, progress
        self._once = WithoutRepeats(progress, messages)
        self._open = ExitStack()  # holds the stage
        self._stage: Stage | None = None
        self._stage_name: object = None

    def __enter__(self) -> _Show:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def start(self, method: str, answer: dict[str, object]) -> None:
        """Report the state of a job from the answer of `jobs.start`."""
        self.started = True
        self.owner = answer["owner"]
        match answer:
            case {"state": "running" | "finished" as state}:
                ended = "is running already" if state == "running" else "has finished, and nobody has seen its result"
                self._progress.note(f"the same {method} on {self._host} {ended}: collecting that one")
            case {"state": "failed" | "dead" | "damaged" as state, "message": message}:
                ended = {"failed": "failed", "dead": "died", "damaged": "cannot be read"}[state]
                self._progress.note(f"an earlier {method} on {self._host} {ended}: {message}; trying again")

    def __call__(self, progress: ProgressMessage) -> None:
        match progress:
            case {"stage": "wait"}:
                self.waits(progress)
            case {"stage": str(stage)}:
                self._update(stage, progress)

    def waits(self, progress: ProgressMessage) -> None:
        """Report progress only while waiting."""
        match progress:
            case {"stage": "wait", "holder": holder}:
                self._once.note(f"waiting for {self._host}: {_describe(holder)}")
            case {"stage": "wait", "stale": holder}:
                self._once.note(f"{self._host} was left locked by one that died: {_describe(holder)}; taken over")

    def _update(self, name: str, progress: ProgressMessage) -> None:
        if self._stage is None or name != self._stage_name:
            self._open.close()
            self._stage = self._open.enter_context(self._progress.stage(f"{self._name}: {name}", total=100, unit="%"))
            self._stage_name = name
        numbers: dict[str, float] = {
            key: value
            for key, value in progress.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST_FIGURE
        }
        done = numbers.pop("done", 0.0)
        self._stage.update(int(100 * min(1.0, max(0.0, done))), **numbers)


def _describe(holder: Any) -> str:
    match holder:
        case {"method": method, "owner": owner, "age_s": int() | float() as age_s}:
            age = f"{age_s / 60:.0f} min" if age_s >= 60 else f"{age_s:.0f} s"
            return f"{method} by {owner} since {age}"
    return "another job"


def _owner() -> str:
    return f"{user()}@{platform.node()}"
