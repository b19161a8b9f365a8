"""What a page shows of the images that models get wrong."""

from __future__ import annotations

import base64
import io
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from seals import reseal
from some_mistakes import derive_wrong

from edgevit.errors import OptionError
from edgevit.reporting.run import report
from edgevit.reporting.wrong import PIXELS, small

SHOWN = '<img src="data:image/jpeg;base64,'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return derive_wrong(tmp_path_factory.mktemp("wrong"))


def test_a_picture_is_small_and_keeps_its_shape() -> None:
    uri = small(Image.new("RGB", (400, 200), "red"))
    picture = Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/jpeg;base64,"))))
    assert picture.format == "JPEG" and picture.size == (PIXELS, PIXELS // 2)


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
