"""Packed images are unpacked once, and are the data that was packed."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parquet_files import png, records, written

from edgevit.data.sources import class_names, open_pictures, open_source, open_unlabelled
from edgevit.data.sources.folder import open_source as open_folder
from edgevit.data.task import open_task, reopen
from edgevit.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "edgevit" / "unpacked"


def packed(folder: Path, ending: str = "tar") -> Path:
    kinds = {"tar": "tar", "tar.gz": "gztar", "zip": "zip"}
    made = shutil.make_archive(str(folder.with_name("my photos")), kinds[ending], folder.parent, folder.name)
    return Path(made)


def images(source: Any) -> dict[tuple[str, str], list[bytes]]:
    return {
        (part, name): [np.asarray(source.read(r)).tobytes() for r in source.references(part, name)]
        for part in source.parts
        for name in source.class_names
    }


def flat(file: Path, **files: bytes | str) -> Path:
    """A tar of files whose names have a dot for two underscores."""
    with tarfile.open(file, "w") as archive:
        for name, content in files.items():
            content = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name.replace("__", "."))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "zip"])
def test_an_archive_is_the_folder_that_was_packed(tmp_path: Path, image_folder: Any, cache: Path, ending: str) -> None:
    image_folder(tmp_path / "photos" / "train", {"dog": 2, "cat": 3})
    image_folder(tmp_path / "photos" / "val", {"dog": 1, "cat": 1})
    file = packed(tmp_path / "photos", ending)
    assert tuple(class_names(file)) == ("cat", "dog")
    assert images(open_source(file)) == images(open_folder(str(tmp_path / "photos")))
    assert len(open_unlabelled(file)[1]) == 7 and set(open_pictures(file).parts) == {"train", "test"}
    (folder,) = cache.glob("[!.]*")
    os.utime(folder / "files" / "photos", (1, 1))
    open_source(file)
    assert (folder / "files" / "photos").stat().st_mtime == 1, "it is unpacked once"


def test_a_file_that_was_changed_is_unpacked_again(tmp_path: Path, image_folder: Any) -> None:
    file = packed(image_folder(tmp_path / "a" / "photos", {"dog": 1, "cat": 1}))
    assert tuple(class_names(file)) == ("cat", "dog")
    times = file.stat()
    changed = file.read_bytes().replace(b"dog", b"cow")
    with tarfile.open(file, "w") as archive:
        archive.add(image_folder(tmp_path / "b" / "photos", {"cow": 1, "cat": 1}), "photos")
    assert len(changed) == file.stat().st_size
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as `rsync --times` does
    assert tuple(class_names(file)) == ("cat", "cow")


def test_a_task_is_opened_again_from_the_path_that_its_record_states(
    tmp_path: Path, image_folder: Any, cache: Path
) -> None:
    file = packed(image_folder(tmp_path / "photos", {"dog": 6, "cat": 6}))
    preprocessing = {"input_size": [3, 8, 8], "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}
    preprocessing |= {"crop_pct": 1.0, "crop_mode": "center"}
    record = open_task(file, None, preprocessing=preprocessing, base_outputs=2).record()
    assert record.data == str(file)
    shutil.rmtree(cache)
    assert reopen(record, preprocessing).record() == record
    assert reopen(record, preprocessing).class_names == ["cat", "dog"]


def test_pairs_of_files_are_images_and_labels(tmp_path: Path) -> None:
    shard = {f"{i:04}__png": png(i) for i in range(12)} | {f"{i:04}__cls": f"{i % 11}\n" for i in range(12)}
    assert tuple(class_names(flat(tmp_path / "a.tar", **shard))) == tuple(f"{i:02}" for i in range(11))
    named = {"a__jpg": png(1), "a__json": json.dumps({"label": "dog"}), "b__jpg": png(2), "b__json": '{"label": "cat"}'}
    source = open_source(flat(tmp_path / "b.tar", **named))
    assert images(source) == {("train", "cat"): [bytes([2] * 192)], ("train", "dog"): [bytes([1] * 192)]}
    with pytest.raises(
        DataError, match=r"b.tar holds 'c.jpg' and no .cls or .json of this name with its label; add it"
    ):
        class_names(flat(tmp_path / "b.tar", **named, c__jpg=png(3)))


def nothing_remains(cache: Path) -> bool:
    return not [path for path in cache.iterdir() if path.is_dir()]


def test_an_archive_that_is_refused_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive:
        archive.writestr("cat/0.png", png(1))
        archive.writestr("./cat/0.png", png(2))
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        archive.writestr("cat", png(1))
        archive.writestr("cat/0.png", png(2))
    cut = flat(tmp_path / "cut.tar", a=png(1), b=png(2))
    cut.write_bytes(cut.read_bytes()[:1000])
    for name, message in (
        ("twice.zip", "holds 'cat/0.png' twice"),
        ("both.zip", "holds 'cat/0.png' twice, or as a file and a folder"),
        ("cut.tar", "cannot read"),
    ):
        with pytest.raises(DataError, match=message):
            class_names(tmp_path / name)
        assert nothing_remains(cache)


def test_what_is_larger_than_the_disk_or_than_images_are_is_refused(tmp_path: Path, cache: Path) -> None:
    sparse = tarfile.TarInfo("cat/0.png")
    sparse.size = 1 << 60
    (tmp_path / "huge.tar").write_bytes(sparse.tobuf(tarfile.GNU_FORMAT) + bytes(10240))
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w") as archive:
        archive.writestr("cat/0.png", "")
    data = bytearray((tmp_path / "bomb.zip").read_bytes())
    at = data.find(b"PK\x01\x02") + 24
    data[at : at + 4] = (1_100_000_000).to_bytes(4, "little")  # the size that the listing states
    (tmp_path / "bomb.zip").write_bytes(data)
    for name in ("huge.tar", "bomb.zip"):
        with pytest.raises(
            DataError, match=rf"{name} has 0.0 MB, and more than 1000.0 MB unpacked; .* MB free: if it is"
        ):
            class_names(tmp_path / name)
        assert nothing_remains(cache)


def test_errors_name_the_file_and_not_its_place_in_the_cache(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^/.*a.tar holds no class folders"):
        class_names(flat(tmp_path / "a.tar", a__png=png(1)))


def test_a_folder_of_parquet_files_has_their_parts_and_class_names(tmp_path: Path) -> None:
    names = ["t-shirt/top", "Bag", "ankle boot"]
    (tmp_path / "set" / "data").mkdir(parents=True)
    (tmp_path / "set" / "README.md").write_text("")
    for part, labels in (("train-00000-of-00002", [0, 1]), ("train-00001-of-00002", [2, 2]), ("test", [1, 0, 2])):
        greys = [10 * label + len(part) for label in labels]
        written(tmp_path / "set" / "data" / f"{part}.parquet", names, image=records(*greys), label=labels)
    source = open_source(tmp_path / "set")
    assert tuple(source.class_names) == tuple(names), "in the order of the labels"
    assert {key: len(of_class) for key, of_class in images(source).items()} == {
        **{("train", name): count for name, count in zip(names, (1, 1, 2), strict=True)},
        **{("test", name): 1 for name in names},
    }
    with pytest.raises(DataError, match="is one of 2 files of 'train'"):
        class_names(tmp_path / "set" / "data" / "train-00000-of-00002.parquet")


def test_a_parquet_file_without_labels_has_pictures(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", image=records(1, 2), text=["", ""])
    with pytest.raises(DataError, match=r"a.parquet has the columns 'image', 'text' and none for the class"):
        class_names(file)
    assert len(open_unlabelled(file)[1]) == 2


def test_parquet_files_in_a_folder_for_each_part_are_a_data_set(tmp_path: Path, image_folder: Any) -> None:
    for part in ("train", "test"):
        written(tmp_path / "set" / "default" / part / "0000.parquet", image=records(1, 2), label=["cat", "dog"])
    assert set(open_source(tmp_path / "set").parts) == {"train", "test"}
    image_folder(tmp_path / "set" / "default" / "cat", {"dog": 1})
    assert tuple(class_names(tmp_path / "set")) == ("default",), "a folder of other folders is none of Parquet files"


def test_a_parquet_file_among_images_makes_no_data_set_of_them(tmp_path: Path, image_folder: Any) -> None:
    folder = image_folder(tmp_path, {"cat": 2}) / "cat"
    (folder / "labels.parquet").touch()
    assert len(open_unlabelled(folder)[1]) == 3
