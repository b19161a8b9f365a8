"""One measurement after another, each in a process of its own, on a machine that stays as it was."""

from dataclasses import asdict

import pytest

from edgevit.agent import bench as bench_module
from edgevit.agent.bench import bench
from edgevit.agent.measure import MeasurementRequest
from edgevit.agent.records import Run


def request(**changes):
    known = dict(model="/any.onnx", model_sha256="0" * 64, label="any", precision=None, runner="fake", batch=1)
    return asdict(
        MeasurementRequest(**{**known, "samples": 3, "duration_s": 0, "warmup": 0, "warmup_seconds": 0, **changes})
    )


@pytest.fixture
def told(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return []


def test_every_run_of_a_bench_says_its_session_and_its_turn(tmp_path, told):
    answer = bench(told.append, str(tmp_path), requests=[[request()], [request(batch=8)]])
    runs = [Run.from_dict(run) for run in answer["runs"]]
    assert [(run.batch, run.turn, len(run.latencies_ns)) for run in runs] == [(1, 1, 3), (8, 2, 3)]
    assert runs[0].session == runs[1].session and answer["failed"] is None
    progress = [message["progress"] for message in told]
    assert {(p["run"], p["of"], p["batch"]) for p in progress} == {(1, 2, 1), (2, 2, 8)}


@pytest.mark.slow
def test_the_first_that_fails_ends_the_bench_and_what_was_measured_is_kept(tmp_path, told):
    answer = bench(told.append, str(tmp_path), requests=[[request()], [request(runner="nope")], [request()]])
    assert len(answer["runs"]) == 1
    assert answer["failed"]["labels"] == ["any"] and answer["failed"]["message"].startswith("no runner 'nope'")


def test_models_that_alternate_share_a_process_and_its_turn(tmp_path, told):
    pair = [request(label="a", options={"latency_ms": 0.1}), request(label="b", options={"latency_ms": 0.1})]
    answer = bench(told.append, str(tmp_path), requests=[pair, [request()]], profiled=[])
    runs = [Run.from_dict(run) for run in answer["runs"]]
    assert [(run.label, run.turn, run.beside) for run in runs] == [("a", 1, ("b",)), ("b", 1, ("a",)), ("any", 2, None)]
    assert len({run.session for run in runs}) == 1 and answer["failed"] is answer["alone"] is None
    bad = [pair[0], request(label="b", options={"speed": 2})]
    failed = bench(told.append, str(tmp_path), requests=[bad, pair])["failed"]
    assert failed["labels"] == ["a", "b"] and "speed" in failed["message"]


def test_a_measurement_that_hangs_is_ended(tmp_path, told, monkeypatch):
    monkeypatch.setattr(bench_module, "SILENCE_S", 0.3)
    answer = bench(told.append, str(tmp_path), requests=[[request(options={"latency_ms": 600_000})]])
    assert answer["failed"]["message"] == "the measurement gave no sign of life for 0 min and was ended"
