"""`edgevit board` as a person types it: on this machine, and on a captured board in its place."""

import json
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone

import pytest

from edgevit.board.connection import open_board
from edgevit.board.doctor import Check
from edgevit.cli.board import checks_table, jobs_table
from edgevit.cli.console import Console

NX = "orin-nx-16gb-jetpack6.2"

JOB = """
import sys
from edgevit.board.connection import open_board
from edgevit.progress import Silent
request = {"model": "any", "model_sha256": "0", "label": "any", "precision": None, "runner": "fake", "batch": 1}
with open_board(None) as board:
    board.run_job("measure", {**request, "duration_s": 60}, name="any", progress=Silent())
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def nx(board_tree, monkeypatch):
    root = board_tree(NX)
    monkeypatch.setenv("EDGEVIT_BOARD_ROOT", str(root))
    return root


def test_this_machine_is_looked_over(edgevit_main):
    done = edgevit_main("board")
    assert done.code == 0 and done.out.startswith("this machine: ")
    assert "ONNX Runtime" in done.out and done.told == []


def test_a_captured_board_shows_what_is_seen_expected_and_to_try(edgevit_main, nx):
    done = edgevit_main("board")
    assert "Jetson Orin NX 16GB (p3767-0000, Super), profile orin-nx-16gb" in done.out
    assert "free, the GPU between 306 and 1173 MHz" in done.out
    assert "expected: locked while measuring" in done.out
    assert "try: sudo jetson_clocks, or --lock-clocks" in done.out
    assert done.told == []


def test_a_board_cannot_move_the_cursor(capsys):
    odd = "x\x1b]0;title\x07[/bold]\u202e"
    Console().show(checks_table(odd, [Check(odd, "warning", odd, odd, odd)]))
    drawn = capsys.readouterr().out
    assert drawn.count("[/bold]\\u202e") == 5 and not {"\x1b", "\x07", "\u202e"} & set(drawn)


@pytest.mark.slow
def test_json_has_the_facts_and_the_checks(edgevit_main, nx):
    done = edgevit_main("board", "--json")
    answer = json.loads(done.out)
    assert answer["facts"]["module"]["part"] == "p3767-0000"
    states = {check["name"]: check["state"] for check in answer["checks"]}
    assert states["module"] == "ok" and states["clocks"] == "warning"
    assert done.code == ("problem" in states.values())


def test_a_problem_is_exit_code_1_and_no_error_line(edgevit_main, nx, tmp_path, monkeypatch):
    """A TensorRT that cannot be imported, by a stand-in for its package."""
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "tensorrt.py").write_text("raise ImportError('libnvinfer.so.10 [not] found')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "libraries"))
    done = edgevit_main("board")
    assert (done.code, done.told) == (1, [])
    assert "problem" in done.out and "libnvinfer.so.10 [not] found" in done.out
    assert "sudo apt install python3-libnvinfer tensorrt" in done.out


def test_a_profile_of_another_board_is_refused(edgevit_main, nx):
    assert "try --profile orin-nx-16gb" in edgevit_main("board", "--profile", "agx-orin-64gb").error
    assert "did you mean 'orin-nx-16gb'" in edgevit_main("board", "--profile", "orin-nx-16").error
    assert "profile orin-nx-16gb" in edgevit_main("board", "--profile", "orin-nx-16gb").out


def test_a_host_that_cannot_be_reached_is_one_line(edgevit_main, tmp_path):
    config = tmp_path / "config"
    config.write_text("Host orin\n  HostName 127.0.0.1\n  Port 1\n")
    assert "orin" in edgevit_main("board", "orin", "--ssh-config", config).error


def test_jobs_are_listed_and_cancelled(edgevit_main):
    assert edgevit_main("board", "--jobs").out == "no jobs on this machine\n"
    with subprocess.Popen([sys.executable, "-c", JOB], stderr=subprocess.PIPE) as host:
        with open_board(None) as board:
            deadline = time.monotonic() + 20
            while not board.call("jobs")["jobs"] and time.monotonic() < deadline:
                time.sleep(0.05)
        listed = edgevit_main("board", "--jobs").out
        (job,) = json.loads(edgevit_main("board", "--jobs", "--json").out)["jobs"]
        assert all(text in listed for text in (job["job"], "measure", "running", job["owner"], "0:0"))
        assert edgevit_main("board", "--cancel").out == f"cancelled on this machine: {job['job']}\n"
        assert b"cancelled" in host.communicate(timeout=30)[1]
    assert edgevit_main("board", "--jobs").out == "no jobs on this machine\n"
    assert edgevit_main("board", "--cancel").out == "cancelled on this machine: nothing was running\n"


def test_a_jobs_age_is_by_the_clock_of_its_board(tmp_path, monkeypatch):
    """A board that has no network and no battery for its clock begins in 1970."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for seconds in ("-90", "90"):
        folder = tmp_path / "edgevit" / "jobs" / seconds
        folder.mkdir(parents=True)
        started = datetime.now(timezone.utc) + timedelta(seconds=int(seconds))
        request = {"method": "bench", "args": {}, "owner": "anna@desk", "root": "/", "started": started.isoformat()}
        (folder / "request.json").write_text(json.dumps(request))
    with open_board(None) as board:
        ahead, behind = sorted(board.call("jobs")["jobs"], key=lambda job: job["age_s"] is not None)
    assert ahead["age_s"] is None and 90 <= behind["age_s"] < 120
    shown = jobs_table("orin", [{**behind, "started": "1970-01-01T00:01:00+00:00", "age_s": 90.4}])
    assert list(shown.columns[-1].cells) == ["1:30"]
    assert list(jobs_table("orin", [ahead]).columns[-1].cells) == [""]


def test_jobs_of_others_are_left_and_named_unless_all_are_to_end(edgevit_main):
    request = {"model": "any", "model_sha256": "0", "label": "any", "precision": None, "runner": "fake", "batch": 1}
    with open_board(None) as board:
        board.call("start", job="b", method="measure", args={**request, "duration_s": 60}, owner="bert@lab")
    done = edgevit_main("board", "--cancel")
    nothing, left = done.out.splitlines()
    assert nothing == "cancelled on this machine: nothing of yours was running"
    assert left == "left: b, measure by bert@lab; --cancel-all ends it, too"
    assert edgevit_main("board", "--cancel-all").out == "cancelled on this machine: b\n"


def test_a_damaged_job_is_a_warning_that_names_its_file_and_cancel_removes_it(edgevit_main, tmp_path):
    folder = tmp_path / "cache" / "edgevit" / "jobs" / "0123"
    folder.mkdir(parents=True)
    (folder / "request.json").write_text('{"method": "ben')
    done = edgevit_main("board", "--jobs")
    assert done.code == 0 and "0123" in done.out and "damaged" in done.out
    assert done.err.startswith(f"warning: {folder}/request.json is damaged (")
    assert edgevit_main("board", "--cancel").out == "cancelled on this machine: 0123\n"
    assert edgevit_main("board", "--jobs").out == "no jobs on this machine\n"


@pytest.mark.parametrize("host", ["orin\nnx", " orin", "orin nx", "orin\x1b[2J"])
def test_a_name_that_no_host_can_have_is_one_line(edgevit_main, host):
    assert "has a name that no host can have; try user@host" in edgevit_main("board", host).error
