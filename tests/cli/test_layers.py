"""Where the time goes, as a person reads it: of a bench, of a file, and of an engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_folders import derivation_of
from safetensors.torch import save_file
from some_engines import add
from some_layers import PROFILE

import edgevit
from edgevit.board.comparison import load_runs
from edgevit.board.layers import line_of, load_profiles
from edgevit.records.derivation import DERIVATION_KIND
from edgevit.records.engine import ENGINE_KIND
from edgevit.records.model_folder import ModelFolder

pytestmark = pytest.mark.usefixtures("examined_once")
FAST = ("--samples", 12, "--duration", 0, "--warmup", 1, "--warmup-seconds", 0, "--threads", 1)


NAME = "vit_tiny_patch16_224"
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2}


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
def test_layers_of_a_derived_model_and_its_base_are_shown_side_by_side(
    edgevit_main: Any, small_vit: Any, tmp_path: Path
) -> None:
    weights = tmp_path / "w.safetensors"
    save_file(small_vit().state_dict(), weights)
    folders, output = [tmp_path / name for name in ("base", "t1")], tmp_path / "runs.jsonl"
    for folder in folders:
        edgevit.base(NAME, checkpoint=weights, model_args=SMALL, out=folder)
        edgevit.export(folder, accuracy=False, fp16=False)
    ModelFolder(folders[1]).derivation_file.write_text(DERIVATION_KIND.text(derivation_of(None)))
    alone = edgevit_main("bench", folders[1], "--layers", *FAST)
    assert f"Next: edgevit bench {folders[0]} {folders[1]} --" in words(alone.out) and "--layers" in alone.out
    done = edgevit_main("bench", *folders, "--layers", "--repeat", 1, "--output", output, "--gate", "p50>1us", *FAST)
    assert done.code == 0 and "t1 over base" in words(done.out) and done.out.count(" pass ") == 2, done.err
    for text in ("where the time goes, profiled, batch 1", "block by block, ms", "between layers:"):
        assert text in words(done.out), text
    assert "t1: the profiler made an inference" in words(done.out)
    assert {run.label for run in load_runs(output)} == {"base", "t1"}
    kept = tmp_path / "runs.layers.jsonl"
    assert {profile.label for profile in load_profiles(kept)} == {"base", "t1"}
    assert "holds profiled layers, which are no latencies; see `edgevit show" in edgevit_main("compare", kept).error
    shown = edgevit_main("show", kept)
    assert shown.code == 0 and "where the time goes, profiled" in shown.out and "t1: the profiler made" in shown.out


def test_the_unexplained_and_the_unnamed_are_named(edgevit_main: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.layers.jsonl"
    slow = replace(PROFILE, label="base", batch=8)
    file.write_text(line_of(PROFILE) + line_of(slow))
    shown = words(edgevit_main("show", file).out)
    for text in ("no known name │ 0.250 │ 2.3%", "between layers, on the GPU │ 2.00 │ 18.2%", "batch 8",
                 "unexplained: interruptions │ 0", "names that map to nothing: Reformatting 7",
                 "1.29 times as long, 11.0 ms in place of 8.50"):  # fmt: skip
        assert text in shown, text
    told = json.loads(edgevit_main("show", file, "--json").out)["layers"]
    assert told[0]["spent"][0]["place"] == {"block": 1, "part": "attention"}


def test_the_layers_of_an_engine_are_listed(edgevit_main: Any, tmp_path: Path) -> None:
    record = add(tmp_path / "m")
    kernel = {"Name": "_gemm_mha_v2_myl0_1", "LayerType": "kgen", "TacticName": "_gemm_mha_v2_0x95",
              "Metadata": "[ONNX Layer: blocks.0.attn/MatMul][ONNX Layer: blocks.0.attn/Softmax]",
              "Outputs": [{"Format/Datatype": "Half"}]}  # fmt: skip
    record.layers_path.write_text(json.dumps([kernel, "head/Gemm"]))
    shown = edgevit_main("show", record.path)
    text = words(shown.out)
    assert (shown.code, shown.err) == (0, "")
    for part in ("kgen", "fp16", "(fused", "blocks.0.attn/MatMul", "head/Gemm", "2 layers, for orin-nx",
                 "attention in one kernel: 12 of 12"):  # fmt: skip
        assert part in text, part
    told = json.loads(edgevit_main("show", record.path, "--json").out)
    assert told["layers"][0]["fused"] and told["engine"] == ENGINE_KIND.content(record)


def test_an_engine_without_a_record_is_refused_by_name(edgevit_main: Any, tmp_path: Path) -> None:
    (tmp_path / "x.engine").write_bytes(b"")
    assert "there is no" in edgevit_main("show", tmp_path / "x.engine").error
    record = add(tmp_path / "m")
    record.layers_path.write_text("{")
    assert record.layers_path.name in edgevit_main("show", record.path).error
