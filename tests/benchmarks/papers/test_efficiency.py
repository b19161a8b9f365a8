"""The papers' tables of latency: which rows there are, what stands beside them, and that they are measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
from forks import server
from places import STANDINS
from small_base import ARGS, NAME, PREPROCESSING, write_checkpoint

import edgevit
import edgevit.exporting.onnx as onnx_export
from benchmarks.papers import efficiency
from benchmarks.papers.efficiency import METHODS, PUBLISHED, RATES, Start, model_rows, section
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import check_policy_reaches, make_policy
from edgevit.derivation.methods import load_method
from edgevit.derivation.options import make_config
from edgevit.network.network import Network

pytestmark = pytest.mark.usefixtures("examined_once")


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-RTX takes a second for each file, and its count is in no table."""
    monkeypatch.setattr(onnx_export, "compiler_installed", lambda: False)


def test_every_row_of_the_papers_is_wanted_and_has_its_published_figure() -> None:
    rows = list(model_rows("methods", RATES, list(METHODS)))
    assert len(rows) == len(METHODS) * len(RATES)
    of = PUBLISHED["methods"]
    for share in of.values():
        assert {(row.name, *row.of) for row in rows} > set(share) and len(share) == 6 * len(RATES)
    assert {"forge", "nuwa", "corp", "wanda", "taylor", "magnitude"}.isdisjoint(name for name, _ in share)
    assert of["Table 10, latency"]["random", 0.2] == pytest.approx(42.97 / 45.45), "the first column"
    assert of["Table 10, memory"]["mdp", 0.2] == pytest.approx(0.25 / 0.34), "the fifth"
    assert of["Table 10, latency"]["vulcan", 0.8] == pytest.approx(1 / 3.02, rel=0.01), "the speed-up that it prints"
    assert of["Table 10, memory"]["vulcan", 0.8] == pytest.approx(1 - 0.7647, abs=1e-4), "and the memory less"
    for share in PUBLISHED["ratios"].values():
        assert {(row.name, *row.of) for row in model_rows("ratios", (), ())} == set(share)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_options_of_its_own_and_a_shape_that_reaches_the_highest_rate(name: str) -> None:
    shape, options = METHODS[name]
    module = load_method(name)
    assert isinstance(make_config(name, module.Config, options), module.Config)
    network = Network(timm.create_model("deit_tiny_patch16_224", num_classes=2))
    dims, geometry = list(network.dims), network.geometry
    budget = make_budget(geometry.macs(dims), geometry.params(dims), rate=max(RATES))
    check_policy_reaches(dims, geometry, budget, make_policy(shape))


def test_what_a_board_tells_of_memory_and_energy_has_columns_of_its_own() -> None:
    known: dict[str, Any] = {
        "part": "methods", "model": "deit_base", "where": "orin: tensorrt", "batch": 1, "load_average": 0.1, "macs": 10,
        "file_bytes": 4, "images_per_s": 30.0, "memory_mib": 900.0, "interval": None, "ratio": 1.0,
        "figure": None,
    }  # fmt: skip
    base = {**known, "method": "base", "of": [], "energy_mj": 220.4, "memory_engine_mib": 180.0}
    row = {**known, "method": "nuwa", "of": [0.4], "macs": 6, "energy_mj": 100.6, "memory_engine_mib": None}
    text = section({"rows": [base, row]})
    assert "| images/s | memory, MiB | engine, MiB | mJ/image | file | Table 10" in text
    assert "| 30 | 900 | 180 | 220 | 1.000 |" in text and "| 30 | 900 |  | 101 | 1.000 |  |  |" in text
    older = section({"rows": [known | {"method": "base", "of": []}]})
    assert "| images/s | memory, MiB | file |" in older and "mJ" not in older


def test_heart_s_tables_are_those_under_whose_figures_their_captions_stand() -> None:
    """Cells of DeiT-B/16: baseline and latency before fine-tuning, in ms, as printed."""
    full, hundred = PUBLISHED["ratios"]["Table 4, ImageNet-1k"], PUBLISHED["ratios"]["Table 5, ImageNet-100"]
    for (tokens, heads), ms_full, ms_hundred in (((0.2, 0.2), 18.12, 18.04), ((0.6, 0.4), 15.22, 16.67)):
        assert full["heart", tokens, heads] * 23.78 == pytest.approx(ms_full)
        assert hundred["heart", tokens, heads] * 23.05 == pytest.approx(ms_hundred)
    assert full["heart", 0.2, 0.8] * 23.78 == pytest.approx(18.31) and full["heart", 0.8, 0.8] < 14.77 / 23.78


@pytest.mark.slow
def test_depth_is_cut_by_what_accuracy_misses_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write_checkpoint(tmp_path, depth=4)
    start = Start(NAME, {**ARGS, "depth": 4}, made, Path("digits"), {}, {"preprocessing": PREPROCESSING})
    monkeypatch.setattr(efficiency, "start_from", lambda *_: start)
    quick = edgevit.Conditions(samples=5, duration_s=0, warmup=1, warmup_seconds=0, threads=1)
    monkeypatch.setattr(edgevit, "Conditions", lambda **_: quick)
    out = tmp_path / "efficiency.json"
    monkeypatch.setattr(sys, "argv", ["efficiency.py", "depth", "--model", "demo", "--rounds", "1", "--out", str(out)])
    efficiency.main()
    told: dict[str, Any] = json.loads(out.read_text())
    base, whole, cut = told["rows"]
    assert (base["of"], whole["of"], cut["of"]) == ([], [0.8], [0.8, 3])
    assert len(set(cut["blocks_out"])) == 3 and "blocks_out" not in whole
    assert cut["macs"] < whole["macs"] <= 0.2 * base["macs"] and cut["params"] < whole["params"]
    text = section(told)
    gone = ", ".join(map(str, cut["blocks_out"]))
    cells = next(line for line in text.splitlines() if line.startswith(f"| vulcan 0.8, without blocks {gone} |"))
    assert cells.split(" | ")[-2:] == ["0.290", "0.300 |"] and "that choice is arbitrary" in text.replace("\n", " ")
    of = PUBLISHED["depth"]["Table 18, Orin NX"]
    assert of["vulcan", 0.8] == pytest.approx(1 / 3.02, rel=0.01) and of["vulcan", 0.8, 3] == pytest.approx(
        1 / 3.45, rel=0.01
    )


def run_part(part: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Any]:
    """Measure a part quickly on a base of one block, and return the record."""
    args, checkpoint = {**ARGS, "depth": 1}, write_checkpoint(folder, depth=1)
    start = Start(NAME, args, checkpoint, Path("digits"), {}, {"preprocessing": PREPROCESSING})
    monkeypatch.setattr(efficiency, "start_from", lambda *_: start)
    quick = edgevit.Conditions(samples=5, duration_s=0, warmup=1, warmup_seconds=0, idle_s=0)
    monkeypatch.setattr(edgevit, "Conditions", lambda **given: replace(quick, threads=given["threads"]))
    out = folder / "efficiency.json"
    asked = ["efficiency.py", part, "--model", "demo", "--rounds", "1", "--out", str(out), *options]
    monkeypatch.setattr(sys, "argv", asked)
    efficiency.main()
    told: dict[str, Any] = json.loads(out.read_text())
    return told


@pytest.mark.slow
def test_engines_of_a_board_are_measured_beside_int8_on_its_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sshd: Callable[..., Any]
) -> None:
    orin = sshd(PYTHONPATH=STANDINS, STANDIN_TENSORRT="10.3.0")
    for name in ("export", "bench_in_turns"):
        monkeypatch.setattr(edgevit, name, partial(getattr(edgevit, name), ssh_config=orin.config))
    told = run_part("compressed", tmp_path, monkeypatch, "--board", orin.host, "--share", "0.25")
    base, zeroed, int8 = told["rows"]
    assert [(row["method"], row["of"]) for row in told["rows"]] == [("base", []), ("zeroed", [0.25]), ("int8", [])]
    assert zeroed["macs"] == base["macs"] == int8["macs"] and base["params"] == zeroed["params"]
    assert {row["where"] for row in told["rows"]} == {base["where"]} and base["where"].startswith("board: tensorrt")
    assert zeroed["interval"] is not None and int8["interval"] is None
    assert int8["ratio"] == pytest.approx(int8["p50_ms"] / base["p50_ms"])
    assert int8["elsewhere"].startswith("board: onnxruntime, CPUExecutionProvider")
    assert "| int8, on board: onnxruntime, CPUExecutionProvider" in section(told)


@pytest.mark.slow
def test_heads_of_unequal_widths_are_measured_beside_equal_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = run_part("heads", tmp_path, monkeypatch, "--seed", "3")
    base, separate, uneven = told["rows"]
    assert [row["method"] for row in told["rows"]] == ["base", "separate", "uneven"]
    assert separate["macs"] == uneven["macs"] == base["macs"] and uneven["file_bytes"] < 1.1 * base["file_bytes"]
    assert [row["attention_products"] for row in told["rows"]] == [4, 6, 6]
    assert uneven["attention_nodes"] == separate["attention_nodes"]
    assert uneven["seed"] == 3 and len(uneven["widths"]) == 1 and uneven["widths"][0].startswith("qk ")
    assert "| nodes of an attention | of these products |" in section(told)


def test_published_tables_of_each_model_stand_beside_that_model() -> None:
    of = PUBLISHED["compressed"]["Table 5, Orin NX"]
    assert 1 / of["deit_base", "int8"] == pytest.approx(0.29 / 22.00, rel=0.01), "the throughput that it prints"
    assert 1 / of["deit_tiny", "zeroed", 0.5] == pytest.approx(67.21 / 68.87, rel=0.01)
    row: dict[str, Any] = {
        "part": "heads", "model": "deit_small", "where": "orin: tensorrt", "batch": 1, "load_average": 0.1, "macs": 10,
        "file_bytes": 4, "images_per_s": 30.0, "memory_mib": 900.0, "interval": None, "ratio": 1.0, "of": [],
        "figure": None,
    }  # fmt: skip
    text = section({"rows": [row | {"method": "base"}, row | {"method": "uneven"}]})
    assert "Load average up to 0.1.\n" in text
    busy = section({"rows": [row | {"method": "base"}, row | {"method": "uneven", "figure": "processor"}]})
    assert "up to 0.1; shares are of processor time, as other programs were busy.\n" in busy
    assert "| Table 7, Orin NX, batch 1 | Table 7, A40, batch 256 |" in text
    assert text.splitlines()[-1].endswith(f" | {50.66 / 15.58:.3f} | {200.63 / 186.30:.3f} |")


def test_a_share_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["efficiency.py", "compressed", "--share", "50"])
    with pytest.raises(SystemExit):
        efficiency.main()
    assert "--share is 50.0: it must be between 0 and 1; try 0.5" in capsys.readouterr().err


@pytest.mark.slow
def test_models_are_measured_beside_their_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write_checkpoint(tmp_path)
    start = Start(NAME, ARGS, made, Path("digits"), {}, {"preprocessing": PREPROCESSING})
    monkeypatch.setattr(efficiency, "start_from", lambda *_: start)
    monkeypatch.setattr(efficiency, "get_context", lambda _: server())  # no worker need be started from nothing
    quick = edgevit.Conditions(samples=5, duration_s=0, warmup=1, warmup_seconds=0, threads=1)
    monkeypatch.setattr(edgevit, "Conditions", lambda **given: replace(quick, batches=given["batches"]))
    out = tmp_path / "efficiency.json"
    asked = ["methods", "--model", "demo", "--methods", "random", "--rates", "0.6", "--rounds", "2", "--out", out]
    monkeypatch.setattr(sys, "argv", ["efficiency.py", *map(str, asked), "--batch", "1", "2", "--jobs", "2"])
    efficiency.main()
    told: dict[str, Any] = json.loads(out.read_text())
    assert [row["batch"] for row in told["rows"]] == [1, 1, 2, 2]
    base, row = told["rows"][:2]
    assert (base["method"], row["method"], row["of"]) == ("base", "random", [0.6])
    assert row["macs"] <= 0.4 * base["macs"] and 0 < row["ratio"] != 1 and row["file_bytes"] < base["file_bytes"]
    text = section(told)
    assert [line[:20] for line in text.splitlines() if line.startswith("### ")] == [
        "### demo, batch 1, o",
        "### demo, batch 2, o",
    ]
    assert "## Latency of what each method leaves" in text and "CPUExecutionProvider, fp32" in row["where"]
    cells = next(line for line in text.splitlines() if line.startswith("| random 0.6 |")).split(" | ")
    assert cells[-2:] == ["0.588", "0.441 |"] and int(cells[-4]) == round(row["memory_mib"])
