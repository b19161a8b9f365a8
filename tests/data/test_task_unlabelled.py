"""Images of no known class: found at any depth, never those that are held out, read as the rest are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from small_tasks import PREPROCESSING

from edgevit.data.task import UNLABELLED, Task, open_task, open_unlabelled_task, reopen, with_labels
from edgevit.errors import DataError


@pytest.fixture
def data(tmp_path: Path, image_folder: Callable[..., Path]) -> Path:
    return image_folder(tmp_path / "data", {"cat": 10, "dog": 10})


def task_of(data: str | Path, unlabelled: str | Path, outputs: int = 2, **options: Any) -> Task:
    return open_task(data, None, preprocessing=PREPROCESSING, base_outputs=outputs, unlabelled=unlabelled, **options)


def paint(file: Path, shade: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20 + shade, 16), (shade, 0, 0)).save(file)
    return file


def test_images_are_found_flat_and_nested(data: Path, tmp_path: Path) -> None:
    files = [paint(tmp_path / "more" / name, i) for i, name in enumerate(["a.png", "b.jpg", "deep/er/c.png"])]
    more = task_of(data, tmp_path / "more").unlabelled
    assert more is not None and set(more.references) == set(map(str, files))
    assert more.labels == (UNLABELLED,) * 3
    images, labels = next(more.batches(3))
    assert images.shape == (3, 3, 32, 32) and labels.tolist() == [-1] * 3


def test_unlabelled_images_fill_up_those_of_the_training_part(data: Path, tmp_path: Path) -> None:
    for i in range(6):
        paint(tmp_path / "more" / f"{i}.png", i)
    task = task_of(data, tmp_path / "more")
    train = task.train.references
    assert task.unlabelled is not None and task.calibration(4) == task.train.subset(4)
    filled = task.calibration(len(train) + 2)
    assert filled.references[:-2] == train and set(filled.references[-2:]) < set(task.unlabelled.references)
    assert filled.labels[-2:] == (UNLABELLED,) * 2 and len(task.calibration(1000)) == len(train) + 6
    same = task_of(data, data)
    assert same.calibration(1000).references == same.train.references, "none twice"
    digits = open_task("digits", "3,7", preprocessing=PREPROCESSING, base_outputs=10, unlabelled="digits")
    assert digits.calibration(10**6) == digits.train, "not of a source without files"


def test_images_that_are_held_out_are_not_trained_on_not_even_copies(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "copies" / "all")
    for place in (data, tmp_path / "copies"):
        task = task_of(data, place)
        assert task.unlabelled is not None

        def content(references: Any) -> set[bytes]:
            return {Path(r).read_bytes() for r in references}

        assert content(task.unlabelled.references) == content(task.train.references)


def test_the_other_classes_of_digits_serve_as_unlabelled_images() -> None:
    task = open_task("digits", "3,7", preprocessing=PREPROCESSING, base_outputs=10, unlabelled="digits")
    assert task.unlabelled is not None
    held = {*task.validation.references, *task.test.references}
    assert held.isdisjoint(task.unlabelled.references) and set(task.train.references) < set(task.unlabelled.references)
    assert len(task.unlabelled) == 1797 - len(held)


def test_nothing_to_train_on_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    with pytest.raises(DataError, match="empty holds no images; give a folder that has some"):
        task_of(data, tmp_path / "empty")
    with pytest.raises(
        DataError, match=r"unlabelled images: .*missing does not exist; expected a folder that has images"
    ):
        task_of(data, tmp_path / "missing")
    held = task_of(data, data).test.references
    (tmp_path / "held").mkdir()
    for i, reference in enumerate(held):
        shutil.copy(str(reference), tmp_path / "held" / f"{i}.png")
    with pytest.raises(DataError, match="all 4 unlabelled images are held out for validation or test"):
        task_of(data, tmp_path / "held")


def test_a_file_that_is_no_image_is_refused_or_skipped(data: Path, tmp_path: Path) -> None:
    paint(tmp_path / "more" / "good.png", 3)
    (tmp_path / "more" / "notes.doc").write_text("not an image")
    with pytest.raises(DataError, match=r"cannot read .*notes\.doc: not an image; .* --skip-bad-images"):
        task_of(data, tmp_path / "more")
    task = task_of(data, tmp_path / "more", skip_bad_images=True)
    assert task.skipped == 1 and task.unlabelled is not None and len(task.unlabelled) == 1
    (tmp_path / "more" / "good.png").unlink()
    with pytest.raises(DataError, match=r"none of the 1 unlabelled images in .*more can be read"):
        task_of(data, tmp_path / "more", skip_bad_images=True)


def test_the_record_tells_one_set_from_another_and_parts_stay_as_they_are(data: Path, tmp_path: Path) -> None:
    paint(tmp_path / "more" / "a.png", 1)
    one = task_of(data, tmp_path / "more").record()
    paint(tmp_path / "more" / "b.png", 2)
    two = task_of(data, tmp_path / "more").record()
    plain = open_task(data, None, preprocessing=PREPROCESSING, base_outputs=2).record()
    assert one.unlabelled.images == 1 and plain.unlabelled is None
    assert one.unlabelled.fingerprint != two.unlabelled.fingerprint
    assert one.fingerprint == two.fingerprint == plain.fingerprint


def test_a_relative_path_gives_the_names_and_the_split_of_the_absolute_one(
    tmp_path: Path, image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = image_folder(tmp_path / "photos", {"cat": 30, "dog": 30})
    options: dict[str, Any] = {"preprocessing": PREPROCESSING, "outputs": 1}
    expected = open_unlabelled_task(data, **options)
    for folder, given in ((tmp_path, "photos"), (data, ".")):
        monkeypatch.chdir(folder)
        task = open_unlabelled_task(given, **options)
        assert task.fingerprint() == expected.fingerprint() == reopen(task.record(), PREPROCESSING).fingerprint()
        assert with_labels(task).test.labels == tuple("/dog/" in str(file) for file in expected.test.references)


def test_class_folders_are_split_class_by_class_where_probes_will_read_them(
    tmp_path: Path, image_folder: Callable[..., Path]
) -> None:
    data = image_folder(tmp_path / "photos", {"cat": 40, "dog": 3})
    options: dict[str, Any] = {"preprocessing": PREPROCESSING, "outputs": 1}
    with pytest.raises(DataError, match=r"part of .*photos, split without labels, has no image of class 'dog'; add"):
        with_labels(open_unlabelled_task(data, **options))
    task = open_unlabelled_task(data, by_class=True, **options)
    classes = open_task(data, None, preprocessing=PREPROCESSING, base_outputs=2)
    for part in ("train", "validation", "test"):
        assert task.part(part).references == classes.part(part).references and {*task.part(part).labels} == {UNLABELLED}
        assert with_labels(task).part(part).labels == classes.part(part).labels
    assert not task.classes and reopen(task.record(), PREPROCESSING).fingerprint() == task.fingerprint()
