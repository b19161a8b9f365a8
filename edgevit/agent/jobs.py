"""Work that goes on when the connection breaks, or the host is switched off.

A job is a process of its own session with a folder in the cache:

    request.json    what was asked, by whom and when
    pid             its process; locked for as long as that lives, so a number that was given out again fools nobody
    progress        one JSON object per line
    stderr          what it and its libraries printed
    result.json     `{"result": ...}` or `{"error": ...}`; whole, or not there

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
from typing import IO, Any, Callable, Iterator

from .files import cache_folder
from .lock import hold, lock_path
from .runners import RunnerError

Send = Callable[[Any], None]

POLL_S = (0.02, 0.5)  # at first and at last: a board that measures is not to be disturbed
REPEAT_S = 5.0  # the last progress is told again after this time, as a sign of life
TAIL_LINES = 5  # of a job's stderr, shown when it died
GENTLY_S = 20.0  # that a cancelled job has to put the board back as it was
HARD_S = 5.0
GONE = "the job is gone: it was cancelled, or its result was collected by another command"


def start(send: Send, root: str, job: str, method: str, args: dict[str, Any], owner: str) -> dict[str, Any]:
    """Start a job, unless it is running or has a result.

    Returns its `state` as it was found: "new", "running", "finished", "failed" or "dead"; but for those that run or
    have finished it has been started. `said` is why it failed, or a dead one's last words: what was wrong then may have
    been put right since. Progress of an earlier attempt is not shown again.
    """
    with _registry():
        state, outcome = _state(job), _read_json(_path(job, "result.json"))
        said = outcome["error"]["message"] if outcome and state == "failed" else _tail(job)
        if state in ("new", "failed", "dead"):
            _remove(job)
            os.makedirs(_folder(job))
            request = {"method": method, "args": args, "owner": owner, "root": root, "started": _now()}
            _write_whole(_path(job, "request.json"), request)
            _spawn(job)
    return {"state": state, "said": said}


def follow(send: Send, root: str, job: str) -> dict[str, Any]:
    """Tell a job's progress from its beginning until its outcome is there; return that.

    It is `result` or `error` (what an agent would have answered), `started` and `collected_late`: it was finished
    before anybody followed.
    """
    late = os.path.exists(_path(job, "result.json"))
    try:
        with open(_path(job, "progress"), "rb") as progress:
            return {**_stream(send, job, progress), "collected_late": late}
    except FileNotFoundError:
        raise RunnerError(GONE) from None


def _stream(send: Send, job: str, progress: IO[bytes]) -> dict[str, Any]:
    pause, spoken, last = POLL_S[0], time.monotonic(), {"stage": "start", "done": 0.0}
    while True:
        outcome = _outcome(job)
        for last in _new_lines(progress):
            send({"progress": last})
            spoken = time.monotonic()
        if outcome:
            return outcome
        if time.monotonic() - spoken > REPEAT_S:
            send({"progress": last})
            spoken = time.monotonic()
        time.sleep(pause)
        pause = min(POLL_S[1], pause * 1.5)


def forget(send: Send, root: str, job: str) -> dict[str, Any]:
    """Remove what is kept of a job that has ended."""
    with _registry():
        if _state(job) == "running":
            raise RunnerError(f"the job {job} is still running")
        _remove(job)
    return {}


def jobs(send: Send, root: str) -> dict[str, Any]:
    """List the jobs that are running, and those whose result nobody has collected yet."""
    listed = []
    for job in _names():
        request = _read_json(_path(job, "request.json")) or {}
        what = {key: request.get(key) for key in ("method", "owner", "started")}
        listed.append({"job": job, "state": _state(job), **what})
    return {"jobs": listed}


def cancel(send: Send, root: str, job: str | None = None) -> dict[str, Any]:
    """End a job, or all of this user's: first so that it can put the board back as it was, then hard."""
    with _registry():
        running = [name for name in ([job] if job else _names()) if _state(name) == "running"]
        pids = {name: int(_read(_path(name, "pid"))) for name in running}
    for name, pid in pids.items():
        # Its children are in its process group, and go with it.
        for how, patience_s in ((signal.SIGTERM, GENTLY_S), (signal.SIGKILL, HARD_S)):
            with suppress(ProcessLookupError):
                os.killpg(pid, how)
            deadline = time.monotonic() + patience_s
            while _is_running(name) and time.monotonic() < deadline:
                time.sleep(POLL_S[0])
        forget(send, root, name)
    return {"cancelled": list(pids)}


def work(job: str) -> None:
    """Do what the job's request says. This is the job's own process."""
    from .__main__ import answer, find_method

    signal.signal(signal.SIGTERM, _end)
    request = _read_json(_path(job, "request.json")) or {}
    root = request["root"]
    with open(_path(job, "progress"), "a", encoding="utf-8") as progress:

        def send(message: dict[str, Any]) -> None:
            if "progress" in message:
                progress.write(json.dumps(message["progress"]) + "\n")
                progress.flush()
            else:
                _write_whole(_path(job, "result.json"), message)

        def act() -> Any:
            method = find_method(request["method"])
            with hold(
                lock_path(root), request["owner"], request["method"], lambda waiting: send({"progress": waiting})
            ):
                return method(send, root, **request["args"])

        answer(act, send)


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


def _outcome(job: str) -> dict[str, Any] | None:
    """Return what came of a job; None while it works."""
    alive = _is_running(job)
    outcome = _read_json(_path(job, "result.json"))
    if outcome is None:
        if alive:
            return None
        outcome = {"error": {"message": f"the job died: {_tail(job)}", "traceback": _read_stderr(job)}}
        if not os.path.isdir(_folder(job)):
            raise RunnerError(GONE)
    return {**outcome, "started": (_read_json(_path(job, "request.json")) or {}).get("started")}


def _remove(job: str) -> None:
    """Remove a job's folder, at once for whoever is reading in it."""
    gone = _folder(f".gone-{os.getpid()}")
    with suppress(FileNotFoundError):
        os.rename(_folder(job), gone)
        shutil.rmtree(gone)


def _state(job: str) -> str:
    if not os.path.isdir(_folder(job)):
        return "new"
    alive = _is_running(job)  # asked first: a job writes its result and then ends
    outcome = _read_json(_path(job, "result.json"))
    if outcome is not None:
        return "failed" if "error" in outcome else "finished"
    return "running" if alive else "dead"


def _is_running(job: str) -> bool:
    try:
        with open(_path(job, "pid")) as pid:
            fcntl.flock(pid, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _new_lines(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    for line in iter(file.readline, b""):
        if not line.endswith(b"\n"):  # still being written
            file.seek(-len(line), os.SEEK_CUR)
            return
        yield json.loads(line)


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
    return sorted(name for name in os.listdir(folder) if name[0] != ".") if os.path.isdir(folder) else []


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(_read(path))
    except FileNotFoundError:
        return None
    return content


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
    return " | ".join(_read_stderr(job).splitlines()[-TAIL_LINES:]) or "it said nothing (out of memory, or a restart?)"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
