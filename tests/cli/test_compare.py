"""`edgevit compare`, on files as `edgevit bench --output` writes them; their times are as of a quiet machine."""

import json
from dataclasses import replace
from random import Random

import pytest
from small_models import write_narrower

import edgevit
from edgevit.agent.measure import MeasurementRequest, measure
from edgevit.board.models import find_file

COMPARED = "environments differ in kernel: the ratios say little about the models"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs at 2 ms and three at 4 ms, nominally."""
    request = MeasurementRequest(
        model="/models/m.onnx",
        model_sha256="0" * 64,
        label="t1",
        precision="fp16",
        runner="fake",
        batch=1,
        samples=2,
        duration_s=0,
        warmup_seconds=0,
    )
    measured = measure(request, lambda stage, done, **figures: None, root=str(tmp_path_factory.getbasetemp()))
    drawn = Random(0)

    def run(milliseconds):
        latencies_ns = tuple(round(1e6 * milliseconds * drawn.uniform(1, 1.1)) for _ in range(100))
        return replace(measured, latencies_ns=latencies_ns, wall_ns=sum(latencies_ns))

    return [run(2) for _ in range(3)], [run(4) for _ in range(3)]


@pytest.fixture
def write(tmp_path):
    def to(name, *runs):
        path = tmp_path / name
        path.write_text("".join(run.to_json() + "\n" for run in runs))
        return path

    return to


def test_two_files_are_set_side_by_side_with_what_can_be_told_apart(edgevit_main, write, runs):
    fast, slow = runs
    done = edgevit_main("compare", write("a.jsonl", *slow), write("b.jsonl", *fast))
    assert done.code == 0
    assert "warning: t1 fp16, batch 1: 3 of 3 runs, such as: the window lasted 0." in done.err
    rows = [line for line in done.out.splitlines() if line.startswith("│")]
    assert [row.split("│")[1].strip() for row in rows] == ["p50 ms", "p99 ms", "mean ms", "images/s"]
    assert "t1 fp16 over t1 fp16, batch 1" in done.out
    assert "better" in rows[0] and "better" in rows[3]
    assert "--repeat" not in done.out
    same = edgevit_main("compare", write("a.jsonl", *slow), write("b.jsonl", *slow))
    assert same.out.count("cannot be told apart") == 4


def test_of_one_run_each_it_says_what_the_interval_leaves_out(edgevit_main, write, runs):
    done = edgevit_main("compare", write("a.jsonl", runs[0][0]), write("b.jsonl", runs[1][0]))
    assert "worse" in done.out and "leaves out how one process differs from the next; try --repeat 5." in done.out
    assert "resampled in blocks of" in done.out


def test_json_holds_the_intervals_and_the_outcome(edgevit_main, write, runs):
    done = edgevit_main("compare", write("a.jsonl", *runs[1]), write("b.jsonl", *runs[0]), "--json")
    p50, *_, throughput = json.loads(done.out)["comparisons"]
    assert (p50["figure"], p50["outcome"], p50["runs"], p50["unit"]) == ("p50", "better", [3, 3], "ms")
    assert p50["low"] < p50["ratio"] < p50["high"] < 1
    assert (throughput["figure"], throughput["outcome"]) == ("throughput", "better")


def test_unlike_environments_are_refused_by_name_and_forced_with_a_warning(edgevit_main, write, runs):
    a, b = runs[0][0], runs[1][0]
    elsewhere = replace(b, environment={**b.environment, "kernel": "Linux 1.0"})
    files = write("a.jsonl", a), write("b.jsonl", elsewhere)
    error = edgevit_main("compare", *files).error
    assert "not comparable: kernel was" in error and "now 'Linux 1.0'" in error and "--force" in error
    forced = edgevit_main("compare", *files, "--force")
    assert forced.code == 0 and f"warning: {COMPARED}" in forced.err


def test_a_void_run_is_shown_not_judged_and_exits_4_unless_forced(edgevit_main, write, runs):
    void = replace(runs[1][0], throttled=("gpu-throttle at step 3",))
    files = write("a.jsonl", runs[0][0]), write("b.jsonl", void)
    done = edgevit_main("compare", *files)
    assert done.code == 4 and done.out.count("void") == 4 and "worse" not in done.out
    assert "warning: batch 1: void: the board held itself back (gpu-throttle at step 3)" in done.err
    forced = edgevit_main("compare", *files, "--force")
    assert forced.code == 0 and "worse" in forced.out and "void: the board held itself back" in forced.err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "check the path"),
        ("", "no runs in"),
        ("{}", "line 1: not a run"),
        ("[" * 100_000, "line 1 is nested too deeply"),
        (
            '{"schema": 8}',
            "line 1: schema 8, written by an unknown version; this edgevit reads schema 1",
        ),
    ],
)
def test_a_file_that_is_not_runs_is_one_line(edgevit_main, write, runs, tmp_path, content, said):
    path = tmp_path / "b.jsonl"
    if content is not None:
        path.write_text(content)
    assert said in edgevit_main("compare", write("a.jsonl", *runs[0]), path).error


def test_files_without_a_batch_size_in_common_say_which_they_have(edgevit_main, write, runs):
    files = write("a.jsonl", runs[0][0]), write("b.jsonl", replace(runs[1][0], batch=8))
    assert "no batch size in common: 1 before, 8 after" in edgevit_main("compare", *files).error


def test_models_of_one_file_are_set_against_the_first_of_them(edgevit_main, write, runs):
    other = [replace(run, label="t2") for run in runs[0]]
    done = edgevit_main("compare", write("a.jsonl", *runs[1], *other))
    assert done.code == 0 and "t1 fp16" in done.out and "t2 fp16" in done.out and done.out.count("better") > 1
    assert "there is nothing to set against each other" in edgevit_main("compare", write("b.jsonl", *other)).error


def test_runs_of_a_busy_machine_are_not_judged_and_their_warnings_are_repeated(edgevit_main, write, runs):
    fast, slow = runs[0][0], runs[1][0]
    shared = replace(fast, cpu_own_ns=fast.wall_ns, cpu_busy_ns=3 * fast.wall_ns)
    files = write("a.jsonl", slow), write("b.jsonl", shared)
    done = edgevit_main("compare", *files)
    assert done.code == 0 and done.out.count("not judged") == 4
    assert done.out.count("better") == 1  # of the title
    assert "`edgevit bench A B` measures two models in turns" in done.out
    assert "warning: t1 fp16, batch 1: other programs took" in done.err
    assert edgevit_main("compare", *files, "--force").out.count("better") > 1  # the title has one
    of = {"session": "s", "provider": "CPUExecutionProvider", "environment": {**slow.environment, "threads": "1"}}
    rounds = [
        replace(run, **of, label=run_label, round=i)
        for i in (1, 2)
        for run, run_label in ((slow, "slow"), (shared, "fast"))
    ]
    turns = edgevit_main("compare", write("turns.jsonl", *rounds))
    assert "These models took turns, so that the ratios of means" in turns.out and "edgevit bench A B" not in turns.out


def test_at_80_columns_no_cell_is_cut_short(edgevit_main, write, runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    files = write("a.jsonl", *runs[0]), write("b.jsonl", *runs[0])
    out = edgevit_main("compare", *files).out
    assert "…" not in out and max(map(len, out.splitlines()[1:-1])) <= 80
    assert "before" in out and "cannot be told" in out and "│ images/s" in out


@pytest.mark.slow
def test_a_model_with_a_narrower_embedding_is_set_beside_its_base(edgevit_main, write, tmp_path):
    runs = []
    for label, width in (("whole", 64), ("narrower", 32)):
        folder = write_narrower(tmp_path / label, width)
        edgevit.export(folder, accuracy=False, fp16=False)
        file = find_file(folder, None, "cpu")
        request = MeasurementRequest(
            model=str(file.path), model_sha256=file.sha256, label=label, precision="fp32", runner="onnxruntime",
            batch=1, samples=5, duration_s=0, warmup_seconds=0, options={"provider": "cpu", "threads": 1},
        )  # fmt: skip
        runs.append(measure(request, lambda stage, done, **figures: None, root=str(tmp_path)))
    done = edgevit_main("compare", write("a.jsonl", *runs), "--json")
    assert done.code == 0, done.err
    assert "whole" in done.out and "narrower" in done.out
