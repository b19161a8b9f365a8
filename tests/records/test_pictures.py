"""One way from any picture to RGB."""

import warnings

import numpy as np
import pytest
from PIL import Image

from edgevit.errors import DataError, OptionError
from edgevit.records.pictures import read_picture, to_rgb


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_a_picture_of_any_mode_becomes_rgb(mode):
    picture = Image.new("RGB", (5, 4), (255, 0, 0)).convert(mode)
    rgb = to_rgb(picture)
    assert (rgb.mode, rgb.size) == ("RGB", (5, 4))
    gray = mode in ("1", "L", "LA")
    assert gray or np.abs(np.asarray(rgb).astype(int) - [255, 0, 0]).max() <= 2


def test_colours_of_a_palette_are_read_without_a_warning_that_threads_would_have_to_ignore(monkeypatch):
    picture = Image.new("RGB", (2, 1), (255, 0, 0))
    picture.putpixel((1, 0), (0, 0, 255))
    palette = picture.quantize(2)
    palette.info["transparency"] = b"\x00\x80"
    monkeypatch.setattr(warnings, "simplefilter", lambda *_: None)
    assert to_rgb(palette).tobytes() == picture.tobytes()


def test_a_file_reads_as_the_picture_in_it(tmp_path):
    values = np.random.default_rng(0).integers(0, 255, (6, 7, 3), np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    assert np.array_equal(np.asarray(read_picture(tmp_path / "a.png", "replace it")), values)


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file or directory"), (b"text", "not an image"), (b"cut", "truncated")]
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, content, said):
    file = tmp_path / "a.png"
    if content == b"cut":
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(file)
        content = file.read_bytes()[:2000]
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_picture(file, "replace it")
    assert str(error.value).startswith(f"cannot read {file}: ") and str(error.value).endswith("; replace it")
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_picture_of_very_many_pixels_is_allowed_by_an_environment_variable(tmp_path, monkeypatch):
    Image.new("1", (40, 25)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    with pytest.raises(DataError, match=r"1 megapixels, which may .* variable EDGEVIT_MAX_MEGAPIXELS=1; replace it"):
        read_picture(tmp_path / "a.png", "replace it")
    monkeypatch.setenv("EDGEVIT_MAX_MEGAPIXELS", "0.002")
    assert read_picture(tmp_path / "a.png", "replace it").size == (40, 25)
    monkeypatch.setenv("EDGEVIT_MAX_MEGAPIXELS", "many")
    with pytest.raises(OptionError, match="EDGEVIT_MAX_MEGAPIXELS=many is not a number of megapixels; try 1000"):
        read_picture(tmp_path / "a.png", "replace it")
