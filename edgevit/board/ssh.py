"""The SSH connection to a board: the OpenSSH client with the user's own configuration, keys and known hosts.

The first command opens the connection and the others share it; after a break the next command opens another.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from edgevit.errors import UnreachableError

FAILED = 255  # ssh's own exit code, as opposed to the command's
_LONGEST_FOLDER = 60  # characters; the path of a socket may have some 100, and ssh adds its own
_ASK_S = 5.0  # time limit of a command to the ssh process of this connection

_OPTIONS = {
    "BatchMode": "yes",  # nobody is there to type a password
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",  # a network that vanishes is noticed within 15 s
    "ControlMaster": "auto",
    "ControlPersist": "60",  # also ends the connection of an edgevit that was killed
    "ClearAllForwardings": "yes",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "LogLevel": "ERROR",  # to have errors to explain, and no banners
}

# What ssh says, what that means, and what to try. The first that is found counts.
REASONS = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "ITS HOST KEY HAS CHANGED: the board was installed anew, or this is another machine that poses as it",
        "only if you know why, `{forget}`, then `{ssh}` once and compare the fingerprint",
    ),
    (
        "Host key verification failed|host key is known for",
        "its host key is not known here",
        "`{ssh}` once and compare the fingerprint",
    ),
    (
        r"Permission denied \(|Too many authentication failures|No supported authentication",
        "it refuses the login: {line}",
        "`{ssh_batch} true`; edgevit needs key-based login: `ssh-copy-id`, or `ssh-add` for a key with a passphrase",
    ),
    ("Could not resolve hostname", "no machine of that name: {line}", "its address, or an entry in ~/.ssh/config"),
    (
        "Connection refused",
        "no SSH server answers there: {line}",
        "`systemctl status ssh` on the board, or another port",
    ),
    (
        "^usage: ssh|[Bb]ad port|[Bb]ad (?:URI|hostname)|hostname contains invalid",
        "ssh cannot read that address",
        "user@host, or ssh://user@host:port with a port from 1 to 65535",
    ),
    ("timed out", "no answer: {line}", "`ping`; is it switched on and on this network?"),
    ("No route to host|Network is unreachable|Host is down", "no way there: {line}", "`ping`, cables and VPN"),
    (
        # "FILE line 3: ", and not what bash says of a board's .bashrc: "FILE: line 3: ".
        "[Cc]onfiguration option|[Cc]an't open user config|Bad owner or permissions on|[^:] line [0-9]+: ",
        "ssh cannot use its configuration: {line}",
        "mending that file, or another --ssh-config",
    ),
)

# What a login shell says of its own files, which is all there is where the connection breaks before the command begins:
# bash "FILE: line 5: ", zsh "FILE:5: ", dash "FILE: 5: ", fish "FILE (line 5): ".
_OF_A_SHELL = r"^\S+(?:: line [0-9]+|: ?[0-9]+| \(line [0-9]+\)):"


class Ssh:
    """One connection to a host, opened by the first use of `argv` and closed with the block.

    `host` is whatever `ssh` takes: a name from the configuration, user@host, or ssh://user@host:port.
    """

    argv: tuple[str, ...]  # command that runs on the host the shell command line that is appended to it

    def __init__(self, host: str, *, config: Path | None = None, connect_seconds: float = 10) -> None:
        self.host = host
        self._config = () if config is None else ("-F", str(config))
        self._connect_seconds = connect_seconds

    def __enter__(self) -> Ssh:
        if shutil.which("ssh") is None:
            raise UnreachableError(f"cannot reach {self.host}: no ssh program here; try `apt install openssh-client`")
        parent = tempfile.gettempdir()
        self._folder = tempfile.TemporaryDirectory(
            prefix="edgevit-", dir=parent if len(parent) < _LONGEST_FOLDER else "/tmp", ignore_cleanup_errors=True
        )
        options = {**_OPTIONS, "ConnectTimeout": str(max(1, round(self._connect_seconds)))}
        self._ssh = ("ssh", *self._config, "-S", f"{self._folder.name}/s")
        self.argv = (*self._ssh, *(f"-o{name}={value}" for name, value in options.items()), "--", self.host)
        return self

    def __exit__(self, *_: object) -> None:
        self._ask("exit")
        self._folder.cleanup()

    def explain(self, stderr: str, code: int) -> UnreachableError | None:
        """Explain a failed connection in one line, with what to try; None if the connection did not fail."""
        # ssh ends with that code also when a signal ended the command; then the connection lives on.
        if code != FAILED or self._ask("check"):
            return None
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        options = ["ssh", *self._config]
        ssh, ssh_batch = (shlex.join([*options, *more, "--", self.host]) for more in ((), ("-o", "BatchMode=yes")))
        for pattern, reason_text, hint in REASONS:
            for line in lines:
                if re.search(pattern, line):
                    forget = self._forget_command(stderr)
                    reason, remedy = (
                        reason_text.format(line=line),
                        hint.format(ssh=ssh, ssh_batch=ssh_batch, forget=forget),
                    )
                    return UnreachableError(f"cannot reach {self.host}: {reason}; try {remedy}")
        of_ssh = [line for line in lines if not re.search(_OF_A_SHELL, line)]
        return UnreachableError(
            f"cannot reach {self.host}: {of_ssh[-1] if of_ssh else 'the connection broke'}; try `{ssh} true`"
        )

    def _forget_command(self, stderr: str) -> str:
        """Return the command that removes a host's old key, from the message of ssh."""
        if command := re.search(r"ssh-keygen -f .*", stderr):
            return command[0].strip()
        if place := re.search(r"^Offending .*key in (.+):(\d+)", stderr, re.MULTILINE):
            return shlex.join(["sed", "-i.old", f"{place[2]}d", place[1]])
        return shlex.join(["ssh-keygen", "-R", self.host.rpartition("@")[2]])

    def _ask(self, word: str) -> bool:
        """Send a control command to the ssh process that has the connection, if there is one."""
        with suppress(OSError, subprocess.TimeoutExpired):
            return not subprocess.run(
                [*self._ssh, "-O", word, "--", self.host],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                start_new_session=True,
                timeout=_ASK_S,
                check=False,
            ).returncode
        return False
