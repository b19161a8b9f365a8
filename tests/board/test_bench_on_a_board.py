"""A bench on a board: real SSH, the real agent, on captured trees with stand-in programs."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from edgevit.board.bench import bench
from edgevit.errors import AgentError, OptionError, ProfileError, UnfitBoardError, UnknownNameError

FAST = dict(runner="fake", samples=20, duration_s=0.5, idle_s=0.3, warmup=2, warmup_seconds=0)


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "t1.onnx"
    path.write_bytes(b"anything: the fake runner sleeps")
    return path


@pytest.fixture
def orin_nx(sshd, board_tree):
    tree = board_tree("orin-nx-16gb-jetpack6.2")
    server = sshd(EDGEVIT_BOARD_ROOT=tree)
    server.tree = tree
    server.where = {"board": server.host, "ssh_config": server.config}
    return server


def gpu_clock(tree):
    (folder,) = tree.glob("sys/class/devfreq/*gpu*")
    return (folder / "min_freq").read_text(), (folder / "max_freq").read_text()


def test_a_board_tells_power_energy_and_what_it_is(orin_nx, model):
    done = bench(model, batches=(4,), **orin_nx.where, **FAST)
    (run,) = done.runs
    assert done.setting.profile.name == "orin-nx-16gb"
    assert run.power.total == ("VDD_IN@40",)
    assert run.power_mw() == pytest.approx(7956, abs=1)
    assert run.idle_power_mw() == pytest.approx(7956, abs=1)
    assert run.energy_per_image_mj() == pytest.approx(7956 / run.images_per_second(), rel=1e-3)
    assert run.net_energy_per_image_mj() == pytest.approx(0, abs=1e-6)
    coarse = replace(run, power=replace(run.power, meter="tegrastats"))
    facts = replace(done.setting.facts, meters={"ina3221": "a reading takes 431 ms", "tegrastats": None})
    elsewhere = replace(done, runs=(coarse,), setting=replace(done.setting, facts=facts))
    assert "power through tegrastats (ina3221: a reading takes 431 ms)" in elsewhere.remarks()
    assert run.temperature_max_c() == 52.375
    assert run.power_mode_before == run.power_mode_after == "MAXN_SUPER"
    assert run.environment["l4t"] == "36.4.3" and run.environment["module"].startswith("p3767-0000")
    assert run.void() == []
    assert done.remarks() == ["power mode MAXN_SUPER", "clocks not locked"]


@pytest.mark.slow
def test_the_agx_adds_up_three_rails(sshd, board_tree, model):
    server = sshd(EDGEVIT_BOARD_ROOT=board_tree("agx-orin-64gb-jetpack6.2.1"))
    (run,) = bench(model, board=server.host, ssh_config=server.config, **FAST).runs
    assert len(run.power.total) == 3 and not any("VDDQ" in rail for rail in run.power.total)
    assert run.power_mw() == pytest.approx(sum(run.power.rails[rail][0] for rail in run.power.total))


@pytest.mark.slow
def test_every_shape_is_measured_in_turn_as_often_as_asked(orin_nx, model):
    runs = bench(model, batches=(1, 2), repeat=2, **orin_nx.where, **{**FAST, "duration_s": 0}).runs
    assert [run.batch for run in runs] == [1, 2, 1, 2]
    assert len({run.created for run in runs}) >= 1 and all(run.idle_power == runs[0].idle_power for run in runs)


def test_power_mode_and_clocks_are_set_for_the_runs_and_put_back(orin_nx, model):
    before = gpu_clock(orin_nx.tree)
    assert before[0] != before[1]
    done = bench(model, power_mode="25W", lock_clocks=True, **orin_nx.where, **FAST)
    assert done.runs[0].power_mode_before == "25W"
    assert done.runs[0].environment["power_mode"] == "25W"
    assert done.changed.clocks_locked is True
    assert "power mode 25W for this bench, MAXN_SUPER before and after it" in done.remarks()
    assert gpu_clock(orin_nx.tree) == before
    assert bench(model, **orin_nx.where, **FAST).runs[0].power_mode_before == "MAXN_SUPER"


COMMAND = """
import sys
from edgevit.cli.app import main
sys.argv = ["edgevit", *sys.argv[1:]]
main()
"""


def start_bench(server, model, output, seconds):
    arguments = ["bench", model, "--board", server.host, "--ssh-config", server.config, "--runner", "fake"]
    arguments += ["--idle", "0", "--duration", seconds, "--lock-clocks", "--output", output]
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *map(str, arguments)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def wait_for_job(server, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for progress in server.cache.glob("jobs/*/progress"):
            if '"measure"' in progress.read_text():
                return
        time.sleep(0.05)
    raise AssertionError("the bench never began to measure")


@pytest.mark.slow
def test_a_connection_that_breaks_in_a_bench_is_taken_up_again(orin_nx, model, tmp_path):
    with start_bench(orin_nx, model, tmp_path / "runs.jsonl", 3) as host:
        wait_for_job(orin_nx)
        orin_nx.cut()
        _, err = host.communicate(timeout=60)
    assert host.returncode == 0, err
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
def test_a_bench_outlives_its_host_and_the_same_command_collects_it(orin_nx, model, tmp_path):
    output = tmp_path / "runs.jsonl"
    with start_bench(orin_nx, model, output, 2) as host:
        wait_for_job(orin_nx)
        host.send_signal(signal.SIGKILL)
        host.communicate(timeout=20)
    killed = time.time()
    time.sleep(3)
    with start_bench(orin_nx, model, output, 2) as host:
        _, err = host.communicate(timeout=60)
    assert host.returncode == 0, err
    assert "nobody has seen its result: collecting that one" in err
    (line,) = output.read_text().splitlines()
    (result,) = [json.loads(line)]
    started = time.mktime(time.strptime(result["created"][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
    assert started < killed + 3.5
    assert not [job for job in orin_nx.cache.glob("jobs/*") if job.is_dir()]


@pytest.mark.slow
def test_a_measurement_that_dies_is_named_and_those_before_it_are_kept(orin_nx, model):
    seen = []
    with pytest.raises(AgentError, match=r"cannot measure .*t1\.onnx at batch 1 on board: OverflowError"):
        bench(model, options={"latency_ms": 1e308}, on_run=seen.append, **orin_nx.where, **FAST)
    assert seen == []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"profile": "agx-orin-64gb"}, ProfileError, "profile agx-orin-64gb is for .* and the board has p3767-0000"),
        ({"profile": "orin-nx"}, UnknownNameError, "no profile 'orin-nx'; did you mean 'orin-nx-"),
        ({"power_meter": "jtop"}, UnfitBoardError, r"board has no power meter 'jtop' \(.*jtop.*\); it has: ina3221"),
        ({"power_meter": "wattmeter"}, UnknownNameError, "no power meter 'wattmeter'"),
        ({"power_mode": "25 W"}, AgentError, "no power mode '25 W' on this board; did you mean 25W"),
        ({"power_mode": "15W"}, AgentError, "from power mode MAXN_SUPER to 15W this board needs a reboot"),
        ({"cross_check": True}, OptionError, "--cross-check runs trtexec on an engine, and the runner is 'fake'"),
        ({"streams": (2,)}, OptionError, "the runner 'fake' has no option 'streams'"),
    ],
)
def test_what_the_board_cannot_do_is_refused_in_one_line(orin_nx, model, options, error, message):
    with pytest.raises(error, match=message) as seen:
        bench(model, **orin_nx.where, **FAST, **options)
    assert "\n" not in str(seen.value)
    assert not [job for job in orin_nx.cache.glob("jobs/*") if job.is_dir()], "a job was left"


@pytest.mark.slow
def test_two_hosts_that_want_one_board_take_turns(orin_nx, model, tmp_path):
    with start_bench(orin_nx, model, tmp_path / "a.jsonl", 20) as first:
        wait_for_job(orin_nx)
        with start_bench(orin_nx, model, tmp_path / "b.jsonl", 0.5) as second:
            _, err = second.communicate(timeout=60)
        first.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0), err
    assert f"waiting for board: bench by {os.environ.get('USER', 'root')}@" in err
