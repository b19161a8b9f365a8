"""Tasks: three parts that never mix, timm's own preprocessing, augmentation by seed alone, and opening again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from recorded_progress import RecordedProgress
from small_tasks import PREPROCESSING, task_of

from edgevit.data.sources import open_source
from edgevit.data.task import VARIANTS, Split, Task, open_task, reopen
from edgevit.errors import DataError, OptionError
from edgevit.records.derivation import DataRecord

Make = Callable[[Path, dict[str, int]], Path]


def images_of(split: Split, label: int) -> set[Any]:
    return {r for r, at in zip(split.references, split.labels, strict=True) if at == label}


@pytest.fixture
def both(tmp_path: Path, image_folder: Make) -> Path:
    image_folder(tmp_path / "train", {"cat": 20, "dog": 10, "eel": 10})
    image_folder(tmp_path / "val", {"cat": 4, "dog": 3, "eel": 3})
    return tmp_path


def test_validation_is_held_out_of_train_and_val_is_untouched(both: Path) -> None:
    task = task_of(both, "dog,cat", 3)
    assert task.class_names == ["dog", "cat"] and task.base_columns == [1, 0]
    assert (len(task.train), len(task.validation), len(task.test)) == (9 + 18, 1 + 2, 3 + 4)
    for label, name in enumerate(task.class_names):
        train, held, test = (images_of(split, label) for split in (task.train, task.validation, task.test))
        assert not train & held
        assert train | held == {str(f) for f in (both / "train" / name).iterdir()}
        assert test == {str(f) for f in (both / "val" / name).iterdir()}


def test_one_folder_is_split_into_three_that_are_disjoint(tmp_path: Path, image_folder: Make) -> None:
    image_folder(tmp_path, {"cat": 50, "dog": 10})
    task = task_of(tmp_path, None, 2)
    for label, count in enumerate((50, 10)):
        parts = [images_of(split, label) for split in (task.train, task.validation, task.test)]
        assert sum(map(len, parts)) == len(set.union(*parts)) == count
        assert len(parts[2]) == round((count - 1) * 0.2) and len(parts[1]) == round((count - len(parts[2])) * 0.1)


def test_a_split_is_stable_under_other_classes_and_changes_with_the_seed() -> None:
    few, many, other = task_of("digits", "3,5"), task_of("digits", None), task_of("digits", "3,5", seed=7)
    for split in ("train", "validation", "test"):
        assert images_of(getattr(few, split), 0) == images_of(getattr(many, split), 3)
        assert images_of(getattr(few, split), 0) != images_of(getattr(other, split), 0)
    assert task_of("digits", "3,5").fingerprint() == few.fingerprint() != other.fingerprint()


def test_folders_of_synsets_are_found_in_imagenet(tmp_path: Path, image_folder: Make) -> None:
    image_folder(tmp_path, {"n01440764": 5, "n01882714": 5, "n02123045": 5})
    task = task_of(tmp_path, "tench,281", 1000)
    assert [(c.name, c.base_index) for c in task.classes] == [("n01440764", 0), ("n02123045", 281)]


def test_names_with_a_hash_or_a_comma_are_given_in_files(tmp_path: Path, image_folder: Make) -> None:
    folders = ["C", "C#", "F", "crane, bird"]
    image_folder(tmp_path / "data", dict.fromkeys(folders, 5))
    classes, base = tmp_path / "classes.txt", tmp_path / "base.txt"
    classes.write_text("C#  # the language\ncrane, bird\nF\n")
    assert task_of(tmp_path / "data", classes, 4).class_names == ["C#", "crane, bird", "F"]
    base.write_text('# in the order of the outputs\nF\ncrane, bird\nC#\n"a, b"\nC\n')
    task = task_of(tmp_path / "data", str(classes), 5, base_names=base)
    assert task.class_names == ["C#", "crane, bird", "F"] and task.base_columns == [2, 1, 0]
    again = reopened(task.record())
    assert again.classes == task.classes
    base.write_text("F\ncrane, bird\nC#\nF\nC\n")
    with pytest.raises(DataError, match="give 'F' to outputs 0 and 3"):
        task_of(tmp_path / "data", None, 5, base_names=base)


def test_subsets_are_spread_over_the_classes_and_shares_cover_everything() -> None:
    train = task_of("digits", "3,5,8").train
    few = train.subset(9)
    assert len(few) == 9 and all(2 <= few.labels.count(label) <= 4 for label in range(3))
    assert train.subset(10**6) is train
    shares = [train.part(i, 2) for i in range(2)]
    assert sorted(r for s in shares for r in s.references) == sorted(train.references)


def test_varied_copies_follow_their_image_and_depend_on_their_place_alone() -> None:
    train = task_of("digits", "3,5").train.subset(4)
    varied = train.with_variants(11)
    assert [len([r for r in varied.references if r == image]) for image in train.references] == [2, 3, 3, 3]
    originals = [i for i in range(11) if varied.name(i)[1] is None]
    assert [varied.references[i] for i in originals] == [*train.references], "an image comes before its copies"
    ((images, labels),), ((again, _),) = varied.batches(11), varied.batches(11)
    ((plain, _),) = train.batches(4)
    assert torch.equal(images, again) and torch.equal(images[originals], plain)
    assert labels.tolist() == [varied.labels[i] for i in range(11)]
    assert len({image.numpy().tobytes() for image in images}) == 11, "no copy is another or its image"
    assert varied.content_sha256() != train.with_variants(10).content_sha256() != train.content_sha256()
    assert [varied.part(1, 2).name(i) for i in range(5)] == [varied.name(i) for i in range(1, 11, 2)]


def test_an_image_has_few_varied_copies_and_texts_have_none() -> None:
    train = task_of("digits", "3,5").train.subset(4)
    assert len(train.with_variants(1000)) == 4 * (1 + VARIANTS)
    assert train.with_variants(4) is train and train.with_variants(3) is train
    texts = replace(train, preprocessing={**PREPROCESSING, "tokenizer": {}})
    assert texts.with_variants(1000) is texts


# -- opening again -----------------------------------------------------------------------------------------------------


def reopened(record: DataRecord) -> Task:
    return reopen(record, PREPROCESSING)


@pytest.mark.parametrize("seed", [42, 3])
def test_a_task_opened_again_is_the_same(both: Path, seed: int) -> None:
    task = task_of(both, "eel,cat", 3, seed=seed, validation_fraction=0.3)
    again = reopened(task.record())
    assert again.classes == task.classes and again.fingerprint() == task.fingerprint()
    for split in ("train", "validation", "test"):
        assert getattr(again, split).references == getattr(task, split).references
    assert again.record() == task.record()


def test_digits_and_a_named_base_open_again() -> None:
    task = task_of("digits", "3,5", base_names=[str(9 - i) for i in range(10)])
    assert task.base_columns == [6, 4]
    assert reopened(task.record()).base_columns == [6, 4]


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "val" / "cat" / "0.png").unlink(),
        lambda root: (root / "train" / "cat" / "0.png").rename(root / "train" / "cat" / "00.png"),
        lambda root: Image.new("RGB", (9, 9)).save(root / "train" / "dog" / "3.png"),
        lambda root: Image.new("RGB", (9, 9)).save(root / "train" / "dog" / "new.png"),
    ],
    ids=["gone", "renamed", "other content", "one more"],
)
def test_changed_images_are_not_taken_for_the_same(both: Path, change: Callable[[Path], Any]) -> None:
    record = task_of(both, "dog,cat", 3).record()
    change(both)
    with pytest.raises(DataError, match="are not those the model was derived from; give others with --data"):
        reopened(record)


def test_other_images_of_the_same_names_and_sizes_are_others(tmp_path: Path) -> None:
    for part, count in (("train", 4), ("val", 2)):
        for name, shade in (("cat", 10), ("dog", 200)):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (8, 8), (shade, i, 0)).save(tmp_path / part / name / f"{i}.bmp")
    before = task_of(tmp_path, None, 2)
    record, content = before.record(), before.content_sha256()
    for part in ("train", "val"):
        (tmp_path / part / "cat").rename(tmp_path / part / "old")
        (tmp_path / part / "dog").rename(tmp_path / part / "cat")
        (tmp_path / part / "old").rename(tmp_path / part / "dog")
    after = task_of(tmp_path, None, 2)
    assert after.fingerprint() == before.fingerprint() and after.content_sha256() != content
    for check in (("test",), ("validation",)):
        with pytest.raises(DataError, match=f"the {check[0]} images in .* have the names and sizes of those .* --data"):
            reopen(record, PREPROCESSING, check=check)
    reopen(replace(record, contents={}), PREPROCESSING)  # an older edgevit knew names and sizes alone


def test_groups_that_the_data_has_in_two_parts_are_told_of(both: Path) -> None:
    told = RecordedProgress()
    task_of(both, "cat,dog", 3, progress=told, group_by=r"^\d")  # 0.png of train/cat and of val/cat are one group
    (warning,) = [text for text in told.warnings if "groups" in text]
    assert " groups of the test part are in the training part, too, such as 0: " in warning
    for part, prefix in (("train", "a"), ("val", "b")):
        for file in (both / part).glob("*/*.png"):
            file.rename(file.with_name(f"{prefix}{file.name}"))
    apart = RecordedProgress()
    task_of(both, "cat,dog", 3, progress=apart, group_by=r"^.\d")
    assert not [text for text in apart.warnings if "groups" in text]


def test_test_images_that_are_training_images_are_counted(both: Path) -> None:
    for i in range(2):
        shutil.copy(both / "train" / "cat" / f"{i}.png", both / "val" / "cat" / f"{i}.png")
    told = RecordedProgress()
    record = task_of(both, "cat,dog", 3, progress=told, validation_fraction=0.001).record()
    assert record.copies == {"validation": 0, "test": 2}
    assert [text for text in told.warnings if "byte for byte" in text] == [
        f"2 of 7 test images are in the training part, too, byte for byte, such as {both}/val/cat/0.png: accuracy on "
        "such images does not tell how new ones do; remove them from one part"
    ]
    alone = task_of(both, "cat,dog", 3, check=("test",), validation_fraction=0.001).record()
    assert alone.copies == {"test": 2} and alone.contents == {"test": record.contents["test"]}


def test_a_preprocessing_says_how_files_are_read(tmp_path: Path) -> None:
    exif, values = Image.Exif(), np.zeros((32, 32), np.uint16)
    exif[274], values[:16] = 6, 4095
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.fromarray(values).save(tmp_path / name / f"{i}.png", exif=exif)
    own = {**PREPROCESSING, "mean": (0, 0, 0), "std": (1, 1, 1), "crop_pct": 1.0}

    def corners(**reading: Any) -> list[float]:
        task = open_task(tmp_path, None, preprocessing={**own, **reading}, base_outputs=2)
        image = next(task.test.batches(1))[0][0, 0]
        assert np.asarray(task.test.picture(0)).shape == (32, 32, 3)
        return [round(float(image[y, x]), 2) for y, x in ((0, 0), (0, 31), (31, 0))]

    assert corners() == [0.06, 0.06, 0] and corners(value_range=4095) == [1, 1, 0]
    assert corners(value_range=4095, exif="apply") == [0, 1, 0]


def test_a_class_that_is_not_used_may_change(both: Path) -> None:
    record = task_of(both, "dog,cat", 3).record()
    (both / "val" / "eel" / "0.png").unlink()
    assert reopened(record).record() == record


# -- images that are not right -----------------------------------------------------------------------------------------


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])


def unlink(file: Path) -> None:
    """As where the disk that images lie on is not mounted."""
    file.unlink()
    file.symlink_to("nothing")


SPOILT: list[tuple[str, Callable[[Path], Any], str]] = [
    ("truncated", truncate, "truncated"),
    ("text", lambda f: f.write_text("hello"), "not an image"),
    ("empty", lambda f: f.write_bytes(b""), "not an image"),
    ("no format", lambda f: f.write_bytes(b"DDS \x7c" + bytes(123)), "Unknown pixel format"),  # a RuntimeError
    ("link", unlink, "No such file"),
]
spoilt = pytest.mark.parametrize(("spoil", "reason"), [s[1:] for s in SPOILT], ids=[s[0] for s in SPOILT])


@spoilt
def test_a_bad_image_is_named_before_the_work_starts(both: Path, spoil: Callable[[Path], Any], reason: str) -> None:
    bad = both / "train" / "cat" / "7.png"
    spoil(bad)
    with pytest.raises(DataError, match=reason) as refusal:
        task_of(both, "cat,dog", 3)
    assert str(bad) in str(refusal.value) and "--skip-bad-images" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert task_of(both, "dog,eel", 3).skipped == 0, "it is of another class"
    with pytest.raises(DataError, match=reason):
        open_source(both).read(str(bad))


@spoilt
def test_bad_images_are_left_out_and_counted_if_asked(both: Path, spoil: Callable[[Path], Any], reason: str) -> None:
    bad = [both / "train" / "cat" / "7.png", both / "val" / "dog" / "1.png"]
    for file in bad:
        spoil(file)
    task = task_of(both, "cat,dog", 3, skip_bad_images=True)
    everything = {r for split in (task.train, task.validation, task.test) for r in split.references}
    assert task.skipped == task.record().skipped_images == 2
    assert len(everything) == 20 + 10 + 4 + 3 - 2 and not everything & set(map(str, bad))
    assert reopened(task.record()).record() == task.record()


def test_an_image_that_is_a_link_to_nothing_by_now_has_changed(both: Path) -> None:
    record = task_of(both, "dog,cat", 3).record()
    unlink(both / "train" / "cat" / "7.png")
    with pytest.raises(DataError, match="are not those the model was derived from"):
        reopen(record, PREPROCESSING, check=("test",))


def test_the_first_few_that_are_left_out_are_named_alike_however_the_folder_is_given(
    both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(5):
        truncate(both / "train" / "cat" / f"{i}.png")
    told = RecordedProgress()
    task_of(both, "cat,dog", 3, skip_bad_images=True, progress=told)
    first = ", ".join(str(both / "train" / "cat" / f"{i}.png") for i in range(3))
    assert told.warnings == [f"left out 5 images that cannot be read: {first} and 2 more"]
    monkeypatch.chdir(both.parent)
    task_of(Path(both.name), "cat,dog", 3, skip_bad_images=True, progress=told)
    assert told.warnings[1:] == told.warnings[:1]


def test_no_class_of_the_data_drops_out_because_the_base_does_not_name_it(both: Path) -> None:
    with pytest.raises(DataError, match=r"not name 1 class of the data: 'eel' \(did you mean 'els'\?\); .* --classes$"):
        task_of(both, None, base_names=["dog", "cat", "els"], outputs=3)
    assert task_of(both, "cat,dog", base_names=["dog", "cat", "els"], outputs=3).class_names == ["cat", "dog"]
    expected = r"none of the data's classes \('cat', 'dog', 'eel'\) is among the base's \('p', 'q'\); check the folder"
    with pytest.raises(DataError, match=expected):
        task_of(both, None, base_names=["p", "q"], outputs=2)


def test_a_class_that_only_the_test_part_has_and_annotations_are_reported(both: Path, image_folder: Make) -> None:
    image_folder(both, {"val/fox": 1})
    (both / "val" / "dog" / "0.xml").touch()
    told = RecordedProgress()
    task_of(both, None, 3, progress=told)
    assert told.warnings == [f"{both}/val/fox has no folder of the same class in {both}/train, and is not used"]
    assert told.notes == [f"passed over 1 annotation beside the images, such as {both}/val/dog/0.xml"]


def test_names_in_another_unicode_form_are_found_in_lists_and_records(tmp_path: Path, image_folder: Make) -> None:
    composed, apart = "Kn\u00f6chel", "Kno\u0308chel"
    image_folder(tmp_path / "data", {"Bein": 5, apart: 5, "Zeh": 5})
    file = tmp_path / "classes.txt"
    for given in (composed, apart):
        file.write_text(f"{given}\nBein\n", encoding="utf-8")
        for classes in (file, f"{given},Bein", [given, "Bein"]):
            task = task_of(tmp_path / "data", classes, 3, base_names=["Zeh", given, "Bein"])
            assert task.class_names == [composed, "Bein"] and task.base_columns == [1, 2]
    assert reopened(task.record()).classes == task.classes


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_what_is_no_file_is_a_bad_image_and_nobody_waits_for_it(both: Path, make: Callable[[Path], Any]) -> None:
    make(both / "train" / "cat" / "a.png")
    with pytest.raises(DataError, match=r"/a\.png: a pipe or a device, expected a file; remove"):
        task_of(both, "cat,dog", 3)
    assert task_of(both, "cat,dog", 3, skip_bad_images=True).skipped == 1


def test_a_truncated_jpeg_is_noticed(both: Path) -> None:
    file = both / "train" / "cat" / "7.jpg"
    Image.effect_noise((200, 200), 50).save(file)
    truncate(file)
    with pytest.raises(DataError, match=r"7\.jpg.*truncated"):
        task_of(both, "cat,dog", 3)


def test_a_class_that_loses_all_images_is_an_error(both: Path) -> None:
    for file in (both / "val" / "dog").iterdir():
        file.write_text("")
    with pytest.raises(DataError, match="no readable test images of class 'dog'"):
        task_of(both, "cat,dog", 3, skip_bad_images=True)


def test_odd_but_readable_images_are_read(both: Path) -> None:
    folder = both / "train" / "cat"
    Image.new("L", (5, 500)).save(folder / "grey.png")
    Image.new("P", (20, 20)).save(folder / "palette.gif")
    Image.new("RGBA", (20, 20)).save(folder / "alpha.png")
    Image.new("CMYK", (20, 20)).save(folder / "print.jpg")
    Image.new("I;16", (20, 20)).save(folder / "deep.png")
    (folder / ".hidden").write_text("no image, and not looked at")
    Image.new("1", (14000, 7000)).save(folder / "large.png")  # half of what Pillow refuses, of which it warns
    (folder / "more").mkdir()
    Image.new("1", (1, 1)).save(folder / "more" / "tiny.png")
    task = task_of(both, "cat,dog", 3)
    assert len(images_of(task.train, 0)) + len(images_of(task.validation, 0)) == 20 + 7
    assert sum(len(images) for images, _ in task.train.batches(8)) == len(task.train)


# -- folders that are not right ----------------------------------------------------------------------------------------


def test_too_few_images_are_counted(tmp_path: Path, image_folder: Make) -> None:
    image_folder(tmp_path / "a", {"cat": 5, "dog": 2})
    with pytest.raises(DataError, match="'dog' has 2 training images; it needs 3 or more to train on: add some"):
        task_of(tmp_path / "a", None, 2)
    image_folder(tmp_path / "b" / "train", {"cat": 5, "dog": 5})
    image_folder(tmp_path / "b" / "val", {"cat": 5})
    with pytest.raises(DataError, match=r"'dog' has no folder in .*val"):
        task_of(tmp_path / "b", None, 2)
    (tmp_path / "b" / "val" / "dog").mkdir()
    with pytest.raises(
        DataError, match="5 training images, 0 test images; it needs 2 or more to train on, and 1 or more of"
    ):
        task_of(tmp_path / "b", None, 2)


def test_a_validation_part_of_the_data_is_taken_as_it_is(tmp_path: Path, image_folder: Make) -> None:
    for part, count in (("train", 1), ("val", 4), ("test", 2)):
        image_folder(tmp_path / part, {"cat": count, "dog": count})
    task = task_of(tmp_path, None, 2, validation_fraction=0.5)
    assert [len(split) for split in (task.train, task.validation, task.test)] == [2, 8, 4]
    assert {Path(str(r)).parent.parent.name for r in task.validation.references} == {"val"}
    shutil.rmtree(tmp_path / "val" / "dog")
    (tmp_path / "val" / "dog").mkdir()
    with pytest.raises(DataError, match="1 training image, 0 validation images, 2 test images; it needs 1 or more"):
        task_of(tmp_path, None, 2)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_a_validation_fraction_outside_0_and_1_is_refused(fraction: float) -> None:
    with pytest.raises(OptionError, match=r"not between 0 and 1; try 0\.1"):
        task_of("digits", "3,5", validation_fraction=fraction)


@pytest.mark.parametrize("fraction", [1e-9, 0.5, 1 - 1e-9])
def test_every_part_keeps_an_image_of_every_class(tmp_path: Path, image_folder: Make, fraction: float) -> None:
    image_folder(tmp_path, {"cat": 3, "dog": 3})
    task = task_of(tmp_path, None, 2, validation_fraction=fraction)
    assert [len(s) for s in (task.train, task.validation, task.test)] == [2, 2, 2]


def test_names_that_are_no_utf8_are_those_of_images_and_not_of_classes(tmp_path: Path, image_folder: Make) -> None:
    image_folder(tmp_path / "i", {"cat": 5, "dog": 5})
    for name in ("cat", "dog"):
        file = next((tmp_path / "i" / name).iterdir())
        file.rename(file.with_name(os.fsdecode(b"\xe9.png")))
    assert len(task_of(tmp_path / "i", outputs=2).record().fingerprint) == 64
    (tmp_path / "i" / "dog").rename(tmp_path / "i" / os.fsdecode(b"d\xe9"))
    with pytest.raises(DataError, match=r"the name of the folder b'd\\xe9' in .* is no UTF-8; rename it"):
        task_of(tmp_path / "i", outputs=2)
