"""`edgevit show`: a model folder, block by block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from small_models import write_derived


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


def test_what_is_neither_a_model_nor_a_sweep_is_refused(edgevit_main: Any, tmp_path: Path) -> None:
    assert str(tmp_path) in edgevit_main("show", tmp_path).error
