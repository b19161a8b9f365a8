"""The runner against stand-ins that are strict per release (API checks), with either CUDA binding."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from standin_board import RELEASES, build, model_for, play, play_cudart

from edgevit.agent.cuda import runtime
from edgevit.agent.execution import Execution
from edgevit.agent.measure import MeasurementRequest, measure
from edgevit.agent.runners import Loaded, RunnerError, import_runner, runner_options
from edgevit.agent.runners.tensorrt import TensorrtLane


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Play a release and return an engine built on it: `board("10.3.0")`."""

    def make(release: str = "10.3.0", batches: Any = (1, 4, 8), fault: str = "") -> str:
        play(monkeypatch, tmp_path, release, fault)
        model = model_for(release, tmp_path, batch=None if batches else 4)
        return str(build(model, batches=batches)["engine"])

    return make


@contextmanager
def opened(engine: str, batch: int = 4, **options: Any) -> Iterator[Loaded]:
    with import_runner("tensorrt").open_runner(engine, batch, **options) as loaded:
        yield loaded


@pytest.mark.quick("8.5.2-*", "10.3.0-*", "11.4-*")
@pytest.mark.parametrize("binding", ["ctypes", "pycuda"])
@pytest.mark.parametrize("release", RELEASES)
def test_every_release_runs_with_either_binding(
    release: str, binding: str, board: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = board(release)
    if binding == "ctypes":
        play_cudart(monkeypatch, tmp_path)
    request = MeasurementRequest(
        engine, "0" * 64, "small", "fp16", "tensorrt", 4, samples=20, duration_s=0, warmup_seconds=0
    )
    run = measure(request, lambda stage, done: None)
    assert len(run.latencies_ns) == len(run.gpu_ns or ()) == 20
    assert all(gpu_ns <= host_ns for gpu_ns, host_ns in zip(run.gpu_ns or (), run.latencies_ns, strict=True))
    assert run.provider == "TensorRT"
    assert (
        run.environment.items()
        >= {
            "tensorrt": release,
            "cuda": "12.6",
            "cuda_device": "Orin, 8 SMs, compute capability 8.7",
            "cuda_binding": binding,
            "cuda_graph": "on",
            "spin": "on",
            "transfers": "excluded",
            "streams": "1",
        }.items()
    )
    whole = "weights" if release in ("10.16", "11.1", "11.4") else "the engine file"
    assert run.environment["engine_memory"] == f"activations and {whole}"
    assert (run.memory_engine_bytes or 0) > 4 << 20


def test_the_options_are_those_that_decide_what_is_measured() -> None:
    assert runner_options("tensorrt") == ["cuda_graph", "spin", "transfers", "streams"]


def test_transfers_go_in_and_out_and_gpu_time_is_without_them(board: Any) -> None:
    with opened(board(), transfers=True, cuda_graph=False, spin=False) as loaded:
        loaded.infer()
        assert loaded.settle() == {"cuda_graph": "off"}
        assert loaded.environment.items() >= {"transfers": "included", "spin": "off"}.items()
        assert loaded.gpu_ns is not None and loaded.gpu_ns() > 0
        lane: Any = loaded.lanes[0]
        (host, _), *none = lane._copies_out
        assert not none and any(bytes(host))  # the logits have arrived


def test_a_capture_that_is_refused_goes_on_without_and_says_so(
    board: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = board()
    play_cudart(monkeypatch, tmp_path)
    monkeypatch.setenv("STANDIN_CUDART_CAPTURE", "refuse")
    with opened(engine, streams=2) as loaded:
        loaded.infer()
        assert loaded.settle() == {"cuda_graph": "refused"}
        loaded.infer()


def test_a_binding_without_graphs_goes_on_without_and_says_so(board: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_PYCUDA", "release")
    monkeypatch.setattr(runtime, "NAMES", ("none.so",))
    with opened(board()) as loaded:
        loaded.infer()
        assert loaded.settle() == {"cuda_graph": "unavailable"}
        loaded.infer()


def test_the_first_inference_is_left_to_be_measured(board: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def note(name: str, act: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(self: Any) -> Any:
            seen.append(name)
            return act(self)

        return noted

    monkeypatch.setattr(Execution, "enqueue", note("run", Execution.enqueue))
    monkeypatch.setattr(TensorrtLane, "capture", note("capture", TensorrtLane.capture))
    with opened(board(), streams=2) as loaded:
        assert seen == []
        loaded.infer()
        assert seen == ["run"]
        loaded.settle()
        assert seen[:3] == ["run", "run", "capture"]


@pytest.mark.parametrize("release", ["8.6.1", "10.3.0"])
def test_streams_are_lanes_of_their_own(release: str, board: Any) -> None:
    with opened(board(release), streams=3) as loaded:
        assert len(loaded.lanes) == 3 and loaded.environment["streams"] == "3"
        for lane in loaded.lanes:
            lane.enqueue()
        for lane in loaded.lanes:
            lane.wait()


def test_a_release_with_one_context_per_profile_says_so(board: Any) -> None:
    message = r"TensorRT 8\.5\.2 runs an engine of dynamic batch on one stream only"
    with pytest.raises(RunnerError, match=message), opened(board("8.5.2"), streams=2):
        pass
    with opened(board("8.5.2", batches=None), streams=2) as loaded:
        assert len(loaded.lanes) == 2


@pytest.mark.parametrize(("batches", "batch", "takes"), [((1, 4, 8), 9, "from 1 to 8"), (None, 1, "of 4, fixed")])
def test_a_batch_outside_the_profile_is_refused(batches: Any, batch: int, takes: str, board: Any) -> None:
    message = rf"batch {batch} was asked for, and this engine takes batches {takes}; build"
    with pytest.raises(RunnerError, match=message), opened(board(batches=batches), batch):
        pass


@pytest.mark.parametrize(
    ("built_by", "here", "message"),
    [
        ("10.3.0", "10.16", r"built by TensorRT 10\.3\.0, this board has 10\.16; build it again with `edgevit export"),
        (
            "8.6.1",
            "8.5.2",
            r"built by another TensorRT \(its files are version 236\), this board has 8\.5\.2 \(version 232",
        ),
    ],
)
def test_an_engine_of_another_release_is_refused(
    built_by: str, here: str, message: str, board: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = board(built_by)
    play(monkeypatch, tmp_path, here)
    with pytest.raises(RunnerError, match=message), opened(engine):
        pass


def test_what_is_no_engine_is_refused(board: Any, tmp_path: Path) -> None:
    board()
    (tmp_path / "no.engine").write_bytes(b"nothing of the kind")
    message = r"does not take it as an engine: .*Magic tag does not match"
    with pytest.raises(RunnerError, match=message), opened(str(tmp_path / "no.engine")):
        pass
    with pytest.raises(RunnerError, match=r"cannot read the engine .*No such file"), opened("/none.engine"):
        pass


def test_a_board_without_memory_for_the_context_is_told_so(board: Any) -> None:
    message = r"cannot prepare to run the engine: .*OutOfMemory.*; close other programs, or build it for fewer images "
    message = f"{message}than 8 at once .* --batches 1,1,1"
    with pytest.raises(RunnerError, match=message), opened(board(fault="no-context")):
        pass


def test_streams_must_be_some(board: Any) -> None:
    with pytest.raises(RunnerError, match=r"--streams is 0"), opened(board(), streams=0):
        pass


def test_all_memory_is_freed_also_when_a_lane_cannot_be_made(board: Any) -> None:
    engine = board("8.5.2")
    with opened(engine, transfers=True):
        alive = importlib.import_module("pycuda.driver").alive
        assert alive
    assert not alive
    with pytest.raises(RunnerError), opened(engine, streams=2):
        pass
    assert not alive
