"""A board over a real sshd: files, jobs, and connections that break in the middle of them."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from board_fixtures import of_processes
from hypothesis import given
from hypothesis import strategies as st

from edgevit.agent import files
from edgevit.agent.__main__ import MARK
from edgevit.agent.lock import acquire_lock
from edgevit.agent.measure import MeasurementRequest
from edgevit.board.client import LOCAL, Agent, pack_agent
from edgevit.board.connection import Board, _owner, open_board
from edgevit.board.facts import examine
from edgevit.board.ssh import Ssh
from edgevit.errors import (
    AgentError,
    BoardError,
    ConnectionLostError,
    Interrupted,
    OutputError,
    UnfitBoardError,
    UnreachableError,
)
from edgevit.progress import Silent

REQUEST = asdict(
    MeasurementRequest("/models/any.onnx", "0" * 64, "any", None, "fake", 1, 5, 0, 0, 0, {"latency_ms": 1})
)
SECOND = {**REQUEST, "duration_s": 1}
THREE = {**REQUEST, "duration_s": 3}
LONG = {**REQUEST, "duration_s": 60}


class Told:
    """A progress that keeps what it is told; `at_once` is called when a stage of that name first moves."""

    def __init__(self, stage="", at_once=lambda: None):
        self.notes, self.stages, self.updates = [], [], []
        self._when, self._at_once = stage, at_once

    @contextmanager
    def stage(self, name, total=None, unit=""):
        self.stages.append((name, total, unit))
        yield self

    def update(self, done, **figures):
        self.updates.append((done, figures))
        if self._when and self._when in self.stages[-1][0]:
            self._when = ""
            self._at_once()

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def server(sshd, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    server = sshd(EDGEVIT_BOARD_ROOT=root)
    yield server
    if any(server.cache.glob("jobs/*/pid")):
        server.start()
        with open_board(server.host, ssh_config=server.config) as board:
            board.call("cancel")


@pytest.fixture
def board(server):
    with open_board(server.host, ssh_config=server.config, retry_seconds=10) as board:
        yield board


def measure(board, progress, args=SECOND):
    return board.run_job("measure", args, name="bench t1", progress=progress)


def write(path, size=3 << 20):
    path.write_bytes(os.urandom(size))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_job_runs_there_and_shows_how_far_it_is(board, server):
    told = Told()
    result = measure(board, told)
    assert len(result["latencies_ns"]) > 5
    assert [name for name, *_ in told.stages] == ["bench t1: load", "bench t1: measure"]
    assert told.stages[0][1:] == (100, "%")
    assert all(0 <= done <= 100 for done, _ in told.updates)
    assert not told.notes
    assert board.call("jobs") == {"jobs": []}


def test_a_connection_cut_during_a_job_is_taken_up_again(board, server):
    told = Told("measure", server.cut)
    assert len(measure(board, told)["latencies_ns"]) > 5
    assert server.log().count("Accepted publickey") == 2
    assert board.call("jobs") == {"jobs": []}


def test_an_ssh_process_that_is_killed_here_is_replaced(server):
    with (
        Ssh(server.host, config=server.config) as ssh,
        Board("board", ssh.argv, "python3", explain=ssh.explain) as board,
    ):
        check = subprocess.run([*ssh._ssh, "-O", "check", server.host], capture_output=True, text=True)
        master = int(check.stderr.partition("pid=")[2].rstrip(")\r\n"))
        told = Told("measure", lambda: os.kill(master, signal.SIGKILL))
        assert len(measure(board, told)["latencies_ns"]) > 5


@pytest.mark.slow
def test_the_same_command_collects_the_result_after_the_board_was_out_of_reach(server):
    def unplug():
        server.stop()
        (job,) = (server.cache / "jobs").glob("*/pid")
        pids.append(job.read_text())

    pids = []
    with (
        open_board(server.host, ssh_config=server.config, retry_seconds=0.6) as board,
        pytest.raises(
            ConnectionLostError, match=r"is lost \(.*\); measure goes on there, and the same command collects"
        ),
    ):
        measure(board, Told("measure", unplug))
    server.start()
    told = Told()
    with open_board(server.host, ssh_config=server.config) as board:
        (job,) = board.call("jobs")["jobs"]
        assert job["state"] in ("running", "finished")
        assert (server.cache / "jobs" / job["job"] / "pid").read_text() == pids[0]
        assert len(measure(board, told)["latencies_ns"]) > 5
        assert told.notes[0].startswith("the same measure on board ")
        assert board.call("jobs") == {"jobs": []}
        again = Told()
        measure(board, again)
        assert again.stages and not again.notes  # a new one


def test_a_job_that_was_started_when_the_connection_broke_is_not_started_twice(board, server):
    """The answer to `start` is lost; whoever asks again finds the job running."""
    job = hashlib.sha256(json.dumps(["measure", LONG, pack_agent()[0]], sort_keys=True).encode()).hexdigest()[:16]
    assert board.call("start", job=job, method="measure", args=LONG, owner="me")["state"] == "new"
    told = Told("measure", lambda: server.cut() or interrupt())

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"collects its result, and it is for me to end, who started it$"):
        measure(board, told, LONG)
    assert told.notes == ["the same measure on board is running already: collecting that one"]
    assert [found["job"] for found in board.call("jobs")["jobs"]] == [job]


def test_a_result_is_there_until_the_caller_has_kept_it(board):
    def full(result):
        kept.append(result)
        raise OutputError("the disk is full")

    def run(keep, progress):
        return board.run_job("measure", REQUEST, name="bench t1", progress=progress, keep=keep)

    kept = []
    with pytest.raises(OutputError, match="the disk is full"):
        run(full, Told())
    assert [job["state"] for job in board.call("jobs")["jobs"]] == ["finished"]
    told = Told()
    assert run(lambda result: (result, board.call("jobs")["jobs"][0]["state"]), told) == (kept[0], "finished")
    assert told.notes == ["the same measure on board has finished, and nobody has seen its result: collecting that one"]
    assert board.call("jobs") == {"jobs": []}


def test_ctrl_c_leaves_the_job_running_and_says_how_to_end_it(board):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(
        Interrupted, match=r"measure goes on on board: the same command .*`edgevit board board --cancel` ends it"
    ):
        measure(board, Told("measure", interrupt), LONG)
    assert board.call("jobs")["jobs"][0]["state"] == "running"
    assert len(board.cancel()["cancelled"]) == 1
    assert board.call("jobs") == {"jobs": []}


def test_ctrl_c_cancels_a_job_on_this_machine(tmp_path, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("EDGEVIT_BOARD_ROOT", str(tmp_path))
    with open_board(None) as board:
        with pytest.raises(Interrupted, match="measure was cancelled"):
            measure(board, Told("measure", interrupt), LONG)
        assert board.call("jobs") == {"jobs": []}


def test_a_job_that_fails_raises_its_own_error_and_is_forgotten(board):
    with pytest.raises(AgentError, match="no runner 'nope'; known: ") as caught:
        measure(board, Told(), {**REQUEST, "runner": "nope"})
    assert "measure.py" in caught.value.remote_traceback
    assert board.call("jobs") == {"jobs": []}


def test_a_job_that_is_killed_there_is_told_as_dead(board, server):
    def kill():
        (pid,) = (server.cache / "jobs").glob("*/pid")
        os.killpg(int(pid.read_text()), signal.SIGKILL)

    with pytest.raises(AgentError, match="the job died: it said nothing"):
        measure(board, Told("measure", kill), LONG)
    told = Told()
    assert measure(board, told)["latencies_ns"]
    assert told.notes[0].startswith("board was left locked by one that died: measure by ")


def agents(server):
    """The processes of agents that serve `server`, not those of jobs."""
    lines = ((pid, line.split("\0")) for pid, line in of_processes("cmdline"))
    return [
        pid for pid, words in lines if "greet" in words and any(word.startswith(str(server.cache)) for word in words)
    ]


def test_an_agent_that_is_killed_there_does_not_take_the_job_with_it(board, server):
    told = Told("measure", lambda: [os.kill(pid, signal.SIGKILL) for pid in agents(server)])
    assert len(measure(board, told)["latencies_ns"]) > 5
    assert server.log().count("Accepted publickey") == 1  # the connection was not lost


def test_an_agent_that_dies_at_a_question_is_replaced_for_the_next(board, server):
    (pid,) = agents(server)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(AgentError, match=r"the agent died during 'hello'"):
        board.call("hello")
    assert board.call("hello")["cache"] == str(server.cache)


def test_a_question_is_asked_again_when_the_connection_was_cut(board, server):
    server.cut()
    assert board.call("hello")["cache"] == str(server.cache)


def test_a_question_to_a_board_that_is_gone_ends(server):
    with open_board(server.host, ssh_config=server.config, retry_seconds=0.6) as board:
        server.stop()
        with pytest.raises(ConnectionLostError, match=r"the connection to board is lost \(.*refused.*\); try again"):
            board.call("hello")


@pytest.mark.slow
def test_two_hosts_take_turns(server):
    with ExitStack() as stack:
        one, two = (stack.enter_context(open_board(server.host, ssh_config=server.config)) for _ in range(2))
        begun, told, results = threading.Event(), Told(), []
        first = threading.Thread(target=lambda: results.append(measure(one, Told("measure", begun.set), THREE)))
        first.start()
        assert begun.wait(10)
        assert len(measure(two, told, REQUEST)["latencies_ns"]) == 5
        first.join()
    assert len(results[0]["latencies_ns"]) > 5
    assert len(told.notes) == 1
    assert told.notes[0].startswith("waiting for board: measure by ")
    assert " s" in told.notes[0].partition(" since ")[2]


def test_copying_and_looking_wait_for_the_job_of_somebody_else(board, server, tmp_path):
    """Their processor time and memory are what that job measures with; a list of jobs takes next to none."""
    model, back = tmp_path / "model.onnx", tmp_path / "back"
    sha256 = write(model)
    there = board.put(model, sha256, Silent())
    model.write_bytes(b"another")
    for owner, act in {
        "bert@lab": lambda told: board.put(model, hashlib.sha256(b"another").hexdigest(), told),
        "carl@lab": lambda told: board.fetch(there, back, sha256, told),
        "dora@lab": lambda told: examine(board, told),  # each is another: a wait for the same one is said once
    }.items():
        told = Told()
        waiting = threading.Thread(target=act, args=(told,))
        with acquire_lock(str(server.cache / "lock"), owner, "bench", print):
            assert board.call("jobs") == {"jobs": []}
            waiting.start()
            while not told.notes:
                time.sleep(0.01)
            assert waiting.is_alive() and not told.stages
        waiting.join(60)
        assert not waiting.is_alive() and told.notes[0].startswith(f"waiting for board: bench by {owner} since ")
    with acquire_lock(str(server.cache / "lock"), _owner(), "bench", print):
        examine(board, told := Told())
    assert not told.notes, "whoever comes back for a job begins by looking"


def test_a_stale_lock_is_said_and_taken_over(board, server):
    content = {"owner": "bert@lab", "method": "build", "pid": 1, "since": 0}
    (server.cache / "lock").write_text(json.dumps(content))
    told = Told()
    assert measure(board, told, REQUEST)["latencies_ns"]
    (note,) = told.notes
    assert note.startswith("board was left locked by one that died: build by bert@lab since ")
    assert note.endswith(" min; taken over")


def test_a_file_is_sent_once_and_comes_back(board, server, tmp_path):
    model = tmp_path / "a model.onnx"
    sha256 = write(model)
    told, again = Told(), Told()
    there = board.put(model, sha256, told)
    assert there == f"{server.cache}/files/{sha256}.onnx"
    assert Path(there).read_bytes() == model.read_bytes()
    assert told.stages == [("send a model.onnx", 3, "MiB")]
    assert told.updates[-1] == (3, {})
    assert board.put(model, sha256, again) == there and not again.stages
    back = tmp_path / "back"
    board.fetch(there, back, sha256, told)
    assert back.read_bytes() == model.read_bytes()
    assert told.stages[1:] == [("fetch back", 3, "MiB")]
    assert [path.name for path in (server.cache / "files").iterdir()] == [Path(there).name]


def test_half_a_file_that_was_left_there_is_sent_anew(board, server, tmp_path):
    sha256 = write(tmp_path / "model.onnx")
    (server.cache / "files").mkdir()
    (server.cache / "files" / f"{sha256}.onnx").write_bytes(b"half")
    there = board.put(tmp_path / "model.onnx", sha256, Silent())
    assert Path(there).stat().st_size == 3 << 20


def test_a_connection_cut_while_sending_or_fetching_is_taken_up_again(board, server, tmp_path):
    sha256 = write(tmp_path / "model.onnx", 20 << 20)
    there = board.put(tmp_path / "model.onnx", sha256, told := Told("send", server.cut))
    assert len(told.stages) == 2
    board.fetch(there, tmp_path / "back", sha256, told := Told("fetch", server.cut))
    assert len(told.stages) == 2
    assert (tmp_path / "back").read_bytes() == (tmp_path / "model.onnx").read_bytes()
    assert len(list((server.cache / "files").iterdir())) == 1


def test_a_file_that_arrives_altered_is_refused_either_way(board, server, tmp_path):
    model = tmp_path / "model.onnx"
    sha256 = write(model)
    with pytest.raises(AgentError, match=r"the upload of .* arrived altered: its sha256 is .*, not 0000"):
        board.put(model, "0" * 64, Silent())
    assert not list((server.cache / "files").iterdir())
    there = board.put(model, sha256, Silent())
    with pytest.raises(AgentError, match=r"is not what it was: its sha256 is "):
        board.fetch(there, tmp_path / "back", "0" * 64, Silent())
    with pytest.raises(AgentError, match="/nowhere is not on board"):
        board.fetch("/nowhere", tmp_path / "back", sha256, Silent())
    with pytest.raises(OutputError, match=r"cannot write .*no/back: No such file or directory"):
        board.fetch(there, tmp_path / "no" / "back", sha256, Silent())
    assert sorted(path.name for path in tmp_path.iterdir() if "back" in path.name) == []


def test_a_fetched_file_is_free_of_what_a_login_shell_prints(sshd, tmp_path):
    shell = tmp_path / "noisy"
    shell.write_text('#!/bin/sh\nprintf "Welcome\\nhave a nice day"\nexec sh -c "$SSH_ORIGINAL_COMMAND"\n')
    shell.chmod(0o755)
    server = sshd(options=[f"ForceCommand {shell}"])
    with open_board(server.host, ssh_config=server.config) as board:
        sha256 = write(tmp_path / "model.onnx")
        there = board.put(tmp_path / "model.onnx", sha256, Silent())
        board.fetch(there, tmp_path / "back", sha256, Silent())
    assert (tmp_path / "back").read_bytes() == (tmp_path / "model.onnx").read_bytes()


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "edgevit-test", folder]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_file_that_does_not_fit_is_not_sent(sshd, small_disk, tmp_path):
    server = sshd(XDG_CACHE_HOME=small_disk)
    sha256 = write(tmp_path / "model.onnx")
    told = Told()
    full = rf"board has 1\.\d MiB free in {small_disk}/edgevit/files, and model\.onnx needs 3\.0 MiB; make room there"
    with open_board(server.host, ssh_config=server.config) as board, pytest.raises(UnfitBoardError, match=full):
        board.put(tmp_path / "model.onnx", sha256, told)
    assert not told.stages


def test_a_disk_that_fills_up_meanwhile_is_told_as_full(sshd, small_disk, tmp_path):
    server = sshd(XDG_CACHE_HOME=small_disk)
    sha256 = write(tmp_path / "model.onnx", 1 << 20)
    told = Told("send", lambda: subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/other"], capture_output=True))
    with open_board(server.host, ssh_config=server.config) as board:
        with pytest.raises(UnfitBoardError, match=r"model\.onnx needs 1\.0 MiB; make room there"):
            board.put(tmp_path / "model.onnx", sha256, told)
        (small_disk / "other").unlink()
        board.put(tmp_path / "model.onnx", sha256, Silent())


def test_a_disk_too_full_for_the_agent_is_told_as_full(sshd, small_disk):
    server = sshd(XDG_CACHE_HOME=small_disk)
    subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/other"], capture_output=True)
    with (
        pytest.raises(UnfitBoardError, match=rf"board has no space left on {small_disk} \(0 KiB free\) for the agent"),
        open_board(server.host, ssh_config=server.config),
    ):
        pass


def test_a_job_that_a_full_disk_keeps_from_starting_says_so_and_leaves_nothing(sshd, small_disk):
    server = sshd(XDG_CACHE_HOME=small_disk, EDGEVIT_BOARD_ROOT=small_disk)
    told = Told()
    with open_board(server.host, ssh_config=server.config) as board:
        subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/other"], capture_output=True)
        full = rf"the disk is full \(cannot write {small_disk}/edgevit.*: No space left on device\); make room there"
        with pytest.raises(AgentError, match=full):
            measure(board, told)
        (small_disk / "other").unlink()
        assert len(measure(board, told)["latencies_ns"]) > 5
    assert not told.notes  # as of an earlier one that died


WORDS = ["send", "start", '{"cache": "/c"}', "{}", "[]", '{"cache": 3}']
REPLIES = st.dictionaries(
    st.sampled_from(["progress", "result", "error"]),
    st.none() | st.text() | st.dictionaries(st.sampled_from(["message", "traceback", "stage"]), st.none() | st.text()),
)
LINES = (
    st.binary(max_size=40)
    | st.sampled_from([b'{"progress": {}}', b'{"progress": {"done": 1e999}}', b"[" * 9000, b"1" * 9000])
    | REPLIES.map(lambda reply: json.dumps(reply).encode())
    | st.sampled_from(WORDS).map(lambda word: (MARK + word).encode())
)
HELLO = f'{MARK}start\n{MARK}{{"cache": "/c"}}\n'.encode()


@given(st.lists(LINES).map(b"\n".join), st.booleans())
def test_whatever_a_host_says_is_an_answer_or_an_error(tmp_path_factory, said, greeted):
    file = tmp_path_factory.getbasetemp() / "said"
    file.write_bytes((HELLO if greeted else b"") + said)
    try:
        with Board("orin", ("sh", "-c", f"cat {file}; true"), "python3", retry_seconds=0) as board:
            board.call("hello", lambda progress: None)
    except BoardError as error:
        assert str(error)


@pytest.mark.parametrize("said", [b"", b"Welcome", HELLO, HELLO + b'{"progress": {}}\n', f"{MARK}send\n".encode()])
def test_a_host_that_falls_silent_is_given_up(tmp_path, said):
    (tmp_path / "said").write_bytes(said)
    silent = ("sh", "-c", f"cat {tmp_path}/said; exec sleep 60")
    with (
        pytest.raises(
            (UnreachableError, ConnectionLostError), match=r"orin (has not answered|has said nothing|answered)"
        ),
        Agent(shell=silent, host="orin", start_seconds=0.3, silence_seconds=0.3) as agent,
    ):
        agent.call("hello")


def test_a_copy_there_is_believed_for_its_content_and_a_damaged_one_of_its_size_is_sent_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = tmp_path / "model.onnx"
    model.write_bytes(b"right weights")
    sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
    with Board("board", LOCAL, sys.executable) as board:
        there = Path(board.put(model, sha256, Silent()))
        before = there.stat().st_mtime_ns
        assert board.put(model, sha256, Silent()) == str(there) and there.stat().st_mtime_ns == before
        there.write_bytes(b"wrong weights")  # in the same session: its time says that it was touched
        board.put(model, sha256, Silent())
        assert there.read_bytes() == b"right weights"
        there.write_bytes(b"wrong weights")
    with Board("board", LOCAL, sys.executable) as board:  # and in a later one, whatever the time says
        board.put(model, sha256, Silent())
        assert there.read_bytes() == b"right weights"


def test_a_copy_is_read_once_in_a_session_while_its_time_stands_still(tmp_path):
    copy, part = tmp_path / "copy", str(tmp_path / "part")
    copy.write_bytes(b"right weights")
    digest = hashlib.sha256(b"right weights").hexdigest()

    def is_there(path=copy):
        return files.offer(print, "/", str(path), part, digest)["present"]

    assert is_there() and not is_there(tmp_path / "other")
    before = copy.stat().st_mtime_ns
    copy.write_bytes(b"wrong weights")
    os.utime(copy, ns=(before, before))  # nothing but reading it would tell
    assert is_there()
    os.utime(copy, ns=(0, 0))
    assert not is_there()
