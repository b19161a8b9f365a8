"""Work that goes on when the connection breaks, or the host is switched off.

A job is a process of its own session with a folder in the cache:

    request.json    what was asked, by whom and when
    pid             its process; locked while that lives, so that a later process of this number is not mistaken for it
    progress        one JSON object per line
    stderr          what it and its libraries printed
    result.json     `{"result": ...}` or `{"error": ...}`; whole, or not there

A power cut or a full disk may leave a folder that cannot be read: such a job is "damaged", and goes when it is
cancelled or started anew; no other is held up by it.

It holds the board's lock while it works. Who asked follows it, and has it forgotten when the result has arrived.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import IO, Any, Iterator

from .files import cache_folder, open_regular
from .lock import acquire_lock, lock_path
from .messages import CancelledJobs, Failed, JobEntries, JobEntry, JobReply, JobRequest, ProgressMessage, Reply, Send
from .methods import method_named, reply
from .runners import RunnerError

_POLL_S = (0.02, 0.5)  # first and longest pause between two looks: a board that measures should not be disturbed
_REPEAT_S = 5.0  # the last progress is sent again after this time, as a sign of life
_TAIL_LINES = 5  # number of lines of a job's stderr that are shown when it has died
_GENTLY_S = 20.0  # time that a cancelled job has to put the board back as it was
_HARD_S = 5.0
_NO_JOB = "the job is gone: it was cancelled, or its result was collected by another command"


class DamagedError(RunnerError):
    """A file of a job that cannot be read as what it is; the message names it and says what to do."""


def start(send: Send, root: str, job: str, method: str, args: dict[str, Any], owner: str) -> dict[str, object]:
    """Start a job, unless it is running or has a result.

    Returns its `state` as it was found: "new", "running", "finished", "failed", "dead" or "damaged"; but for those that
    run or have finished it has been started. `said` is why it failed, or a dead one's last words: what was wrong then
    may have been put right since; `owner` is who started it. Progress of an earlier attempt is not shown again.
    """
    with _registry():
        state, message = _look(job)
        if state in ("new", "failed", "dead", "damaged"):
            _remove(job)
            started = datetime.now(timezone.utc).isoformat(timespec="seconds")
            request = JobRequest(method=method, args=args, owner=owner, root=root, started=started)
            try:
                os.makedirs(_folder(job))
                _write_whole(_path(job, "request.json"), request)
                _spawn(job)
            except OSError:  # a full disk: what is left of it would look like a job that died
                _remove(job)
                raise
        return {"state": state, "message": message, "owner": _owner(job)}


def follow(send: Send, root: str, job: str, attached: bool = False) -> JobReply:
    """Tell a job's progress from its beginning until its outcome is there; return that.

    With `attached` the job is cancelled when its last follower's host is gone.

    It is `result` or `error` (what an agent would have answered), `started` and `collected_late`: it was finished
    before anybody followed.
    """
    late = os.path.exists(_path(job, "result.json"))
    try:
        with open_regular(_path(job, "progress")) as progress:
            fcntl.flock(progress, fcntl.LOCK_SH)  # keeps the job until every follower has its outcome
            return {**_stream(send, job, progress), "collected_late": late}
    except FileNotFoundError:
        raise RunnerError(_NO_JOB) from None
    except BrokenPipeError:  # the host was killed
        if attached and not _is_followed(job):
            cancel(send, root, job=job)
        raise


def _stream(send: Send, job: str, progress: IO[bytes]) -> JobReply:
    last: ProgressMessage
    pause, spoken, last = _POLL_S[0], time.monotonic(), {"stage": "start", "done": 0.0}
    while True:
        outcome = _outcome(job)
        for last in _new_lines(progress):
            send({"progress": last})
            spoken = time.monotonic()
        if outcome:
            return outcome
        if time.monotonic() - spoken > _REPEAT_S:
            send({"progress": last})
            spoken = time.monotonic()
        time.sleep(pause)
        pause = min(_POLL_S[1], pause * 1.5)


def forget(send: Send, root: str, job: str) -> dict[str, object]:
    """Remove what is kept of a job that has ended; where another host follows it still, that one does so."""
    with _registry():
        _check_ended(job)
        if not _is_followed(job):
            _remove(job)
    return {}


def _check_ended(job: str) -> None:
    if _state(job) == "running":
        raise RunnerError(f"the job {job} is still running")


def _is_followed(job: str) -> bool:
    return _has_to_wait(job, "progress", fcntl.LOCK_EX)


def jobs(send: Send, root: str) -> JobEntries:
    """List the jobs that are running, and those whose result nobody has collected yet.

    They have an age, because the clocks of boards are often wrong; None where that was set back since.
    """
    listed: list[JobEntry] = []
    for job in _names():
        state, message = _look(job)
        entry: JobEntry = {"job": job, "state": state, "method": None, "owner": None, "started": None, "age_s": None}
        request = _request(job)
        if request:
            entry["method"], entry["owner"] = request["method"], request["owner"]
            entry["started"], entry["age_s"] = request["started"], _age_s(request["started"])
        if state == "damaged":
            entry["message"] = message
        listed.append(entry)
    return {"jobs": listed}


def cancel(send: Send, root: str, job: str | None = None, owner: str | None = None) -> CancelledJobs:
    """End a job, all of an owner's, or all: first so that it can put the board back as it was, then hard.

    One account of a board may be that of many, so whose a job is only its request says. Damaged ones that do not run
    are removed. Returns those that were `cancelled`, and what is known of the running ones of others that were `left`.
    """
    pids: dict[str, int] = {}
    lost: list[str] = []
    with _registry():
        names = [job] if job else _names()
        others = [name for name in names if owner and _owner(name) != owner and _state(name) == "running"]
        states = {name: _state(name) for name in names if name not in others}
        for name in (name for name, state in states.items() if state == "running"):
            try:
                pids[name] = _read_pid(name)
            except DamagedError as error:
                lost.append(str(error))
        damaged = [name for name, state in states.items() if state == "damaged"]
        for name in damaged:
            _remove(name)
    for name, pid in pids.items():
        # Its children are in its process group, and go with it.
        for signum, patience_s in ((signal.SIGTERM, _GENTLY_S), (signal.SIGKILL, _HARD_S)):
            with suppress(ProcessLookupError):
                os.killpg(pid, signum)
            deadline = time.monotonic() + patience_s
            while _is_running(name) and time.monotonic() < deadline:
                time.sleep(_POLL_S[0])
        with _registry():
            _check_ended(name)
            _remove(name)
    if lost:
        raise RunnerError("; ".join(lost))
    return {
        "cancelled": [*pids, *damaged],
        "others": [job for job in jobs(send, root)["jobs"] if job["job"] in others],
    }


def work(job: str) -> None:
    """Do what the job's request says. This is the job's own process."""
    signal.signal(signal.SIGTERM, _end)
    request = _read_request(job)
    if request is None:
        raise RunnerError(_NO_JOB)
    root = request["root"]
    with open(_path(job, "progress"), "a", encoding="utf-8") as progress:

        def send(message: Reply) -> None:
            if "progress" in message:
                progress.write(json.dumps(message["progress"]) + "\n")
                progress.flush()
            else:
                _write_whole(_path(job, "result.json"), message)

        def act() -> Any:
            method = method_named(request["method"])
            with acquire_lock(
                lock_path(root), request["owner"], request["method"], lambda waiting: send({"progress": waiting})
            ):
                return method(send, root, **request["args"])

        reply(act, send)


def _end(number: int, frame: object) -> None:
    """Leave all `with` blocks, once: what they put back is not to be interrupted."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit("cancelled")


def _spawn(job: str) -> None:
    with open(_path(job, "pid"), "w") as pid, open(_path(job, "stderr"), "wb") as stderr:
        open(_path(job, "progress"), "w").close()
        # The lock belongs to the open file: the process inherits it, and has it from its first moment to its last.
        fcntl.flock(pid, fcntl.LOCK_EX)
        process = subprocess.Popen(
            [sys.executable, os.path.abspath(sys.argv[0]), "job", job],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            start_new_session=True,
            pass_fds=[pid.fileno()],
        )
        pid.write(str(process.pid))


def _outcome(job: str) -> JobReply | None:
    """Return what came of a job; None while it works."""
    alive = _is_running(job)
    outcome = _read_outcome(job)
    if outcome is None:
        if alive:
            return None
        outcome = {"error": Failed(message=f"the job died: {_tail(job)}", traceback=_read_stderr(job))}
        if not os.path.isdir(_folder(job)):
            raise RunnerError(_NO_JOB)
    request = _read_request(job)
    outcome["started"] = request["started"] if request else None
    return outcome


def _remove(job: str) -> None:
    """Remove a job's folder, at once for whoever is reading in it."""
    removed = _folder(f".gone-{os.getpid()}")
    with suppress(FileNotFoundError):
        os.rename(_folder(job), removed)
        shutil.rmtree(removed)


def _state(job: str) -> str:
    return _look(job)[0]


def _look(job: str) -> tuple[str, str]:
    """Return a job's state, and why it failed or is damaged, or its last words."""
    if not os.path.isdir(_folder(job)):
        return "new", ""
    alive = _is_running(job)  # asked first: a job writes its result and then ends
    try:
        outcome = _read_outcome(job)
        _read_request(job)
    except DamagedError as error:
        return ("running" if alive else "damaged"), str(error)
    if outcome is not None:
        return ("failed", outcome["error"]["message"]) if "error" in outcome else ("finished", "")
    return ("running" if alive else "dead"), _tail(job)


def _is_running(job: str) -> bool:
    return _has_to_wait(job, "pid", fcntl.LOCK_SH)


def _has_to_wait(job: str, name: str, kind: int) -> bool:
    """Whether another process has a lock on a file of the job that excludes one of this kind."""
    try:
        with open_regular(_path(job, name)) as file:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it is not there, or no file
        return False
    return False


def _new_lines(file: IO[bytes]) -> Iterator[ProgressMessage]:
    for line in iter(file.readline, b""):
        if not line.endswith(b"\n"):  # still being written
            file.seek(-len(line), os.SEEK_CUR)
            return
        try:
            progress = json.loads(line)
        except (ValueError, RecursionError):  # it is only for show
            continue
        if isinstance(progress, dict):
            yield progress


@contextmanager
def _registry() -> Iterator[None]:
    """Keep two agents from starting or removing one job at the same time."""
    os.makedirs(_folder(""), exist_ok=True)
    with open(_path("", ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _folder(job: str) -> str:
    return os.path.join(cache_folder(), "jobs", job)


def _path(job: str, name: str) -> str:
    return os.path.join(_folder(job), name)


def _names() -> list[str]:
    folder = _folder("")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(name for name in names if name[0] != "." and os.path.isdir(_folder(name)))


def _read(path: str) -> str:
    with open_regular(path) as file:
        return file.read().decode("utf-8", "replace")


def _read_json(path: str, **kinds: type) -> Any:
    """Read an object that has at least these keys, of these types; None: there is no such file.

    Raises: DamagedError.
    """
    try:
        content = json.loads(_read(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(content, dict):
        raise _damaged(path, "it holds no object")
    wrong = [name for name, kind in kinds.items() if not isinstance(content.get(name), kind)]
    if wrong:
        raise _damaged(path, f"it has no proper {wrong[0]!r}")
    return content


def _read_request(job: str) -> JobRequest | None:
    request: JobRequest | None = _read_json(
        _path(job, "request.json"), method=str, args=dict, owner=str, root=str, started=str
    )
    return request


def _request(job: str) -> JobRequest | None:
    """Who asked for what; None, too, where that cannot be read."""
    try:
        return _read_request(job)
    except DamagedError:
        return None


def _owner(job: str) -> str | None:
    request = _request(job)
    return request["owner"] if request else None


def _read_outcome(job: str) -> JobReply | None:
    path = _path(job, "result.json")
    outcome: JobReply | None = _read_json(path)
    if outcome is None or "result" in outcome:
        return outcome
    error = outcome.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        raise _damaged(path, "it holds neither a result nor an error")
    return outcome


def _read_pid(job: str) -> int:
    """The process of a running job: never another, whatever the file says.

    Raises: DamagedError.
    """
    path = _path(job, "pid")
    text = _read(path)
    if text.isdecimal() and int(text) > 1:
        try:
            words = _read(f"/proc/{int(text)}/cmdline")
        except OSError:
            words = ""
        if not words or job in words.split("\0"):  # none: it has ended meanwhile, or this system tells nothing
            return int(text)
    raise DamagedError(f"{path} does not hold the job's process; end it with `fuser -k {path}`, then try again")


def _damaged(path: str, reason: str) -> DamagedError:
    reason = " ".join(reason.split())[:120]
    return DamagedError(f"{path} is damaged ({reason}); `edgevit board --cancel` removes the job")


def _write_whole(path: str, content: object) -> None:
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".part", path)


def _read_stderr(job: str) -> str:
    try:
        return _read(_path(job, "stderr")).strip()
    except FileNotFoundError:
        return ""


def _tail(job: str) -> str:
    text = " | ".join(_read_stderr(job).splitlines()[-_TAIL_LINES:])
    return text or "it said nothing (out of memory, a full disk, or a restart?)"


def _age_s(started: str | None) -> float | None:
    try:
        seconds = (datetime.now(timezone.utc) - datetime.fromisoformat(started or "")).total_seconds()
    except (ValueError, TypeError):  # TypeError: of no time zone
        return None
    return seconds if seconds >= 0 else None
