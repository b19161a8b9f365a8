"""What is seen of image files before the work starts: turned ones, 12 bits in 16, and copies."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from recorded_progress import RecordedProgress

from edgevit.data.examine import FileFacts, copies, examine, find_unreadable, image_sha256
from edgevit.errors import DataError
from edgevit.progress import Silent
from edgevit.records.pictures import read_picture
from edgevit.records.reading import AS_STORED, Reading


def write_turned(file: Path, orientation: int) -> str:
    exif = Image.Exif()
    exif[274] = orientation
    Image.new("RGB", (8, 4)).save(file, exif=exif)
    return str(file)


def heard(files: list[str], **reading: Any) -> RecordedProgress:
    progress = RecordedProgress()
    assert find_unreadable([*files], False, progress, Reading(**reading)) == set()
    return progress


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])  # Pillow puts TIFF upright itself
def test_images_that_are_stored_turned_are_counted(tmp_path: Path, suffix: str) -> None:
    files = [write_turned(tmp_path / f"{way}.{suffix}", way) for way in (1, 3, 6)]
    assert heard(files).warnings == [
        "2 of 3 images are stored turned, as EXIF says, and read as stored, as timm and torchvision read them; if the "
        "base was trained with upright images, give --exif apply"
    ]
    applied = heard(files, exif="apply")
    assert applied.notes == ["2 of 3 images are stored turned, as EXIF says, and put upright"] and not applied.warnings
    assert not heard(files[:1]).warnings


def test_all_files_that_cannot_be_read_are_counted_and_the_first_few_named(tmp_path: Path) -> None:
    files = [write_turned(tmp_path / f"{i}.png", 1) for i in range(7)]

    def refusal() -> str:
        with pytest.raises(DataError) as refused:
            find_unreadable([*files], False, Silent(), Reading())
        return str(refused.value)

    for i, file in enumerate(files[1:6]):
        Path(file).write_text("no image")
        if i == 0:
            assert refusal() == (
                f"cannot read {file}: not an image; remove or replace it, or leave such files out with "
                "--skip-bad-images"
            )
    named = ", ".join(f"{file} (not an image)" for file in files[1:4])
    assert refusal() == (
        f"cannot read 5 of 7 images: {named} and 2 more; remove or replace them, or leave such files out with "
        "--skip-bad-images"
    )
    assert find_unreadable([*files], True, Silent(), Reading()) == {*files[1:6]}


def test_damaged_exif_is_no_reason_to_stop(tmp_path: Path) -> None:
    file = tmp_path / "a.jpg"
    write_turned(file, 6)
    whole = file.read_bytes()
    at = whole.index(b"Exif\0\0") + 6
    for damage in (b"XX", struct.pack("<HIH", 42, 2**31, 9), b"II*\0\x08\0\0\0\xff\xff"):
        file.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
        assert find_unreadable([str(file)], False, Silent(), Reading(exif="apply")) == set()
        assert read_picture(file, "", Reading(exif="apply")).size == (8, 4)


def write_deep(folder: Path, highest: list[int]) -> list[str]:
    folder.mkdir()
    for i, value in enumerate(highest):
        Image.fromarray(np.linspace(0, value, 16, dtype=np.uint16).reshape(4, 4)).save(folder / f"{i}.png")
    return sorted(str(file) for file in folder.iterdir())


def test_12_bits_in_16_are_noticed_and_a_range_is_given(tmp_path: Path) -> None:
    files = write_deep(tmp_path / "a", [4080, 3000])
    assert heard(files).warnings == [
        "2 of 2 images have 16 bits and no value above 4080 of 65535, so that they are nearly black; if 4095 is white, "
        "give --value-range 4095"
    ]
    assert not heard(files, value_range=4095).warnings
    assert not heard(write_deep(tmp_path / "b", [4080, 20000])).warnings, "one is bright: the others are dark"
    fault = examine(files[0], Reading(value_range=1023)).fault
    assert fault is not None and "values from 0 to 4080, expected 0 to 1023; convert it" in fault


def test_drawings_that_are_one_colour_without_their_transparency_are_counted(tmp_path: Path) -> None:
    drawing, photo = Image.new("RGBA", (8, 8)), Image.linear_gradient("L").convert("RGBA")
    drawing.paste((0, 0, 0, 255), (2, 2, 6, 6))
    photo.putalpha(drawing.getchannel("A").resize(photo.size))
    drawing.save(tmp_path / "a.png")
    drawing.quantize().save(tmp_path / "b.png")
    photo.save(tmp_path / "c.png")
    Image.new("RGBA", (8, 8), "red").save(tmp_path / "d.png")
    (warning,) = heard(sorted(str(file) for file in tmp_path.iterdir())).warnings
    assert warning.startswith(f"2 of 4 images, such as {tmp_path / 'a.png'}, are one colour once their transparency")


def test_copies_are_found_by_their_bytes_and_only_files_of_their_size_are_read(tmp_path: Path) -> None:
    for name, content in (("a", b"12"), ("b", b"34"), ("c", b"12"), ("d", b"56"), ("e", b"1234")):
        (tmp_path / name).write_bytes(content)
    a, b, c, d, e = (str(tmp_path / name) for name in "abcde")
    gone = str(tmp_path / "gone")
    assert copies([a, b], [c, d, e, gone]) == [a] and copies([b], [e, gone]) == []
    before = image_sha256(a)
    os.replace(b, a)
    assert image_sha256(a) != before, "of the same size"


def test_an_image_is_read_by_its_facts(tmp_path: Path) -> None:
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    assert examine(str(tmp_path / "a.png"), AS_STORED) == FileFacts()
