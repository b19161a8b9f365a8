"""A classifier of texts is cut like one of images: every method, evaluation, and a folder that works by itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_bert import WORDS, learnt_release, some_ids, some_texts, write_texts

import edgevit
from edgevit.data.task import open_task
from edgevit.derivation.measure.statistics import calibrate
from edgevit.errors import CheckpointError, EdgeVitError
from edgevit.network.opening import open_network
from edgevit.records.model_folder import ModelFolder
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training

pytest.importorskip("tokenizers")
CLASSES = ["cooking", "space"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder / "data", 30)
    return learnt_release(folder / "base")


def derived(base: Path, out: Path, **options: Any) -> ModelFolder:
    asked = {"method": "forge", "rate": 0.4, "steps": 0, "device": "cpu", "cache": False, **options}
    edgevit.derive(str(base), data=base.parent / "data", classes=CLASSES, out=out, **asked)
    return ModelFolder(out)


def test_a_derived_folder_has_its_tokenizer_and_classifies_texts(base: Path, tmp_path: Path) -> None:
    files = derived(base, tmp_path / "slim", rate=0.5)
    record, model = files.derivation(), edgevit.load(tmp_path / "slim")
    assert record is not None and record.accuracy.base_full_head is not None and record.accuracy.derived is not None
    assert record.accuracy.base_full_head.top1 >= 0.8 and record.accuracy.derived.top1 >= 0.8
    assert model.spec.macs <= 0.5 * model.spec.base.macs and model.classes == CLASSES
    texts = [*some_texts("cooking", 20), *some_texts("space", 20)]
    names = [prediction.name for prediction in model.predict(texts)]
    assert sum(name == right for name, right in zip(names, ["cooking"] * 20 + ["space"] * 20, strict=True)) >= 34
    assert model.predict("salt in the oven")[0].probabilities.keys() == {*CLASSES}
    assert "tokens of a text" in files.card_file.read_text() and files.tokenizer_file.is_file()
    moved = shutil.move(tmp_path / "slim", tmp_path / "moved")
    evaluation = edgevit.evaluate(moved, data=base.parent / "data", device="cpu")
    assert evaluation.top1 == record.accuracy.derived.top1
    (Path(moved) / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer.json is missing or was altered"):
        edgevit.load(moved)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("nuwa", {"rate": 0.3}),
        ("vulcan", {"steps": 2}),
        ("magnitude", {"rate": 0.3}),
        ("forge", {"steps": 2, "options": {"drop_sites": True}, "rate": 0.7}),
    ],
)
@pytest.mark.slow
def test_other_methods_cut_it_as_well(base: Path, tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    derived(base, tmp_path / "slim", method=method, **options)
    model = edgevit.load(tmp_path / "slim")
    assert model(some_ids()).isfinite().all() and model.spec.macs < model.spec.base.macs


def test_a_base_of_texts_is_evaluated_on_all_of_its_classes(base: Path) -> None:
    evaluation = edgevit.evaluate(str(base), data=base.parent / "data", device="cpu")
    assert evaluation.top1 is not None and evaluation.top1 >= 0.8 and evaluation.images == 24


def test_what_is_for_images_alone_is_refused(base: Path, tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    images = image_folder(tmp_path / "images", dict.fromkeys(WORDS, 6))
    with pytest.raises(EdgeVitError, match=r"the base reads texts, and .*images has images; give --data with texts"):
        edgevit.evaluate(str(base), data=images)
    with pytest.raises(EdgeVitError, match="prepares no images"):
        derived(base, tmp_path / "slim", mean=[0.5] * 3)


@torch.no_grad()
def test_statistics_are_of_the_tokens_of_texts_and_not_of_padding(base: Path) -> None:
    network = open_network(base)
    task = open_task(base.parent / "data", None, preprocessing=network.preprocessing, base_outputs=4)
    passes = open_passes(Training(steps=0, device="cpu"))
    statistics = calibrate(network, task.train, passes, factorisation="activations", hidden=True)
    ids, _ = next(task.train.batches(len(task.train)))
    tokens = network.first_tokens(ids)
    for block, of_block in zip(network.blocks, statistics, strict=True):
        rows, ffn, attention = tokens[ids != 0], block.ffn, block.attention
        assert ffn is not None and attention is not None and of_block.moment is not None and of_block.hidden is not None
        ones = torch.cat([rows, rows.new_ones(len(rows), 1)], 1).double()
        torch.testing.assert_close(of_block.moment, ones.mT @ ones / len(rows), rtol=1e-4, atol=1e-5)
        middle = attention.past(tokens, attention.module(tokens))
        neurons = torch.nn.functional.gelu(ffn.readers[0](middle[ids != 0])).double()
        torch.testing.assert_close(of_block.mean, neurons.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(of_block.hidden, neurons.mT @ neurons / len(rows), rtol=1e-4, atol=1e-5)
        tokens = block.module(tokens)
