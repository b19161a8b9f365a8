"""The way to a board, with a real sshd: what stands in it is told in one line, with what to try."""

import re
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from board_fixtures import of_processes
from hypothesis import given
from hypothesis import strategies as st

from edgevit.board.connection import open_board
from edgevit.board.ssh import FAILED, REASONS, Ssh
from edgevit.errors import ConnectionLostError, OptionError, UnreachableError
from edgevit.progress import Silent


class Cutting(Silent):
    """A progress that cuts the connection as soon as something moves."""

    def __init__(self, server):
        self.server = server

    @contextmanager
    def stage(self, name, total=None, unit=""):
        yield self

    def update(self, done, **figures):
        self.server.cut()


def refusal(host, config=None, **options):
    """The one line that a person sees."""
    with pytest.raises(UnreachableError) as caught, open_board(host, ssh_config=config, **options):
        pass
    message = str(caught.value)
    assert "\n" not in message
    return message


def masters():
    """Processes that keep a connection open."""
    lines = of_processes("cmdline")
    return [(pid, line) for pid, line in lines if line.startswith("ssh: ") and "[mux]" in line]


def test_a_board_is_reached_and_left_without_a_trace_here(sshd):
    server = sshd()
    with ExitStack() as stack:
        ssh = stack.enter_context(Ssh(server.host, config=server.config))
        for _ in range(3):
            assert subprocess.check_output([*ssh.argv, "echo it is there"], text=True) == "it is there\n"
        assert server.log().count("Accepted publickey") == 1
        folder = ssh.argv[ssh.argv.index("-S") + 1].removesuffix("/s")
        assert any(folder in line for _, line in masters())
    assert not Path(folder).exists()
    deadline = time.monotonic() + 10  # ssh -O exit returns when the process has been told, which is before it has ended
    while any(folder in line for _, line in masters()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_opening_a_board_takes_one_login_and_one_session(sshd):
    server = sshd(options=["LogLevel VERBOSE"])
    with open_board(server.host, ssh_config=server.config) as board:
        assert board.call("hello")["cache"] == str(server.cache)
    assert server.log().count("Accepted publickey") == 1
    assert server.log().count("Starting session") == 1


def test_what_a_login_shell_prints_is_skipped(sshd, tmp_path):
    shell = tmp_path / "noisy"
    shell.write_text(
        '#!/bin/sh\necho "Welcome to Ubuntu"\nprintf "last login: never"\nexec sh -c "$SSH_ORIGINAL_COMMAND"\n'
    )
    shell.chmod(0o755)
    server = sshd(options=[f"ForceCommand {shell}"])
    for _ in range(2):  # the agent has to be sent, and then is there
        with open_board(server.host, ssh_config=server.config) as board:
            assert board.call("hello")["cache"] == str(server.cache)


def test_what_a_login_shell_complains_of_is_not_taken_for_the_reason_of_what_fails(sshd, tmp_path):
    shell = tmp_path / "bashrc"
    complaint = "/home/jetson/.bashrc: line 5: conda: command not found"
    shell.write_text(f'#!/bin/sh\necho "{complaint}" >&2\nexec sh -c "$SSH_ORIGINAL_COMMAND"\n')
    shell.chmod(0o755)
    server = sshd(options=[f"ForceCommand {shell}"])
    with open_board(server.host, ssh_config=server.config, retry_seconds=0) as board:
        server.cut()
        with pytest.raises(ConnectionLostError, match=r"is lost \(cannot reach board: the connection broke; try `ssh"):
            board.call("hello")
        model = tmp_path / "model.onnx"
        model.write_bytes(bytes(20 << 20))
        with pytest.raises(ConnectionLostError, match=r"is lost \(cannot reach board: the connection broke; try `ssh"):
            board.put(model, "0" * 64, Cutting(server))
    for said in (complaint, "/home/jetson/.zshrc:5: command not found: conda", "sh: 5: conda: not found"):
        with Ssh(server.host, config=server.config) as way:  # that broke before the command began
            assert "cannot reach board: the connection broke; try" in str(way.explain(said, FAILED))
    assert ".bashrc" not in refusal(server.host, server.config, python="python3.99")
    shell.write_text(f'#!/bin/sh\necho "{complaint}" >&2\nkill -9 $PPID\n')
    assert "ssh cannot use its configuration" not in refusal(server.host, server.config)


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "fish", "tcsh"])
def test_any_login_shell_will_do(sshd, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    server = sshd(options=[f'ForceCommand {shell} -c "$SSH_ORIGINAL_COMMAND"'])
    with open_board(server.host, ssh_config=server.config) as board:
        assert board.call("hello")["python"]


def test_a_jump_host_of_the_configuration_is_used(sshd):
    server = sshd()
    text = server.config.read_text()
    server.config.write_text(text + text.replace("Host board", "Host behind\nProxyJump board"))
    with open_board("behind", ssh_config=server.config) as board:
        assert board.call("hello")["python"]
    assert server.log().count("Accepted publickey") == 2


@pytest.mark.parametrize("space", [" ", "$IFS"])
def test_a_host_name_cannot_be_an_option(sshd, tmp_path, space):
    host = f"-oProxyCommand=touch{space}{tmp_path}/made"
    with pytest.raises(OptionError, match="name that no host can have"), open_board(host, ssh_config=sshd().config):
        pass
    assert not (tmp_path / "made").exists()


def test_a_host_that_does_not_exist(tmp_path):
    message = refusal("no-such-board.invalid")
    assert re.match(r"cannot reach no-such-board\.invalid: no machine of that name: .*; try its address, or", message)


@pytest.mark.parametrize("host", ["ssh://u@h:99999", "ssh://u@h:x", "ssh://"])
def test_an_address_that_ssh_cannot_read(host):
    assert refusal(host) == (
        f"cannot reach {host}: ssh cannot read that address; try user@host, or ssh://user@host:port with a port from 1 "
        "to 65535"
    )


def test_a_host_without_sshd(sshd):
    server = sshd()
    server.stop()
    message = refusal(server.host, server.config)
    assert re.search(r"no SSH server answers there: .*Connection refused; try `systemctl status ssh`", message)


def test_a_host_that_never_answers(sshd):
    server = sshd()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        server.configure(f"Port {deaf.getsockname()[1]}")
        assert re.search("no answer: .*timed out.*; try `ping`", refusal(server.host, server.config, connect_seconds=1))


def test_a_host_that_closes_the_connection(sshd):
    server = sshd()
    server.configure("ProxyCommand sh -c 'read banner'")  # who hangs up at once may break ssh's pipe instead
    reason = r"(Connection closed by .*|the connection broke)"  # OpenSSH 10 says nothing itself
    assert re.search(rf"{reason}; try `ssh -F .* -- board true`", refusal(server.host, server.config))


def test_a_refused_login(sshd):
    server = sshd()
    (server.folder / "authorized_keys").write_text("")
    message = refusal(server.host, server.config)
    assert re.search(
        r"it refuses the login: .*Permission denied \(publickey\).*; try `ssh -F \S+ -o BatchMode=yes -- board true`; "
        ".*ssh-copy-id",
        message,
    )


def test_an_unknown_host_key(sshd):
    server = sshd()
    server.known_hosts.write_text("")
    message = refusal(server.host, server.config)
    assert re.search(r"its host key is not known here; try `ssh -F \S+ -- board` once and compare", message)
    assert server.known_hosts.read_text() == ""


def test_a_changed_host_key(sshd):
    server = sshd()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", server.folder / "other"], check=True)
    server.trust((server.folder / "other.pub").read_text())
    message = refusal(server.host, server.config)
    assert re.search(r"ITS HOST KEY HAS CHANGED: .* poses as it; try only if you know why, `ssh-keygen .*-R ", message)
    assert str(server.port) in message


def test_where_ssh_names_no_command_the_line_of_the_old_host_key_is_named():
    """As on macOS: `ssh-keygen -R jetson@orin` finds no host of that name, nor that of an alias."""
    changed = "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\r\n"
    offending = "Offending ED25519 key in /Users/anna/.ssh/known_hosts:12\r\n"
    for said, forget in (
        (changed + offending, "`sed -i.old 12d /Users/anna/.ssh/known_hosts`, then"),
        (changed, "`ssh-keygen -R orin`, then"),
    ):
        with Ssh("jetson@orin") as ssh:
            ssh._ask = lambda what: False
            assert forget in str(ssh.explain(said, 255))


def test_a_configuration_that_is_missing_or_wrong(sshd, tmp_path):
    server = sshd()
    assert re.search(
        "ssh cannot use its configuration: .*nowhere.*--ssh-config", refusal("board", tmp_path / "nowhere")
    )
    server.configure("HostNaem 127.0.0.1")
    assert re.search(
        r"ssh cannot use its configuration: .*: line 2: Bad conf.* hostnaem", refusal("board", server.config)
    )


def test_no_ssh_program(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "no ssh program here; try `apt install openssh-client`" in refusal("board")


def test_no_python_there(sshd, tmp_path):
    server = sshd()
    message = refusal(server.host, server.config, python="python3.99")
    assert re.search(
        r"cannot start the agent on board with python3\.99: exit code 127: .*not found; it needs a `python3`", message
    )
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 'the agent needs Python 3.8 or newer, and this is 3.6.9' >&2; exit 1\n")
    old.chmod(0o755)
    assert re.search(r"this is 3\.6\.9; it needs a `python3`", refusal(server.host, server.config, python=str(old)))


def test_an_account_that_may_not_log_in(sshd):
    server = sshd(options=['ForceCommand echo "This account is currently not available."; exit 1'])
    assert "cannot copy the agent to board: This account is currently not available." in refusal("board", server.config)


def test_a_command_that_a_signal_ended_is_not_taken_for_the_connection(sshd):
    server = sshd()
    with Ssh(server.host, config=server.config) as ssh:
        killed = subprocess.run([*ssh.argv, "kill -9 $$"], capture_output=True, text=True)
        assert killed.returncode == 255
        assert ssh.explain(killed.stderr, killed.returncode) is None
        assert ssh.explain("whatever", 3) is None


@given(st.text() | st.sampled_from([pattern.partition("|")[0] for pattern, _, _ in REASONS]).map("{0} x {{}}".format))
def test_whatever_ssh_says_becomes_one_line(said):
    with Ssh("nowhere.invalid") as ssh:
        ssh._ask = lambda what: False  # an ssh process for each text would take minutes
        message = str(ssh.explain(said, 255))
    assert message.startswith("cannot reach nowhere.invalid: ")
    assert len(message.splitlines()) == 1
