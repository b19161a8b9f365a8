"""IDX files, written by hand as the format of MNIST says."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgevit.data.sources import class_names, open_source
from edgevit.data.task import open_task
from edgevit.errors import DataError

PREPROCESSING = {"input_size": (3, 28, 20), "interpolation": "bicubic", "mean": (0.5,) * 3, "std": (0.5,) * 3,
                 "crop_pct": 1.0, "crop_mode": "center"}  # fmt: skip


def idx(values: Any) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return header + values.astype(np.uint8).tobytes()


def make_idx(
    folder: Path, *, zipped: bool = False, joint: str = "-", parts: tuple[str, ...] = ("train", "t10k")
) -> Any:
    """Write parts of 40 and 20 images of 28 x 20 pixels in the classes 1 to 4; return their images and labels."""
    random = np.random.default_rng(0)
    made = {}
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in zip(parts, (40, 20), strict=False):
        images = random.integers(0, 256, (count, 28, 20), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 4 + 1
        for what, values in (("images", images), ("labels", labels)):
            name = f"{part}-{what}{joint}idx{values.ndim}-ubyte" + (".gz" if zipped else "")
            (folder / name).write_bytes(gzip.compress(idx(values)) if zipped else idx(values))
        made[part] = images, labels
    return made


@pytest.mark.parametrize(
    ("below", "options"),
    [
        (".", {}),
        (".", {"zipped": True}),
        ("raw", {"joint": "."}),
        (".", {"zipped": True, "parts": ("emnist-letters-train", "emnist-letters-test")}),
        (".", {"parts": ("train",)}),
    ],
    ids=["plain", "gzip", "unpacked by hand, in raw", "EMNIST's names", "no test part"],
)
def test_images_and_labels_are_those_on_disk(tmp_path: Path, below: str, options: Any) -> None:
    made = make_idx(tmp_path / below, **options)
    source = open_source(tmp_path)
    assert tuple(source.class_names) == tuple(class_names(tmp_path)) == ("1", "2", "3", "4")
    assert {*source.parts} == {*("train", "test")[: len(made)]} and not source.files
    for part, (images, labels) in zip(("train", "test"), made.values(), strict=False):
        for name in source.class_names:
            expected = images[labels == int(name)]
            read = [source.read(reference) for reference in source.references(part, name)]
            assert len(read) == len(expected)
            for image, pixels in zip(read, expected, strict=True):
                assert image.mode == "RGB"
                np.testing.assert_array_equal(np.asarray(image), np.stack([pixels] * 3, axis=-1))


def test_it_makes_a_task(tmp_path: Path) -> None:
    make_idx(tmp_path)
    task = open_task(tmp_path, "2,4", preprocessing=PREPROCESSING, base_outputs=4)
    assert task.class_names == ["2", "4"] and task.base_columns == [1, 3]
    assert (len(task.train), len(task.validation), len(task.test)) == (18, 2, 10)


def test_a_file_that_is_there_plain_and_packed_is_read_plain(tmp_path: Path) -> None:
    make_idx(tmp_path, zipped=True)
    for file in tmp_path.iterdir():
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.write_bytes(b"spoilt")
    assert len(open_source(tmp_path).references("train", "1")) == 10


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
SPOILS: list[tuple[str, str, Any, str]] = [
    ("no labels", LABELS, lambda f: f.unlink(), f"has no {LABELS} beside it"),
    ("no images", IMAGES, lambda f: f.unlink(), f"has no {IMAGES} beside it"),
    ("empty", LABELS, lambda f: f.write_bytes(b""), "begins with nothing, expected 00 00 08 01 for labels"),
    ("cut in the header", IMAGES, lambda f: os.truncate(f, 9), "expected 00 00 08 03"),
    ("cut off", IMAGES, lambda f: os.truncate(f, 2000), "says it holds 40 x 28 x 20 bytes and holds 1984"),
    ("floats", IMAGES, lambda f: f.write_bytes(bytes([0, 0, 13, 3]) + bytes(12)), "begins with 00 00 0d 03"),
    ("no image", IMAGES, lambda f: f.write_bytes(idx(np.zeros((0, 28, 28)))), "says it holds 0 x 28 x 28"),
    ("a label too few", LABELS, lambda f: f.write_bytes(idx(np.zeros(39))), "holds 40 images, and .* 39 labels"),
    ("packed and not named so", IMAGES, lambda f: f.write_bytes(gzip.compress(f.read_bytes())), "begins with 1f 8b"),
    ("two sets", IMAGES, lambda f: make_idx(f.parent, parts=("letters-train",)), "holds two data sets"),
    ("a folder in its place", IMAGES, lambda f: (f.unlink(), f.mkdir()), f"has no {IMAGES} beside it"),
]


@pytest.mark.parametrize(("name", "spoil", "said"), [s[1:] for s in SPOILS], ids=[s[0] for s in SPOILS])
def test_a_spoilt_folder_is_named_with_its_file(tmp_path: Path, name: str, spoil: Any, said: str) -> None:
    make_idx(tmp_path, parts=("train",))
    spoil(tmp_path / name)
    with pytest.raises(DataError, match=said) as refusal:
        open_source(tmp_path)
    assert "train-" in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_test_part_alone_is_refused(tmp_path: Path) -> None:
    make_idx(tmp_path, parts=("t10k",))
    for ask in (open_source, class_names):
        with pytest.raises(DataError, match="has a test part and no train-images-idx3-ubyte"):
            ask(tmp_path)


# With names, as gzip writes the time of day: workers that begin a second apart would not have the same tests.
@pytest.mark.parametrize(
    "spoil",
    [b"", b"no gzip", gzip.compress(bytes(99))[:20], gzip.compress(b"ab")[:-3] + b"123"],
    ids=["empty", "no gzip", "cut off", "of another sum"],
)
def test_a_spoilt_gzip_is_one_line(tmp_path: Path, spoil: bytes) -> None:
    make_idx(tmp_path, zipped=True)
    (tmp_path / f"{LABELS}.gz").write_bytes(spoil)
    with pytest.raises(DataError, match=rf"{LABELS}\.gz") as refusal:
        class_names(tmp_path)
    assert "\n" not in str(refusal.value)


@settings(max_examples=40)
@given(noise=st.binary(max_size=60), at=st.integers(0, 60), zipped=st.booleans())
def test_any_bytes_are_refused_in_one_line(tmp_path_factory: Any, noise: bytes, at: int, zipped: bool) -> None:
    folder = tmp_path_factory.mktemp("noise")
    made = make_idx(folder, zipped=zipped, parts=("train",))
    file = folder / (LABELS + (".gz" if zipped else ""))
    good = file.read_bytes()
    file.write_bytes(good[:at] + noise + b"\n")
    try:
        names = open_source(folder).class_names
    except DataError as error:
        assert "\n" not in str(error) and file.name in str(error)
    else:  # noise that is labels again
        assert len(names) <= len(made["train"][1])
