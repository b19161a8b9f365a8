"""Folders as earlier versions wrote them, with the code of their time: they are still shown, load, export and bench.

schema-1    the first commit of all; derivation.json lacks what came later. The last code whose record of an engine does
            not say which edgevit had it built (365a115) built its engine, with the stand-in for TensorRT
schema-2    the last commit whose model.json had no seal; the model calls some images `other`
schema-3    the last commit before the records of the folder were typed
schema-4    the last commit before the embedding could be narrowed; plan.json has schema 1
schema-5    the last commit whose derivation.json does not count validation images, with a narrower embedding;
            derivation.json and plan.json have schema 2
unsealed-5  the last commit whose derivation.json, plan.json and export.json have no seal
supernet-1  of the commit of schema-4; supernet.json has no seal
supernet-2  the last commit of super-networks without channels of the embedding among their units

Every schema but the last, of every kind of file in a model folder, is that of some file here; and there is a file of
every kind that has had another form.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from edgevit.records.derivation import DERIVATION_KIND
from edgevit.records.engine import ENGINE_KIND, LAYERS
from edgevit.records.export import EXPORT_KIND
from edgevit.records.history import HISTORY_KIND
from edgevit.records.imported import IMPORTED_KIND
from edgevit.records.kinds import UNMARKED, RecordKind
from edgevit.records.model import MODEL_KIND
from edgevit.records.model_folder import ModelFolder
from edgevit.records.plan import PLAN_KIND
from edgevit.records.supernet import SUPERNET_KIND
from edgevit.records.writing import file_sha256

pytestmark = pytest.mark.usefixtures("examined_once")

OLD = Path(__file__).parent / "old"
MODELS = tuple(sorted(folder.name for folder in OLD.glob("*") if folder.name[:-1] in ("schema-", "unsealed-")))
SUPERNETS = tuple(sorted(folder.name for folder in OLD.glob("supernet-*")))
KINDS: dict[str, RecordKind[Any]] = {  # by the name of the file in the folder
    "model.json": MODEL_KIND,
    "derivation.json": DERIVATION_KIND,
    "plan.json": PLAN_KIND,
    "supernet.json": SUPERNET_KIND,
    "history.jsonl": HISTORY_KIND,
    "export/export.json": EXPORT_KIND,
    "export/engines/*/*.json": ENGINE_KIND,
    "onnx.json": IMPORTED_KIND,
}
ONE_FORM = {"onnx.json"}  # kinds whose record has today's fields since their first commit


@pytest.mark.parametrize("pattern", KINDS)
def test_every_earlier_schema_is_kept(pattern: str) -> None:
    kept = set()
    for file in OLD.glob(f"*/{pattern}"):
        if file.name.endswith(LAYERS):
            continue  # what TensorRT said, and no record
        text = file.read_text() if file.suffix == ".json" else file.read_text().splitlines()[0]
        kept.add(json.loads(text).get("schema", UNMARKED))
    assert kept >= set(KINDS[pattern].schemas[:-1]), "let the last code of that schema write a small folder"
    assert kept or pattern in ONE_FORM, "let code before the last new field write a file"


@pytest.mark.parametrize("name", (*MODELS, *SUPERNETS))
def test_an_old_folder_is_small_and_shown(name: str, edgevit_main: Any) -> None:
    assert sum(file.stat().st_size for file in (OLD / name).rglob("*") if file.is_file()) < 200_000
    shown = edgevit_main("show", OLD / name)
    assert shown.code == 0 and "vit_tiny_patch16_224" in shown.out


@pytest.mark.parametrize("name", MODELS)
def test_an_old_folder_is_read_without_torch(name: str) -> None:
    folder = ModelFolder(OLD / name)
    made, export = folder.derivation(), folder.export.record()
    assert made is not None and made.fault(folder.spec()) is None
    assert json.loads(folder.spec_file.read_text())["schema"] == int(name[-1])
    assert (folder.plan() is not None) == (name[-1] in "45")
    assert (made.method, made.facts.steps, made.facts.more["steps_planned"]) == ("vulcan", 4, 4)
    assert folder.document().weights_sha256 == export.model.weights_sha256
    assert (folder.spec().rejection is not None) == (name == "schema-2") == (export.rejection is not None)
    assert (folder.spec().narrowed == (12, 16)) == (name == "schema-5")
    assert [(line.stage, line.edgevit) for line in folder.history()][-1][:1] == ("train",)


def test_an_engine_of_older_code_is_read_and_shown(edgevit_main: Any) -> None:
    export = ModelFolder(OLD / "schema-1").export
    (record,) = export.engines()
    assert record.edgevit is None and record.board.tensorrt == "10.3.0" and record.rung == "fp16"
    assert (record.file, record.sha256) == (record.path.name, file_sha256(record.path))
    assert record.onnx.sha256 == file_sha256(export.path / record.onnx.name)
    assert record.accuracy is not None and record.accuracy.images == 44
    shown = edgevit_main("show", record.path)
    assert shown.code == 0 and "for orin-trt10.3.0-8sm; attention in one kernel: 2 of 2" in shown.out


@pytest.mark.parametrize("name", MODELS)
def test_an_old_folder_loads_exports_and_is_measured(name: str, tmp_path: Path) -> None:
    import torch

    import edgevit
    from edgevit.exporting.session import OnnxModel

    folder = Path(shutil.copytree(OLD / name, tmp_path / name))
    model, images = edgevit.load(folder), torch.randn(2, 3, 16, 16)
    logits = model(images).detach()
    torch.testing.assert_close(
        OnnxModel(folder / "export/model.fp32.onnx").predict(images), logits, rtol=1e-4, atol=1e-4
    )
    quick = {"samples": 5, "warmup": 1, "threads": 1, "duration_s": 0.0, "warmup_seconds": 0.0}
    (before,) = edgevit.bench(folder, **quick).runs
    assert before.label == name
    edgevit.export(folder, fp16=False, accuracy=False)
    torch.testing.assert_close(
        OnnxModel(folder / "export/model.fp32.onnx").predict(images), logits, rtol=1e-4, atol=1e-4
    )
    (after,) = edgevit.bench(folder, **quick).runs
    assert after.model_sha256 != before.model_sha256 or after.label == name


@pytest.mark.parametrize("name", SUPERNETS)
def test_slices_of_an_old_super_network_are_cut(name: str, tmp_path: Path) -> None:
    import edgevit

    made = edgevit.derive(method="skd", supernet=OLD / name, rate=0.2, shape="paper", out=tmp_path / "slice")
    assert 0.2 <= made.model.spec.rate < 0.25 and ModelFolder(tmp_path / "slice").derivation() == made.record
    assert ModelFolder(OLD / name).supernet().settings.training.steps == 4
