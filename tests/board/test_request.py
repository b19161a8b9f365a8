"""A bench as one frozen request: the same from the command line, a file and Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgevit
from edgevit.board.request import ROUNDS, BenchRequest, Conditions
from edgevit.errors import OptionError
from edgevit.request import options_of, request_from

FAKE = Conditions(runner="fake", samples=20, duration_s=0, warmup=2, warmup_seconds=0)


def test_what_is_typed_is_the_request_that_python_has() -> None:
    typed = {"models": [Path("a"), Path("b")], "batches": [1, 8], "runner": "fake", "board": "orin", "seed": 3}
    how = Conditions(runner="fake", batches=(1, 8))
    assert request_from(BenchRequest, typed) == BenchRequest(
        models=(Path("a"), Path("b")), conditions=how, board="orin", seed=3
    )
    assert [asked.field for asked in options_of(BenchRequest) if asked.required] == ["models"]


@pytest.mark.parametrize(("models", "repeat", "rounds"), [(1, None, 1), (2, None, ROUNDS), (2, 3, 3), (1, 5, 5)])
def test_several_models_are_measured_in_more_rounds(models: int, repeat: int | None, rounds: int) -> None:
    assert BenchRequest(models=[Path("m")] * models, repeat=repeat).rounds == rounds


def test_the_runner_is_that_of_the_board_or_of_the_file() -> None:
    assert BenchRequest(models=[Path("t1")]).runner == "onnxruntime"
    assert BenchRequest(models=[Path("t1")], board="orin").runner == "tensorrt"
    assert BenchRequest(models=["t1.engine"]).runner == "tensorrt"  # type: ignore[list-item]  # as Python users type
    assert BenchRequest(models=[Path("t1.engine")], conditions=FAKE).runner == "fake"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (Conditions(layers=True, runner="fake"), "--layers needs a runner that can time them: onnxruntime, tensorrt"),
        (Conditions(layers=True, provider="cuda"), "--layers through onnxruntime is for the CPU"),
        (Conditions(layers=True, runner="tensorrt", streams=(1, 2)), "--layers is for one stream, and --streams is 2"),
        (Conditions(period_ms=0), "--period-ms 0 is not in .0.1, 3600000"),
        (Conditions(period_ms=33, streams=(2,), runner="tensorrt"), "--period-ms is for one stream"),
        (
            Conditions(period_ms=33, layers=True),
            "--layers is for inferences one after another, and not for --period-ms",
        ),
        (Conditions(end_to_end=True), "--end-to-end needs --images"),
        (Conditions(images=Path("x")), "--images needs --end-to-end"),
    ],
)
def test_conditions_that_make_no_sense_are_refused_before_anything_starts(how: Conditions, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        BenchRequest(models=[Path("t1")], conditions=how).check()


def test_a_whole_request_is_measured_from_python(tmp_path: Path) -> None:
    model = tmp_path / "t1.onnx"
    model.write_bytes(b"anything: the fake runner sleeps")
    seen: list[object] = []
    done = edgevit.bench(BenchRequest(models=(model,), labels=("ours",), conditions=FAKE, repeat=2), on_run=seen.append)
    assert list(done.runs) == seen
    assert [(run.label, run.round) for run in done.runs] == [("ours", 1), ("ours", 2)]


def test_nothing_stands_beside_a_whole_request() -> None:
    with pytest.raises(OptionError, match="a whole BenchRequest was given, and repeat, samples beside it"):
        edgevit.bench(BenchRequest(models=(Path("t1"),)), repeat=2, samples=3)
