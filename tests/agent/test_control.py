"""Power mode and clocks on captured boards with stand-in programs: set, read back, and put back whatever happens."""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from captured import NX

from edgevit.agent import control, jetson
from edgevit.agent.control import controlled, recover
from edgevit.agent.runners import RunnerError
from edgevit.board.client import pack_agent

PYTHON_38 = next(Path.home().glob(".pyenv/versions/3.8*/bin/python"), None)

WORKER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
controlled = __import__(sys.argv[2], fromlist=["controlled"]).controlled
with controlled(sys.argv[3], "40W", True, report=print, state_dir=Path(sys.argv[4])):
    print("changed", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def root(board_tree):
    return str(board_tree(NX))


@pytest.fixture
def state_dir(tmp_path):
    return tmp_path / "restore"


@pytest.fixture
def start_worker(root, state_dir):
    """Start a process that changes the board and then waits; it and its guardian are ended after the test."""
    workers = []

    def start(*, python=sys.executable, path=".", module="edgevit.agent.control", changed=True):
        command = [str(python), "-c", WORKER, str(path), module, root, str(state_dir)]
        workers.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        if changed:
            assert workers[-1].stdout.readline() == b"changed\n"
            assert set_up(root) == ("40W", True)
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()
        worker.wait()
        worker.stdout.close()


def set_up(root):
    return jetson.power_mode(root)["name"], jetson.clocks_locked(root)


def everything(root):
    """All that the board says of its mode and clocks."""
    return jetson.power_mode(root), jetson.clocks(root)


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def replace_nvpmodel(root, script):
    """Put a script before the stand-in for nvpmodel, which it may call as `$real`."""
    program = Path(root, "usr/sbin/nvpmodel")
    program.rename(program.with_name("real"))
    program.write_text(f'#!/bin/sh\nreal="{program.with_name("real")}"\n{script}\nexec "$real" "$@"\n')
    program.chmod(0o755)


def test_mode_and_clocks_are_set_read_back_and_put_back(root, state_dir):
    before, told = everything(root), []
    with controlled(root, "40W", True, report=told.append, state_dir=state_dir) as state:
        assert (state["power_mode"], state["clocks_locked"]) == ("40W", True) == set_up(root)
        assert told == []
        assert json.loads((state_dir / "restore.json").read_text()) == {"mode": 0, "set_mode": 4, "locked": False}
    assert everything(root) != before  # the stand-in leaves the clocks where it drove them: only their limits count
    assert [clock["min_khz"] for clock in everything(root)[1].values()] == [
        clock["min_khz"] for clock in before[1].values()
    ]
    assert set_up(root) == ("MAXN_SUPER", False)
    assert told == ["the power mode is MAXN_SUPER again, and the clocks are as they were"] == state["messages"]
    assert [path.name for path in state_dir.iterdir()] == ["lock"]


def test_the_clocks_are_locked_after_the_mode_is_set_and_freed_before_it_is_set_back(root, state_dir, tmp_path):
    for folder, name in (("usr/sbin", "nvpmodel"), ("usr/bin", "jetson_clocks")):
        program = Path(root, folder, name)
        program.rename(program.with_name(f"real-{name}"))
        program.write_text(f'#!/bin/sh\necho {name} $1 >>{tmp_path}/log\nexec {program.parent}/real-{name} "$@"\n')
        program.chmod(0o755)
    with controlled(root, "40W", True, report=print, state_dir=state_dir):
        pass
    calls = [line for line in (tmp_path / "log").read_text().splitlines() if line != "nvpmodel -q"]
    doing = ["jetson_clocks --store", "nvpmodel -m", "jetson_clocks"]
    assert calls == [*doing, "jetson_clocks --restore", "nvpmodel -m", "jetson_clocks --restore"]


@pytest.mark.parametrize(("mode", "lock"), [("40W", False), (None, True)])
def test_one_can_be_asked_for_without_the_other(root, state_dir, mode, lock):
    with controlled(root, mode, lock, report=print, state_dir=state_dir) as state:
        assert set_up(root) == (mode or "MAXN_SUPER", lock) == (state["power_mode"], state["clocks_locked"])
    assert set_up(root) == ("MAXN_SUPER", False)


@pytest.mark.parametrize("mode", [None, "MAXN_SUPER"])
def test_what_is_not_asked_for_or_is_so_already_is_not_touched(root, state_dir, mode):
    for program in ("usr/sbin/nvpmodel", "usr/bin/jetson_clocks"):
        Path(root, program).unlink()
    with controlled(root, mode, report=print, state_dir=state_dir) as state:
        assert state == {"power_mode": "MAXN_SUPER", "clocks_locked": False, "messages": []}
    assert not state_dir.exists()


def test_where_the_way_back_may_want_a_reboot_the_mode_is_not_changed(root, state_dir):
    before, release = everything(root), Path(root, "etc/nv_tegra_release")
    release.write_text("# R39 (release), REVISION: 2.1, GCID: 1, BOARD: generic, EABI: aarch64\n")
    said = refusal(root, "40W", state_dir)
    assert "from L4T 39 on nvpmodel may want one" in said and "could not be put back); nothing was changed" in said
    assert everything(root) == before and not state_dir.exists()
    with controlled(root, "MAXN_SUPER", True, report=print, state_dir=state_dir) as state:  # as it is in already
        assert state["clocks_locked"]


def test_an_error_in_the_block_puts_back(root, state_dir):
    with pytest.raises(KeyboardInterrupt), controlled(root, "40W", True, report=print, state_dir=state_dir):
        raise KeyboardInterrupt
    assert set_up(root) == ("MAXN_SUPER", False)


def test_clocks_that_were_locked_are_locked_again_in_the_old_mode(root, state_dir):
    """On a board, setting a mode sets the limits of its clocks."""
    subprocess.run([f"{root}/usr/bin/jetson_clocks"], check=True)
    gpu_min = f"{root}/sys/class/devfreq/17000000.gpu/min_freq"
    replace_nvpmodel(root, f'if [ "$1" = -m ]; then echo 306000000 >{gpu_min}; fi')
    before = everything(root)
    with controlled(root, "40W", report=print, state_dir=state_dir) as state:
        assert (state["power_mode"], state["clocks_locked"]) == ("40W", False)
    assert everything(root) == before


@pytest.mark.quick("9")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_guardian_puts_back_when_the_worker_is_killed(root, state_dir, start_worker, how):
    worker = start_worker()
    (guardian,) = children(worker.pid)
    assert os.getsid(guardian) == guardian
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(guardian, number)  # as at a logout: it has to outlive that
    worker.send_signal(how)
    assert wait_until(lambda: not (state_dir / "restore.json").exists(), seconds=5)
    assert set_up(root) == ("MAXN_SUPER", False)
    assert wait_until(lambda: not is_running(guardian))


def test_the_guardian_starts_from_the_agents_one_file_on_the_oldest_python(root, state_dir, start_worker, tmp_path):
    if PYTHON_38 is None:
        pytest.skip("no Python 3.8 on this machine")
    name, content = pack_agent()
    agent = tmp_path / name
    agent.write_bytes(content)
    worker = start_worker(python=PYTHON_38, path=agent, module="agent.control")
    worker.kill()
    assert wait_until(lambda: not (state_dir / "restore.json").exists())
    assert set_up(root) == ("MAXN_SUPER", False)


def test_a_program_that_outlives_the_worker_is_waited_for(root, state_dir, start_worker, tmp_path):
    """The worker is killed while nvpmodel is setting the mode: putting back at once would be overwritten."""
    replace_nvpmodel(root, f'if [ "$1" = -m ] && mkdir {tmp_path}/setting 2>/dev/null; then sleep 1; fi')
    worker = start_worker(changed=False)
    assert wait_until((tmp_path / "setting").exists)
    worker.kill()
    time.sleep(0.3)
    assert (state_dir / "restore.json").exists()
    assert wait_until(lambda: not (state_dir / "restore.json").exists())
    time.sleep(1)
    assert set_up(root) == ("MAXN_SUPER", False)


RELAY = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:], input=sys.stdin.buffer.read()).returncode)"


def test_a_question_is_answered_by_end_of_file_also_through_a_relay(root, state_dir):
    """With `use_pty` sudo reads its own stdin, and hands on what it gets."""
    asking = '[ "$1" = -m ] && { read -r answer && echo "answer $answer" || echo "no answer"; } >&2'
    replace_nvpmodel(root, asking)
    program = Path(root, "usr/sbin/nvpmodel")
    program.rename(program.with_name("asking"))
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{RELAY}" {program.with_name("asking")} "$@"\n')
    program.chmod(0o755)
    with controlled(root, "40W", report=print, state_dir=state_dir) as state:
        assert state["power_mode"] == "40W"
    assert set_up(root) == ("MAXN_SUPER", False)


@pytest.fixture
def left_behind(root, state_dir, start_worker):
    """A board whose worker and guardian were both killed, as by a power cut."""
    worker = start_worker()
    guardians = children(worker.pid)
    for pid in (*guardians, worker.pid):
        os.kill(pid, signal.SIGKILL)
    worker.wait()
    wait_until(lambda: not any(map(is_running, guardians)))  # until then they hold the lock
    assert set_up(root) == ("40W", True)


def test_what_a_restart_left_is_put_back_and_said(root, state_dir, left_behind):
    told = []
    assert recover(root, report=told.append, state_dir=state_dir)
    assert set_up(root) == ("MAXN_SUPER", False)
    said = "an earlier process was cut off: the power mode is MAXN_SUPER again, and the clocks are as they were"
    assert told == [said]
    assert recover(root, report=told.append, state_dir=state_dir)
    assert told == [said]


def test_the_next_job_puts_back_before_it_measures(root, state_dir, left_behind):
    with controlled(root, report=print, state_dir=state_dir) as state:
        assert (state["power_mode"], state["clocks_locked"]) == ("MAXN_SUPER", False)
        assert state["messages"][0].startswith("an earlier process was cut off")


def test_a_mode_that_somebody_set_since_is_left(root, state_dir, left_behind):
    subprocess.run([f"{root}/usr/sbin/nvpmodel", "-m", "3"], check=True)
    told = []
    assert recover(root, report=told.append, state_dir=state_dir)
    assert set_up(root)[0] == "25W"
    assert "somebody has set the power mode 25W since" in told[0]


def test_what_a_living_process_changed_is_left_to_it(root, state_dir, start_worker, monkeypatch):
    monkeypatch.setattr(control, "GUARDIAN_S", 0.1)
    start_worker()
    assert not recover(root, report=pytest.fail, state_dir=state_dir)
    with (
        pytest.raises(RunnerError, match="another process holds power mode and clocks"),
        controlled(root, "25W", report=pytest.fail, state_dir=state_dir),
    ):
        pass
    assert set_up(root) == ("40W", True)


def test_a_job_waits_for_the_guardian_of_one_that_was_killed(root, state_dir, start_worker):
    replace_nvpmodel(root, 'if [ "$1 $2" = "-m 0" ]; then sleep 1; fi')
    worker = start_worker()
    worker.kill()
    with controlled(root, report=print, state_dir=state_dir) as state:
        assert (state["power_mode"], state["clocks_locked"]) == ("MAXN_SUPER", False)


def test_what_cannot_be_put_back_is_told_with_the_commands_and_tried_again(root, state_dir):
    replace_nvpmodel(root, f'if [ "$1 $2" = "-m 0" ] && [ ! -e {root}/mended ]; then echo no; exit; fi')
    with controlled(root, "40W", report=print, state_dir=state_dir) as state:
        pass
    (said,) = state["messages"]
    assert "the power mode is 40W, nvpmodel said 'no'" in said
    assert f"try `sudo nvpmodel -m 0 && sudo jetson_clocks --restore {state_dir}/clocks.store`" in said
    with (
        pytest.raises(RunnerError, match="nothing is changed before what an earlier process changed is put back"),
        controlled(root, "25W", report=print, state_dir=state_dir),
    ):
        pass
    Path(root, "mended").touch()
    assert recover(root, report=print, state_dir=state_dir)
    assert set_up(root) == ("MAXN_SUPER", False)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"mode": 0'])
def test_a_record_that_cannot_be_read_is_told(root, state_dir, content):
    state_dir.mkdir()
    (state_dir / "restore.json").write_text(content)
    told = []
    assert not recover(root, report=told.append, state_dir=state_dir)
    assert "restore.json cannot be read" in told[0] and "remove it" in told[0]


def refusal(root, mode, state_dir, lock=False):
    """What `controlled` says when it refuses; the board and the cache are as they were."""
    before = set_up(root)
    with pytest.raises(RunnerError) as caught, controlled(root, mode, lock, report=print, state_dir=state_dir):
        pass
    assert set_up(root) == before
    assert not (state_dir / "restore.json").exists()
    return str(caught.value)


def test_an_unknown_mode_is_told_the_nearest_and_all(root, state_dir):
    said = refusal(root, "maxn", state_dir)
    assert said == (
        "no power mode 'maxn' on this board; did you mean MAXN_SUPER? known: MAXN_SUPER, 10W, 15W, 25W, 40W"
    )
    assert "did you mean" not in refusal(root, "turbo!", state_dir)


def test_a_mode_with_other_parts_of_the_gpu_needs_a_reboot(root, state_dir):
    said = refusal(root, "15W", state_dir, lock=True)
    assert "from power mode MAXN_SUPER to 15W this board needs a reboot" in said
    assert "run `sudo nvpmodel -m 2` in a terminal there" in said


def test_a_mode_that_silently_stays_needs_a_reboot(root, state_dir):
    replace_nvpmodel(
        root, 'if [ "$1 $2" = "-m 4" ]; then echo "NVPM WARN: DO YOU WANT TO REBOOT NOW?"; read -r yes; exit; fi'
    )
    said = refusal(root, "40W", state_dir, lock=True)
    assert "needs a reboot (nvpmodel left it as it was, and said 'NVPM WARN: DO YOU WANT TO REBOOT NOW?'" in said
    assert "`sudo nvpmodel -m 4`" in said


def test_another_mode_than_the_one_asked_for_is_an_error_and_is_undone(root, state_dir):
    replace_nvpmodel(root, 'if [ "$1 $2" = "-m 4" ]; then exec "$real" -m 3; fi')
    with (
        pytest.raises(RunnerError, match=r"`nvpmodel -m 4` made the power mode 25W, expected 40W"),
        controlled(root, "40W", report=print, state_dir=state_dir),
    ):
        pass
    assert set_up(root) == ("MAXN_SUPER", False)


@pytest.fixture
def hanging_nvpmodel(root, monkeypatch):
    """An nvpmodel that sets a mode only when it is let go, and cannot be ended: under sudo, it is root's."""

    def kill(process):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(subprocess.Popen, "kill", kill)
    monkeypatch.setattr(control, "PROGRAM_S", 2.0)
    monkeypatch.setattr(control, "KILLED_S", 0.1)
    replace_nvpmodel(root, f'if [ "$1 $2" = "-m 4" ]; then while [ ! -e {root}/go ]; do sleep 0.1; done; fi')
    go = Path(root, "go")
    yield go
    go.touch()
    gc.collect()  # what was left running is forgotten here, where nobody minds the warning


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_program_that_does_not_end_is_told_and_left_to_the_guardian(root, state_dir, hanging_nvpmodel):
    told, record = [], state_dir / "restore.json"
    with (
        pytest.raises(RunnerError, match="`nvpmodel -m 4` did not end in 2 s") as caught,
        controlled(root, "40W", True, report=told.append, state_dir=state_dir),
    ):
        pass
    assert "`sudo pkill nvpmodel`" in str(caught.value) and "reboot the board" in str(caught.value)
    assert told == ["the clocks are as they were; this is looked at once more when the program that hangs has ended"]
    assert record.exists()
    hanging_nvpmodel.touch()  # now it sets the mode
    assert wait_until(lambda: not record.exists())
    assert set_up(root) == ("MAXN_SUPER", False)


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_program_that_only_looks_and_does_not_end_is_told(root, state_dir, hanging_nvpmodel):
    Path(root, "usr/bin/jetson_clocks").write_text(
        f"#!/bin/sh\nwhile [ ! -e {hanging_nvpmodel} ]; do sleep 0.1; done\n"
    )
    assert "`jetson_clocks --store " in refusal(root, None, state_dir, lock=True)
    assert not control.can_control(root)


def set_governors(root, name):
    for path in Path(root, "sys").rglob("*governor"):
        path.write_text(f"{name}\n")


def test_clocks_that_jetson_clocks_holds_by_their_governor_count_as_locked(root, state_dir):
    """As it may from JetPack 7.2 on."""
    set_governors(root, "schedutil")
    write = f'find {root}/sys -name "*governor" | while read -r file; do echo $governor >"$file"; done'
    cases = "--store) echo any >$2; exit ;; --restore) governor=schedutil ;; *) governor=performance ;;"
    Path(root, "usr/bin/jetson_clocks").write_text(f'#!/bin/sh\ncase "$1" in {cases} esac\n{write}\n')
    with controlled(root, None, True, report=print, state_dir=state_dir) as state:
        assert state["clocks_locked"] is True
    assert (state["messages"], set_up(root)) == (["the clocks are as they were"], ("MAXN_SUPER", False))


@pytest.mark.parametrize(("memory", "calls"), [("1", 0), ("0", 3), (None, 3)])
def test_locked_clocks_are_locked_again_unless_the_memorys_is_too(root, state_dir, tmp_path, memory, calls):
    set_governors(root, "performance")
    program = Path(root, "usr/bin/jetson_clocks")
    program.write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/calls\n[ "$1" != --store ] || echo any >"$2"\n')
    if memory:
        lock = Path(root, jetson.EMC_LOCKED)
        lock.parent.mkdir(parents=True)
        lock.write_text(memory)
    (tmp_path / "calls").touch()
    with controlled(root, None, True, report=print, state_dir=state_dir) as state:
        assert state["clocks_locked"] is True
    made = (tmp_path / "calls").read_text().splitlines()
    assert [call for call in made if call != "--show"] == ["--store", "", "--restore"][:calls]


def test_locked_clocks_without_root_are_enough_and_the_memorys_is_said_to_be_unknown(root, state_dir):
    set_governors(root, "performance")
    Path(root, "usr/bin/jetson_clocks").unlink()
    with controlled(root, None, True, report=print, state_dir=state_dir) as state:
        assert state["clocks_locked"] is True
    assert state["messages"] == [f"the memory's clock is not known and may move: it needs root, see {control.SETUP}"]


def test_clocks_that_do_not_lock_are_named(root, state_dir):
    program = Path(root, "usr/bin/jetson_clocks")
    program.write_text('#!/bin/sh\n[ "$1" = --store ] && echo x >"$2"\necho "Error: no EMC"\n')
    said = refusal(root, None, state_dir, lock=True)
    assert "gpu, cpu0, cpu1" in said and "is not locked; it said 'Error: no EMC'" in said


def test_clocks_that_cannot_be_stored_are_not_locked(root, state_dir):
    program = Path(root, "usr/bin/jetson_clocks")
    program.write_text('#!/bin/sh\necho "Error: disk full"\n')
    assert "stored nothing; it said 'Error: disk full'" in refusal(root, None, state_dir, lock=True)


def test_a_machine_without_modes_or_programs_says_so(tmp_path, state_dir):
    for mode, lock, said in (("15W", False, "tells no power modes"), (None, True, "has no jetson_clocks")):
        with (
            pytest.raises(RunnerError, match=said),
            controlled(str(tmp_path), mode, lock, report=print, state_dir=state_dir),
        ):
            pass


def test_a_cache_that_cannot_be_written_changes_nothing(root, tmp_path):
    (tmp_path / "file").write_text("")
    assert "Not a directory; nothing was changed" in refusal(root, "40W", tmp_path / "file" / "restore")


@pytest.fixture
def ordinary_user(tmp_path, monkeypatch):
    """Not root, on "/", with a stand-in for sudo first in PATH that does what the test says."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (tmp_path / "bin").mkdir()

    def sudo(script):
        programs = {"sudo": script, "nvpmodel": "echo nvpmodel as it is", "jetson_clocks": "echo jetson_clocks"}
        for name, text in programs.items():
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / "bin" / name).chmod(0o755)

    return sudo


@pytest.mark.parametrize(
    "refusal",
    [
        "sudo: a password is required",
        "Sorry, user jetson is not allowed to execute it as root on orin.",
        "jetson is not in the sudoers file.",
    ],
)
def test_a_refused_sudo_points_at_the_setup_and_the_command(ordinary_user, state_dir, refusal):
    ordinary_user(f'echo "{refusal}" >&2; exit 1')
    assert not control.can_control("/")
    with (
        pytest.raises(RunnerError, match=rf"`sudo -n jetson_clocks --store .*was refused .*{refusal}") as e,
        controlled("/", None, True, report=print, state_dir=state_dir),
    ):
        pass
    assert "deploy/jetson/setup.sh" in str(e.value)
    assert not (state_dir / "restore.json").exists()


def test_sudo_is_asked_never_to_ask(ordinary_user, tmp_path):
    ordinary_user(f'echo "$*" >>{tmp_path}/asked; shift; exec "$@"')
    assert control.can_control("/")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[0] for line in asked] == ["-n", "-n"]
    assert asked[0].endswith("nvpmodel -q") and asked[1].endswith("jetson_clocks --show")


def test_a_board_that_sudo_does_not_know_by_name_has_refused_nothing(ordinary_user, state_dir):
    warning = "sudo: unable to resolve host orin: Name or service not known"
    ordinary_user(f'echo "{warning}" >&2; echo "cannot store"; exit 1')
    assert control.can_control("/")
    with (
        pytest.raises(RunnerError, match="stored nothing; it said 'cannot store'"),
        controlled("/", None, True, report=print, state_dir=state_dir),
    ):
        pass


def test_a_captured_board_needs_no_sudo(root, ordinary_user):
    ordinary_user("exit 1")
    assert control.can_control(root)
