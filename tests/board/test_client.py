"""How the agent gets there, and how it ends."""

import io
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import asdict

import pytest

from edgevit.agent.measure import MeasurementRequest
from edgevit.agent.records import SCHEMA
from edgevit.board import client
from edgevit.board.client import Agent, pack_agent
from edgevit.errors import AgentError, UnfitBoardError, UnreachableError

REQUEST = asdict(
    MeasurementRequest("/models/any.onnx", "0" * 64, "any", None, "fake", 1, 5, 0, 0, 0, {"latency_ms": 1})
)

NOISY = """
import os
from contextlib import contextmanager
from . import Loaded
REQUIRES = ()
@contextmanager
def open_runner(model, batch):
    def infer():
        print("from Python")
        os.write(1, b"from C\\n")
        os.system("echo from a child")
    yield Loaded(infer, None, {})
"""
DYING = """
import os, sys
REQUIRES = ()
def open_runner(model, batch):
    print("first", "line", file=sys.stderr)
    print("out of memory, says the driver", file=sys.stderr, flush=True)
    os._exit(3)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    return tmp_path / "a cache" / "edgevit"


@pytest.fixture
def extra_runners(tmp_path, monkeypatch):
    """An agent with two more runner files."""
    sources = tmp_path / "sources"
    shutil.copytree(client.AGENT_DIR, sources)
    (sources / "runners" / "noisy.py").write_text(NOISY)
    (sources / "runners" / "dying.py").write_text(DYING)
    monkeypatch.setattr(client, "AGENT_DIR", sources)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_the_agent_is_one_file_named_by_its_content():
    (name, content), again = pack_agent(), pack_agent()
    assert (name, content) == again
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        assert all(info.date_time == (1980, 1, 1, 0, 0, 0) for info in archive.infolist())
    assert {"__main__.py", "agent/records.py", "agent/runners/fake.py", "agent/meters/memory.py"} <= set(names)
    assert all(name.endswith(".py") for name in names)


def test_other_sources_give_another_name(extra_runners, monkeypatch):
    changed = pack_agent()[0]
    monkeypatch.undo()
    assert pack_agent()[0] != changed


def test_the_agent_is_stored_once_and_leaves_nothing_else(cache):
    for _ in range(2):
        with Agent():
            pass
    (stored,) = cache.iterdir()
    assert stored.read_bytes() == pack_agent()[1]


SHELL_TOOLS = ("sh", "env", "head", "wc", "mkdir", "mv", "rm", "df")


@pytest.mark.parametrize("has_sha256sum", [True, False])
@pytest.mark.parametrize("damage", [lambda agent: b"", lambda agent: agent[:400], lambda agent: agent[:-1] + b"?"])
def test_an_agent_in_the_cache_of_other_content_is_replaced(cache, damage, has_sha256sum, tmp_path, monkeypatch):
    name, content = pack_agent()
    cache.mkdir(parents=True)
    (cache / name).write_bytes(damage(content))
    if not has_sha256sum:
        (tmp_path / "bin").mkdir()
        for tool in SHELL_TOOLS:
            (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with Agent() as agent:
        assert agent.hello["schema"] == SCHEMA
    assert (cache / name).read_bytes() == content
    assert [file.name for file in cache.iterdir()] == [name]


def test_without_a_home_the_shell_and_python_agree_on_the_cache(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME")
    home = pwd.getpwuid(os.getuid()).pw_dir
    greeting = client.START.format(
        cache=client.CACHE, name="none", size=0, sha256="", mark="", folder="", python="printf %s"
    )
    there = subprocess.run(["sh", "-c", greeting.partition("mkdir")[0] + 'echo "$d"'], capture_output=True, text=True)
    assert there.stdout == f"{home}/.cache/edgevit\n"


def test_a_stale_agent_in_the_cache_is_not_started(cache):
    cache.mkdir(parents=True)
    (cache / "agent-0123456789abcdef.pyz").write_text("raise SystemExit('stale')")
    with Agent() as agent:
        assert agent.hello["schema"] == SCHEMA


def test_a_cache_that_cannot_be_written_is_named(cache):
    cache.parent.write_text("a file where a folder should be")
    told = f"cannot copy the agent to this machine: .*a cache.*; make {cache} writable there, or set XDG_CACHE_"
    with pytest.raises(UnreachableError, match=told), Agent():
        pass


def test_a_python_that_is_not_there_is_named():
    with pytest.raises(UnreachableError, match=r"on this machine with /no/python: .*exit code 127.*not found"):
        Agent(python="/no/python").__enter__()


def test_a_shell_that_is_not_there_is_named():
    with pytest.raises(UnreachableError, match=r"cannot reach orin: .*no-such-ssh"):
        Agent(shell=("no-such-ssh", "orin"), host="orin").__enter__()


def test_a_shell_that_fails_is_quoted():
    failing = ("sh", "-c", "echo Permission denied >&2; exit 255; ")
    with pytest.raises(UnreachableError, match="cannot copy the agent to orin: Permission denied"):
        Agent(shell=failing, host="orin").__enter__()


def test_the_shell_prefix_may_stand_for_another_machine(tmp_path):
    """As ssh does: drop the host, join the words, run them with a shell."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    with Agent(shell=(str(ssh), "orin"), host="orin") as agent:
        assert len(agent.call("measure", **REQUEST)["latencies_ns"]) == 5


def test_a_full_disk_is_told_as_full_where_programs_speak_another_language(tmp_path, monkeypatch):
    head = tmp_path / "bin/head"
    head.parent.mkdir()
    head.write_text(
        '#!/bin/sh\n[ "$LC_ALL" = C ] && said="No space left on device" || said="kein Speicherplatz mehr"\n'
        'echo "head: $said" >&2\nexit 1\n'
    )
    head.chmod(0o755)
    monkeypatch.setenv("PATH", str(head.parent), prepend=":")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    with pytest.raises(UnfitBoardError, match=rf"no space left on .* for the agent in {tmp_path}/cache/edgevit;"):
        Agent().__enter__()


def test_stray_prints_do_not_corrupt_the_protocol(extra_runners, caplog):
    with caplog.at_level("INFO"), Agent() as agent:
        result = agent.call("measure", **{**REQUEST, "runner": "noisy", "options": {}})
        assert len(result["latencies_ns"]) == 5
    for text in ("from Python", "from C", "from a child"):
        assert text in caplog.text


def test_an_agent_that_dies_leaves_its_last_words(extra_runners):
    with Agent() as agent:
        with pytest.raises(
            AgentError, match=r"died during 'measure' \(exit code 3\): .*out of memory, says the driver"
        ):
            agent.call("measure", **{**REQUEST, "runner": "dying", "options": {}})
        with pytest.raises(AgentError, match="died during 'hello'"):
            agent.call("hello")


def test_an_agent_that_was_killed_says_by_what():
    with Agent() as agent:
        agent._process.kill()
        with pytest.raises(AgentError, match="killed by signal 9"):
            agent.call("hello")


def test_something_else_on_the_line_is_quoted(tmp_path):
    banner = tmp_path / "python"
    banner.write_text("#!/bin/sh\necho Welcome to Ubuntu\ncat >/dev/null\n")
    banner.chmod(0o755)
    with pytest.raises(UnreachableError, match="answered 'Welcome to Ubuntu', which is not its protocol"):
        Agent(python=str(banner), start_seconds=1).__enter__()


def test_the_agent_ends_with_the_block():
    with Agent() as agent:
        pid = agent._process.pid
    assert agent._process.returncode == 0
    assert not is_running(pid)


def test_an_error_in_the_block_ends_the_agent_at_once():
    with pytest.raises(KeyboardInterrupt), Agent() as agent:
        raise KeyboardInterrupt
    assert agent._process.returncode == -signal.SIGTERM


HOST = f"""
import sys
from edgevit.board.client import Agent
with Agent() as agent:
    print(agent._process.pid, flush=True)
    agent.call("measure", **{ {**REQUEST, "duration_s": 60}!r})
"""


@pytest.mark.quick("9")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_agent_outlives_its_host(how):
    with subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as host:
        pid = int(host.stdout.readline())
        time.sleep(0.3)
        host.send_signal(how)
        host.wait(10)
        assert wait_until(lambda: not is_running(pid))
        host.stderr.read()
