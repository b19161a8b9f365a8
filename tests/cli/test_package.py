"""`edgevit package` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from small_models import write_derived


def test_package_names_its_files_on_a_line_and_as_json(edgevit_main: Any, tmp_path: Path) -> None:
    folder = write_derived(tmp_path / "m", 16, 16, depth=1)
    assert edgevit_main("export", folder, "--no-accuracy", "-q").code == 0
    shown = edgevit_main("package", folder, "--deepstream", "--out", tmp_path / "o")
    assert shown.code == 0, shown.err
    assert "README.md, config_infer.txt, labels.txt, model.onnx. " in shown.out and "says how to run it" in shown.out
    result = json.loads(edgevit_main("package", folder, "--python", "--out", tmp_path / "p", "--json").out)
    assert result["folder"] == str(tmp_path / "p") and "export/model.fp16.onnx" in result["files"]
    error = edgevit_main("package", folder, "--deepstream", "--precision", "int8", "--out", tmp_path / "q").error
    assert "model.int8.onnx is missing" in error and not (tmp_path / "q").exists()
