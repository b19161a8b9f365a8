"""Folders as earlier versions wrote them, with the code of their time: they still load, export and bench.

schema-1    the first commit of all; derivation.json lacks what came later
schema-2    the last commit whose model.json had no seal; the model calls some images `other`
schema-3    the last commit before the records of the folder were typed
schema-4    the last commit before the embedding could be narrowed; plan.json has schema 1
supernet-1  of the same commit; supernet.json has no seal
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from edgevit.folder.model import MODEL_KIND
from edgevit.folder.model_folder import ModelFolder

pytestmark = pytest.mark.usefixtures("examined_once")

OLD = Path(__file__).parent / "old"
MODELS = tuple(f"schema-{number}" for number in MODEL_KIND.schemas[:-1])


@pytest.mark.parametrize("name", MODELS)
def test_an_old_folder_is_read_without_torch(name: str) -> None:
    folder = ModelFolder(OLD / name)
    made, export = folder.derivation(), folder.export.record()
    assert made is not None and made.fault(folder.spec()) is None
    assert json.loads(folder.spec_file.read_text())["schema"] == int(name[-1])
    assert (folder.plan() is not None) == (name == "schema-4")
    assert (made.method, made.facts.steps, made.facts.more["steps_planned"]) == ("vulcan", 4, 4)
    assert folder.document().weights_sha256 == export.model.weights_sha256
    assert (folder.spec().rejection is not None) == (name == "schema-2") == (export.rejection is not None)


@pytest.mark.parametrize("name", MODELS)
def test_an_old_folder_loads_exports_and_is_measured(name: str, tmp_path: Path) -> None:
    import torch

    import edgevit
    from edgevit.export.session import OnnxModel

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


def test_slices_of_an_old_super_network_are_cut(tmp_path: Path) -> None:
    import edgevit

    made = edgevit.derive(method="skd", supernet=OLD / "supernet-1", rate=0.2, shape="paper", out=tmp_path / "slice")
    assert 0.2 <= made.model.spec.rate < 0.25 and ModelFolder(tmp_path / "slice").derivation() == made.record
    assert ModelFolder(OLD / "supernet-1").supernet().settings.training.steps == 4
