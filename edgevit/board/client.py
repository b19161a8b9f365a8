"""The client of an agent, which runs on a board or on this machine.

A machine is reached by an argv prefix that runs one shell command line there; `LOCAL` is this machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import select
import shlex
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import edgevit.agent
from edgevit.agent.__main__ import MARK
from edgevit.agent.messages import ProgressMessage, Reply
from edgevit.board.answers import check_answer, wrong_answer
from edgevit.errors import AgentError, BoardError, ConnectionLostError, UnfitBoardError, UnreachableError
from edgevit.text import printable, printable_values

AGENT_DIR = Path(edgevit.agent.__path__[0])
LOCAL = ("sh", "-c")
_FOLDER = "edgevit-folder: "  # begins the line that says where the agent could not be stored
CACHE = '"${XDG_CACHE_HOME:-$HOME/.cache}"/edgevit'
_START_S = 60.0  # time for a connection, and for a slow disk to read Python from
_STOP_S = 5.0  # time between asking an agent to end and killing it
_TAIL_LINES = 5  # lines of the agent's stderr that are shown when it dies
_LONGEST_LINE = 1 << 28  # bytes; the layers of a large engine are some MB
_PART_BYTES = 1 << 18  # of what is sent; a slow connection need take no more in the time of a silence

# Old enough for any Python to run it and say what is wrong.
_BOOTSTRAP = """\
import sys
if sys.version_info < (3, 8):
    sys.exit("the agent needs Python 3.8 or newer, and this is " + sys.version.split()[0])
from agent.__main__ import main
main()
"""

# Prints the sha256 of a file: by the quick program where there is one, else by the Python that will run the agent.
_DIGEST = (
    '{{ sha256sum <"$1" || {python} -c "import hashlib, sys; '
    'print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())" <"$1"; }} 2>/dev/null'
)

# Stores the agent, unless the same content is there, and starts it. Python does not check what it imports from a zip,
# so the content is hashed in each session. The file is written under another name, then renamed: a dropped connection
# must not leave half an agent behind. All is on one line and without a backslash or "!", which csh and fish would
# change in quotes. Without HOME, Python looks the home up among the users, and so does this.
START = (
    'export HOME="${{HOME:-$(eval echo "~$(id -un)")}}"; d={cache}; f=$d/{name}; t=$f.$$; '
    'fail() {{ echo "{folder}$d" >&2; exit 1; }}; mkdir -p "$d" || fail; '
    f'same() {{{{ case "$({_DIGEST})" in {{sha256}}*) true;; *) false;; esac; }}}}; '
    'if same "$f"; then :; else echo; echo "{mark}send"; '
    'head -c {size} >"$t" && same "$t" && mv "$t" "$f" '
    '|| {{ rm -f "$t"; df -Pk "$d" >&2; fail; }}; fi; '
    'echo; echo "{mark}start"; exec {python} "$f" greet'
)

logger = logging.getLogger(__name__)

# Says what a command line that failed tells about the way to the machine: None if it is about the command.
Explain = Callable[[str, int], BoardError | None]


def pack_agent() -> tuple[str, bytes]:
    """Zip `edgevit/agent` into one runnable file, the same bytes for the same sources, named by their hash."""
    sources = {f"agent/{path.relative_to(AGENT_DIR)}": path.read_bytes() for path in sorted(AGENT_DIR.rglob("*.py"))}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, source in {"__main__.py": _BOOTSTRAP.encode(), **sources}.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), source)
    content = buffer.getvalue()
    return f"agent-{hashlib.sha256(content).hexdigest()[:16]}.pyz", content


def in_sh(script: str) -> str:
    """Return a command line that runs `script` with sh, whatever the login shell is, and in English.

    ssh passes on the language of this machine, and the messages of programs are parsed in English. `stderr_of`
    separates what a login shell prints first, such as the error of a .bashrc.
    """
    marked = f'echo "{MARK}" >&2; {script}'
    return f"exec env LC_ALL=C sh -c {shlex.quote(marked)}"


def stderr_of(stderr: bytes) -> str:
    """Return the stderr of a command line of `in_sh`, or that of the login shell if the command never started."""
    before, began, after = stderr.decode(errors="replace").partition(MARK)
    return printable((after if began else before).strip(), keep="\n\t")


def is_full(text: str) -> bool:
    return bool(re.search("No space left on device|Disk quota exceeded", text))


class Agent:
    """An agent that runs for the duration of the `with` block.

    `silence_seconds` is how long to wait for a line before giving up; None: for ever.

    Raises:
        UnreachableError: on entry; the agent could not be copied there or did not start.
        UnfitBoardError: on entry; there is no space for the agent.
    """

    def __init__(
        self,
        *,
        python: str = sys.executable,
        shell: Sequence[str] = LOCAL,
        host: str = "this machine",
        explain: Explain = lambda stderr, code: None,
        start_seconds: float = _START_S,
        silence_seconds: float | None = None,
    ) -> None:
        self.python = python
        self.shell = tuple(shell)
        self.host = host  # what messages call the machine
        self.explain = explain
        self.start_seconds = start_seconds
        self.silence_seconds = silence_seconds
        self.idle = False  # it waits for the next request: it is neither dead nor in the middle of an answer

    def __enter__(self) -> Agent:
        name, content = pack_agent()
        script = START.format(
            cache=CACHE,
            name=name,
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            mark=MARK,
            folder=_FOLDER,
            python=shlex.quote(self.python),
        )
        self._stderr = tempfile.TemporaryFile()  # a file never fills up, as a pipe that nobody reads would
        try:
            # A session of its own: Ctrl-C in a terminal goes to us alone, and we end the agent.
            self._process = subprocess.Popen(
                [*self.shell, in_sh(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
            )
        except OSError as error:
            self._stderr.close()
            raise UnreachableError(f"cannot reach {self.host}: {error}") from error
        assert self._process.stdin and self._process.stdout
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)  # the other side may never read
        self._unread = bytearray()
        with ExitStack() as undo:
            undo.callback(self._stop)  # also on Ctrl-C: no agent outlives a start that failed
            self.hello = self._start(content, time.monotonic() + self.start_seconds)
            undo.pop_all()
        self.idle = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop(gently=kind is None and self.idle)

    def call(self, method: str, /, on_progress: Callable[[ProgressMessage], None] | None = None, **args: Any) -> Any:
        """Run one method of the agent and return its result.

        Raises:
            AgentError: the method failed, its answer is of another type, or the agent died.
            ConnectionLostError: the connection broke, or the agent was silent for too long.
        """
        with self._answering(method):
            self._write(json.dumps({"method": method, "args": args}).encode() + b"\n", self._deadline())
            reply = self._reply(method, on_progress)
        return check_answer(self.host, method, _result(reply))

    def exchange(self, request: Mapping[str, object], content: memoryview, answers: memoryview) -> None:
        """After a call of `pipe`: send a request with its bytes, and fill `answers` with the bytes that come back.

        Raises:
            AgentError: the engine failed, other bytes came back, or the agent died; it is to be started again.
            ConnectionLostError: the connection broke, or the agent was silent for too long.
        """
        with self._answering("pipe"):
            self._write(json.dumps(request).encode() + b"\n", self._deadline())
            for first in range(0, len(content), _PART_BYTES):
                self._write(content[first : first + _PART_BYTES], self._deadline())
            while answers:
                result = check_answer(self.host, "pipe", _result(self._reply("pipe")))
                if not 0 < (size := result["bytes"]) <= len(answers):
                    raise wrong_answer(self.host, "pipe", f"{size} bytes came, expected at most {len(answers)}")
                self._read_into(answers[:size])
                answers = answers[size:]

    @contextmanager
    def _answering(self, method: str) -> Iterator[None]:
        """Explain a connection that ends within an answer."""
        self.idle = False
        try:
            yield
        except BrokenPipeError:
            raise self._death(method) from None
        except TimeoutError:
            raise ConnectionLostError(f"{self.host} has said nothing for {self.silence_seconds:g} s") from None
        self.idle = True

    def _reply(self, method: str, on_progress: Callable[[ProgressMessage], None] | None = None) -> Reply:
        """Raises: BrokenPipeError, TimeoutError."""
        while line := self._read_line(self._deadline()):
            reply = self._parse(line)
            if "progress" not in reply:
                return reply
            if on_progress:
                on_progress(reply["progress"])
        raise BrokenPipeError

    def _start(self, content: bytes, deadline: float) -> dict[str, object]:
        """Skip what a login shell prints until the agent says hello; send the agent if the board lacks it."""
        stored, noise = False, b""
        try:
            while line := self._read_line(deadline):
                if not line.startswith(MARK.encode()):
                    noise = line.strip() or noise
                elif (message := line[len(MARK) :].strip()) == b"send":
                    self._write(content, deadline)
                elif message == b"start":
                    stored = True
                else:
                    return self._parse_hello(message)
        except BrokenPipeError:
            pass  # it died; what it said says why
        except TimeoutError:
            if noise:
                raise UnreachableError(f"cannot start the agent: {self._not_the_protocol(noise)}") from None
            raise UnreachableError(
                f"{self.host} has not answered within {self.start_seconds:g} s; try again when it is less busy"
            ) from None
        raise self._failure_to_start(stored, printable(noise.decode(errors="replace")))

    def _parse_hello(self, line: bytes) -> dict[str, object]:
        hello: dict[str, object] = _from_json(line)
        try:
            return dict(check_answer(self.host, "hello", hello))
        except AgentError as error:
            raise UnreachableError(f"cannot start the agent: {self._not_the_protocol(line)}") from error

    def _parse(self, line: bytes) -> Reply:
        reply: Reply = _from_json(line)
        match reply:
            case {"result": _} | {"progress": {}} | {"error": {"message": str(), "traceback": str()}} if (
                len(reply) == 1
            ):
                return reply
        raise AgentError(self._not_the_protocol(line))

    def _not_the_protocol(self, line: bytes) -> str:
        text = line.decode(errors="replace").strip()[:80]
        return f"the agent on {self.host} answered {text!r}, which is not its protocol"

    def _failure_to_start(self, stored: bool, noise: str) -> BoardError:
        code, ending, text = self._end()
        if reason := self.explain(text, code):
            return reason
        text, _, folder = text.partition(_FOLDER)
        text, folder = text.strip(), folder or "~/.cache/edgevit"
        tail = _tail(text) or noise
        if stored:
            return UnreachableError(
                f"cannot start the agent on {self.host} with {self.python}: {ending}: {tail or 'it said nothing'}; "
                "it needs a `python3` of 3.8 or newer on its PATH; try `sudo apt install python3` there"
            )
        if is_full(text):
            free = re.search(r"(\d+) +\d+% +(/.*)$", text)  # a line of `df -Pk`
            place = f" on {free[2]} ({int(free[1])} KiB free)" if free else ""
            return UnfitBoardError(f"{self.host} has no space left{place} for the agent in {folder}; make room")
        hint = ""
        if re.search(r"mkdir|cannot create|Read-only", text):
            hint = f"; make {folder} writable there, or set XDG_CACHE_HOME to a folder that is"
        return UnreachableError(f"cannot copy the agent to {self.host}: {tail or ending}{hint}")

    def _death(self, method: str) -> BoardError:
        code, ending, text = self._end()
        if reason := self.explain(text, code):
            return ConnectionLostError(str(reason))
        return AgentError(
            f"the agent died during {method!r} ({ending}): {_tail(text) or 'it said nothing'}", remote_traceback=text
        )

    def _end(self) -> tuple[int, str, str]:
        """Return the exit code, its description and the stderr of an agent that has closed its output."""
        try:
            code = self._process.wait(_STOP_S)
            ending = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            code, ending = 0, "it closed its output and goes on"
        return code, ending, self._read_stderr()

    def _deadline(self) -> float | None:
        return None if self.silence_seconds is None else time.monotonic() + self.silence_seconds

    def _write(self, content: bytes | memoryview, deadline: float | None) -> None:
        """Raises: BrokenPipeError, TimeoutError."""
        remaining = memoryview(content)
        while remaining:
            _wait_for(self._stdin, select.POLLOUT, deadline)
            with suppress(BlockingIOError):
                remaining = remaining[os.write(self._stdin, remaining) :]

    def _read_line(self, deadline: float | None) -> bytes:
        """Return the next line, or nothing at the end. Raises: TimeoutError."""
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if searched > _LONGEST_LINE:
                raise AgentError(self._not_the_protocol(bytes(self._unread[:80])))
            _wait_for(self._stdout, select.POLLIN, deadline)
            chunk = os.read(self._stdout, 1 << 16)
            if not chunk:
                end = searched
                break
            self._unread += chunk
        line = bytes(self._unread[: end + 1])
        del self._unread[: end + 1]
        return line

    def _read_into(self, content: memoryview) -> None:
        """Raises: BrokenPipeError, TimeoutError."""
        done = min(len(self._unread), len(content))
        content[:done] = self._unread[:done]
        del self._unread[:done]
        while done < len(content):
            _wait_for(self._stdout, select.POLLIN, self._deadline())
            if not (read := os.readv(self._stdout, [content[done:]])):
                raise BrokenPipeError
            done += read

    def _read_stderr(self) -> str:
        self._stderr.seek(0)
        return stderr_of(self._stderr.read())

    def _stop(self, *, gently: bool = False) -> None:
        """End the agent, by the end of its input or by a signal."""
        assert self._process.stdin and self._process.stdout
        if not gently:
            self._process.terminate()
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        if stderr := self._read_stderr():
            logger.info("the agent on %s said: %s", self.host, stderr)
        self._stderr.close()


def _wait_for(file: int, event: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(file, event)
    if not poll.poll(None if deadline is None else max(0, 1000 * (deadline - time.monotonic()))):
        raise TimeoutError


def _from_json(line: bytes) -> Any:
    """Parse a line of the agent and replace control characters; None: the line is not JSON."""
    try:
        answer = json.loads(line)
        # Without an escape there is no control character: most of what is long is figures.
        return answer if line.isascii() and b"\\" not in line else printable_values(answer)
    except (ValueError, RecursionError):
        return None


def _result(reply: Reply) -> Any:
    """Raises: AgentError."""
    if "error" in reply:
        raise AgentError(reply["error"]["message"], remote_traceback=reply["error"]["traceback"])
    return reply["result"]


def _tail(text: str) -> str:
    return " | ".join(text.splitlines()[-_TAIL_LINES:])
