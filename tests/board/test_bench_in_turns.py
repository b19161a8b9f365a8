"""Several models in turns: through a real agent, and on a machine that real processes keep busy."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import chain

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from recorded_progress import RecordedProgress

from edgevit.agent.measure import MeasurementRequest
from edgevit.board.bench import bench, bench_in_turns, in_turns
from edgevit.board.comparison import compare_within, decisive
from edgevit.board.request import Conditions
from edgevit.errors import AgentError, CheckpointError, OptionError

pytestmark = pytest.mark.usefixtures("examined_once")
FAKE = Conditions(runner="fake", samples=20, duration_s=0, warmup=2, warmup_seconds=0)


@pytest.fixture
def models(tmp_path):
    """Any files: the fake runner sleeps."""
    paths = [tmp_path / name for name in ("a.onnx", "b.onnx", "c.onnx")]
    for path in paths:
        path.write_bytes(path.name.encode())
    return paths


def write_layers(path, count, size=256):
    """A model of `count` matrix products of the same size."""
    names = ["x", *(f"h{n}" for n in range(1, count)), "y"]
    weights = [
        helper.make_tensor(f"w{n}", TensorProto.FLOAT, [size, size], np.full(size * size, 1e-3, np.float32))
        for n in range(count)
    ]
    nodes = [helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]]) for n in range(count)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size, size]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def request(label, batch=1):
    return MeasurementRequest(f"/{label}.onnx", "0" * 64, label, None, "fake", batch)


def order(processes):
    turns = list(chain.from_iterable(processes))
    rounds = max(turn.round for turn in turns)
    return [[(turn.label, turn.batch) for turn in turns if turn.round == n] for n in range(1, rounds + 1)]


def test_the_order_of_each_round_but_the_first_is_drawn_and_the_same_seed_draws_the_same():
    shapes = [[request(name)] for name in "abc"]
    rounds = order(in_turns(shapes, 20, seed=0))
    assert rounds[0] == [("a", 1), ("b", 1), ("c", 1)]
    assert all(sorted(turns) == rounds[0] for turns in rounds)
    assert len(set(map(tuple, rounds))) == 6
    assert in_turns(shapes, 20, seed=0) == in_turns(shapes, 20, seed=0) != in_turns(shapes, 20, seed=1)


def test_models_of_one_shape_follow_one_another():
    shapes = [[request(name, 1), request(name, 8)] for name in "ab"]
    for turns in order(in_turns(shapes, 5, seed=0)):
        assert [batch for _, batch in turns] == [1, 1, 8, 8]
        assert len(set(turns)) == 4


def test_models_that_alternate_have_one_process_per_round_and_shape():
    shapes = [[request(name, 1), request(name, 8)] for name in "ab"]
    processes = in_turns(shapes, 5, seed=0, alternate=True)
    assert order(processes) == order(in_turns(shapes, 5, seed=0))
    assert [[turn.batch for turn in alike] for alike in processes] == 5 * [[1, 1], [8, 8]]


@pytest.mark.slow
def test_sessions_of_several_threads_share_them_and_an_onnx_runtime_that_cannot_has_a_process_for_each(
    tmp_path, monkeypatch
):
    models = [write_layers(tmp_path / f"{name}.onnx", count) for name, count in (("whole", 8), ("half", 4))]
    how = Conditions(threads=2, samples=20, duration_s=0.1, warmup_seconds=0.05)
    runs = bench_in_turns(models, how, rounds=1, alternate=True).runs
    assert [(run.label, run.beside) for run in runs] == [("whole", ("half",)), ("half", ("whole",))]
    older = tmp_path / "older"
    older.mkdir()
    (older / "sitecustomize.py").write_text("import onnxruntime\ndel onnxruntime.set_global_thread_pool_sizes\n")
    monkeypatch.setenv("PYTHONPATH", str(older), prepend=os.pathsep)
    told = RecordedProgress()
    runs = bench_in_turns(models, how, rounds=2, alternate=True, progress=told).runs
    assert [(run.round, run.beside) for run in runs] == [(1, None), (1, None), (2, None), (2, None)]
    assert len(told.notes) == 1 and told.notes[0].startswith("models are measured one after the other on this machine")
    assert "threads of one model take the time of another; update it, or give --threads 1" in told.notes[0]
    runs = bench_in_turns(models, replace(how, threads=1), rounds=1, alternate=True).runs
    assert runs[0].beside == ("half",), "a single thread does not spin"


def test_each_run_says_its_session_round_and_turn(models):
    seen = []
    done = bench_in_turns(models, FAKE, rounds=2, on_run=seen.append)
    assert list(done.runs) == seen
    assert [run.turn for run in seen] == [1, 2, 3, 4, 5, 6]
    assert [run.round for run in seen] == [1, 1, 1, 2, 2, 2]
    assert len({run.session for run in seen}) == 1
    again = bench_in_turns(models, FAKE, rounds=1)
    assert again.runs[0].session != seen[0].session


@pytest.mark.slow
def test_models_of_one_name_are_told_apart_by_their_paths_and_one_model_twice_by_a_number(tmp_path, models):
    (tmp_path / "d").mkdir()
    same = shutil.copy(models[0], tmp_path / "d" / "a.onnx")
    runs = bench_in_turns([models[0], same, models[1], models[1]], FAKE, rounds=1).runs
    assert [run.label for run in runs] == [str(models[0]), str(same), str(models[1]), f"{models[1]} (2)"]
    runs = bench_in_turns(models[:2], FAKE, rounds=1, labels=["base", "ours"]).runs
    assert [run.label for run in runs] == ["base", "ours"]


def test_what_makes_no_sense_is_refused_before_anything_starts(models, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")  # starting an agent would fail otherwise
    engine = tmp_path / "e.engine"
    engine.write_bytes(b"")
    for arguments, message in (
        ({"models": []}, "there is no model to measure"),
        ({"models": [engine, models[0]]}, "e.engine is an engine and .*a.onnx is not; measure engines with engines"),
        ({"models": models, "labels": ["a", "b"]}, "3 models have the labels a, b; give each its own"),
        ({"models": models[:2], "labels": ["a", "a"]}, "2 models have the labels a, a; give each its own"),
        ({"models": models, "rounds": 0}, "--repeat 0 is not in .1, 100000"),
        (
            {"models": models[:1], "alternate": True},
            "--alternate is for several models at full speed, and not for one model",
        ),
        (
            {"models": models, "alternate": True, "conditions": Conditions(period_ms=5)},
            "not for --period-ms; leave one out",
        ),
        (
            {"models": models, "alternate": True, "conditions": Conditions(runner="tensorrt", streams=(1, 2))},
            "--streams 2",
        ),
    ):
        with pytest.raises(OptionError, match=message):
            bench_in_turns(**arguments)
    with pytest.raises(CheckpointError, match=r"no model at .*missing"):
        bench_in_turns([models[0], tmp_path / "missing"])


def test_a_model_that_fails_is_named_and_what_was_measured_before_it_is_kept(tmp_path, models):
    seen = []
    good = write_layers(tmp_path / "good.onnx", 1, size=8)
    with pytest.raises(AgentError, match=r"cannot measure .*b\.onnx at batch 1 on this machine: ONNX Runtime cannot"):
        bench_in_turns([good, models[1]], Conditions(samples=20, duration_s=0), rounds=2, on_run=seen.append)
    assert [run.label for run in seen] == ["good"]


BURSTS = """
import random, time
drawn = random.Random({seed})
while True:
    end = time.monotonic() + drawn.uniform(0.05, 0.4)
    while time.monotonic() < end: pass
    time.sleep(drawn.uniform(0.05, 0.4))
"""


@pytest.mark.slow
def test_the_ratios_hold_on_a_machine_that_others_keep_busy_in_bursts(tmp_path):
    """One model twice, and one of half its layers, on a core on which two processes compute now and then.

    Within 5 % after six short rounds, or, where the machine was busier still, after four times as many.
    """
    whole, half = write_layers(tmp_path / "whole.onnx", 8), write_layers(tmp_path / "half.onnx", 4)
    same = shutil.copy(whole, tmp_path / "same.onnx")
    how = Conditions(threads=1, samples=20, duration_s=0.1, warmup_seconds=0.05)
    code = [BURSTS.format(seed=seed) for seed in range(2)]
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    # Each in a session of its own: Linux may share a core out by sessions, and ours would pay for them alone.
    others = [subprocess.Popen([sys.executable, "-c", one], start_new_session=True) for one in code]
    try:
        for rounds in (6, 24):
            runs = bench_in_turns([whole, same, half], how, rounds=rounds, alternate=True).runs
            same_again, of_half = decisive(compare_within(runs))
            if off(same_again, 1) < 0.05 and off(of_half, 0.5) < 0.05:
                break
        by_itself = [bench(whole, how).runs[0].mean_ns() for _ in range(8)]
    finally:
        os.sched_setaffinity(0, cores)
        for other in others:
            other.kill()
            other.wait()
    assert (same_again.after, of_half.after, of_half.rounds, of_half.figure) == ("same", "half", rounds, "processor")
    assert of_half.outcome == "better"
    assert off(same_again, 1) < 0.05 and off(of_half, 0.5) < 0.05
    assert max(by_itself) > 1.05 * min(by_itself), "runs of one and the same model differ by more by themselves"


def off(found, right):
    """How far a ratio is from what it should be, as a share of that."""
    return abs(found.ratio / right - 1)
