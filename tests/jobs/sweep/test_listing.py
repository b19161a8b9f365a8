"""Folders of models in one line each."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from model_folders import some_spec, supernet_of
from some_engines import add
from some_report import DATA, GOOD, derived, write_folder

from edgevit.jobs.sweep.listing import ListedFolder, list_folders
from edgevit.jobs.sweep.record import Latency, Sweep, SweepPoint, read_sweep, write_sweep
from edgevit.records.derivation import DERIVATION_KIND
from edgevit.records.model_folder import ModelFolder
from edgevit.records.supernet import SUPERNET_KIND


def write_swept(folder: Path) -> None:
    write_folder(folder / "base")
    write_folder(folder / "r0.5", derivation=derived(GOOD))
    points = (
        SweepPoint("base", None, 90, 100, 1000, 500, Latency("p50", 4.0, 1.0, None, None)),
        SweepPoint("r0.5", 0.5, 88, 100, 500, 250, Latency("p50", 2.5, 0.6, None, None)),
    )
    write_sweep(folder, Sweep({}, "validation", "2026-01-01", {"edgevit": "0.1.0"}, points))


def test_each_kind_of_folder_is_listed_with_its_figures(tmp_path: Path) -> None:
    write_swept(tmp_path / "s")
    write_folder(tmp_path / "net")
    supernet = supernet_of(some_spec().blocks, DATA, (32, 64))
    (tmp_path / "net/supernet.json").write_text(SUPERNET_KIND.text(supernet))
    write_folder(tmp_path / "t1", derivation=derived(GOOD))
    add(tmp_path / "t1")
    for precision in ("fp32", "fp16"):
        (tmp_path / f"t1/export/model.{precision}.onnx").touch()
    shutil.copytree(tmp_path / "t1/export", tmp_path / "copied/export")
    (tmp_path / "t2.partial").mkdir()
    (tmp_path / ".cache").mkdir()
    shutil.copytree(tmp_path / "s/base", tmp_path / ".cache/base")
    listed = {one.folder: one for one in list_folders(tmp_path)}
    assert [(name, one.kind) for name, one in listed.items()] == [
        ("copied/export", "export"), ("net", "super-network"), ("s", "sweep"), ("s/base", "base"), ("s/r0.5", "model"),
        ("t1", "model"), ("t2.partial", "unfinished"),
    ]  # fmt: skip
    half, base = listed["s/r0.5"], listed["s/base"]
    assert (half.method, half.top1, half.images, half.part, half.latency_ms) == ("nuwa", 0.95, 200, "test", 2.5)
    assert (base.top1, base.images, base.part, base.latency_ms) == (0.9, 100, "validation", 4.0)
    assert (listed["t1"].files, listed["t1"].engines) == (2, 1) and listed["net"].part == "validation"
    sweep = read_sweep(tmp_path / "s")
    replaced = replace(sweep.points[1], weights_sha256="b" * 64)
    write_sweep(tmp_path / "s", replace(sweep, points=(sweep.points[0], replaced)))
    assert {one.folder: one.latency_ms for one in list_folders(tmp_path)}["s/r0.5"] is None, "another model by now"
    assert not replaced.is_of(ModelFolder(tmp_path / "s/r0.5")) and sweep.points[1].is_of(ModelFolder(tmp_path / "s"))
    assert listed["s"].note == "1 model, chosen: r0.5"


def test_a_folder_that_cannot_be_read_costs_no_other(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", derivation=derived(GOOD))
    write_folder(tmp_path / "b", derivation=derived(GOOD))
    (tmp_path / "a/model.json").write_text("{")
    content = json.loads((tmp_path / "b/derivation.json").read_text())
    content["accuracy"]["derived"]["top1"] = 0.5
    (tmp_path / "b/derivation.json").write_text(json.dumps(content))
    write_folder(tmp_path / "c", derivation=derived(GOOD))
    a, b, c = list_folders(tmp_path)
    assert (a.kind, b.kind, c.top1) == ("damaged", "damaged", 0.95) and "was altered" in (b.note or "")
    (tmp_path / "b/derivation.json").write_text(DERIVATION_KIND.text(derived(GOOD)))
    assert list_folders(tmp_path)[1].kind == "model"
    assert list_folders(tmp_path / "none") == []
    assert ListedFolder("a", "base").top1 is None
