"""The facts about captured boards, about machines that tell nothing, and about libraries that misbehave."""

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from captured import AGX7, NX
from places import BOARDS

from edgevit.agent.examine import examine
from edgevit.board.connection import open_board

CAPTURED = [path.name for path in BOARDS.iterdir() if (path / "sys.txt").exists()]
PYTHON_38 = next(Path.home().glob(".pyenv/versions/3.8*/bin/python"), None)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "edgevit"


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Put a stand-in for a Python library before the real one."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "libraries"))
    (tmp_path / "libraries").mkdir()
    return lambda name, source: (tmp_path / "libraries" / f"{name}.py").write_text(source)


def facts_of(root):
    messages = []
    facts = examine(messages.append, str(root))
    assert all(0 <= message["progress"]["done"] <= 1 for message in messages)
    assert json.loads(json.dumps(facts)) == facts  # it travels as JSON
    return facts


@pytest.mark.quick("*5.1.1", "*7.2.1", "orin-nano*")
@pytest.mark.parametrize("board", CAPTURED)
def test_a_captured_board_tells_all_that_its_files_and_programs_tell(board, board_tree):
    facts = facts_of(board_tree(board))
    unread = {name for name, fact in facts.items() if fact is None}
    assert unread <= {"kernel", "trtexec", "memory_clock_locked", "onnxruntime"}  # the first three are not captured
    assert facts["module"]["part"] and facts["jetpack"] and facts["power_mode"]["name"]
    assert facts["power_mode"]["id"] in [mode["id"] for mode in facts["power_modes"]]
    assert facts["clocks"]["gpu"]["max_khz"] > 300_000
    assert facts["clocks_locked"] is (board == AGX7)
    assert 0 < facts["memory"]["available_bytes"] < facts["memory"]["total_bytes"] == facts["module"]["memory_bytes"]
    assert facts["disk"]["cache_free_bytes"] > 0
    assert facts["temperatures_c"]["cpu"] > 20
    assert facts["rails"] and facts["power_interval_ms"] == pytest.approx(430, abs=0.1)
    assert facts["meters"]["ina3221"] is None and facts["meters"]["tegrastats"] is None
    assert "jtop" in facts["meters"]["jtop"]
    assert facts["sudo"] is True and all(facts["programs"].values()) and "trtexec" in unread
    assert facts["recovered"] == {"clean": True, "messages": []}


def test_a_board_without_room_for_a_temporary_file_is_examined_all_the_same(board_tree, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))  # as on a full disk: neither /tmp nor another
    facts = facts_of(board_tree(NX))
    assert facts["power_mode"] == {"id": 0, "name": "MAXN_SUPER"}
    assert facts["sudo"] is True


def test_a_machine_that_tells_nothing_gives_none_and_reasons(tmp_path):
    facts = facts_of(tmp_path)
    for name in ("l4t", "jetpack", "ubuntu", "kernel", "power_mode", "clocks_locked", "power_interval_ms", "trtexec"):
        assert facts[name] is None, name
    assert facts["module"]["part"] is None and facts["module"]["memory_bytes"] is None
    assert facts["power_modes"] == [] == facts["rails"] and facts["sudo"] is False
    assert set(facts["memory"].values()) == set(facts["programs"].values()) == {None}
    assert all(facts["meters"].values())


def test_devices_that_the_user_may_not_open_are_named(board_tree, monkeypatch):
    root, may = board_tree(NX), os.access
    for node in ("nvmap", "dri/renderD128", "dri/card0"):
        (root / "dev" / node).parent.mkdir(parents=True, exist_ok=True)
        (root / "dev" / node).touch()
    assert facts_of(root)["denied"] == []
    monkeypatch.setattr(os, "access", lambda path, mode: "dev" not in Path(path).parts and may(path, mode))
    assert facts_of(root)["denied"] == ["/dev/nvmap", "/dev/dri/renderD128"]


def test_the_gpus_clock_is_read_when_cuda_has_woken_it(board_tree, library):
    root = board_tree(NX)
    (devfreq,) = (root / "sys/class/devfreq").glob("17000000.*")
    asleep = devfreq.rename(root / devfreq.name)
    library("tensorrt", f"import os\nos.rename({str(asleep)!r}, {str(devfreq)!r})\n__version__ = '10.3.0'\n")
    assert facts_of(root)["clocks"]["gpu"]["max_khz"] > 300_000


@pytest.mark.slow
def test_trtexec_is_found_where_jetpack_keeps_it(board_tree):
    root = board_tree(NX)
    trtexec = root / "usr/src/tensorrt/bin/trtexec"
    trtexec.parent.mkdir(parents=True)
    trtexec.write_text("#!/bin/sh\n")
    trtexec.chmod(0o755)
    assert facts_of(root)["trtexec"] == str(trtexec)


def test_a_library_that_takes_its_process_down_is_told_and_the_others_are_not_lost(tmp_path, library):
    library("tensorrt", "import os, sys\nprint('libnvinfer: symbol lookup error', file=sys.stderr)\nos.abort()\n")
    library(
        "onnxruntime",
        "print('welcome')\n__version__ = '1.2.3'\ndef get_available_providers(): return ['CPUExecutionProvider']\n",
    )
    facts = facts_of(tmp_path)
    assert f"killed by signal {signal.SIGABRT:d}" in facts["tensorrt"]["error"]
    assert facts["onnxruntime"] == {"version": "1.2.3", "providers": ["CPUExecutionProvider"]}


def test_libraries_that_hang_are_given_up_together(tmp_path, library, monkeypatch):
    monkeypatch.setattr("edgevit.agent.examine.LIBRARIES_S", 2.0)
    library("onnxruntime", "import time\ntime.sleep(60)\n")
    library("tensorrt", "import time\ntime.sleep(60)\n")
    library("pycuda", "import time\ntime.sleep(60)\n")
    began = time.monotonic()
    facts = facts_of(tmp_path)
    assert time.monotonic() - began < 12
    assert facts["onnxruntime"] is None
    assert facts["tensorrt"]["error"] == "no answer within 2 s"


def test_a_library_that_cannot_be_killed_is_given_up(tmp_path, library, monkeypatch):
    """As a process in a driver that hangs: a signal waits until the driver returns."""
    left = []
    monkeypatch.setattr("edgevit.agent.examine.LIBRARIES_S", 1.0)
    monkeypatch.setattr("edgevit.agent.examine.KILLED_S", 0.1)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: left.append(process))
    library("tensorrt", "import time\ntime.sleep(60)\n")
    began = time.monotonic()
    try:
        assert facts_of(tmp_path)["tensorrt"]["error"] == "no answer within 1 s"
        assert time.monotonic() - began < 30
    finally:
        for process in left:
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert left


def test_what_an_earlier_process_left_changed_is_put_back_first(board_tree, cache):
    root = board_tree(NX)
    store = cache / "restore"
    store.mkdir(parents=True)
    subprocess.run([root / "usr/bin/jetson_clocks", "--store", store / "clocks.store"], check=True)
    (store / "restore.json").write_text(json.dumps({"mode": 0, "set_mode": 4, "locked": False}))
    subprocess.run([root / "usr/sbin/nvpmodel", "-m", "4"], check=True)
    subprocess.run([root / "usr/bin/jetson_clocks"], check=True)
    facts = facts_of(root)
    assert (facts["power_mode"]["name"], facts["clocks_locked"]) == ("MAXN_SUPER", False)
    assert facts["recovered"]["clean"] and "the power mode is MAXN_SUPER again" in facts["recovered"]["messages"][0]


def test_the_agent_examines_under_the_oldest_python(board_tree, monkeypatch):
    if PYTHON_38 is None:
        pytest.skip("no Python 3.8 on this machine")
    monkeypatch.setenv("EDGEVIT_BOARD_ROOT", str(board_tree(NX)))
    with open_board(None, python=str(PYTHON_38)) as board:
        facts = board.call("examine")
    assert facts["python"].startswith("3.8.") and facts["python_path"] == str(PYTHON_38)
    assert facts["module"]["part"] == "p3767-0000"
    assert "tensorrt" in facts["tensorrt"]["error"] and facts["onnxruntime"] is None
    assert facts["root"] is (os.geteuid() == 0)
