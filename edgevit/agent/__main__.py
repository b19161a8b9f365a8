"""Serve requests: one JSON object per line on stdin; on stdout, lines of progress and then one result or error each.

{"method": "measure", "args": {...}}
{"progress": {"stage": "warm up", "done": 0.4}}
{"result": {...}}   or   {"error": {"message": "...", "traceback": "..."}}
"""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from typing import Any, Callable, TextIO

from .measure import Request, measure
from .records import SCHEMA
from .runners import RunnerError, runner_names

Send = Callable[[Any], None]


def hello(send: Send) -> dict[str, Any]:
    return {"python": platform.python_version(), "schema": SCHEMA, "runners": runner_names()}


def measure_request(send: Send, **args: Any) -> dict[str, Any]:
    run = measure(Request(**args), lambda stage, done: send({"progress": {"stage": stage, "done": done}}))
    return run.to_dict()


METHODS: dict[str, Callable[..., dict[str, Any]]] = {"hello": hello, "measure": measure_request}


def claim_stdout() -> TextIO:
    """Take stdout for replies; what a library prints, from Python or from C, goes to stderr from now on."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def answer(line: str, send: Send) -> None:
    try:
        request = json.loads(line)
        send({"result": METHODS[request["method"]](send, **request["args"])})
    except BrokenPipeError:
        raise  # the host is gone: nobody is left to tell
    except Exception as error:  # the one broad except: every failure must reach the host
        message = str(error) if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}"
        send({"error": {"message": message, "traceback": traceback.format_exc()}})


def main() -> None:
    replies = claim_stdout()

    def send(message: Any) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        for line in sys.stdin:
            answer(line, send)
    except BrokenPipeError:
        os._exit(1)  # an ordinary exit would try to flush the pipe once more, and complain


if __name__ == "__main__":
    main()
