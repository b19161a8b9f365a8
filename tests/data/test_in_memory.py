"""Arrays, data sets and loaders become folders of classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from edgevit.data.in_memory import PreparedImages, without_images, write_images, write_targets
from edgevit.data.task import open_task
from edgevit.errors import DataError
from edgevit.records.model import TargetClass

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)
PREPARED = PreparedImages((3, 4, 5), MEAN, STD)
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
LABELS = [0, 1, 2, 0, 1, 2]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def written(data: Any) -> Any:
    return write_images(data, PREPARED, function="edgevit.derive")


def pixels(folder: Path) -> dict[str, set[bytes]]:
    """The bytes of the images in each class folder."""
    return {
        place.name: {np.asarray(Image.open(file)).tobytes() for file in place.iterdir()} for place in folder.iterdir()
    }


EXPECTED = {str(label): {PIXELS[i].tobytes() for i in range(6) if LABELS[i] == label} for label in range(3)}


def loader(**options: Any) -> DataLoader[Any]:
    tensors = torch.tensor(PIXELS).permute(0, 3, 1, 2).float() / 255
    normalised = (tensors - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
    return DataLoader(TensorDataset(normalised, torch.tensor(LABELS)), batch_size=4, **options)


def test_all_forms_of_the_same_images_are_the_same_folder_with_every_byte() -> None:
    forms = [(PIXELS, LABELS), [(Image.fromarray(p), n) for p, n in zip(PIXELS, LABELS, strict=True)], loader()]
    results = [written(form) for form in forms]
    assert len({result.folder for result in results}) == 1 and pixels(results[0].folder) == EXPECTED
    assert [result.resized for result in results] == [False, False, True]
    assert results[0].class_names == ("0", "1", "2")
    assert written(loader(shuffle=True)).folder == results[0].folder


def test_images_without_labels_are_of_one_class() -> None:
    class Pictures(Dataset[Any]):
        def __len__(self) -> int:
            return len(PIXELS)

        def __getitem__(self, i: int) -> Image.Image:
            return Image.fromarray(PIXELS[i])

    tensors = TensorDataset(*loader().dataset.tensors[:1])  # type: ignore[attr-defined]
    forms = [PIXELS, (PIXELS, LABELS), Pictures(), loader(), DataLoader(tensors, batch_size=4)]
    results = [write_images(form, PREPARED, function="edgevit.derive", labelled=False) for form in forms]
    assert len({result.folder for result in results}) == 1 and len(list(results[0].folder.rglob("*.png"))) == 6
    with pytest.raises(TypeError, match=r"edgevit\.derive takes"):
        written(PIXELS)


def test_numbers_of_many_classes_sort_as_numbers() -> None:
    result = written((PIXELS, [0, 2, 10, 9, 1, 3]))
    assert sorted(place.name for place in result.folder.iterdir()) == ["00", "01", "02", "03", "09", "10"]
    assert result.class_names == tuple(f"{i:02}" for i in range(11))


def test_the_names_of_a_data_set_are_those_of_its_classes() -> None:
    named = loader()
    named.dataset.classes = ["ant", "bee", "cat"]  # type: ignore[attr-defined]
    result = written(named)
    assert result.class_names == ("ant", "bee", "cat") and {p.name for p in result.folder.iterdir()} == {
        *["ant", "bee", "cat"]
    }


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (object(), TypeError, "takes as data a folder, .*; it was given a object"),
        ((PIXELS.astype(float), LABELS), DataError, r"float64 and shape \[6, 4, 5, 3\] with 6 labels, expected bytes"),
        ((PIXELS, LABELS[:5]), DataError, "with 5 labels, expected bytes"),
        ((PIXELS, [-1] * 6), DataError, "expected classes from 0 on"),
        ([(torch.zeros(3, 4, 4), 0)], TypeError, "a data set of PIL images and labels, and its images are Tensor"),
        ([], DataError, "has no images"),
        (DataLoader(TensorDataset(torch.zeros(2, 3, 4, 5))), TypeError, r"batches \(images, labels\)"),
        (
            DataLoader(TensorDataset(torch.full((2, 3, 4, 5), 200.0), torch.zeros(2, dtype=torch.long))),
            DataError,
            "expected 0 to 1: the loader normalises otherwise",
        ),
        (
            DataLoader(TensorDataset(torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.long))),
            DataError,
            r"loader given to edgevit\.derive has images of 3x4x4, and the network reads 3x4x5: resize them",
        ),
    ],
)  # fmt: skip
def test_other_data_is_refused(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        written(data)


def test_targets_of_a_loader_are_files_beside_its_images() -> None:
    images = loader().dataset.tensors[0]  # type: ignore[attr-defined]
    targets = torch.rand(6, 4, 5, generator=torch.Generator().manual_seed(0))
    forms = [targets, targets[:, None]]
    loaders = [DataLoader(TensorDataset(images, form), batch_size=4) for form in forms]
    first, second = (write_targets(form, PREPARED, function="edgevit.evaluate").folder for form in loaders)
    assert first == second and len(list(first.rglob("*.*"))) == 12
    for i, pixels in enumerate(PIXELS):
        assert np.array_equal(np.asarray(Image.open(first / "images" / f"{i:06}.png")), pixels)
        assert np.array_equal(np.load(first / "masks" / f"{i:06}.npy"), targets[i])
    others = DataLoader(TensorDataset(images, targets + 1), batch_size=4)
    assert write_targets(others, PREPARED, function="edgevit.evaluate").folder != first
    for data, error, message in (
        ((PIXELS, LABELS), TypeError, r"give a DataLoader of batches .*; it was given a tuple"),
        (DataLoader(TensorDataset(images)), TypeError, "a batch is a list of 1 tensors"),
        (loader(), DataError, r"they are \[4, 3, 4, 5\] and \[4\]"),
    ):
        with pytest.raises(error, match=message):
            write_targets(data, PREPARED, function="edgevit.evaluate")


def test_a_task_without_images_has_its_classes_and_empty_parts() -> None:
    preprocessing = {"input_size": [3, 8, 8], "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}
    task = without_images([TargetClass("7", 4), TargetClass("3", 9)], preprocessing)
    assert (task.class_names, task.base_columns, task.has_images) == (["7", "3"], [4, 9], False)
    assert [list(part.batches(4)) for part in (task.train, task.validation, task.test)] == [[], [], []]
    assert task.train.source.references("train", "7") == []
    seen = open_task("digits", "3,7", preprocessing={**preprocessing, "crop_pct": 1.0}, base_outputs=10)
    assert seen.has_images and seen.fingerprint() != task.fingerprint()
