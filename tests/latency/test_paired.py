"""Which figure a model is judged by, from runs beside its base."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from model_folders import derivation_of
from recorded_progress import RecordedProgress
from some_runs import DENSE, ON_A_BOARD

from edgevit.agent.records import Run
from edgevit.board.request import BenchRequest, Conditions
from edgevit.derivation.allocate.prices import Measured as Quantity
from edgevit.engines.request import ExportRequest
from edgevit.errors import EngineError, UnfitBoardError
from edgevit.exporting.request import FilesRequest
from edgevit.latency import paired
from edgevit.latency.paired import LABELS, PairedBench
from edgevit.latency.rounds import MeasuredFigure
from edgevit.latency.target import MeasurementTarget
from edgevit.progress import Silent
from edgevit.records.model_folder import ModelFolder


def turns(ratio: float, *, base_ms: float = 10.0, rounds: int = 8) -> list[Run]:
    """Base and model, on a machine whose speed differs from round to round."""
    random, runs = Random(0), []
    for number in range(1, rounds + 1):
        slow = 1 + 0.2 * random.random()
        for label, ms in zip(LABELS, (base_ms, ratio * base_ms), strict=True):
            latencies = tuple(int(ms * slow * 1e6 * (1 + 0.001 * i)) for i in range(30))
            which: dict[str, Any] = {
                "label": label,
                "model_sha256": label[0] * 64,
                "session": "s",
                "round": number,
                "turn": 1,
            }
            runs.append(replace(DENSE, **which, latencies_ns=latencies, wall_ns=sum(latencies)))
    return runs


def answer(monkeypatch: pytest.MonkeyPatch, *answers: list[Run]) -> None:
    """Let rounds come to these runs, one after the other."""
    given = iter(answers)
    monkeypatch.setattr(PairedBench, "_runs", lambda *_: tuple(next(given)))


def measured(progress: RecordedProgress, base_cost: float) -> MeasuredFigure:
    there = PairedBench(MeasurementTarget(), "ms", base_cost, progress)
    found = there.measure(Path("base"), Path("model"))
    assert there.clock is not None and found.value == pytest.approx(
        base_cost * there.clock[0] / there.clock[1], rel=0.05
    )
    return found


def test_files_in_int8_are_calibrated_on_the_images_of_the_derivation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    exported: dict[str, FilesRequest] = {}
    monkeypatch.setattr(paired, "current_export", lambda request, **_: exported.update({request.model.name: request}))
    for name in ("base", "model"):
        (tmp_path / name).mkdir()
    ModelFolder(tmp_path / "model").write_derivation(derivation_of(None))
    for precision in ("fp16", "int8"):
        bench = PairedBench(MeasurementTarget(precision=precision), "ms", 1.0, Silent(), "photos")
        for name in ("base", "model"):
            bench.prepare(tmp_path / name)
            assert exported[name].fp16 is (precision == "fp16")
            data = "photos" if name == "base" and precision == "int8" else None  # a model knows its images
            assert (exported[name].precision, exported[name].data) == (precision, data)


def test_a_base_whose_engine_is_not_in_int8_has_other_costs_than_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[ExportRequest] = []
    slow = SimpleNamespace(failure="is not shown to be faster than fp16")
    stays = SimpleNamespace(path=Path("1.engine"), precision="fp16", precision_level="fp16", attempts=(slow,))
    monkeypatch.setattr(paired, "open_board", lambda *_, **__: nullcontext())
    compared: list[Conditions] = []

    def build(request: ExportRequest, _: Any, __: Any, conditions: Conditions) -> SimpleNamespace:
        asked.append(request)
        compared.append(conditions)
        return stays

    monkeypatch.setattr(paired, "build_engine", build)
    target = MeasurementTarget(board="orin", precision="int8", lock_clocks=True)
    bench = PairedBench(target, "ms", 1.0, Silent(), "photos")
    for name in ("base", "model"):
        (tmp_path / name).mkdir()
    ModelFolder(tmp_path / "model").write_derivation(derivation_of(None))
    bench.prepare(tmp_path / "model")  # its own cost is measured, in whatever precision
    with pytest.raises(EngineError, match="the base runs in fp16 on orin, as its engine in int8 is not shown to be"):
        bench.prepare(tmp_path / "base")
    assert [(request.precision, request.fp16, request.data) for request in asked] == [
        ("int8", True, None), ("int8", True, "photos"),
    ]  # fmt: skip
    assert all(conditions.lock_clocks for conditions in compared)


def test_a_model_takes_its_ratio_to_the_base_times_what_the_base_cost_by_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes = RecordedProgress()
    answer(monkeypatch, turns(0.4))
    found = measured(notes, 11.0)
    assert found.value == pytest.approx(0.4 * 11.0, rel=0.01) and found.repeats == 8
    assert found.low is not None and found.low <= found.value <= (found.high or 0)
    assert notes.warnings == []


def test_a_base_that_takes_another_time_than_by_the_table_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = RecordedProgress()
    answer(monkeypatch, turns(0.4))
    measured(notes, 5.0)
    (told,) = notes.warnings
    assert "5 by the table: the model is judged by its ratio, and takes 4" in told


def test_rounds_are_added_until_the_interval_is_narrow_or_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(number: int, *ratios: float) -> list[Run]:
        runs = [run for i, ratio in enumerate(ratios) for run in turns(ratio, rounds=8)[2 * i : 2 * i + 2]]
        return [replace(run, session=f"s{number}") for run in runs]

    wide, narrow = [0.36, 0.44] * 4, [0.4] * 8
    answer(monkeypatch, session(1, *wide), session(2, *narrow), session(3, *narrow))
    found = measured(RecordedProgress(), 10.0)
    assert found.repeats == 24 and found.value == pytest.approx(4, rel=0.01)
    answer(monkeypatch, *(session(number, *wide) for number in range(4)))
    assert measured(RecordedProgress(), 10.0).repeats == 32


@pytest.mark.parametrize(("threads", "figure"), [("1", "processor"), ("2", "mean")])
def test_on_a_busy_machine_what_was_computed_counts(threads: str, figure: str) -> None:
    runs = []
    for run in turns(0.4):
        own = int(sum(run.latencies_ns) * (0.6 if run.label == "base" else 0.9))
        environment = {**run.environment, "threads": threads}
        busy = replace(
            run, cpu_own_ns=own, cpu_busy_ns=own + run.wall_ns, environment=environment, load_average_before=9.0
        )
        runs.append(replace(busy, provider="CPUExecutionProvider"))
    found = PairedBench(MeasurementTarget(threads=int(threads)), "ms", 11.0, Silent()).compared(runs)
    assert found.figure == figure
    assert found.ratio == pytest.approx(0.4 * (1.5 if figure == "processor" else 1), rel=0.02)


def test_what_is_void_is_measured_again_and_told_and_refused_where_it_stays_void(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, good = RecordedProgress(), turns(0.4)
    hot = [replace(run, throttled=("soctherm",)) for run in good]
    answer(monkeypatch, hot, good, hot, hot)
    assert measured(told, 10.0).value == pytest.approx(4, rel=0.01)
    (again,) = [text for text in told.warnings if "by the table" not in text]
    assert again.startswith("measured again: ")
    with pytest.raises(UnfitBoardError, match=r"every run on this machine is void: .*; cool it, give --lock-clocks"):
        measured(told, 10.0)


@pytest.mark.parametrize(("quantity", "alternate"), [("ms", True), ("mj", False)])
def test_latencies_are_told_alternately_and_energy_which_no_process_tells_apart_in_turns(
    quantity: Quantity, alternate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[BenchRequest] = []

    def bench(request: BenchRequest, **_: Any) -> Any:
        asked.append(request)
        return SimpleNamespace(runs=[replace(run, power=ON_A_BOARD.power) for run in turns(0.4)])

    monkeypatch.setattr(paired, "bench", bench)
    PairedBench(MeasurementTarget(), quantity, 10.0, Silent()).measure(Path("base"), Path("model"))
    assert [(request.alternate, request.repeat) for request in asked] == [(alternate, paired.ROUNDS)]


def test_without_power_no_energy_is_judged() -> None:
    with pytest.raises(UnfitBoardError, match="--mj: no power can be read on this machine; give --ms"):
        PairedBench(MeasurementTarget(), "mj", 40.0, Silent()).compared(turns(0.4))


@pytest.mark.parametrize(("precision", "fp16"), [("fp16", True), ("fp32", False)])
def test_an_engine_is_built_in_the_precision_that_is_asked_for_and_measured_whatever_else_is_there(
    precision: str, fp16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ExportRequest] = []
    benches: list[BenchRequest] = []

    def build(request: ExportRequest, *_: Any) -> SimpleNamespace:
        asked.append(request)
        return SimpleNamespace(path=request.model / "this.engine")

    def bench(request: BenchRequest, **_: Any) -> SimpleNamespace:
        benches.append(request)
        return SimpleNamespace(runs=turns(0.4))

    monkeypatch.setattr(paired, "open_board", lambda *_, **__: nullcontext())
    monkeypatch.setattr(paired, "build_engine", build)
    monkeypatch.setattr(paired, "bench", bench)
    target = MeasurementTarget(board="orin", runner="tensorrt", precision=precision)
    there = PairedBench(target, "ms", 10.0, Silent())
    there.prepare(tmp_path, judged=True)
    there.measure(Path("base"), tmp_path)
    assert [[*request.models] for request in benches] == [[Path("base"), tmp_path / "this.engine"]]
    (request,) = asked
    assert (request.model, request.accuracy, request.fp16) == (tmp_path, True, fp16)
    assert request.trt and request.engine.batches == (1, 1, 8)
