"""What a page shows of the images that models get wrong."""

from __future__ import annotations

import base64
import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from seals import reseal
from small_base import derive, write_checkpoint

import edgevit
from edgevit.data.task import open_task
from edgevit.errors import OptionError
from edgevit.progress import Silent
from edgevit.records.model_folder import ModelFolder
from edgevit.reporting.run import report
from edgevit.reporting.wrong import PIXELS, mistakes, small

SHOWN = '<img src="data:image/jpeg;base64,'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a derived model that gets most images wrong: random weights, and half of them gone."""
    wrong = tmp_path_factory.mktemp("wrong")
    derive(write_checkpoint(wrong), wrong / "t1", method="random", training={"steps": 0}, cache=False)
    return wrong / "t1"


def test_a_picture_is_small_and_keeps_its_shape() -> None:
    uri = small(Image.new("RGB", (400, 200), "red"))
    picture = Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/jpeg;base64,"))))
    assert picture.format == "JPEG" and picture.size == (PIXELS, PIXELS // 2)


def test_mistakes_are_predicted_otherwise_the_most_probable_first(folder: Path) -> None:
    model, record = edgevit.load(folder), ModelFolder(folder).derivation()
    assert record is not None
    names = [label.name for label in record.data.classes]
    task = open_task("digits", names, preprocessing=model.preprocessing, base_outputs=10, seed=record.data.seed)
    found = mistakes(folder, 5, Silent())
    images, labels = next(iter(task.validation.batches(len(task.validation))))
    with torch.inference_mode():
        probability, predicted = model(images).softmax(1).max(1)
    missed = sorted(
        zip(probability[predicted != labels].tolist(), labels[predicted != labels].tolist(), strict=True), reverse=True
    )
    assert len(missed) > 5 and [one.label for one in found] == [names[label] for _, label in missed[:5]]
    assert [one.probability for one in found] == pytest.approx([share for share, _ in missed[:5]], abs=1e-5)
    assert all(one.predicted != one.label and one.picture.startswith("data:image/jpeg") for one in found)


def test_a_page_has_them_only_where_it_is_asked(folder: Path, tmp_path: Path) -> None:
    assert SHOWN not in report([folder], output=tmp_path / "a.html").text
    asked = report([folder], output=tmp_path / "b.html", thumbnails=3).text
    assert asked.count(SHOWN) == 3 and "Validation images that it gets wrong" in asked
    with pytest.raises(OptionError, match="--thumbnails is for a page, and the format is md"):
        report([folder], format="md", thumbnails=3)
    with pytest.raises(OptionError, match="--thumbnails"):
        report([folder], thumbnails=-1)


def test_of_a_model_whose_images_are_gone_the_page_is_made_and_it_is_told(folder: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "t1"))
    gone = {"data": str(tmp_path / "gone")}
    reseal(moved / "derivation.json", lambda content: content["data"].update(gone))
    made = report([moved], output=tmp_path / "p.html", thumbnails=3)
    (left,) = made.evidence.skipped
    assert left.source == "images of t1" and left.reason.startswith(f"data {tmp_path / 'gone'} does not exist")
    assert SHOWN not in made.text and '<th scope="row">images of t1</th>' in made.text


def test_the_command_takes_their_number(folder: Path, tmp_path: Path, edgevit_main: Any) -> None:
    page = tmp_path / "page.html"
    assert edgevit_main("report", folder, "-o", page, "--thumbnails", "2").code == 0
    assert page.read_text().count(SHOWN) == 2
