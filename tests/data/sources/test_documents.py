"""Folders and tables of texts, and what is neither."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_bert import WORDS, some_texts, write_texts

from edgevit.data.sources import class_names, documents, open_source
from edgevit.errors import DataError


def test_a_folder_of_class_folders_of_texts(tmp_path: Path) -> None:
    source = open_source(write_texts(tmp_path / "texts", 3))
    assert isinstance(source, documents.Documents)
    assert list(source.class_names) == list(WORDS) == list(class_names(tmp_path / "texts"))
    assert source.parts == ("train",) and not source.files
    references = source.references("train", "music")
    assert references == [f"music/00{i}.txt" for i in range(3)]
    assert [source.read(reference) for reference in references] == some_texts("music", 3)


def test_parts_named_as_those_of_20_newsgroups_and_files_without_a_suffix(tmp_path: Path) -> None:
    for part, text in (("train", "caf\xe9"), ("test", "th\xe9")):
        folder = tmp_path / f"20news-bydate-{part}" / "rec.autos"
        folder.mkdir(parents=True)
        (folder / "102994").write_bytes(text.encode("latin-1"))
    source = open_source(tmp_path)
    assert source.parts == ("train", "test") and list(source.class_names) == ["rec.autos"]
    (reference,) = source.references("test", "rec.autos")
    assert source.read(reference) == "th\xe9" and source.read(reference).tobytes() == "th\xe9".encode()
    assert source.references("test", "another") == []


def test_a_table_of_texts(tmp_path: Path) -> None:
    table = tmp_path / "texts.csv"
    table.write_text('label,text\nspace,"the moon, and\nits orbit"\ncooking,salt\nspace,comet\n')
    source = open_source(table)
    assert list(source.class_names) == ["cooking", "space"]
    assert [source.read(r) for r in source.references("train", "space")] == ["the moon, and\nits orbit", "comet"]
    table.write_text("label,text\n,salt\n")
    with pytest.raises(DataError, match="line 2, lacks a text or a label"):
        open_source(table)


def test_images_are_left_to_other_sources(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    images = image_folder(tmp_path / "images", {"cat": 2, "dog": 2})
    assert not documents.matches(str(images))
    (images / "cat" / "0.txt").write_text("an annotation")
    (images / "dog" / "2").write_bytes((images / "dog" / "0.png").read_bytes())
    assert not documents.matches(str(images)) and not documents.matches(str(tmp_path / "nothing"))
    table = tmp_path / "labels.csv"
    table.write_text("file_name,label\nimages/cat/0.png,cat\n")
    assert not documents.matches(str(table))


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 2)
    (folder / "space" / "notes.docx").write_bytes(b"PK\0")
    with pytest.raises(DataError, match=r"notes.docx is no text"):
        open_source(folder)
    with pytest.raises(DataError, match="no training texts"):
        documents.Documents({}, "texts")
    only = documents.Documents({"train": {"a": {"0": "x"}}, "validation": {"a": {"1": "y"}}}, "texts")
    assert only.parts == ("train", "test"), "as of images"
