"""What the agent can be asked, and how it answers: by line on a pipe (`__main__`), or as a job of its own (`jobs`)."""

from __future__ import annotations

import errno
import traceback
from importlib import import_module
from typing import Any, Callable

from .files import cache_folder
from .messages import Send
from .runners import RunnerError

_FULL = (errno.ENOSPC, errno.EDQUOT)

_Method = Callable[..., Any]

# Where each method is; imported when it is called, so that the agent starts fast. `root` is where a method reads the
# machine: "/", or a captured tree.
MODULES = {
    "hello": "__main__",
    "measure": "__main__",
    "alternate": "__main__",
    "profile": "__main__",
    "examine": "examine",
    "size": "files",
    "offer": "files",
    "keep": "files",
    "discard": "files",
    "take": "lock",
    "release": "lock",
    "start": "jobs",
    "follow": "jobs",
    "forget": "jobs",
    "jobs": "jobs",
    "cancel": "jobs",
    "bench": "bench",
    "build": "engine",
    "classify": "classify",
    "pipe": "classify",
    "trtexec": "trtexec",
}


def method_named(name: str) -> _Method:
    method: _Method = getattr(import_module("." + MODULES[name], __package__), name)
    return method


def reply(act: Callable[[], Any], send: Send) -> None:
    """Send what `act` returns, or why it failed."""
    try:
        send({"result": act()})
    except BrokenPipeError:
        raise  # the host is gone: nobody is left to tell
    except Exception as error:  # the one broad except: every failure must reach the host
        send({"error": {"message": _message(error), "traceback": traceback.format_exc()}})


def _message(error: Exception) -> str:
    if isinstance(error, RunnerError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _FULL:  # most often as a job begins, or writes its result
        path = error.filename or cache_folder()
        return f"the disk is full (cannot write {path}: {error.strerror}); make room there, see `df -h`"
    return f"{type(error).__name__}: {error}"
