"""A model folder as what files are written of; tests/exporting/test_imported.py has the other kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import torch

from edgevit.exporting.source import Form, input_size, open_model
from edgevit.records.export import ExportRecord


def test_a_model_folder_says_what_can_be_kept_in_fp32_and_what_fuses(make_derived: Callable[..., Path]) -> None:
    source = open_model(make_derived(24, 16))
    assert source.blocks == ("blocks.0", "blocks.1")
    assert source.norms[:2] == ("blocks.0.norm1", "blocks.0.norm2") and source.norms[-1] == "norm"
    assert source.has_attention == (True, True) and source.fusable == (False, False)
    padded, changed = source.padded()
    assert padded.fusable == (True, True) and changed.blocks == 2 and changed.widths == (24, 24)
    images = torch.randn(2, *input_size(source))
    torch.testing.assert_close(padded.predictor("cpu")(images), source.predictor("cpu")(images))


def test_every_file_says_how_it_is_used_and_what_it_came_from(exported: tuple[Path, ExportRecord]) -> None:
    folder, report = exported
    for precision in ("fp32", "fp16"):
        file = onnx.load(folder / "export" / f"model.{precision}.onnx", load_external_data=False)
        said = {entry.key: entry.value for entry in file.metadata_props}
        assert json.loads(said["class_names"]) == ["3", "5", "8"] and said["base"] == "vit_tiny_patch16_224"
        assert said["weights_sha256"] == report.model.weights_sha256 and said["precision"] == precision


def test_modules_in_fp32_keep_their_weights_and_the_next_file_is_as_ever(
    make_derived: Callable[..., Path], tmp_path: Path
) -> None:
    source = open_model(make_derived(16, 16))
    before, mixed, after = (tmp_path / f"{name}.onnx" for name in ("before", "mixed", "after"))
    source.write(before, Form("fp32", "dynamic", 20), {})
    source.write(mixed, Form("fp16", "dynamic", 20, ("blocks.1", "norm")), {"precision": "fp16"})
    source.write(after, Form("fp32", "dynamic", 20), {})
    assert before.read_bytes() == after.read_bytes()
    own = source.model.state_dict()
    for weight in onnx.load(mixed).graph.initializer:
        if weight.name in own and weight.name.endswith("bias"):  # weights of norms are all 1, and one serves several
            values = torch.from_numpy(onnx.numpy_helper.to_array(weight).copy())
            stays = weight.name.startswith(("blocks.1.", "norm."))
            assert torch.equal(values, own[weight.name] if stays else own[weight.name].half())
            assert values.dtype == (torch.float32 if stays else torch.float16)
