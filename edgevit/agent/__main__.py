"""Serve requests: one JSON object per line on stdin; on stdout, lines of progress and then one result or error each.

{"method": "measure", "args": {...}}
{"progress": {"stage": "warm up", "done": 0.4}}
{"result": {...}}   or   {"error": {"message": "...", "traceback": "..."}}

After `pipe` (classify.py) each request and each result is a line that is followed by bytes.

    python3 AGENT greet      says hello first, on a line that begins with `MARK`: a login shell may have printed others
    python3 AGENT            waits to be asked
    python3 AGENT job JOB    does the work of one job, and serves nobody
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import sys
from typing import Any, Callable, Iterable, TextIO

from .messages import Send
from .methods import method_named, reply

MARK = "edgevit-agent: "  # begins what is said before the first answer


def hello(send: Send, root: str) -> dict[str, object]:
    from .files import cache_folder
    from .records import SCHEMA
    from .runners import runner_names

    return {
        "python": platform.python_version(),
        "schema": SCHEMA,
        "runners": runner_names(),
        "user": user(),
        "hostname": platform.node(),
        "cache": cache_folder(),
    }


def measure(send: Send, root: str, **args: Any) -> dict[str, object]:
    from .measure import MeasurementRequest
    from .measure import measure as measure_once

    return measure_once(MeasurementRequest(**args), _reporter(send), root).to_dict()


def alternate(send: Send, root: str, requests: list[dict[str, Any]]) -> dict[str, object]:
    from .alternate import alternate as alternate_once
    from .measure import MeasurementRequest
    from .runners import AloneError

    try:
        runs = alternate_once([MeasurementRequest(**request) for request in requests], _reporter(send), root)
    except AloneError as error:
        return {"runs": [], "alone": str(error)}
    return {"runs": [run.to_dict() for run in runs], "alone": None}


def profile(send: Send, root: str, **args: Any) -> dict[str, object]:
    from .measure import MeasurementRequest
    from .profile import profile as profile_once

    return profile_once(MeasurementRequest(**args), _reporter(send), root)


def _reporter(send: Send) -> Callable[..., None]:
    def report(stage: str, done: float, **figures: float | None) -> None:
        send({"progress": {"stage": stage, "done": done, **figures}})

    return report


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as containers have
        return str(os.getuid())


def claim_stdout() -> TextIO:
    """Take stdout for replies; what a library prints, from Python or from C, goes to stderr from now on."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def serve(root: str, *, greet: bool) -> None:
    replies = claim_stdout()

    def send(message: object, content: Iterable[memoryview] = ()) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()
        for part in content:
            replies.buffer.write(part)
        replies.buffer.flush()

    def handle(line: str) -> Any:
        request = json.loads(line)
        return method_named(request["method"])(send, root, **request["args"])

    try:
        if greet:
            replies.write(MARK)
            send(hello(send, root))
        for line in sys.stdin:
            reply(lambda line=line: handle(line), send)  # type: ignore[misc]
    except BrokenPipeError:
        os._exit(1)  # an ordinary exit would try to flush the pipe once more, and complain


def main() -> None:
    if sys.argv[1:2] == ["job"]:
        from .jobs import work

        work(sys.argv[2])
    else:
        serve(os.environ.get("EDGEVIT_BOARD_ROOT") or "/", greet=sys.argv[1:] == ["greet"])


if __name__ == "__main__":
    main()
