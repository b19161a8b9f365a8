"""Whatever a board answers is a record or an error of one line; a result that is wrong is forgotten there."""

import json
import math
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from some_runs import DENSE

from edgevit.agent.__main__ import MARK
from edgevit.agent.measure import MeasurementRequest
from edgevit.agent.methods import MODULES
from edgevit.board.answers import ANSWERS, Classified, FailedRun, Refusal
from edgevit.board.bench import Setting, _check_power, take_turns
from edgevit.board.connection import Board
from edgevit.board.doctor import diagnose
from edgevit.board.facts import BoardFacts, examine
from edgevit.board.request import Conditions
from edgevit.errors import AgentError
from edgevit.progress import Silent

REQUESTS = [
    MeasurementRequest("/c/files/x.onnx", "ab", label, "fp32", "onnxruntime", batch=1, round=1)
    for label in ("t1", "t2")
]
STATE = {"power_mode": None, "clocks_locked": None, "messages": []}
STARTED = {"state": "new", "message": "", "owner": "me"}


def run_of(request, **changed):
    names = ("label", "model_sha256", "precision", "runner", "batch", "round")
    run = replace(DENSE, model=Path(request.model).name, **{name: getattr(request, name) for name in names})
    return {**run.to_dict(), **changed}


RUNS = [run_of(request) for request in REQUESTS]
BENCH = {"runs": RUNS, "profiles": [], "changed": STATE, "failed": None, "alone": None}
FAILED = {"labels": ["t2"], "batch": 1, "message": "no memory", "traceback": ""}
BUILT = {
    "engine": "/c/e",
    "refused": None,
    "sha256": "ab",
    "bytes": 1,
    "seconds": 1.0,
    "tensorrt": "10.3.0",
    "strongly_typed": True,
    "workspace_bytes": None,
    "timing_cache": None,
    "device_memory_bytes": 1,
    "layers": [],
    "fused": 0,
    "inputs": [],
    "outputs": [],
    "warnings": [],
}
TIMES = {"median": 1.0, "p99": 2.0}
LISTED = {"job": "1", "state": "running", "method": "bench", "owner": "me", "started": None, "age_s": 1.0}


@contextmanager
def board_that_answers(folder, *answers):
    """A board whose agent gives these results, whatever it is asked; what it is asked lies in `asked`."""
    lines = [f"{MARK}start", f'{MARK}{{"cache": "/c"}}', *(json.dumps({"result": answer}) for answer in answers)]
    (folder / "said").write_text("\n".join(lines) + "\n")
    script = f"cat {folder}/said; exec cat >{folder}/asked"
    with Board("orin", ("sh", "-c", f"{script}; :"), "python3", retry_seconds=0) as board:
        yield board


def bench_of(board):
    setting = Setting("orin", BoardFacts(), None)
    return take_turns(board, Conditions(), [[one] for one in REQUESTS], setting, "x", Silent(), lambda done: None)


def job_of(method):
    return lambda board: board.run_job(method, {}, name="x", progress=Silent())


def an_exchange(board):
    with board.pipe({}, Silent()) as exchange:
        exchange({"count": 1}, memoryview(b"image"), memoryview(bytearray(4)))


def look_over(board):
    facts = examine(board)
    _check_power(Setting("orin", facts, None), Conditions())
    return diagnose(facts, None)


def a_job(result):
    return (STARTED, {"result": result}, {})


ODD = [
    (lambda board: board.call("jobs"), [{}], "orin to 'jobs' lacks jobs"),
    (lambda board: board.call("jobs"), [[]], "orin to 'jobs' has a list, expected"),
    (lambda board: board.call("jobs"), [{"jobs": [{**LISTED, "age_s": "old"}]}], "'old' as jobs.0.age_s"),
    (lambda board: board.call("jobs"), [{"jobs": ["\x1b[2J"]}], r"has '\\x1b[2J' as jobs.0"),
    (lambda board: board.cancel(), [{"cancelled": []}], "orin to 'cancel' lacks others"),
    (lambda board: board.cancel(), [{"cancelled": [1], "others": []}], "has 1 as cancelled.0"),
    (lambda board: board.put(Path(__file__), "ab", Silent()), [{"present": 1, "free_bytes": 1}], "has 1 as present"),
    (lambda board: board.put(Path(__file__), "ab", Silent()), [{"present": False}], "'offer' lacks free_bytes"),
    (lambda board: board.fetch("/e", Path("e"), "ab", Silent()), [{"bytes": "5"}], "'size' has '5' as bytes"),
    (look_over, [[]], "orin to 'examine' has a list"),
    (look_over, ["text"], "orin to 'examine' has 'text'"),
    (look_over, [{"memory": {"total_bytes": "much"}}], "has 'much' as memory.total_bytes"),
    (look_over, [{"recovered": {"messages": None}}], "has nothing as recovered.messages"),
    (job_of("build"), [{**STARTED, "state": "odd"}], "orin to 'start' has 'odd' as state"),
    (job_of("build"), [None], "orin to 'start' has nothing"),
    (job_of("build"), [STARTED, [], {}], "orin to 'follow' has a list"),
    (job_of("build"), [STARTED, {"error": "no"}, {}], "'follow' has 'no' as error"),
    (job_of("build"), [STARTED, {}, {}], "orin to 'build' has nothing"),
    (job_of("build"), a_job({**BUILT, "fused": "all"}), "orin to 'build' has 'all' as fused"),
    (job_of("build"), a_job({"refused": 1, "seconds": 1.0}), "'build' has 1 as refused"),
    (job_of("build"), a_job({**BUILT, "inputs": [{"name": "x"}]}), "lacks inputs.0.dtype"),
    (job_of("classify"), a_job({"rows": [], "nonfinite": None}), "'classify' has nothing as nonfinite"),
    (an_exchange, [{"bytes": "5"}, {}], "orin to 'pipe' has '5' as bytes"),
    (an_exchange, [{"bytes": 0}, {"bytes": 9}], "'pipe' is wrong: 9 bytes came, expected at most 4"),
    (an_exchange, [{"bytes": 0}, {"bytes": -1}], "'pipe' is wrong: -1 bytes came"),
    (job_of("trtexec"), a_job({"throughput_qps": 1.0, "latency_ms": TIMES}), "'trtexec' lacks gpu_ms"),
    (job_of("trtexec"), a_job({"throughput_qps": 1.0, "latency_ms": TIMES, "gpu_ms": {}}), "lacks gpu_ms.median"),
    (bench_of, a_job({**BENCH, "runs": None}), "orin to 'bench' has nothing as runs"),
    (bench_of, a_job({**BENCH, "failed": "yes"}), "'bench' has 'yes' as failed"),
    (bench_of, a_job({**BENCH, "changed": {}}), "'bench' lacks changed.power_mode"),
    (bench_of, a_job({**BENCH, "profiles": [{}]}), "'bench' lacks profiles.0.inferences_ns"),
    (bench_of, a_job({**BENCH, "runs": []}), "is wrong: 0 runs and profiles came, and 2 were asked for"),
    (bench_of, a_job({**BENCH, "runs": RUNS * 3}), "is wrong: 6 runs and profiles came"),
    (bench_of, a_job({**BENCH, "runs": RUNS[::-1]}), "run 1 has label 't2', and 't1' was asked for"),
    (bench_of, a_job({**BENCH, "runs": [run_of(REQUESTS[0], batch=64), RUNS[1]]}), "run 1 has batch 64, and 1 was"),
    (
        bench_of,
        a_job({**BENCH, "runs": [RUNS[0], run_of(REQUESTS[1], model_sha256="x" * 10**6)]}),
        "run 2 has model_sha",
    ),
    (bench_of, a_job({**BENCH, "runs": [RUNS[0], {}]}), 'is wrong: not a run: no "schema"'),
    (bench_of, a_job({**BENCH, "runs": [RUNS[0], run_of(REQUESTS[1], latencies_ns=[0])]}), "latencies_ns is empty, or"),
    (bench_of, a_job({**BENCH, "runs": [RUNS[0], run_of(REQUESTS[1], latencies_ns=[-5])]}), "latencies_ns is empty"),
    (bench_of, a_job({**BENCH, "failed": FAILED}), "what failed is not what was the next"),
    (bench_of, a_job({**BENCH, "runs": [], "failed": FAILED}), "what failed is not what was the next"),
]


@pytest.mark.parametrize(("act", "answers", "message"), ODD)
def test_an_odd_answer_is_one_line_that_names_board_call_and_field(tmp_path, monkeypatch, act, answers, message):
    monkeypatch.chdir(tmp_path)
    with board_that_answers(tmp_path, *answers) as board, pytest.raises(AgentError) as caught:
        act(board)
    line = str(caught.value)
    assert message in line and "orin" in line and line.isprintable() and len(line) < 400, line
    assert len(list(tmp_path.iterdir())) == 2
    if answers and answers[0] is STARTED:
        assert '"method": "forget"' in (tmp_path / "asked").read_text(), "it would be collected for ever"


def test_the_answers_that_were_asked_for_are_records(tmp_path):
    with board_that_answers(tmp_path, *a_job(BENCH), *a_job({**BENCH, "runs": RUNS[:1], "failed": FAILED})) as board:
        assert [run.label for run in bench_of(board).runs] == ["t1", "t2"]
        done = bench_of(board)
        assert len(done.runs) == 1 and done.failed == FailedRun("no memory", "", ("t2",), 1)
    refusal, rows = {"refused": "no kernel", "seconds": 2.0}, [[math.inf, 1.0]]
    answers = (*a_job(BUILT), *a_job(refusal), *a_job({"rows": rows, "nonfinite": 1, "seconds": 1.0}))
    with board_that_answers(tmp_path, *answers, {"jobs": [LISTED]}) as board:
        assert asdict(job_of("build")(board)) == {
            **BUILT,
            **dict.fromkeys(("layers", "inputs", "outputs", "warnings"), ()),
        }
        assert job_of("build")(board) == Refusal("no kernel", 2.0)
        assert job_of("classify")(board) == Classified(1, rows), "an engine that overflows is for the gate to refuse"
        assert board.call("jobs") == {"jobs": [LISTED]}


def test_a_board_of_no_known_python_has_a_problem_and_no_traceback(tmp_path):
    with board_that_answers(tmp_path, {"python": "new"}) as board:
        assert ("Python", "problem") in [(check.name, check.state) for check in look_over(board)]


def test_every_call_says_what_it_answers():
    assert set(ANSWERS) == set(MODULES)


def test_a_file_that_is_longer_than_it_was_announced_is_not_fetched_to_its_end(tmp_path):
    program = tmp_path / "ssh"
    program.write_text(
        f"""#!/bin/sh
case "$1" in *greet*)
    printf '%s\\n' '{MARK}start' '{MARK}{{"cache": "/c"}}' '{{"result": {{"bytes": 5}}}}' '{{"result": {{}}}}'
    exec cat >/dev/null
esac
echo '{MARK}'; exec yes
"""
    )
    program.chmod(0o755)
    with (
        Board("orin", (str(program),), "python3", retry_seconds=0) as board,
        pytest.raises(AgentError, match="/c/e on orin is longer than the 5 bytes that it announced"),
    ):
        board.fetch("/c/e", tmp_path / "engine", "ab", Silent())
    assert list(tmp_path.iterdir()) == [program]
