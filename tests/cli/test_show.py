"""`edgevit show`: a model folder, block by block."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from small_models import write_derived, write_fewer_tokens, write_narrower

from edgevit.records.derivation import DERIVATION_KIND, FittedHead
from edgevit.records.model_folder import ModelFolder


def test_a_model_is_shown_block_by_block_with_what_can_be_fused(edgevit_main: Any, tmp_path: Path) -> None:
    folder = write_derived(tmp_path / "m", 24, 16)
    shown = edgevit_main("show", folder)
    assert (shown.code, shown.err) == (0, "")
    for text in ("24/32", "16/32", "3 classes, subset head: 3, 5, 8", "method nuwa, rate 0.5", "from digits",
                 "TensorRT can fuse the attention of 0 of 2 blocks"):  # fmt: skip
        assert text in " ".join(shown.out.split()), text
    told = json.loads(edgevit_main("show", folder, "--json").out)
    assert told["model"]["blocks"] == json.loads((folder / "model.json").read_text())["blocks"]
    assert told["derivation"] == json.loads((folder / "derivation.json").read_text())


def test_the_tokens_that_reach_each_block_are_shown_where_some_leave(edgevit_main: Any, tmp_path: Path) -> None:
    folder = write_fewer_tokens(tmp_path / "m", 10, 0, 0, depth=3)
    shown = " ".join(edgevit_main("show", folder).out.split())
    assert "tokens that reach a block" in shown and shown.count("10/17") == 2 and "17/17" in shown
    assert "tokens" not in edgevit_main("show", write_derived(tmp_path / "whole", 24, 16)).out
    assert json.loads((folder / "model.json").read_text())["blocks"][0]["tokens"] == 10


def test_a_narrower_embedding_is_shown_beside_the_bases(edgevit_main: Any, tmp_path: Path) -> None:
    shown = edgevit_main("show", write_narrower(tmp_path / "m", 48))
    assert shown.code == 0 and "the embedding has 48 channels of the base's 64" in " ".join(shown.out.split())
    assert "the embedding has" not in edgevit_main("show", write_derived(tmp_path / "whole", 24, 16)).out


def test_a_head_that_was_fitted_is_told_of(edgevit_main: Any, tmp_path: Path) -> None:
    files = ModelFolder(write_derived(tmp_path / "m", 24, 16))
    record = files.derivation()
    assert record is not None and "classifier" not in edgevit_main("show", files.path).out
    fitted = FittedHead(0.01, 12.5, 0.875, 24, {"3": 100, "5": 101, "8": 99})
    files.derivation_file.write_text(DERIVATION_KIND.text(replace(record, fitted_head=fitted)))
    told = "the base was given a linear head fitted to 300 training images of 3 classes, correct on"
    assert f"{told} 87.5% of 24 validation images" in " ".join(edgevit_main("show", files.path).out.split())


def test_what_is_neither_a_model_nor_a_sweep_is_refused(edgevit_main: Any, tmp_path: Path) -> None:
    assert str(tmp_path) in edgevit_main("show", tmp_path).error
