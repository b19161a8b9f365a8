"""The fixture `sshd` starts a real sshd on loopback, with its own keys and port, whose environment the test gives:

server = sshd(EDGEVIT_BOARD_ROOT=tree)  # unless given, its own cache and lock, and a PATH with this Python
edgevit_main("board", server.host, "--ssh-config", server.config)  # or open_board(server.host, ssh_config=...)
server.cut()  # and so on; it ends with the test

The fixture `play` makes this machine one that has TensorRT, the stand-in of tests/standins.

The fixture `examined_once` is for tests of what is done with a machine that is known: the agent here examines it once
for all tests of a worker, as that takes half a second of processor time, and a captured board, over SSH, too, once for
each content of its files. Tests of what is found examine it anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest
from places import OWN_LOCK, STANDINS

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def of_processes(name: str) -> Iterator[tuple[int, str]]:
    """The process number and the text of /proc/<number>/`name` of every process that has not ended meanwhile."""
    for entry in os.listdir("/proc"):  # Path.glob raises where a process ends while it looks
        if entry.isdigit():
            with suppress(OSError):
                yield int(entry), Path("/proc", entry, name).read_bytes().decode(errors="replace")


def processes() -> dict[int, tuple[int, str]]:
    """The parent and the name of every process."""
    found = {}
    for number, text in of_processes("stat"):
        name, _, rest = text.partition("(")[2].rpartition(")")
        found[number] = (int(rest.split()[1]), name)
    return found


class Server:
    """A running sshd, and how to get there: `ssh -F config host`."""

    host = "board"

    def __init__(self, folder: Path, environment: dict[str, object], options: Sequence[str]) -> None:
        self.folder = folder
        self.environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.cache = Path(str(environment["XDG_CACHE_HOME"])) / "edgevit"
        self.config = folder / "config"
        self.known_hosts = folder / "known_hosts"
        for key in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        (folder / "authorized_keys").write_text((folder / "user_key.pub").read_text())
        self.trust((folder / "host_key.pub").read_text())
        set_environment = " ".join(f'"{name}={value}"' for name, value in environment.items())
        lines = [
            *options,  # of a keyword that repeats, the first counts
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {folder}/host_key",
            f"AuthorizedKeysFile {folder}/authorized_keys",
            "PidFile none",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "MaxStartups 100",
            "KexAlgorithms curve25519-sha256",  # the default also agrees on NTRU Prime: 0.1 s of both sides' time
            f"SetEnv {set_environment}",
        ]
        (folder / "sshd_config").write_text("\n".join(lines) + "\n")
        self.configure()

    def configure(self, *more: str) -> None:
        """Write the client's configuration; lines of `more` come first, and so count."""
        lines = [
            f"Host {self.host}",
            *more,
            "HostName 127.0.0.1",
            f"Port {self.port}",
            f"User {getuser()}",
            f"IdentityFile {self.folder}/user_key",
            "IdentitiesOnly yes",
            "IdentityAgent none",
            f"UserKnownHostsFile {self.known_hosts}",
            "GlobalKnownHostsFile /dev/null",
        ]
        self.config.write_text("\n".join(lines) + "\n")

    def trust(self, public_key: str) -> None:
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {public_key}")

    def start(self) -> None:
        if self._process and self._process.poll() is None:
            return
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd confines itself there
        log = (self.folder / "sshd.log").open("ab")
        with log:
            self._process = subprocess.Popen([SSHD, "-D", "-e", "-f", self.folder / "sshd_config"], stderr=log)
        deadline = time.monotonic() + 10
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            assert self._process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.01)

    def stop(self) -> None:
        self.cut()
        self._process.terminate()
        self._process.wait(10)

    def log(self) -> str:
        return (self.folder / "sshd.log").read_text()

    def cut(self) -> None:
        """Kill every connection, as a cable that is pulled out does; jobs are not touched."""
        for pid in self.sessions():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def sessions(self) -> list[int]:
        """The sshd processes that serve a connection."""
        table = processes()
        ours: list[int] = [self._process.pid]
        for pid in ours:
            ours += [child for child, (parent, name) in table.items() if parent == pid and name.startswith("sshd")]
        return ours[1:]


running: list[Server] = []  # of this test


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("no sshd on this machine: apt install openssh-server")
    with ExitStack() as stop:

        def start(*, options: Sequence[str] = (), **environment: object) -> Server:
            folder = tmp_path / f"sshd{free_port()}"
            folder.mkdir()
            python = folder / "bin"
            python.mkdir()
            (python / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
            (python / "python3").chmod(0o755)
            environment.setdefault("XDG_CACHE_HOME", folder / "cache")
            environment.setdefault("EDGEVIT_BOARD_ROOT", OWN_LOCK)
            environment.setdefault("SHLVL", 1)  # or bash would read the .bashrc of whoever runs the tests
            environment.setdefault("PATH", f"{python}:{os.environ['PATH']}")
            server = Server(folder, environment, options)
            server.start()
            stop.callback(server.stop)
            running.append(server)
            stop.callback(running.remove, server)
            return server

        yield start


def playing(monkeypatch: pytest.MonkeyPatch, home: Path) -> Callable[..., None]:
    """Give this machine the stand-in TensorRT, and return what chooses its release and its fault."""
    monkeypatch.setenv("PYTHONPATH", str(STANDINS))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("EDGEVIT_BOARD_ROOT", str(home))  # no board, and no other test's either

    def choose(release: str = "10.3.0", fault: str = "") -> None:
        monkeypatch.setenv("STANDIN_TENSORRT", release)
        monkeypatch.setenv("STANDIN_TENSORRT_FAULT", fault)

    choose()
    return choose


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Choose the release that the stand-in plays, and its fault."""
    return playing(monkeypatch, tmp_path)


_examined: dict[tuple[object, ...], tuple[str, str]] = {}
DECIDE = ("PATH", "PYTHONPATH", "STANDIN_TENSORRT")  # beside its root on what is found of a machine


def _state(board: Any) -> tuple[str, tuple[object, ...]] | None:
    """The root of a machine, and what decides on what is found there; None: that is not known."""
    from edgevit.board.connection import THIS_MACHINE

    environment: Mapping[str, object] = os.environ
    if board.host != THIS_MACHINE:
        of_name = [server for server in running if server.host == board.host]
        found = [server for server in of_name if str(server.config) in map(str, board._shell)] or of_name
        if len(found) != 1:
            return None
        environment = {**os.environ, **found[0].environment}
    root = str(environment.get("EDGEVIT_BOARD_ROOT", "/"))
    captured = root != OWN_LOCK and any((Path(root) / folder).exists() for folder in ("etc", "proc", "sys"))
    where = (board.host, _content(Path(root))) if captured else (root if root == OWN_LOCK else None,)
    return root, (*where, *map(environment.get, DECIDE))  # all empty roots are alike


def _content(tree: Path) -> str:
    """The hash of all files of a captured board, and of who may read them."""
    found = hashlib.sha256()
    for folder, _, names in sorted(os.walk(tree)):
        for file in sorted(Path(folder, name) for name in names):
            told = f"{file.relative_to(tree)} {file.lstat().st_mode} {file.lstat().st_size}"
            found.update(told.encode() + (file.read_bytes() if file.is_file() else b""))
    return found.hexdigest()


@pytest.fixture(scope="module")
def examined_once() -> Iterator[None]:
    """Ask an agent once what it finds, and again where the files of a captured board are others."""
    from edgevit.board.connection import Board

    call = Board.call

    def call_once(board: Board, method: str, /, *rest: Any, **args: Any) -> Any:
        if method != "examine" or (known := _state(board)) is None:
            return call(board, method, *rest, **args)
        root, state = known
        if state not in _examined:
            found = call(board, method, *rest, **args)
            if _state(board) != known:  # it put something back
                return found
            _examined[state] = root, json.dumps(found)
        of, text = _examined[state]
        return json.loads(text.replace(f'"{of}/', f'"{root}/'))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Board, "call", call_once)
        yield
