"""`edgevit cache`: what is shared on this machine, and clearing it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from some_runs import DENSE

from edgevit.derivation.cache import Cache, derivations_folder
from edgevit.latency.store import Store


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Cache(derivations_folder(), base="deit_tiny", task="birds")


def test_entries_are_shown_with_what_they_were_made_for_and_cleared(cache: Cache, edgevit_main: Any) -> None:
    cache.tensors("curves", {"of": "a base"}, lambda: {"curve": torch.zeros(1000)})
    shown = edgevit_main("cache")
    assert shown.code == 0 and shown.out.splitlines()[-1].startswith("holding 1 entries, 0.0 MB, in ")
    assert "deit_tiny" in shown.out and "birds" not in shown.out
    (entry,) = json.loads(edgevit_main("cache", "--json").out)["entries"]
    assert (entry["what"], entry["base"], entry["task"]) == ("curves", "deit_tiny", "birds") and entry["bytes"] > 4000
    cache.tensors("masks", {"of": "a base"}, lambda: {"mask": torch.zeros(1000)})
    (row,) = [line for line in edgevit_main("cache").out.splitlines() if "deit_tiny" in line]
    assert row.replace("│", "").split()[:3] == ["deit_tiny", "2", "0.0"], "one row for each base"
    Store.of({"family": "vit", "embed": 192}).add([DENSE])
    assert "vit 192" in edgevit_main("cache").out, "what was measured for cost tables is shared, too"
    cleared = json.loads(edgevit_main("cache", "--clear", "--json").out)
    assert cleared["cleared"] and len(cleared["entries"]) == 3
    assert json.loads(edgevit_main("cache", "--json").out)["entries"] == []


def test_modules_images_and_unpacked_data_are_shown_and_cleared(cache: Cache, edgevit_main: Any) -> None:
    for part, name in (("modules", "model.safetensors"), ("images", "0/a.png"), ("unpacked", "0/a.png")):
        file = derivations_folder().parent / part / "0123" / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"0" * 500)
    assert {(e["what"], e["bytes"]) for e in json.loads(edgevit_main("cache", "--json").out)["entries"]} == {
        ("modules", 500), ("images", 500), ("unpacked", 500),
    }  # fmt: skip
    (derivations_folder().parent / "unpacked" / ".0123").write_text("the hash of a file")
    shown = edgevit_main("cache").out
    assert "given from Python" in shown and "unpacked data" in shown
    assert "removed 3 entries" in edgevit_main("cache", "--clear").out
    assert json.loads(edgevit_main("cache", "--json").out)["entries"] == []
    assert not (derivations_folder().parent / "unpacked").exists()
