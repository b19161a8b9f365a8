"""Several models in one process: what a burst does to their ratio, and what of a run is not any one model's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from standin_board import build, model_for, play, play_cudart

from edgevit.agent import alternate as alternating
from edgevit.agent import measure as measuring
from edgevit.agent import runners
from edgevit.agent.alternate import VISIT_NS, alternate
from edgevit.agent.measure import MeasurementRequest, measure
from edgevit.agent.records import Run
from edgevit.agent.runners import AloneError, Loaded, RunnerError

MS = 1_000_000
Infer = Callable[[], None]


def silent(stage: str, done: float, **figures: Any) -> None:
    pass


def request(label: str, **changes: Any) -> MeasurementRequest:
    known = dict(model=f"/{label}.onnx", model_sha256="0" * 64, label=label, precision=None, runner="fake", batch=1)
    return MeasurementRequest(
        **{**known, "samples": 20, "duration_s": 0.5, "warmup": 3, "warmup_seconds": 0.1, **changes}
    )


class Machine:
    """A clock that only inferences move: of 1 and 2 ms, three times as long in every other second and a half.

    The first inference after one of the other model takes 1 ms more, and `ran` keeps which they were.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.ran: list[str] = []
        for module in (alternating, measuring):
            monkeypatch.setattr(module, "perf_counter_ns", lambda: self.now)

        @contextmanager
        def open_runner(model: str, batch: int) -> Iterator[Loaded]:
            yield Loaded(lambda: self.infer(model), provider=None, environment={}, engine_bytes=len(model))

        monkeypatch.setattr(runners.import_runner("fake"), "open_runner", open_runner)
        self.of = {"/base.onnx": 2 * MS, "/half.onnx": MS}

    def infer(self, model: str) -> None:
        burst = self.now // (1500 * MS) % 2
        cold = MS if self.ran and self.ran[-1] != model else 0
        self.now += self.of[model] * (3 if burst else 1) + cold
        self.ran.append(model)


def test_a_burst_meets_all_models_alike_where_it_meets_one_of_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.now = 1000 * MS
    alone = [measure(request(label), silent).p50_ns() for label in ("base", "half")]
    machine.now = 1000 * MS
    base, half = alternate([request("base"), request("half")], silent)
    assert alone[1] / alone[0] == 1.5, "the burst began with the second"
    ratios = [b / a for a, b in zip(base.visit_p50s_ns(), half.visit_p50s_ns(), strict=True)]
    assert len(ratios) >= 5 and len(set(base.visit_p50s_ns())) == 2 and median(ratios) == 0.5


def test_a_visit_is_of_one_model_and_begins_with_inferences_that_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.now = 1000 * MS
    base, half = alternate([request("base"), request("half")], silent)
    assert (base.visit, half.visit) == (VISIT_NS / MS / 2, VISIT_NS / MS)
    assert len(base.visit_p50s_ns()) == len(half.visit_p50s_ns()) == len(base.latencies_ns) / base.visit
    assert set(base.latencies_ns) == {2 * MS, 6 * MS} and set(half.latencies_ns) == {MS, 3 * MS}, "no cold one counts"
    for run in (base, half):
        assert run.wall_ns == sum(run.latencies_ns) >= 500 * MS
    stretches = [(model, len(list(stretch))) for model, stretch in groupby(machine.ran)][4:]  # after warming up
    assert len(stretches) >= 5
    for model, count in stretches:
        assert count % (30 if model == "/base.onnx" else 60) == 0, "50 ms that count, and 10 ms before them"


def test_what_is_the_processs_is_not_told_as_any_models_and_the_rest_is(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch)
    runs = alternate([request("base", round=3), request("half", round=3)], silent)
    assert [(run.label, run.beside, run.round) for run in runs] == [("base", ("half",), 3), ("half", ("base",), 3)]
    for run in runs:
        assert run.memory_peak_rss_bytes is run.memory_drop_bytes() is run.memory_nvmap_bytes is None
        assert run.power is run.energy_per_image_mj() is run.gpu_load() is None
        assert run.memory_engine_bytes == len("/base.onnx")
        assert run.first_inference_ns >= MS and run.warmup >= 3
        assert run.use() == "alternately"
        assert Run.from_json(run.to_json()) == run


def test_each_has_its_own_processor_time_and_the_others_is_not_that_of_other_programs(tmp_path: Path) -> None:
    long, short = (request(label, options={"latency_ms": ms}, duration_s=0.2) for label, ms in (("a", 4), ("b", 1)))
    one, other = alternate([long, short], silent)
    assert one.cpu_own_ns is not None and other.cpu_own_ns is not None and one.cpu_busy_ns is not None
    assert 0 < one.cpu_own_ns < one.wall_ns and 0 < other.cpu_own_ns < other.wall_ns
    assert one.cpu_busy_ns >= one.cpu_own_ns
    bare = alternate([long, short], silent, root=str(tmp_path))
    assert [run.cpu_busy_ns for run in bare] == [None, None]


@pytest.mark.quick("ctypes")
@pytest.mark.parametrize("binding", ["ctypes", "pycuda"])
def test_engines_alternate_each_with_its_gpu_times(
    binding: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path)
    engine = str(build(model_for("10.3.0", tmp_path), batches=(1, 4, 8))["engine"])
    if binding == "ctypes":
        play_cudart(monkeypatch, tmp_path)
    asked = [request(label, model=engine, runner="tensorrt", batch=4, duration_s=0.1) for label in ("a", "b", "c")]
    for run in alternate(asked, silent):
        assert len(run.beside or ()) == 2
        assert len(run.gpu_ns or ()) == len(run.latencies_ns) >= 20
        assert run.environment["cuda_graph"] == "on" and run.environment["cuda_binding"] == binding


def test_which_model_cannot_be_opened_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def open_runner(model: str, batch: int, *, shared: bool = False) -> Iterator[Loaded]:
        if shared and "alone" in model:
            raise AloneError("its threads spin")
        if "bad" in model:
            raise RunnerError("no ONNX file")
        yield Loaded(lambda: None, None, {})

    monkeypatch.setattr(runners.import_runner("fake"), "open_runner", open_runner)
    assert runners.runner_options("fake") == []
    with pytest.raises(RunnerError, match=r"^bad: no ONNX file$"):
        alternate([request("good"), request("bad")], silent)
    with pytest.raises(AloneError, match=r"^its threads spin$"):
        alternate([request("good"), request("alone")], silent)
