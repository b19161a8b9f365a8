"""Power mode and clocks: changed only when asked, read back, and put back as they were, whatever becomes of us.

Before the first change `restore.json` says how things were. Who carries it out:
  this process, when it is done or fails;
  its guardian, a process that does nothing but wait for this one to end, when it was killed;
  the next `recover`, when the guardian is gone as well: a reboot undoes the clocks, but not the power mode.
This process and its guardian hold one lock between them. Whoever gets it knows that both are gone, without process
numbers, which are given out again.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Callable, Iterator, Sequence

from . import jetson
from .files import cache_folder
from .kernel import find_program, open_scratch
from .messages import BoardState
from .runners import RunnerError

RESTORE = "restore"  # folder in the cache: see `restore_folder`
_RECORD = "restore.json"
CLOCKS = "clocks.store"  # written and read by jetson_clocks
SETUP = "deploy/jetson/setup.sh"
PROGRAM_S = 60.0
KILLED_S = 5.0  # time that a killed program, or one that could not be killed, may need to end
GUARDIAN_S = 30.0  # time that a guardian may need to put settings back after its process has died
_POLL_S = 0.1
# A board that was given another name makes sudo complain that it cannot resolve it, and run the program all the same.
_REFUSED = re.compile(r"^sudo: (?!unable to resolve host)|^Sorry, user |is not in the sudoers file", re.MULTILINE)

_START = """\
import sys
from importlib import import_module
sys.path[0], module, function, *arguments = sys.argv[1:]
getattr(import_module(module), function)(*arguments)
"""

_Report = Callable[[str], None]


@dataclass(frozen=True)
class FoundSettings:
    """The settings of the board before the first change, and the mode that was set."""

    mode: int | None  # id of the power mode before the change; None: the mode is not changed
    set_mode: int | None
    locked: bool | None


@dataclass
class Guardian:
    """The process that puts back what this one cannot, as this one knows it."""

    end: int  # file descriptor of this end of the guardian's socket; the guardian waits until no process has it open
    awaits_program: bool = False  # whether a program was left running that may still change what is put back


@contextmanager
def controlled(
    root: str,
    power_mode: str | None = None,
    lock_clocks: bool = False,
    *,
    report: _Report,
    state_dir: Path | None = None,
) -> Iterator[BoardState]:
    """Set the power mode by name and lock the clocks at its maximum, for as long as the block runs.

    Yields how the board now is; all reports are added to its `messages`, also those after the block. What is so already
    is not touched and needs no root. That something could not be put back is reported, not raised: the block's own
    result is worth keeping, and the next start tries again.

    Raises:
        RunnerError: it cannot be done; nothing has been changed, or it was put back.
    """
    folder = state_dir or restore_folder(root)
    messages: list[str] = []

    def tell(text: str) -> None:
        messages.append(text)
        report(text)

    recover(root, report=tell, state_dir=folder, wait_s=GUARDIAN_S)
    mode = None if power_mode is None else _mode_to_set(root, power_mode)
    locked, memory_locked = jetson.clocks_locked(root), jetson.memory_clock_locked(root)
    if lock_clocks and mode is None and locked and memory_locked is None and not can_control(root):
        tell(f"the memory's clock is not known and may move: it needs root, see {SETUP}")
        lock_clocks = False
    if mode is None and (not lock_clocks or (locked and memory_locked)):
        yield _state(root, messages)
        return
    with ExitStack() as ends:
        lock = ends.enter_context(_held(folder, 0.0))
        if (folder / _RECORD).exists():
            raise RunnerError("nothing is changed before what an earlier process changed is put back (see above)")
        guardian = ends.enter_context(_guarded(root, folder, lock))
        current = jetson.power_mode(root)
        before = (
            FoundSettings(current["id"], mode["id"], locked) if current and mode else FoundSettings(None, None, locked)
        )
        ends.callback(_restore, root, folder, tell, guardian)
        _remember(root, folder, before)
        if mode:
            _set_mode(root, mode, guardian)
        if lock_clocks:
            _lock_clocks(root, guardian)
        yield _state(root, messages)


def recover(root: str, *, report: _Report, state_dir: Path | None = None, wait_s: float = 0.0) -> bool:
    """Put back what a process changed that is dead, and tell; leave what a living one changed.

    Returns whether nothing is left to be put back. `wait_s` is for the guardian of a process that has just died.
    """
    folder = state_dir or restore_folder(root)
    if not (folder / _RECORD).exists():
        return True
    try:
        with _held(folder, wait_s):
            return _restore(root, folder, report, late=True)
    except RunnerError:
        return False  # its owner is alive, and will do it


def can_control(root: str) -> bool:
    """Whether the board's two programs may be run as root without a password."""
    try:
        for program, question in (("nvpmodel", "-q"), ("jetson_clocks", "--show")):
            _as_root(root, program, question)
    except RunnerError:
        return False
    return True


def restore_folder(root: str) -> Path:
    """The folder with the record of the board's settings: on a board always the same, whatever XDG_CACHE_HOME says.

    sudo lets jetson_clocks use only the file that setup.sh has written down, which knows the user and no environment.
    """
    if root != "/":
        return Path(cache_folder(), RESTORE)
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container's user without a name
        home = os.path.expanduser("~")
    return Path(home, ".cache", "edgevit", RESTORE)


def own_command(function: Callable[..., None], *arguments: str) -> list[str]:
    """Return the command that runs one of our functions in a new process, from the zip or folder that we are in."""
    top = Path(__file__).parents[len(__name__.split(".")) - 1]
    return [sys.executable, "-c", _START, str(top), function.__module__, function.__name__, *arguments]


def _guard(root: str, folder: str) -> None:
    """Wait for the process that started this one to end, then put back what it did not.

    Its end is that of our stdin, and that of what it ran: see `_as_root`.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with suppress(BrokenPipeError):  # it has died already
        os.write(1, b"ready\n")
    sys.stdin.buffer.read()
    if Path(folder, _RECORD).exists():
        _restore(root, Path(folder), lambda text: None)


@contextmanager
def _held(folder: Path, wait_s: float) -> Iterator[int]:
    """Hold the lock."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise RunnerError(f"cannot write in {folder}: {error.strerror}; nothing was changed") from error
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise RunnerError(
                        f"another process holds power mode and clocks ({folder / 'lock'}); try again when it is done"
                    ) from None
                time.sleep(_POLL_S)
        yield lock
    finally:
        os.close(lock)


@contextmanager
def _guarded(root: str, folder: Path, lock: int) -> Iterator[Guardian]:
    """Start the guardian, and wait for its end, unless it has a program to wait for that does not end."""
    own_end, child_end = socket.socketpair()
    with own_end, child_end:
        own_end.shutdown(socket.SHUT_RD)
        process = subprocess.Popen(
            own_command(_guard, os.path.abspath(root), str(folder.absolute())),
            stdin=child_end.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # not ours: sshd waits for whoever has it
            pass_fds=(lock,),
            start_new_session=True,  # a signal to our group, or a closed terminal, is not for it
            cwd="/",
        )
        child_end.close()
        assert process.stdout
        guardian = Guardian(own_end.fileno())
        try:
            with process.stdout, own_end:
                if not process.stdout.readline():
                    raise RunnerError(
                        f"{sys.executable} could not start the guardian of the clocks; nothing was changed"
                    )
                yield guardian
        finally:
            if not guardian.awaits_program:
                process.wait()


def _mode_to_set(root: str, name: str) -> jetson.PowerModeLimits | None:
    """Find the mode by its name in the board's own table, where the same name has another id than elsewhere.

    None if it is the current one.
    """
    modes = {mode["name"]: mode for mode in jetson.power_modes(root)}
    current = jetson.power_mode(root)
    if not modes or current is None or current["id"] is None:
        raise RunnerError("this machine tells no power modes (nvpmodel); leave out --power-mode")
    if name not in modes:
        close = get_close_matches(name.upper(), modes, n=1, cutoff=0.5)
        nearest = f"did you mean {close[0]}? " if close else ""
        raise RunnerError(f"no power mode {name!r} on this board; {nearest}known: {', '.join(modes)}")
    mode = modes[name]
    if mode["id"] == current["id"]:
        return None
    masks = {mode["tpc_mask"], modes.get(current["name"], mode)["tpc_mask"]} - {None}
    if len(masks) > 1:
        # It can be done as long as the GPU is unused, and once it was used there is no way back.
        raise _needs_reboot(current, mode, "they differ in the parts of the GPU that are switched on")
    if jetson.modes_want_a_reboot(jetson.l4t(root)):
        reason = "from L4T 39 on nvpmodel may want one after the GPU was used, so that the mode could not be put back"
        raise _needs_reboot(current, mode, reason)
    return mode


def _needs_reboot(current: jetson.CurrentMode, mode: jetson.PowerModeLimits, reason: str) -> RunnerError:
    return RunnerError(
        f"from power mode {current['name']} to {mode['name']} this board needs a reboot ({reason}); nothing was "
        f"changed: run `sudo nvpmodel -m {mode['id']}` in a terminal there, answer yes, and try again once it is back"
    )


def _set_mode(root: str, mode: jetson.PowerModeLimits, guardian: Guardian) -> None:
    before = jetson.power_mode(root)
    output = _as_root(root, "nvpmodel", "-m", str(mode["id"]), guardian=guardian)
    now = jetson.power_mode(root)
    if now and now == before:
        # It asks whether to reboot and, as nobody answers, does nothing.
        raise _needs_reboot(now, mode, f"nvpmodel left it as it was, and said {_last_line(output)}")
    if now is None or now["id"] != mode["id"]:
        raise RunnerError(
            f"`nvpmodel -m {mode['id']}` made the power mode {now and now['name']}, expected {mode['name']}; it said "
            f"{_last_line(output)}; try `sudo nvpmodel -m {mode['id']}` in a terminal there"
        )


def _lock_clocks(root: str, guardian: Guardian) -> None:
    output = _as_root(root, "jetson_clocks", guardian=guardian)
    if jetson.clocks_locked(root):
        return
    clocks = jetson.clocks(root).items()
    free = [name for name, clock in clocks if clock and not jetson.is_locked(clock)]
    raise RunnerError(
        f"jetson_clocks ran, and {', '.join(free) or 'no clock that can be read'} is not locked; it said "
        f"{_last_line(output)}; look at `sudo jetson_clocks --show` there"
    )


def _remember(root: str, folder: Path, before: FoundSettings) -> None:
    """Write down how the board is, so that not even a power cut loses it."""
    store = folder / CLOCKS
    try:
        with suppress(FileNotFoundError):
            store.unlink()  # else jetson_clocks asks whether it may
        output = _as_root(root, "jetson_clocks", "--store", str(store))
        if not store.is_file() or not store.stat().st_size:
            raise RunnerError(f"`jetson_clocks --store {store}` stored nothing; it said {_last_line(output)}")
        unfinished = folder / f"{_RECORD}.part"
        unfinished.write_text(json.dumps(asdict(before)), encoding="utf-8")
        for path in (store, unfinished):
            _sync(path)
        unfinished.replace(folder / _RECORD)
        _sync(folder)
    except OSError as error:
        raise RunnerError(f"cannot write in {folder}: {error.strerror}; nothing was changed") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _restore(root: str, folder: Path, report: _Report, guardian: Guardian | None = None, *, late: bool = False) -> bool:
    """Carry out the record, if there is one, and remove it. `late`: anything may have happened to the board since."""
    record, store = folder / _RECORD, folder / CLOCKS
    try:
        before = FoundSettings(**json.loads(record.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return True  # nothing was changed
    except (OSError, ValueError, TypeError) as error:
        report(f"{record} cannot be read ({error}): look at `sudo nvpmodel -q`, put right what is not, and remove it")
        return False
    try:
        outcome = _put_back(root, before, str(store), guardian, late)
    except RunnerError as error:
        mode = "" if before.mode is None else f"sudo nvpmodel -m {before.mode} && "
        report(f"not as it was found: {error}; try `{mode}sudo jetson_clocks --restore {store}`, and remove {record}")
        return False
    if guardian and guardian.awaits_program:
        report(f"{outcome}; this is looked at once more when the program that hangs has ended")
        return False
    for path in (record, store):
        with suppress(FileNotFoundError):
            path.unlink()
    report(f"an earlier process was cut off: {outcome}" if late else outcome)
    return True


def _put_back(root: str, before: FoundSettings, store: str, guardian: Guardian | None, late: bool) -> str:
    """Undo in the reverse order. The clocks once more after the mode, as setting that sets their limits, too."""
    now = jetson.power_mode(root)
    if late and before.mode is not None and now and now["id"] not in (before.mode, before.set_mode):
        return f"somebody has set the power mode {now['name']} since, and it is left so"
    _as_root(root, "jetson_clocks", "--restore", store, guardian=guardian)
    outcome = "the clocks are as they were"
    if before.mode is not None and (now is None or now["id"] != before.mode):
        output = _as_root(root, "nvpmodel", "-m", str(before.mode), guardian=guardian)
        _as_root(root, "jetson_clocks", "--restore", store, guardian=guardian)
        now = jetson.power_mode(root)
        if now is None or now["id"] != before.mode:
            raise RunnerError(f"the power mode is {now and now['name']}, nvpmodel said {_last_line(output)}")
        outcome = f"the power mode is {now['name']} again, and {outcome}"
    locked = jetson.clocks_locked(root)
    if locked != before.locked:
        raise RunnerError(f"the clocks are {'' if locked else 'not '}locked")
    return outcome


def _state(root: str, messages: list[str]) -> BoardState:
    mode = jetson.power_mode(root)
    return {"power_mode": mode and mode["name"], "clocks_locked": jetson.clocks_locked(root), "messages": messages}


def _as_root(root: str, name: str, *arguments: str, guardian: Guardian | None = None) -> str:
    """Run a program of the board as root, never asking for a password; return what it says.

    What it exits with says little (jetson_clocks: always 0): look at what it should have changed.
    """
    program = find_program(root, name)
    if program is None:
        raise RunnerError(f"this machine has no {name}, a Jetson does; leave out --power-mode and --lock-clocks")
    sudo = () if os.geteuid() == 0 or root != "/" else ("sudo", "-n")
    command = " ".join((name, *arguments))
    try:
        returned, output = _run([*sudo, program, *arguments], guardian)
    except subprocess.TimeoutExpired:
        raise RunnerError(
            f"`{command}` did not end in {PROGRAM_S:.0f} s, and is not waited for any longer; end it there with "
            f"`sudo pkill {name}`, try `sudo {command}` in a terminal, and reboot the board if that hangs, too"
        ) from None
    except OSError as error:
        raise RunnerError(f"cannot run {error.filename or program}: {error.strerror}") from error
    if sudo and returned and _REFUSED.search(output):
        raise RunnerError(
            f"`sudo -n {command}` was refused ({_last_line(output)}): power mode and clocks need root; {SETUP} lets "
            f"you run nvpmodel and jetson_clocks without a password, or do it by hand first: `sudo {command}`"
        )
    return output


def _run(command: Sequence[str], guardian: Guardian | None) -> tuple[int, str]:
    """Run it for no more than its time; return its exit status and what it said.

    It is not waited for without end: a program under sudo is root's, and not ours to kill, nor can one be killed that
    hangs in the kernel. The guardian then waits.

    Raises: OSError, subprocess.TimeoutExpired.
    """
    with open_scratch() as output:  # a program that goes on after us can still say what it does
        process = subprocess.Popen(
            command,
            # Nobody answers questions: a read gets end of file. A program that outlives us has this end of the
            # guardian's socket, so that the guardian waits for it, too; sudo closes all other descriptors.
            stdin=subprocess.DEVNULL if guardian is None else guardian.end,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C"},
        )
        try:
            returned = process.wait(PROGRAM_S)
        except BaseException:  # also where we are told to end: it may be about to change what is then put back
            with suppress(OSError):
                process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILLED_S)
            if guardian and process.poll() is None:
                guardian.awaits_program = True
            raise
        output.seek(0)
        return returned, output.read().decode("utf-8", errors="replace").strip()


def _last_line(output: str) -> str:
    """The line that asks for a reboot, or else the last line."""
    lines = output.splitlines()
    return repr(next((line for line in lines if "reboot" in line.lower()), lines[-1])) if lines else "nothing"
