"""`edgevit ls`, which `edgevit show FOLDER` is, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from some_report import GOOD, derived, write_folder


def test_models_below_a_folder_are_listed_in_80_columns(tmp_path: Path, edgevit_main: Any, monkeypatch: Any) -> None:
    write_folder(tmp_path / "base")
    write_folder(tmp_path / "runs" / "t1", derivation=derived(GOOD))
    shown = edgevit_main("ls", tmp_path)
    assert (shown.code, shown.err) == (0, "") and shown.out == edgevit_main("show", tmp_path).out
    assert [line.split() for line in shown.out.splitlines()] == [
        ["folder", "what", "rate", "MACs", "top-1", "on", "ms", "exported"],
        ["base", "base", "50.0", "%"],
        ["runs/t1", "nuwa", "0.50", "50.0", "%", "95.0", "%", "200", "test"],
    ]
    assert max(map(len, shown.out.splitlines())) <= 80
    first, second = json.loads(edgevit_main("ls", tmp_path, "--json").out)["models"]
    assert (first["kind"], second["folder"], second["top1"]) == ("base", "runs/t1", 0.95)
    monkeypatch.chdir(tmp_path / "runs")
    assert "t1" in edgevit_main("ls").out
    (tmp_path / "empty").mkdir()
    assert "no model lies in" in edgevit_main("ls", tmp_path / "empty").error
    assert "there is no folder" in edgevit_main("ls", tmp_path / "none").error
