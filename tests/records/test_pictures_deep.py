"""Images of 16 bits and of floats, through real files: the same classes look the same whatever they are stored as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgevit.data.sources import open_source
from edgevit.data.task import open_task
from edgevit.errors import DataError
from edgevit.records.pictures import eight_bit

PREPROCESSING: dict[str, Any] = {"input_size": (3, 16, 16), "interpolation": "bicubic", "mean": (0.0,) * 3,
                                 "std": (1.0,) * 3, "crop_pct": 1.0, "crop_mode": "center"}  # fmt: skip
SHADES = {"dark": 50, "middle": 120, "bright": 200}


def gray(shade: int) -> np.ndarray[Any, Any]:
    """An image around this shade, from 0 to 255."""
    return np.clip(np.random.default_rng(shade).normal(shade, 8, (16, 16)), 0, 255).round().astype(np.uint8)


def deep(values: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """The same shades on the scale of a kind of file."""
    if kind == "float":
        return values.astype(np.float32) / 255
    return values.astype({"uint16": np.uint16, "big": ">u2", "int32": np.int32}[kind]) * 257


@pytest.mark.parametrize(
    ("kind", "suffix"), [("uint16", "png"), ("uint16", "tif"), ("big", "tif"), ("int32", "tif"), ("float", "tif")]
)
def test_a_deep_image_is_read_as_its_8_bit_twin(tmp_path: Path, kind: str, suffix: str) -> None:
    for name, shade in SHADES.items():
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.fromarray(deep(gray(shade + i), kind)).save(tmp_path / name / f"{i}.{suffix}")
    source = open_source(tmp_path)
    for name, shade in SHADES.items():
        seen = np.asarray(source.read(str(tmp_path / name / f"1.{suffix}")))
        np.testing.assert_array_equal(seen, np.repeat(gray(shade + 1)[..., None], 3, axis=2))
    task = open_task(tmp_path, None, preprocessing=PREPROCESSING, base_outputs=3)
    images, labels = next(task.train.batches(32))
    means = {name: float(255 * images[labels == i].mean()) for i, name in enumerate(task.class_names)}
    assert means == pytest.approx({name: shade + 1.5 for name, shade in SHADES.items()}, abs=3)


TWELVE = np.tile(np.arange(16, dtype=np.uint16) * 273, (16, 1))  # 0 to 4095


def write_tiff_of_12_bits(file: Path, values: np.ndarray[Any, Any]) -> None:
    """Pillow reads such files and writes none: two values in three bytes, the first one's high bits first."""
    first, second = values.reshape(-1, 2).T.astype(np.uint16)
    packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=1).astype(np.uint8).tobytes()
    height, width = values.shape
    tags = [(256, width), (257, height), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, height),
            (279, len(packed))]  # fmt: skip
    table = b"".join(t.to_bytes(2, "little") + b"\4\0\1\0\0\0" + v.to_bytes(4, "little") for t, v in tags)
    start = (8 + len(packed)).to_bytes(4, "little")
    file.write_bytes(b"II*\0" + start + packed + len(tags).to_bytes(2, "little") + table + b"\0\0\0\0")


def test_12_bits_are_scaled_by_their_own_range(tmp_path: Path) -> None:
    write_tiff_of_12_bits(tmp_path / "a.tif", TWELVE)
    with Image.open(tmp_path / "a.tif") as image:
        assert image.mode == "I;16" and np.asarray(eight_bit(image))[0].tolist() == list(range(0, 256, 17))


AMBIGUOUS = {
    "floats to 255": (gray(120).astype(np.float32), "mode F with values from .* expected floats from 0 to 1"),
    "negative floats": (gray(120).astype(np.float32) / -255, "mode F with values from -"),
    "no numbers": (np.full((16, 16), np.nan, np.float32), "mode F with values from nan"),
    "24 bits": (gray(120).astype(np.int32) << 16, r"mode I with values from .* expected 0 to 65535"),
    "signed": (gray(120).astype(np.int32) - 200, "mode I with values from -"),
    "8 bits in 16": (gray(120).astype(np.uint16), "mode I;16 with values from .* may be meant as 8"),
    "8 bits in 32": (gray(120).astype(np.int32), "mode I with values from .* may be meant as 8"),
}


@pytest.mark.parametrize(("values", "said"), AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_what_does_not_tell_its_white_is_refused_before_the_work_and_when_read(
    tmp_path: Path, values: np.ndarray[Any, Any], said: str
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(gray(100 + i)).save(tmp_path / name / f"{i}.tif")
    bad = tmp_path / "b" / "3.tif"
    Image.fromarray(values).save(bad)
    with pytest.raises(DataError, match=said) as refusal:
        open_task(tmp_path, None, preprocessing=PREPROCESSING, base_outputs=2)
    assert str(bad) in str(refusal.value) and "convert it to 8-bit gray or RGB" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with pytest.raises(DataError, match=said):
        open_source(tmp_path).read(str(bad))
    kept = open_task(tmp_path, None, preprocessing=PREPROCESSING, base_outputs=2, skip_bad_images=True)
    assert kept.skipped == 1


def test_white_that_is_zero_is_refused(tmp_path: Path) -> None:
    Image.fromarray(deep(gray(120), "uint16")).save(tmp_path / "a.tif", tiffinfo={262: 0})
    with Image.open(tmp_path / "a.tif") as image, pytest.raises(ValueError, match="in which 0 is white"):
        eight_bit(image)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV"])
def test_images_of_8_bits_are_as_they_were(mode: str) -> None:
    image = Image.new(mode, (4, 4))
    assert eight_bit(image) is image


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_black_is_black_whatever_the_scale(dtype: Any) -> None:
    assert not np.asarray(eight_bit(Image.fromarray(np.zeros((4, 4), dtype)))).any()
