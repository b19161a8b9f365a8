"""The record of profiled layers, and the bench that makes it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from some_layers import PROFILE
from some_runs import DENSE
from standin_board import write_model

from edgevit.board.bench import bench
from edgevit.board.layers import LAYERS_KIND, line_of, load_profiles
from edgevit.errors import RunsError

pytestmark = pytest.mark.usefixtures("examined_once")


def test_a_file_of_profiles_gives_them_back(tmp_path: Path) -> None:
    file = tmp_path / "r.layers.jsonl"
    file.write_text(line_of(PROFILE) + "\n" + line_of(replace(PROFILE, label="t2")))
    assert load_profiles(file) == [PROFILE, replace(PROFILE, label="t2")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inferences_ns": [1, 2]}, "it does not hold one time of each layer for each inference"),
        ({"plain_ns": []}, "no plain run"),
        ({"profiled": "run"}, "profiled"),
        ({"schema": 2}, "has schema 2, written by edgevit"),
        ({"clock": 5}, "clock"),
    ],
)
def test_what_is_no_profile_is_refused_with_its_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "r.layers.jsonl"
    file.write_text(json.dumps({**LAYERS_KIND.content(PROFILE), **change}))
    with pytest.raises(RunsError, match=message) as error:
        load_profiles(file)
    assert str(error.value).startswith(f"{file}, line 1 ")


def test_a_file_of_plain_runs_is_none_of_profiles(tmp_path: Path) -> None:
    file = tmp_path / "some runs.jsonl"
    file.write_text(DENSE.to_json())
    with pytest.raises(RunsError, match=r"line 1 holds no profiled layers; of plain runs, see `edgevit compare '/.*'`"):
        load_profiles(file)


@pytest.mark.slow
def test_a_bench_profiles_each_shape_after_its_plain_runs_and_keeps_them_apart(tmp_path: Path) -> None:
    model = write_model(tmp_path / "small.onnx")
    how = dict(samples=12, duration_s=0, warmup=1, warmup_seconds=0, threads=1)
    done = bench(model, repeat=2, layers=True, batches=(1, 4), **how)
    assert [(found.label, found.batch) for found in done.profiles] == [("small", 1), ("small", 4)]
    for found in done.profiles:
        plain = [run for run in done.runs if run.batch == found.batch]
        assert found.plain_ns == tuple(ns for run in plain for ns in run.latencies_ns)
        assert {run.session for run in plain} == {found.session}
        assert (len(found.inferences_ns), found.clock, found.provider) == (12, "host", "CPUExecutionProvider")
    assert bench(model, **how).profiles == ()
