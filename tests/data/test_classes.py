"""Which classes are meant, and which output of the base is which class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgevit.data.classes import TargetClass, base_order, imagenet_names, listed, resolve
from edgevit.errors import DataError, EdgeVitError, UnknownNameError

ANIMALS = ["ape", "bee", "cat", "dog", "eel"]


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("cat\ndog\n", ["cat", "dog"]),
        ("3, 1,4,\n", ["3", "1", "4"]),
        ("# pets\ncat  # the lazy one\n\n dog,eel\r\n", ["cat", "dog", "eel"]),
        ("\ufeffcat\ndog", ["cat", "dog"]),
        ("great white shark\nbald eagle\n", ["great white shark", "bald eagle"]),
    ],
)
def test_a_file_lists_classes_by_line_or_by_comma(tmp_path: Path, text: str, entries: list[str]) -> None:
    file = tmp_path / "classes.txt"
    file.write_text(text, encoding="utf-8")
    assert listed(file) == listed(str(file)) == entries


def test_classes_may_be_given_as_text_or_as_a_list() -> None:
    assert listed("cat, 3 ,dog") == ["cat", "3", "dog"]
    assert listed(["cat", 3]) == ["cat", "3"]
    assert listed(None) is None
    long = [str(i) for i in range(1000)]
    assert listed(",".join(long)) == long  # longer than any file name


@pytest.mark.parametrize("content", [b"", b"# nothing\n,,\n", b"\xff\xfe\x00c"], ids=["empty", "comments", "no text"])
def test_a_file_without_classes_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.txt").write_bytes(content)
    with pytest.raises(DataError, match=r"c\.txt") as refusal:
        listed(tmp_path / "c.txt")
    assert "\n" not in str(refusal.value)


def test_a_missing_file_is_not_taken_for_a_class(tmp_path: Path) -> None:
    for missing in ("nowhere.txt", str(tmp_path / "nowhere.csv"), Path("nowhere")):
        with pytest.raises(DataError, match="no class file at"):
            listed(missing)


def test_names_and_indices_find_the_same_classes_in_the_order_given() -> None:
    order = base_order(ANIMALS, None, 5)
    assert resolve(["dog", "1"], ANIMALS, order) == (TargetClass("dog", 3), TargetClass("bee", 1))
    assert [t.name for t in resolve(None, ANIMALS, order)] == ANIMALS


def test_the_bases_own_order_counts_where_it_is_given() -> None:
    order = base_order(["cat", "dog"], ["zebra", "dog", "yak", "cat"], 4)
    assert resolve(None, ["cat", "dog"], order) == (TargetClass("cat", 3), TargetClass("dog", 1))
    assert resolve(["1", "3"], ["cat", "dog"], order) == (TargetClass("dog", 1), TargetClass("cat", 3))
    with pytest.raises(DataError, match="2 base class names for a base of 4 outputs"):
        base_order(["cat"], ["cat", "dog"], 4)


def test_a_name_that_is_a_number_is_a_name_first() -> None:
    order = base_order(["7", "8", "9"], ["9", "8", "7"], 3)
    assert resolve(["7", "9"], ["7", "8", "9"], order) == (TargetClass("7", 2), TargetClass("9", 0))


def test_a_few_synset_folders_find_their_place_in_imagenet() -> None:
    folders = ["n01440764", "n01882714", "n02123045"]
    order = base_order(folders, None, 1000)
    expected = (TargetClass("n01440764", 0), TargetClass("n01882714", 105), TargetClass("n02123045", 281))
    assert resolve(None, folders, order) == expected
    assert resolve(["tench", "281", "koala"], folders, order) == (expected[0], expected[2], expected[1])


def test_all_of_imagenet_is_in_its_usual_order() -> None:
    known = imagenet_names(1000)
    synsets = [name for name in known if name.startswith(("n0", "n1"))]
    assert len(synsets) == 1000 and synsets == sorted(synsets)
    assert base_order(synsets, None, 1000)["n02123045"] == 281
    assert "crane" not in known, "two classes are called so"
    assert imagenet_names(10) == {}


def test_an_order_that_cannot_be_known_is_asked_for() -> None:
    with pytest.raises(DataError, match=r"3 classes and the base 5 outputs.*--base-classes FILE"):
        base_order(["cat", "dog", "eel"], None, 5)
    with pytest.raises(DataError, match="--base-classes"):
        base_order(["cat", "dog", "n01440764"], None, 1000)


@pytest.mark.parametrize(
    ("entries", "error", "said"),
    [
        (["cat", "dgo"], UnknownNameError, "no class 'dgo'; did you mean 'dog'"),
        (["cat", "zzz"], UnknownNameError, "known: ape, bee"),
        (["cat", "7"], DataError, "no class with index 7: .* are 0 to 4"),
        (["cat", "dog", "cat"], DataError, "'cat' is listed twice"),
        (["cat", "2"], DataError, "'cat' is listed twice"),
        (["cat"], DataError, "1 target class: a classifier needs two"),
        ([], DataError, "0 target class"),
    ],
)
def test_a_wrong_list_says_what_is_wrong(entries: list[str], error: type[EdgeVitError], said: str) -> None:
    with pytest.raises(error, match=said):
        resolve(entries, ANIMALS, base_order(ANIMALS, None, 5))


def test_a_class_of_the_base_without_images_says_so() -> None:
    order: Any = base_order(["cat", "dog"], ["ape", "cat", "dog"], 3)
    with pytest.raises(DataError, match="'ape' has no images in the data"):
        resolve(["cat", "ape"], ["cat", "dog"], order)
    with pytest.raises(DataError, match=r"no class with index 0: .* are 1 to 2"):
        resolve(["cat", "0"], ["cat", "dog"], order)
