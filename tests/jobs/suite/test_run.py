"""A suite from nothing to its record: here through ONNX Runtime, and over SSH with the stand-in TensorRT."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from places import STANDINS
from some_runs import DENSE

from edgevit.agent.records import Run
from edgevit.board.answers import BenchAnswer, Changed, FailedRun
from edgevit.board.bench import Setting
from edgevit.board.facts import BoardFacts, PowerMode
from edgevit.board.profiles import load_profile
from edgevit.board.request import Conditions
from edgevit.engines.unjudged import Placed
from edgevit.errors import AgentError, Interrupted, OptionError, RunsError, UnfitBoardError
from edgevit.jobs.suite import files, request
from edgevit.jobs.suite import run as module
from edgevit.jobs.suite.opening import open_record
from edgevit.jobs.suite.record import read_suite_record
from edgevit.jobs.suite.request import CharacterizeRequest
from edgevit.jobs.suite.run import characterize
from edgevit.jobs.suite.suite import largest_of, suite
from edgevit.jobs.suite.time_limit import TimeLimit
from edgevit.progress import Silent

pytestmark = pytest.mark.usefixtures("short", "two", "examined_once")


@pytest.mark.slow
def test_networks_are_measured_in_turns_here_and_runs_are_in_the_file_before_the_board_forgets_them(
    tmp_path, monkeypatch
):
    asked = CharacterizeRequest(sizes=("tiny",), rounds=1, threads=1, output=tmp_path / "p.json")

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(module, "measured_network", stopped)
        characterize(asked)
    part = read_suite_record(asked.output)
    assert not part.measured and [run.label for run in part.measurements()] == ["tiny", "tiny 192 tokens"]

    whole = characterize(asked)
    assert [one.name for one in whole.measured] == ["tiny", "tiny 192 tokens", "tiny 0.8 paper"] and not whole.left_out
    dense, tokens, paper = whole.measured
    assert (dense.precision, tokens.tokens, paper.fused, whole.profile) == ("fp32", 192, None, None)
    assert [[figure.batch for figure in one.figures] for one in whole.measured] == [[1], [1], [1, 8]]
    # A loaded machine may not show in one round that it is faster, and judges by other figures than the median.
    assert dense.figures[0].ratio is None and paper.macs < 0.5 * dense.macs
    of_8 = {run.label: run.p50_ns() for run in map(Run.from_dict, whole.runs[2:]) if run.batch == 8}
    assert 1 / 3 < paper.figures[1].ratio / (of_8["tiny 0.8 paper"] / of_8["tiny"]) < 3
    assert whole.runs[:2] == part.runs and len(whole.runs) == 6 + 2 and whole == read_suite_record(asked.output)
    assert "is not judged" in " ".join(whole.answers) or not whole.answers, "one round is too few"

    with pytest.raises(RunsError, match="is of another request: rounds was 1 and is 2; choose another --output"):
        characterize(replace(asked, rounds=2))


@pytest.mark.slow
def test_engines_are_built_and_measured_on_a_board_and_removed_when_interrupted(
    tmp_path, sshd, board_tree, monkeypatch, edgevit_main
):
    tree = board_tree("orin-nx-16gb-jetpack6.2")
    server = sshd(EDGEVIT_BOARD_ROOT=tree, PYTHONPATH=STANDINS, STANDIN_TENSORRT="10.3.0")
    monkeypatch.setattr(request, "BATCHES", (1,))
    build, built = files.place_unjudged, []

    def noted(*positional, name, **options):
        built.append(name)
        return build(*positional, name=name, **options)

    def stopped(*_):
        raise KeyboardInterrupt

    def models():
        return [file.name for file in server.cache.glob("files/*") if file.suffix in (".engine", ".onnx")]

    monkeypatch.setattr(files, "place_unjudged", noted)
    options = CharacterizeRequest(
        board=server.host, ssh_config=Path(server.config), sizes=("tiny",), rounds=1, output=tmp_path / "p.json"
    )
    with monkeypatch.context() as patched, pytest.raises(Interrupted, match="the same command continues"):
        patched.setattr(module._Work, "_measure", stopped)
        characterize(options)
    assert built == ["tiny", "tiny 192 tokens"] and models() == []
    before = contents(tree)
    typed = ("--ssh-config", server.config, "--sizes", "tiny", "--rounds", 1, "--output", options.output)
    done = edgevit_main("characterize", server.host, *typed)
    assert done.code == 0 and "tokens: 1 networks" in done.err and "shapes at 0.8: 1 networks" in done.err, done.err
    assert f"the clocks of {server.host} are not locked" in " ".join(done.err.split())
    assert "tiny 0.8 paper" in done.out and f"wrote {options.output}" in done.out and "Vulcan" in done.out
    assert contents(tree) == before, "power mode, clocks and all else there are as they were"
    record = read_suite_record(options.output)
    assert record.profile == "orin-nx-16gb" and record.environment["jetpack"]
    assert [one.name for one in record.measured] == ["tiny", "tiny 192 tokens", "tiny 0.8 paper"] == built[2:]
    for one in record.measured:
        assert one.precision == "fp16" and one.build_s > 0 and one.fused is not None and one.refused is None
        assert one.figures[0].roofline_share > 0
    energies = [one.figures[0].energy_mj for one in record.measured]
    assert energies[:2] == [None, None] and energies[2] > 0, "tokens are asked without a window for it"
    assert [one.source.split()[0] for one in record.published] == ["Vulcan"] * 3
    assert models() == []


def contents(tree):
    """Of every file of a board, and when it was written last."""
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in tree.rglob("*") if file.is_file()}


IDENTITY = ("label", "batch", "round", "model_sha256", "precision", "runner")  # of a run, which its request decides
RUN = replace(DENSE, latencies_ns=DENSE.latencies_ns[:3])


class SlowBoard:
    """A board whose jobs take their time on a clock of its own: a run of the ordinary window takes `run_s`."""

    host, now_s, long = "nano", 0.0, 0

    def __init__(self, run_s, build_s):
        self.run_s, self.build_s = run_s, build_s

    def call(self, method, **_):
        return {"there": True}

    def run_job(self, method, args, *, read=None, keep=None, **_):
        asked = [request for (request,) in args["requests"]]
        assert args["idle_s"] == 0.0
        longer_s = [one["duration_s"] - module.WINDOW_S for one in asked]
        self.now_s += self.run_s * len(asked) + sum(longer_s)
        self.long += sum(seconds > 0 for seconds in longer_s)
        runs = [
            replace(
                RUN,
                session=f"{self.now_s}",
                turn=turn,
                model=Path(one["model"]).name,
                **{name: one[name] for name in IDENTITY},
            )
            for turn, one in enumerate(asked)
        ]
        return keep(read(BenchAnswer(tuple(run.to_dict() for run in runs), (), Changed(None, None, ()), None, None)))

    def build(self, *_, name, **__):
        self.now_s += self.build_s * (0.5 if " 0.8 " in name else 1)
        return Placed(Path(f"/{name}.engine"), "0" * 64, 0, self.build_s)


def work_on(board, asked, scratch, progress=None, mode=None):
    """The record of a board that is not there."""
    facts = BoardFacts(meters={"ina3221": None}, power_mode=mode and PowerMode(0, mode))
    setting = Setting("nano", facts, load_profile("orin-nano-8gb"))
    how = Conditions(
        runner="tensorrt", batches=asked.batches, idle_s=0.0, duration_s=module.WINDOW_S, samples=module.SAMPLES,
        warmup=module.WARMUP, warmup_seconds=module.WARMUP_S,
    )  # fmt: skip
    start, progress = open_record(asked, setting), progress or Silent()
    limit = TimeLimit(asked.most_minutes, start.seconds, began=board.now_s, clock=lambda: board.now_s)
    on_board = files.NetworkFiles(board, facts.tensorrt, scratch, progress, largest_of(asked.sizes))
    return module._Work(asked, how, board, setting, progress, start, limit, on_board)


@pytest.mark.quick("False-4.5-70.0-False", "True-4.2*")
@pytest.mark.parametrize(
    ("quick", "run_s", "build_s", "whole"),
    [
        (False, 4.2, 40.0, True),
        (False, 4.5, 70.0, False),
        (True, 4.2, 20.0, True),
        (True, 4.0, 90.0, False),
    ],
)
def test_the_suite_ends_in_time_and_on_a_slower_board_what_there_is_no_time_for_is_left_out_and_named(
    tmp_path, monkeypatch, quick, run_s, build_s, whole
):
    monkeypatch.undo()  # windows and networks are as they are for everybody
    board = SlowBoard(run_s, build_s)
    monkeypatch.setattr(files, "place_unjudged", board.build)
    monkeypatch.setattr(module, "answers", lambda *_: ())
    asked = CharacterizeRequest(board="nano", quick=quick, output=tmp_path / "p.json")
    record = work_on(board, asked, tmp_path).finished()
    networks = [one.name for subjects in suite(asked.sizes, quick=quick).values() for one in subjects]
    assert record.seconds == pytest.approx(board.now_s) and board.now_s <= 60 * asked.most_minutes
    assert (record.left_out == ()) == whole, record.left_out
    assert {*record.left_out, *(one.name for one in record.measured)} >= set(networks)
    assert record == read_suite_record(asked.output)
    if whole and not quick:
        assert board.long == 12, "energy of the dense network, of four shapes, and of six mixes beside it"
        asked_twice = {one.name for one in record.measured if len(one.figures) == 2}
        assert asked_twice == {n for n in ("base", *networks) if n == "base" or " 0.8 " in n}


@pytest.mark.parametrize("minutes", [0.1, 1.0])
def test_a_time_in_which_nothing_can_be_measured_is_refused_with_one_in_which_something_can(
    tmp_path, monkeypatch, minutes
):
    monkeypatch.undo()
    board = SlowBoard(4.2, 40.0)
    monkeypatch.setattr(files, "place_unjudged", board.build)
    monkeypatch.setattr(module, "answers", lambda *_: ())
    asked = CharacterizeRequest(board="nano", quick=True, minutes=minutes, output=tmp_path / "p.json")
    told = rf"^--minutes {minutes:g} is too short: two networks take .* on nano, and nothing was measured; try"
    with pytest.raises(OptionError, match=told) as refusal:
        work_on(board, asked, tmp_path).finished()
    assert not asked.output.exists(), "nothing is written"
    board = SlowBoard(4.2, 40.0)
    monkeypatch.setattr(files, "place_unjudged", board.build)
    longer = replace(asked, minutes=float(str(refusal.value).split()[-1]))
    assert work_on(board, longer, tmp_path).finished().measured


def test_the_time_limit_for_continuing_is_longer_than_what_the_suite_took(tmp_path, monkeypatch):
    monkeypatch.undo()
    board, warned, progress = SlowBoard(20.0, 1.0), [], Silent()  # far slower than is reckoned before a run was seen
    monkeypatch.setattr(files, "place_unjudged", board.build)
    monkeypatch.setattr(module, "answers", lambda *_: ())
    progress.warn = warned.append
    asked = CharacterizeRequest(board="nano", quick=True, minutes=1.0, output=tmp_path / "p.json")
    record = work_on(board, asked, tmp_path, progress).finished()
    assert record.left_out and board.now_s > 60
    assert f"the same command with --minutes {math.ceil(board.now_s / 30)} continues" in warned[0]


class SmallBoard(SlowBoard):
    """A board on which the processes of some networks die, by name, batch size and round."""

    def __init__(self, *dying):
        super().__init__(0.1, 1.0)
        self.dying, self.asked = dying, []

    def run_job(self, method, args, *, read=None, keep=None, **options):
        asked = [(one["label"], one["batch"], one["round"]) for (one,) in args["requests"]]
        self.asked.append(asked)
        made = next((i for i, one in enumerate(asked) if any(one[: len(d)] == d for d in self.dying)), None)
        as_it_is = {"read": lambda told: told, "keep": lambda told: told}
        told = super().run_job(method, {**args, "requests": args["requests"][:made]}, **as_it_is)
        if made is not None:
            failed = FailedRun("the measurement died: out of memory?", "...", (asked[made][0],), asked[made][1])
            told = replace(told, failed=failed)
        return keep(read(told))


@pytest.fixture
def short_suite(monkeypatch):
    """Of one size a question about few networks, at both batch sizes."""
    monkeypatch.undo()
    subjects = [one for one in suite(("tiny",))["shapes at 0.8"] if one.name != "tiny"][:3]
    monkeypatch.setattr(module, "suite", lambda *_, **__: {"shapes at 0.8": subjects})
    monkeypatch.setattr(module, "answers", lambda *_: ())
    return subjects


def test_a_network_whose_process_fails_is_recorded_and_the_others_go_on(tmp_path, monkeypatch, short_suite):
    first, *others = [one.name for one in short_suite]
    asked = CharacterizeRequest(board="nano", sizes=("tiny",), rounds=3, output=tmp_path / "p.json")
    board, warned = SmallBoard((first, 8), ("tiny", 8, 2)), []
    monkeypatch.setattr(files, "place_unjudged", board.build)
    progress = Silent()
    progress.warn = warned.append
    record = work_on(board, asked, tmp_path, progress).finished()
    assert record == read_suite_record(asked.output)
    dense, failed, *whole = record.measured
    assert (dense.name, failed.name, [one.name for one in whole]) == ("tiny", first, others)
    assert failed.failed == "at batch 8: the measurement died: out of memory?" and failed.refused is None
    assert [figure.batch for figure in failed.figures] == [1], "what was measured of it is kept"
    assert [[figure.batch for figure in one.figures] for one in whole] == [[1, 8], [1, 8]]
    assert {one.failed for one in whole} == {None}
    assert all(figure.ratio is not None for one in record.measured[1:] for figure in one.figures if figure.batch == 1)
    again = board.asked[1]
    assert again[0][1:] == (8, 1) and first not in {label for label, *_ in again}, (
        "the round that it ended is made anew"
    )
    assert warned[0].startswith(f"cannot measure {first} at batch 8 on nano: the measurement died")
    assert warned[0].endswith("; the others continue without it")
    count = len(board.asked)
    work_on(board, asked, tmp_path).finished()
    assert len(board.asked) == count, "the same command does not try it again"


def test_a_board_that_cannot_run_the_dense_network_ends_a_suite_and_keeps_its_runs(tmp_path, monkeypatch, short_suite):
    asked = CharacterizeRequest(board="nano", sizes=("tiny",), rounds=3, output=tmp_path / "p.json")
    board = SmallBoard(("tiny", 1, 2))
    monkeypatch.setattr(files, "place_unjudged", board.build)
    with pytest.raises(AgentError, match="cannot measure tiny at batch 1 on nano: the measurement died"):
        work_on(board, asked, tmp_path).finished()
    kept = read_suite_record(asked.output)
    assert not kept.measured and len(kept.runs) >= 4
    board.dying = ()
    record = work_on(board, asked, tmp_path).finished()
    assert len(record.measured) == 4 and record.runs[: len(kept.runs)] == kept.runs


def test_a_board_that_builds_no_engine_of_the_dense_network_ends_a_suite(tmp_path, monkeypatch, short_suite):
    asked = CharacterizeRequest(board="nano", sizes=("tiny",), rounds=3, output=tmp_path / "p.json")
    monkeypatch.setattr(files, "place_unjudged", lambda *_, **__: Placed(Path(), "", refused="out of memory"))
    with pytest.raises(AgentError, match="there is no engine of the dense network on nano: out of memory"):
        work_on(SmallBoard(), asked, tmp_path).finished()
    assert not asked.output.exists()


def test_runs_in_another_power_mode_than_the_file_states_are_not_kept(tmp_path, monkeypatch, short_suite):
    asked = CharacterizeRequest(board="nano", sizes=("tiny",), rounds=3, output=tmp_path / "p.json")
    board = SmallBoard()
    monkeypatch.setattr(files, "place_unjudged", board.build)
    monkeypatch.setitem(RUN.environment, "power_mode", "MAXN")
    other = "nano ran with power mode MAXN, and had power mode 15W when it was looked at"
    with pytest.raises(UnfitBoardError, match=other):
        work_on(board, asked, tmp_path, mode="15W").finished()
    assert not asked.output.exists()
    record = work_on(board, asked, tmp_path, mode="MAXN").finished()
    assert record.runs and record.environment["power_mode"]["name"] == "MAXN"
    with pytest.raises(RunsError, match=r"is of another environment: power_mode\.name was MAXN and is 15W"):
        work_on(board, asked, tmp_path, mode="15W")
