"""Runs of stacks: in turns with the base, each kept at once, none made twice; on a board as engines."""

import re
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from threading import Event, Thread

import pytest
from places import STANDINS
from recorded_progress import RecordedProgress
from some_runs import DENSE, ON_A_BOARD

from edgevit.board.bench import look
from edgevit.board.connection import open_board
from edgevit.errors import AgentError, ConnectionLostError, UnfitBoardError
from edgevit.latency import measure
from edgevit.latency.measure import StackBench, scratch
from edgevit.latency.stacks import Stack
from edgevit.latency.store import Store
from edgevit.latency.target import MeasurementTarget

pytestmark = pytest.mark.usefixtures("examined_once")

BASE, FFN = Stack(2, 2, 32, 256), Stack(2, 0, 0, 64)


@contextmanager
def opened(network, folder, target, progress=None):
    told = progress or RecordedProgress()
    with open_board(target.board, ssh_config=target.ssh_config) as board, scratch() as files:
        setting = look(board, None, target.conditions(), told)
        yield StackBench(network, target, board, setting, Store.of({}, folder), BASE, told, files)


@contextmanager
def moving_gpu_clock(tree):
    """Let the clock of a captured board's GPU go up and down, until what is given is called."""
    clock = next((tree / "sys/class/devfreq").glob("17000000.*")) / "cur_freq"
    still, stopped = clock.read_text(), Event()

    def move():
        for number in count():
            if stopped.wait(0.07):
                break
            swap = clock.with_name("next")
            swap.write_text("918000000\n" if number % 2 else still)
            swap.replace(clock)  # never empty
        clock.write_text(still)

    mover = Thread(target=move)
    mover.start()

    def stop():
        stopped.set()
        mover.join()

    try:
        yield stop
    finally:
        stop()


def labels(bench):
    return Counter(run.label for run in bench.store.runs())


@pytest.mark.slow
def test_only_what_is_missing_is_measured_and_kept_and_void_runs_are_made_again(
    small_vit, tmp_path, short, monkeypatch
):
    throttle = tmp_path / "root" / "sys/class/thermal/cooling_device0"
    throttle.mkdir(parents=True)
    (throttle / "type").write_text("gpu-throttle-alert\n")
    (throttle / "cur_state").write_text("0\n")
    monkeypatch.setenv("EDGEVIT_BOARD_ROOT", str(tmp_path / "root"))
    with opened(small_vit(), tmp_path, MeasurementTarget(threads=1)) as bench:
        bench.measure([FFN], 1)
        assert labels(bench) == {BASE.label: 1, FFN.label: 1}
        bench.measure([BASE, FFN], 1)
        assert len(bench.store.runs()) == 2, "nothing is missing"
        (throttle / "cur_state").write_text("1\n")
        monkeypatch.setattr(measure, "TRIES", 1)
        told = bench.progress.warnings
        large = "2 blocks of 2 heads of 32 and 256 neurons"
        with pytest.raises(UnfitBoardError, match=f"no valid run of {large} in 2 tries: the board held"):
            bench.measure([], 2)
        assert labels(bench)[BASE.label] == 3 and "1 of 1 runs are void and repeated: the board held" in told[0]
        (throttle / "cur_state").write_text("0\n")
        bench._files[FFN].path.write_bytes(b"no model")
        with pytest.raises(AgentError, match=r"stacks on this machine: 2 blocks of 64 neurons: .*no ONNX file"):
            bench.measure([FFN], 2)
        samples = bench.samples("ms")
    sessions = [{s.stack for s in samples if s.session == name} for name in dict.fromkeys(s.session for s in samples)]
    assert sessions == [{BASE, FFN}]
    assert {run.label: run.beside for run in bench.store.runs()[:2]} == {
        BASE.label: (FFN.label,),
        FFN.label: (BASE.label,),
    }
    assert bench.samples("mj") == [] and all(sample.value > 0 for sample in samples)
    assert {run.environment["threads"] for run in bench.store.runs()} == {"1"}


@pytest.mark.slow
def test_after_the_first_round_the_time_of_the_others_is_said(small_vit, tmp_path, short):
    with opened(small_vit(), tmp_path, MeasurementTarget(threads=1)) as bench:
        bench.measure([FFN], 3)
        assert labels(bench) == {BASE.label: 3, FFN.label: 3}
        *_, said = bench.progress.notes
    match = re.fullmatch(r"round 1 of 3 took (\d+) s: the others take about (\d+) s", said)
    assert match and int(match[2]) >= int(match[1]) > 0


def test_stacks_alternate_with_the_base_a_few_in_each_process_and_each_process_has_its_own_speed(
    small_vit, tmp_path, monkeypatch
):
    monkeypatch.setattr(measure, "TOGETHER", 1)
    other = Stack(1, 0, 0, 64)
    with opened(small_vit(), tmp_path, MeasurementTarget(threads=1)) as bench:
        processes = bench._turns([FFN, BASE, other])
        for turn, stacks in enumerate(processes, 1):
            beside = tuple(stack.label for stack in stacks)
            bench._runs += [replace(DENSE, label=label, session="s", turn=turn, beside=beside) for label in beside]
        samples = bench.samples("ms")
    assert processes == [[BASE, FFN], [BASE, other]]
    sessions = [{s.stack for s in samples if s.session == name} for name in dict.fromkeys(s.session for s in samples)]
    assert sessions == [{BASE, FFN}, {BASE, other}]


def test_a_processor_whose_clocks_moved_is_warned_of_once(small_vit, tmp_path):
    clocks = {"clocks_before_khz": {"cpu0": 2_000_000}, "clocks_after_khz": {"cpu0": 1_500_000}}
    slowed = replace(DENSE, label=FFN.label, **clocks)
    with opened(small_vit(), tmp_path, MeasurementTarget(threads=1)) as bench:
        bench._runs += [slowed, slowed]
        bench._warn_of_conditions([slowed])
        bench._warn_of_conditions([slowed])
        (warning,) = [text for text in bench.progress.warnings if "CPU clock" in text]
        assert warning.startswith(
            "while costs were measured on this machine, the CPU clock moved between 1500 and 2000"
        )
        assert len(bench.samples("ms")) == 2, "what was measured counts: the base was slowed as well"


def test_void_runs_do_not_count(small_vit, tmp_path):
    with opened(small_vit(), tmp_path, MeasurementTarget()) as bench:
        hot = replace(ON_A_BOARD, label=FFN.label, throttled=("soctherm",), session="a")
        bench._runs.extend([hot, replace(hot, throttled=()), replace(hot, throttled=(), label="another")])
        (one,) = bench.samples("ms")
        (energy,) = bench.samples("mj")
    assert (one.stack, one.value) == (FFN, 8.0) and energy.value == pytest.approx(ON_A_BOARD.energy_per_image_mj())


def test_the_clock_counts_on_a_quiet_machine_and_processor_time_where_other_programs_were_busy(small_vit, tmp_path):
    environment = {"cores": "2", "threads": "1"}
    quiet = replace(DENSE, label=BASE.label, session="quiet", environment=environment, cpu_own_ns=2 * 10**9)
    quiet = replace(quiet, cpu_busy_ns=quiet.cpu_own_ns)
    busy = replace(quiet, session="busy", cpu_busy_ns=quiet.cpu_own_ns + quiet.wall_ns)  # one of two cores
    with opened(small_vit(), tmp_path, MeasurementTarget()) as bench:
        for label in (BASE.label, FFN.label):  # only the base's run met the other programs
            later = busy if label == BASE.label else replace(busy, cpu_busy_ns=quiet.cpu_own_ns)
            bench._runs.extend(replace(run, label=label) for run in (quiet, later))
        by_session = {s: {r.value for r in bench.samples("ms") if r.session == s} for s in ("quiet", "busy")}
        bench._warn_of_conditions([busy, busy])
        bench._warn_of_conditions([busy])
        (warning,) = bench.progress.warnings
    clock_ms, processor_ms = quiet.latency_ms, 2000 / len(quiet.latencies_ns)
    assert by_session == {"quiet": {clock_ms}, "busy": {processor_ms}}
    assert "other programs were busy: the processor time" in warning


@pytest.mark.slow
def test_engines_in_int8_are_built_from_files_with_their_types(small_vit, tmp_path, short, sshd, board_tree):
    tree = board_tree("orin-nx-16gb-jetpack6.2")
    server = sshd(EDGEVIT_BOARD_ROOT=tree, PYTHONPATH=STANDINS, STANDIN_TENSORRT="10.3.0")
    target = MeasurementTarget(board=server.host, ssh_config=server.config, precision="int8")
    target.check()
    with opened(small_vit(), tmp_path / "costs", target) as bench:
        bench.measure([FFN], 1)
        assert labels(bench) == {BASE.label: 1, FFN.label: 1}
        assert all((run.runner, run.precision) == ("tensorrt", "int8") for run in bench.store.runs())
        assert target.origin(bench.setting).precision == "int8"


@pytest.mark.slow
def test_engines_are_built_on_the_board_and_measured_there_with_their_energy(
    small_vit, tmp_path, short, sshd, board_tree, monkeypatch
):
    """With clocks that move, what is void is told, and measured again; where the way is lost, what went on is taken."""
    tree = board_tree("orin-nx-16gb-jetpack6.2")
    server = sshd(EDGEVIT_BOARD_ROOT=tree, PYTHONPATH=STANDINS, STANDIN_TENSORRT="10.3.0")
    target, stages = MeasurementTarget(board=server.host, ssh_config=server.config), RecordedProgress()
    with opened(small_vit(), tmp_path / "costs", target, stages) as bench:
        bench.measure([FFN], 1)
        assert labels(bench) == {BASE.label: 1, FFN.label: 1}
        assert all(run.runner == "tensorrt" and run.precision == "fp16" for run in bench.store.runs())
        assert {s.stack for s in bench.samples("mj")} == {BASE, FFN}
        assert set(bench.store.engines()) == {BASE.label, FFN.label}
        assert [name for name in stages.stages if name.endswith(": build")] == [f"{s.text}: build" for s in (BASE, FFN)]
        assert [p.name for p in bench.scratch.iterdir()] == [], "what was sent is not kept here, too"
    with opened(small_vit(), tmp_path / "costs", target, stages) as bench:
        facts = bench.setting.facts
        bench.setting = replace(bench.setting, facts=replace(facts, clocks_locked=True))  # while another job ran
        other = "ran with clocks free, and had clocks locked when it was looked at, .* runs are not kept: try again"
        with pytest.raises(UnfitBoardError, match=other):
            bench.measure([FFN], 2)
        assert len(bench.store.runs()) == 2 and bench.board.call("jobs") == {"jobs": []}
    stages.stages.clear()
    with opened(small_vit(), tmp_path / "costs", target, stages) as bench, moving_gpu_clock(tree) as stop:
        monkeypatch.setattr(measure, "POWER_WINDOW_S", 1.2)  # in which the clock is read several times
        monkeypatch.setattr(stages, "warn", lambda text: (stages.warnings.append(text), stop()))
        bench.measure([FFN], 2)
        assert len(stages.warnings) == 1
        assert "are void and repeated: the GPU clock moved between 306 and 9" in stages.warnings[0]
        assert min(Counter(s.stack for s in bench.samples("ms")).values()) == 2
        assert len(bench.store.runs()) > len(bench.samples("ms")), "what is void is kept, and not used"

    class Cut(RecordedProgress):
        def stage(self, name, total=None, unit=""):
            if name.startswith("costs, round 2 "):
                server.stop()
            return super().stage(name, total, unit)

    monkeypatch.setattr(measure, "POWER_WINDOW_S", 0.05)
    with opened(small_vit(), tmp_path / "costs", target, Cut()) as bench:
        bench.board._retry_seconds = 0.0
        before = len(bench.store.runs())
        with pytest.raises(ConnectionLostError, match="bench goes on there"):
            bench.measure([FFN], 4)
    server.start()
    stages.stages.clear()
    with opened(small_vit(), tmp_path / "costs", target, stages) as bench:
        bench.measure([FFN], 4)
        assert any(note.endswith("collecting that one") for note in stages.notes)
        assert bench.board.call("jobs") == {"jobs": []} and len(bench.store.runs()) == before + 4
        bench._prepare(FFN)
        assert bench._files[FFN].path.name == f"{bench._files[FFN].sha256}.engine"
        files = server.cache / "files"
        assert len(list(files.glob("*.engine"))) == 2 and not list(files.glob("*.onnx"))
        bench.tidy()
        assert set(bench.store.engines()) == {BASE.label}, "which all that comes later is set against"
        assert len(list(files.glob("*.engine"))) == 1
    assert not [name for name in stages.stages if name.endswith(": build")], "engines are there from the first time"
