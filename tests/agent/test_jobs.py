"""Jobs and the board's lock, on this machine: they outlive the agent that started them and take turns."""

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from threading import Event

import pytest

from edgevit.agent.lock import lock_path
from edgevit.agent.measure import MeasurementRequest
from edgevit.board import client
from edgevit.board.client import Agent
from edgevit.errors import AgentError

REQUEST = asdict(
    MeasurementRequest("/models/any.onnx", "0" * 64, "any", None, "fake", 1, 5, 0, 0, 0, {"latency_ms": 1})
)
LONG = {**REQUEST, "duration_s": 60}
PIPE = b"a pipe in place of a file"

CAREFUL = """
import os, sys
from contextlib import contextmanager
from . import Loaded
REQUIRES = ()
@contextmanager
def open_runner(model, batch, *, restored):
    print("one moment please", file=sys.stderr, flush=True)
    try:
        yield Loaded(lambda: os.system("sleep 0.05"), None, {})
    finally:
        open(restored, "w").close()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGEVIT_BOARD_ROOT", str(tmp_path))  # another board, with a lock of its own
    jobs = tmp_path / "cache" / "edgevit" / "jobs"
    yield jobs
    if list(jobs.glob("*/")):
        with Agent() as agent:
            agent.call("cancel")


@pytest.fixture
def careful(tmp_path, monkeypatch):
    """A request whose runner puts something back when it is left."""
    sources = tmp_path / "sources"
    shutil.copytree(client.AGENT_DIR, sources)
    (sources / "runners" / "careful.py").write_text(CAREFUL)
    monkeypatch.setattr(client, "AGENT_DIR", sources)
    return {**LONG, "runner": "careful", "options": {"restored": str(tmp_path / "restored")}}


def start(agent, args=REQUEST, job="a", method="measure"):
    return agent.call("start", job=job, method=method, args=args, owner="anna@desk")


def working(agent, job="a", **options):
    """Follow until the job measures; the agent is left in the middle of its answer."""

    class Working(Exception):
        pass

    def on_progress(progress):
        if progress["stage"] == "measure":
            raise Working

    with pytest.raises(Working):
        agent.call("follow", on_progress, job=job, **options)


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_a_job_does_what_the_method_does(folder):
    told = []
    with Agent() as agent:
        assert start(agent)["state"] == "new"
        outcome = agent.call("follow", told.append, job="a")
        assert len(outcome["result"]["latencies_ns"]) == 5
        assert outcome["started"].startswith("20")
        assert told[0] == {"stage": "load", "done": 0.0}
        agent.call("forget", job="a")
        assert agent.call("jobs") == {"jobs": []}
    assert [path.name for path in folder.iterdir()] == [".lock"]


def test_a_job_outlives_the_agent_that_started_it(folder):
    with Agent() as agent:
        start(agent, {**REQUEST, "duration_s": 1})
        working(agent)
        time.sleep(0.1)  # some latencies of a millisecond
        pid = int((folder / "a" / "pid").read_text())
        os.kill(pid, signal.SIGSTOP)  # it cannot end before the next agent has begun
        agent._process.kill()
    with Agent() as agent:
        assert start(agent)["state"] == "running"
        os.kill(pid, signal.SIGCONT)
        outcome = agent.call("follow", job="a")
        assert not outcome["collected_late"]
        assert len(outcome["result"]["latencies_ns"]) > 5
        assert start(agent)["state"] == "finished"
        assert agent.call("follow", job="a") == {**outcome, "collected_late": True}


def test_the_progress_of_a_job_is_told_from_its_beginning():
    told = []
    with Agent() as agent:
        start(agent, {**REQUEST, "duration_s": 1})
        working(agent)
    with Agent() as agent:
        agent.call("follow", told.append, job="a")
    assert told[0] == {"stage": "load", "done": 0.0}
    assert sum(progress == told[0] for progress in told) == 1


def test_a_job_that_fails_says_why_and_where():
    with Agent() as agent:
        start(agent, {**REQUEST, "runner": "nope"})
        error = agent.call("follow", job="a")["error"]
        assert error["message"].startswith("no runner 'nope'; known: ")
        assert "measure.py" in error["traceback"]


def test_a_job_that_dies_leaves_its_last_words_and_can_be_tried_again(careful):
    with Agent() as agent:
        start(agent, careful)
        working(agent)
    with Agent() as agent:
        (job,) = agent.call("jobs")["jobs"]
        assert (job["job"], job["state"], job["method"], job["owner"]) == ("a", "running", "measure", "anna@desk")
        pid = int((Path(os.environ["XDG_CACHE_HOME"]) / "edgevit/jobs/a/pid").read_text())
        os.kill(pid, signal.SIGKILL)
        assert "the job died: one moment please" in agent.call("follow", job="a")["error"]["message"]
        assert agent.call("jobs")["jobs"][0]["state"] == "dead"
        again = start(agent)
        assert again["state"] == "dead" and "one moment please" in again["message"]
        assert "result" in agent.call("follow", job="a")


def test_a_number_given_out_again_is_not_taken_for_the_job(folder):
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "pid").write_text(str(os.getpid()))
    with Agent() as agent:
        assert agent.call("jobs")["jobs"][0]["state"] == "dead"
        assert agent.call("cancel") == {"cancelled": [], "others": []}


def test_a_cancelled_job_puts_back_what_it_changed_and_is_gone(careful, tmp_path):
    with Agent() as agent:
        start(agent, careful)
        working(agent)
    with Agent() as agent, Agent() as other:
        with pytest.raises(AgentError, match="the job a is still running"):
            other.call("forget", job="a")
        assert other.call("cancel", job="a") == {"cancelled": ["a"], "others": []}
        assert (tmp_path / "restored").exists()
        with pytest.raises(AgentError, match="the job is gone: it was cancelled"):
            agent.call("follow", job="a")


def test_of_many_who_share_an_account_each_ends_their_own_jobs_and_learns_whose_are_left(folder):
    with Agent() as agent:
        start(agent, LONG)
        found = agent.call("start", job="b", method="measure", args=LONG, owner="bert@lab")
        assert (found["state"], found["owner"]) == ("new", "bert@lab")
        assert agent.call("start", job="b", method="measure", args=LONG, owner="anna@desk")["owner"] == "bert@lab"
        ended = agent.call("cancel", owner="anna@desk")
        assert ended["cancelled"] == ["a"]
        (left,) = ended["others"]
        assert (left["job"], left["method"], left["owner"]) == ("b", "measure", "bert@lab")
        assert [job["job"] for job in agent.call("jobs")["jobs"]] == ["b"]
        (folder / "b" / "request.json").write_text("{")
        (unknown,) = agent.call("cancel", owner="anna@desk")["others"]
        assert unknown["owner"] is None
        assert agent.call("cancel") == {"cancelled": ["b"], "others": []}


def test_two_hosts_that_follow_one_job_both_get_its_outcome(folder):
    with Agent() as first, Agent() as second, ThreadPoolExecutor() as threads:
        start(first, {**REQUEST, "duration_s": 1})
        assert start(second, {**REQUEST, "duration_s": 1})["state"] == "running"
        followed = Event()
        outcome = threads.submit(second.call, "follow", lambda progress: followed.set(), job="a")
        assert followed.wait(10)
        result = first.call("follow", job="a")["result"]
        first.call("forget", job="a")
        assert outcome.result(10)["result"] == result
        second.call("forget", job="a")
        assert second.call("jobs") == {"jobs": []}


def test_a_follower_learns_that_the_job_was_cancelled():
    cancelling = []

    def on_progress(progress):
        if progress["stage"] == "measure" and not cancelling:
            cancelling.append(subprocess.Popen([sys.executable, "-c", CANCEL]))

    with Agent() as agent:
        start(agent, LONG)
        try:  # which of the two depends on who is faster
            assert agent.call("follow", on_progress, job="a")["error"]["message"] == "the job died: cancelled"
        except AgentError as error:
            assert "it was cancelled" in str(error)
    assert cancelling[0].wait() == 0


CANCEL = """
from edgevit.board.client import Agent
with Agent() as agent:
    agent.call("cancel")
"""


def test_a_job_that_does_not_end_when_asked_is_killed(careful, monkeypatch):
    stubborn = client.AGENT_DIR / "runners" / "careful.py"
    stubborn.write_text(CAREFUL.replace("open(restored", "import time; time.sleep(60); open(restored"))
    jobs = client.AGENT_DIR / "jobs.py"
    jobs.write_text(jobs.read_text().replace("GENTLY_S = 20.0", "GENTLY_S = 0.3"))
    with Agent() as agent:
        start(agent, careful)
        working(agent)
    with Agent() as agent:
        assert agent.call("cancel") == {"cancelled": ["a"], "others": []}
        assert agent.call("jobs") == {"jobs": []}


def test_a_job_here_ends_with_the_last_host_that_follows_it_even_if_it_hangs(folder, monkeypatch):
    jobs = shutil.copytree(client.AGENT_DIR, folder.parents[1] / "sources") / "jobs.py"
    quick = jobs.read_text().replace("GENTLY_S = 20.0", "GENTLY_S = 0.3").replace("REPEAT_S = 5.0", "REPEAT_S = 0.1")
    jobs.write_text(quick)
    monkeypatch.setattr(client, "AGENT_DIR", jobs.parent)
    with Agent() as agent, Agent() as other:
        start(agent, LONG)
        pid = int((folder / "a" / "pid").read_text())
        working(agent, attached=True)
        working(other, attached=True)
        os.kill(pid, signal.SIGSTOP)  # it hangs
        agent._process.stdout.close()  # as when the host is killed
        agent._process.wait(10)
        assert (folder / "a").is_dir(), "another host follows it"
        other._process.stdout.close()
        other._process.wait(10)
    command = Path(f"/proc/{pid}/cmdline")
    assert not (folder / "a").exists() and not (command.exists() and command.read_bytes()), "of a zombie it is empty"
    with Agent() as agent:
        assert start(agent, job="b")["state"] == "new" and agent.call("follow", job="b")["result"], "the lock is free"


def test_two_who_start_the_same_job_share_one(folder):
    with Agent() as one, Agent() as two:
        assert {start(one)["state"], start(two)["state"]} <= {"new", "running", "finished"}
        assert one.call("follow", job="a")["result"] == two.call("follow", job="a")["result"]


def test_jobs_take_turns_and_say_who_is_before_them():
    told = []
    with Agent() as one, Agent() as two:
        start(one, {**REQUEST, "duration_s": 3})
        working(one)
        two.call("start", job="b", method="measure", args=REQUEST, owner="bert@lab")
        two.call("follow", told.append, job="b")
        assert told[0]["stage"] == "wait"
        assert (told[0]["holder"]["owner"], told[0]["holder"]["method"]) == ("anna@desk", "measure")
        assert 0 <= told[0]["holder"]["age_s"] < 30
    with Agent() as agent:
        assert agent.call("follow", job="a")["collected_late"]


def test_a_lock_left_by_a_dead_holder_is_taken_over(tmp_path):
    with Agent() as agent:
        start(agent, LONG)
        working(agent)
    (tmp_path / "cache/edgevit/jobs/a/pid").read_text()
    os.kill(int((tmp_path / "cache/edgevit/jobs/a/pid").read_text()), signal.SIGKILL)
    told = []
    with Agent() as agent:
        agent.call("start", job="b", method="measure", args=REQUEST, owner="bert@lab")
        agent.call("follow", told.append, job="b")
    assert told[0]["stale"]["owner"] == "anna@desk"
    assert Path(lock_path(str(tmp_path))).read_text() == ""


def damage(folder, job, name, content):
    (folder / job).mkdir(parents=True, exist_ok=True)
    if content is PIPE:
        os.mkfifo(folder / job / name)
    else:
        (folder / job / name).write_bytes(content)


@pytest.mark.quick("-*", "{?method*", "a pipe*")
@pytest.mark.parametrize("name", ["request.json", "result.json"])
@pytest.mark.parametrize(
    "content", [b"", b'{"method": "ben', b"[]", b"null", b'{"error": 3}', b"\xff\xfe", b"[" * 99_999, PIPE]
)
def test_a_damaged_job_is_listed_by_its_file_removed_by_cancel_and_holds_up_no_other(folder, name, content):
    with Agent() as agent:
        agent.call("start", job="b", method="measure", args=LONG, owner="anna@desk")
        damage(folder, "a", name, content)
        damaged, other = agent.call("jobs")["jobs"]
        assert (damaged["job"], damaged["state"], other["job"], other["state"]) == ("a", "damaged", "b", "running")
        assert f"/jobs/a/{name} is damaged (" in damaged["message"] and "--cancel" in damaged["message"]
        assert "\n" not in damaged["message"]
        assert sorted(agent.call("cancel")["cancelled"]) == ["a", "b"]
        assert agent.call("jobs") == {"jobs": []}
    assert not (folder / "a").exists()


def test_a_damaged_job_is_started_anew_and_following_it_names_the_file(folder):
    damage(folder, "a", "result.json", b"{")
    damage(folder, "a", "progress", b"")
    with Agent() as agent:
        with pytest.raises(AgentError, match=r"jobs/a/result.json is damaged \(.*\); `edgevit board --cancel`"):
            agent.call("follow", job="a")
        found = start(agent)
        assert found["state"] == "damaged" and "result.json is damaged" in found["message"]
        assert agent.call("follow", job="a")["result"]["label"] == "any"


def test_progress_that_cannot_be_read_is_left_out(folder):
    with Agent() as agent:
        start(agent)
        agent.call("follow", job="a")
        with (folder / "a" / "progress").open("ab") as progress:
            progress.write(b"{half\n3\n" + b"[" * 99_999 + b"\n")
        assert agent.call("follow", job="a")["result"]["label"] == "any"


@pytest.mark.parametrize("text", ["", "0", "1", "-1", "nonsense", "{parent}"])
def test_a_number_that_is_not_the_jobs_process_ends_no_process(folder, text):
    with Agent() as agent:
        start(agent, LONG)
        pid = folder / "a" / "pid"
        right = pid.read_text()
        pid.write_text(text.format(parent=os.getpid()))
        with pytest.raises(AgentError, match=r"jobs/a/pid does not hold the job's process; end it with `fuser -k"):
            agent.call("cancel")
        pid.write_text(right)
        assert agent.call("cancel") == {"cancelled": ["a"], "others": []}
