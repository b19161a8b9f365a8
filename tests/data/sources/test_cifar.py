"""CIFAR as torchvision lays it out: pickled by Python 2, and so by hand here."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgevit.data.sources import open_source
from edgevit.data.task import open_task
from edgevit.errors import DataError

PREPROCESSING = {"input_size": (3, 32, 32), "interpolation": "bicubic", "mean": (0.5,) * 3, "std": (0.5,) * 3,
                 "crop_pct": 1.0, "crop_mode": "center"}  # fmt: skip
NAMES_10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
NAMES_100 = [f"fine{i:02}" for i in range(100)]


def python2(value: Any) -> bytes:
    """Pickle as Python 2 did, protocol 2: byte strings where there are strings now."""
    if isinstance(value, str):
        return b"T" + struct.pack("<i", len(value)) + value.encode("latin1")
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(python2, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(python2(k) + python2(v) for k, v in value.items()) + b"u"
    assert isinstance(value, np.ndarray) and value.dtype == np.uint8
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + python2(0) + b"\x85" + python2("b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + python2("u1") + python2(0) + python2(1) + b"\x87R"
    dtype += b"(" + python2(3) + python2("|") + b"NNN" + python2(-1) + python2(-1) + python2(0) + b"tb"
    data = b"T" + struct.pack("<i", value.size) + value.tobytes()
    shape = python2(value.shape[0]) + python2(value.shape[1]) + b"\x86"
    return empty + b"(" + python2(1) + shape + dtype + b"\x89" + data + b"tb"


def write(path: Path, value: Any, *, python: int) -> None:
    data = b"\x80\x02" + python2(value) + b"." if python == 2 else pickle.dumps(value)
    path.write_bytes(data)


def make_cifar(root: Path, classes: int, python: int = 2) -> dict[str, Any]:
    """Write a small CIFAR; return the images and labels of both parts."""
    random = np.random.default_rng(0)
    ten = classes == 10
    folder = root / ("cifar-10-batches-py" if ten else "cifar-100-python")
    folder.mkdir(parents=True)
    files = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"] if ten else ["train", "test"]
    per_file = 30 if ten else 400
    made: dict[str, list[Any]] = {"train": [], "test": []}
    for name in files:
        images = random.integers(0, 256, (per_file, 3072), dtype=np.uint8)
        labels = [i % classes for i in range(per_file)]
        batch: dict[str, Any] = {"data": images, "labels" if ten else "fine_labels": labels}
        if not ten:
            batch["coarse_labels"] = [i // 5 for i in labels]
        write(folder / name, batch, python=python)
        made["test" if name.startswith("test") else "train"].append((images, labels))
    meta = {"label_names": NAMES_10} if ten else {"fine_label_names": NAMES_100, "coarse_label_names": ["x"]}
    write(folder / ("batches.meta" if ten else "meta"), meta, python=python)
    return {
        part: (np.concatenate([images for images, _ in batches]), [n for _, labels in batches for n in labels])
        for part, batches in made.items()
    }


@pytest.mark.parametrize("python", [2, 3])
@pytest.mark.parametrize("classes", [10, 100])
def test_images_and_labels_are_those_on_disk(tmp_path: Path, classes: int, python: int) -> None:
    made = make_cifar(tmp_path, classes, python)
    source = open_source(tmp_path)
    assert list(source.class_names) == (NAMES_10 if classes == 10 else NAMES_100)
    assert tuple(source.parts) == ("train", "test") and not source.files
    for part in ("train", "test"):
        images, labels = made[part]
        for label, name in enumerate(source.class_names):
            expected = images[[i for i, at in enumerate(labels) if at == label]].reshape(-1, 3, 32, 32)
            references = source.references(part, name)
            assert len(references) == len(expected)
            for reference, pixels in zip(references, expected, strict=True):
                image = source.read(reference)
                assert image.mode == "RGB"
                np.testing.assert_array_equal(np.asarray(image), pixels.transpose(1, 2, 0))


def test_it_is_found_by_its_own_folder_too_and_makes_a_task(tmp_path: Path) -> None:
    make_cifar(tmp_path, 10)
    for data in (tmp_path, tmp_path / "cifar-10-batches-py"):
        task = open_task(data, "cat,9", preprocessing=PREPROCESSING, base_outputs=10)
        assert task.class_names == ["cat", "truck"] and task.base_columns == [3, 9]
        assert (len(task.train), len(task.validation), len(task.test)) == (26, 4, 6)


def hostile(marker: Path) -> bytes:
    class Payload:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(marker),))

    return pickle.dumps({"data": Payload(), "labels": [0]})


SPOILS: list[tuple[str, Any, str]] = [
    ("missing", lambda f: f.unlink(), "is missing"),
    ("empty", lambda f: f.write_bytes(b""), "cannot read"),
    ("cut off", lambda f: os.truncate(f, 2000), "cannot read"),
    ("a list", lambda f: f.write_bytes(pickle.dumps([1])), "holds a list, expected a dict"),
    ("no data", lambda f: f.write_bytes(pickle.dumps({"labels": [1]})), "has no 'data'"),
    ("no labels", lambda f: f.write_bytes(pickle.dumps({"data": [1]})), "has no 'labels'"),
    ("no array", lambda f: f.write_bytes(pickle.dumps({"data": [1], "labels": [1]})), "images of shape None"),
    ("too few labels", lambda f: f.write_bytes(pickle.dumps({"data": np.zeros((2, 9)), "labels": [1]})), "1 labels"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "said"), [s[1:] for s in SPOILS], ids=[s[0] for s in SPOILS])
def test_a_broken_batch_is_named(tmp_path: Path, spoil: Any, said: str) -> None:
    make_cifar(tmp_path, 10)
    spoil(tmp_path / "cifar-10-batches-py" / "data_batch_3")
    with pytest.raises(DataError, match=said) as refusal:
        open_source(tmp_path)
    assert "data_batch_3" in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_hostile_batch_is_refused_and_not_executed(tmp_path: Path) -> None:
    make_cifar(tmp_path, 10)
    marker = tmp_path / "executed"
    file = tmp_path / "cifar-10-batches-py" / "batches.meta"
    file.write_bytes(hostile(marker))
    with pytest.raises(DataError, match=r"it wants (posix|nt)\.mkdir, which no CIFAR batch needs"):
        open_source(tmp_path)
    assert not marker.exists()
    pickle.loads(file.read_bytes())  # it would have
    assert marker.exists()


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(max_size=80), at=st.integers(0, 400))
def test_any_bytes_are_refused_in_one_line(tmp_path_factory: Any, noise: bytes, at: int) -> None:
    root = tmp_path_factory.mktemp("noise")
    (root / "cifar-100-python").mkdir()
    good = b"\x80\x02" + python2({"fine_label_names": NAMES_100}) + b"."
    (root / "cifar-100-python" / "meta").write_bytes(good[:at] + noise)
    with pytest.raises(DataError) as refusal:
        open_source(root)
    assert "\n" not in str(refusal.value)
