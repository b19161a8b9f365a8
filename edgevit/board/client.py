"""Talk to an agent: one program and one protocol, wherever it runs.

How to reach a machine is an argv prefix that runs one shell command line there; `LOCAL` is this machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import edgevit.agent
from edgevit.errors import AgentError, UnreachableError

AGENT_DIR = Path(edgevit.agent.__path__[0])
LOCAL = ("sh", "-c")
CACHE = '"${XDG_CACHE_HOME:-$HOME/.cache}"/edgevit'
STOP_S = 5.0  # between asking an agent to end and killing it
TAIL_LINES = 5  # of the agent's stderr, shown when it dies

# Old enough for any Python to run it and say what is wrong.
BOOTSTRAP = """\
import sys
if sys.version_info < (3, 8):
    sys.exit("the agent needs Python 3.8 or newer, and this is " + sys.version.split()[0])
from agent.__main__ import main
main()
"""

logger = logging.getLogger(__name__)


def pack_agent() -> tuple[str, bytes]:
    """Zip `edgevit/agent` into one runnable file, the same bytes for the same sources, named by their hash."""
    sources = {f"agent/{path.relative_to(AGENT_DIR)}": path.read_bytes() for path in sorted(AGENT_DIR.rglob("*.py"))}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, source in {"__main__.py": BOOTSTRAP.encode(), **sources}.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), source)
    content = buffer.getvalue()
    return f"agent-{hashlib.sha256(content).hexdigest()[:16]}.pyz", content


class Agent:
    """An agent, running while the `with` block does.

    Raises:
        UnreachableError: on entry; the agent could not be copied there or did not start.
    """

    def __init__(
        self, *, python: str = sys.executable, shell: Sequence[str] = LOCAL, host: str = "this machine"
    ) -> None:
        self.python = python
        self.shell = tuple(shell)
        self.host = host  # what messages call the machine

    def __enter__(self) -> Agent:
        name = self._store()
        self._stderr = tempfile.TemporaryFile()  # a file never fills up, as a pipe that nobody reads would
        # A session of its own: Ctrl-C in a terminal goes to us alone, and we end the agent.
        self._process = subprocess.Popen(
            [*self.shell, f"exec {shlex.quote(self.python)} {CACHE}/{name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        with ExitStack() as undo:
            undo.callback(self._stop)  # also on Ctrl-C: no agent outlives a start that failed
            try:
                self.hello: dict[str, Any] = self.call("hello")
            except AgentError as error:
                raise UnreachableError(f"cannot start the agent on {self.host} with {self.python}: {error}") from error
            undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop(gently=kind is None)

    def call(self, method: str, on_progress: Callable[[dict[str, Any]], None] | None = None, **args: Any) -> Any:
        """Run one method of the agent and return its result.

        Raises:
            AgentError: the method failed, or the agent died.
        """
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps({"method": method, "args": args}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death(method) from None
        for line in self._process.stdout:
            reply = self._parse(line)
            if "result" in reply:
                return reply["result"]
            if "error" in reply:
                raise AgentError(reply["error"]["message"], remote_traceback=reply["error"]["traceback"])
            if on_progress:
                on_progress(reply["progress"])
        raise self._death(method)

    def _store(self) -> str:
        """Put the agent in the cache there, unless it is there whole, and return its file name."""
        name, content = pack_agent()
        # Written under another name, then renamed: a dropped connection must not leave half an agent behind.
        script = f"""
            mkdir -p {CACHE} && cd {CACHE} || exit 1
            [ "$(wc -c <{name})" -eq {len(content)} ] 2>/dev/null && exit
            cat >{name}.$$ && mv {name}.$$ {name} || {{ rm -f {name}.$$; exit 1; }}
        """
        try:
            stored = subprocess.run([*self.shell, script], input=content, capture_output=True, check=False)
        except OSError as error:
            raise UnreachableError(f"cannot reach {self.host}: {error}") from error
        if stored.returncode:
            reason = stored.stderr.decode(errors="replace").strip() or f"exit code {stored.returncode}"
            raise UnreachableError(f"cannot copy the agent to {self.host}: {reason}")
        return name

    def _parse(self, line: str) -> dict[str, Any]:
        try:
            reply = json.loads(line)
        except json.JSONDecodeError:
            reply = None
        if not isinstance(reply, dict) or not reply.keys() & {"progress", "result", "error"}:
            raise AgentError(f"the agent on {self.host} answered {line.strip()[:80]!r}, which is not its protocol")
        return reply

    def _death(self, method: str) -> AgentError:
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return AgentError(f"the agent on {self.host} closed its output during {method!r}")
        text = self._read_stderr()
        tail = " | ".join(text.splitlines()[-TAIL_LINES:])
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return AgentError(
            f"the agent died during {method!r} ({how}): {tail or 'it said nothing'}", remote_traceback=text
        )

    def _read_stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace").strip()

    def _stop(self, *, gently: bool = False) -> None:
        """End the agent: at the end of its input, or at once. It never outlives us."""
        assert self._process.stdin and self._process.stdout
        if not gently:
            self._process.terminate()
        with suppress(BrokenPipeError):  # it was gone already
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        if said := self._read_stderr():
            logger.info("the agent on %s said: %s", self.host, said)
        self._stderr.close()
