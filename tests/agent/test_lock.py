"""One job at a time on a board, whoever asks."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from edgevit.agent import lock
from edgevit.agent.lock import acquire_lock, lock_path
from edgevit.agent.runners import RunnerError


def test_a_lock_that_says_nothing_readable_is_still_a_lock(tmp_path):
    path = tmp_path / "lock"
    path.write_bytes(b"\xff not JSON")
    told = []
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True, env={**os.environ, "WAIT": "0"}
        )
        assert json.loads(holder.stdout.readline()) == {"stage": "wait", "done": 0.0, "holder": None}
    with holder:
        assert holder.stdout.readline() == "held\n"
    with acquire_lock(str(path), "anna@desk", "bench", told.append):
        assert json.loads(path.read_text())["owner"] == "anna@desk"
    assert told == []


HOLD = """
import json, sys
from edgevit.agent.lock import acquire_lock
# become
with acquire_lock(sys.argv[1], "bert@lab", "build", lambda waiting: print(json.dumps(waiting), flush=True)):
    print("held", flush=True)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as two other users")
def test_users_of_one_board_share_its_lock():
    shared = Path(tempfile.mkdtemp())
    shared.chmod(0o1777)  # as /tmp and /run/lock are
    try:
        for uid in (65534, 65533):
            become = f"import os; os.umask(0o077); os.setuid({uid})"  # when all is imported: root's Python is root's
            code = HOLD.replace("# become", become)
            assert subprocess.check_output([sys.executable, "-c", code, shared / "lock"], text=True) == "held\n"
        assert (shared / "lock").stat().st_uid == 65534
        assert (shared / "lock").stat().st_mode & 0o777 == 0o666
    finally:
        shutil.rmtree(shared)


def test_a_lock_that_cannot_be_made_is_named(tmp_path):
    for path in (tmp_path / "nowhere" / "lock", tmp_path):
        with (
            pytest.raises(RunnerError, match=f"cannot lock the board: .*{tmp_path.name}"),
            acquire_lock(str(path), "anna@desk", "bench", print),
        ):
            pass


def test_what_is_held_for_a_copy_is_free_when_that_ended_or_takes_too_long(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told, free = [], [sys.executable, "-c", HOLD, lock_path("/a/tree")]
    for copy_s, ends in ((60.0, True), (0.5, False)):
        monkeypatch.setattr(lock, "COPY_S", copy_s)
        lock.take(told.append, "/a/tree", "anna@desk", "send")
        with subprocess.Popen(free, stdout=subprocess.PIPE, text=True) as other:
            waiting = json.loads(other.stdout.readline())
            assert (waiting["holder"]["owner"], waiting["holder"]["method"]) == ("anna@desk", "send")
            if ends:
                lock.release(told.append, "/a/tree")
            assert other.stdout.readline() == "held\n"
    lock.release(told.append, "/a/tree")
    assert not told


def test_a_captured_tree_does_not_lock_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert lock_path("/") is None
    assert lock_path(str(tmp_path)).startswith(os.environ["XDG_CACHE_HOME"])
