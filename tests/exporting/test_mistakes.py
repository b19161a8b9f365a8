"""The images that a model gets wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from some_mistakes import derive_wrong

import edgevit
from edgevit.data.task import open_task
from edgevit.exporting.mistakes import mistakes
from edgevit.progress import Silent
from edgevit.records.model_folder import ModelFolder


def test_they_are_those_that_are_called_something_else_the_surest_first(tmp_path: Path) -> None:
    folder = derive_wrong(tmp_path)
    model, record = edgevit.load(folder), ModelFolder(folder).derivation()
    assert record is not None
    names = [label.name for label in record.data.classes]
    task = open_task("digits", names, preprocessing=model.preprocessing, base_outputs=10, seed=record.data.seed)
    found = mistakes(folder, 5, Silent())
    images, labels = next(iter(task.validation.batches(len(task.validation))))
    with torch.inference_mode():
        sure, called = model(images).softmax(1).max(1)
    missed = sorted(zip(sure[called != labels].tolist(), labels[called != labels].tolist(), strict=True), reverse=True)
    assert len(missed) > 5 and [one.label for one in found] == [names[label] for _, label in missed[:5]]
    assert [one.probability for one in found] == pytest.approx([share for share, _ in missed[:5]], abs=1e-5)
    assert all(one.predicted != one.label and one.image.mode == "RGB" for one in found)
