"""Python programs in processes of their own that need not import torch: they are forks of a server that has.

The server has computed nothing and runs no threads, so that its forks may use threads, a GPU and processes of their own
as programs may that were started from a shell.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
import tempfile
import weakref
from collections.abc import Mapping
from functools import cache
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any


class Program:
    """`python ARGUMENTS`: -m MODULE, -c CODE or a file, and what it is given."""

    def __init__(
        self,
        *arguments: object,
        cwd: Path | None = None,
        variables: Mapping[str, str] | None = None,
        new_session: bool = False,
    ) -> None:
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder)
        self._streams = [Path(folder) / name for name in ("stdout", "stderr")]
        told = [str(one) for one in arguments], cwd or Path.cwd(), {**os.environ, **(variables or {})}
        self._process = server().Process(target=_run, args=(*told, self._streams, new_session))
        self._process.start()
        self.pid: int = self._process.pid

    @property
    def stdout(self) -> str:
        return self._streams[0].read_text()

    @property
    def stderr(self) -> str:
        return self._streams[1].read_text()

    def poll(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        self._process.join(120)
        code = self.poll()
        if code is None:
            self._process.kill()
            raise TimeoutError(self.stderr)
        return code


def in_two_processes(*arguments: object) -> list[str]:
    """Run Python twice as `accelerate launch` does; what each has said on stdout. They talk through gloo."""
    from board_fixtures import free_port

    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    programs = [Program(*arguments, variables={**group, "RANK": rank, "LOCAL_RANK": rank}) for rank in "01"]
    for program in programs:
        assert program.wait() == 0, program.stderr
    return [program.stdout for program in programs]


@cache
def server() -> Any:
    """What starts the forks, as multiprocessing's contexts do."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["imported_by_forks"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def _run(arguments: list[str], cwd: Path, variables: Mapping[str, str], streams: list[Path], new_session: bool) -> None:
    if new_session:
        os.setsid()
    for at, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_APPEND), at)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    how, *rest = arguments
    if how == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        runpy.run_path(how, run_name="__main__")
