"""Which classes are meant, and which output of the base is which class."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from edgevit.data.classes import base_list, base_order, imagenet_names, listed, resolve
from edgevit.errors import DataError, EdgeVitError, UnknownNameError
from edgevit.records.model import TargetClass

ANIMALS = ["ape", "bee", "cat", "dog", "eel"]


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("cat\ndog\n", ["cat", "dog"]),
        ("3, 1,4,\n", ["3", "1", "4"]),
        ("# pets\ncat  # the lazy one\n\n dog,eel\r\n", ["cat", "dog", "eel"]),
        ("\ufeffcat\ndog", ["cat", "dog"]),
        ("great white shark\nbald eagle\n", ["great white shark", "bald eagle"]),
        ("C#\nF\n", ["C#", "F"]),
        ("C# # the language\n\t# nothing\nF#,G  #b\n", ["C#", "F#", "G"]),
        ('"crane, bird"\n"crane, machine" , C  # "two", all in all\n', ["crane, bird", "crane, machine", "C"]),
        ('"C #1",C\n"say ""moo"""\n5" pipe\n', ["C #1", "C", 'say "moo"', '5" pipe']),
    ],
)
def test_a_file_lists_classes_by_line_or_by_comma(tmp_path: Path, text: str, entries: list[str]) -> None:
    file = tmp_path / "classes.txt"
    file.write_text(text, encoding="utf-8")
    assert listed(file) == listed(str(file)) == entries


def test_a_line_that_is_a_known_name_is_that_name(tmp_path: Path) -> None:
    file = tmp_path / "classes.txt"
    file.write_text("crane, bird\ncrane, machine  # of steel\nC #1\ncat, dog\n")
    known = ["crane, bird", "crane, machine", "C #1", "cat", "dog"]
    assert listed(file, known) == known
    assert listed("crane, bird", known) == ["crane, bird"]


def test_classes_may_be_given_as_text_or_as_a_list() -> None:
    assert listed('C#, "crane, bird",F') == ["C#", "crane, bird", "F"]
    assert listed("a #b,#c") == ["a #b", "#c"], "a comment is of a file"
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


def test_a_class_file_that_is_a_pipe_or_far_too_long_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/zero"):
        with pytest.raises(DataError, match=f"^{path} is a pipe or a device; expected a text file of classes"):
            listed(path)
    with (tmp_path / "long.txt").open("wb") as file:
        file.truncate(10**9)
    with pytest.raises(DataError, match=r"long\.txt has more than 17 MB; expected plain text, one class per line"):
        listed(tmp_path / "long.txt")


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


def test_a_part_of_a_name_with_a_comma_is_told_how_the_whole_is_given() -> None:
    order = {"cat": 0, "crane, bird": 1, "eel": 2}
    with pytest.raises(DataError, match=r"""^no class 'crane'; put a name that holds a comma .* '"crane, bird"'$"""):
        resolve(listed("cat,crane, bird"), list(order), order)
    assert len(resolve(listed('cat,"crane, bird"'), list(order), order)) == 2


def test_a_base_list_of_one_name_per_line_may_hold_commas(tmp_path: Path) -> None:
    file = tmp_path / "base.txt"
    file.write_text("tench, Tinca tinca  # a fish\n\ngoldfish, Carassius auratus\n'crane', bird\n")
    assert base_list(file, (), 3) == ["tench, Tinca tinca", "goldfish, Carassius auratus", "'crane', bird"]
    file.write_text("cat, dog\neel\n")
    assert base_list(str(file), (), 3) == ["cat", "dog", "eel"]
    file.write_text('"crane, bird", cat\neel\n')
    assert base_list(file, (), 3) == ["crane, bird", "cat", "eel"]
    assert base_list(["a", "b"], (), 2) == ["a", "b"] and base_list(None, (), 2) is None


@pytest.mark.parametrize("outputs", [4, 1000])
def test_a_name_twice_among_the_bases_is_refused(outputs: int) -> None:
    names = [f"class {i}" for i in range(outputs)]
    names[1] = names[3] = "crane"
    with pytest.raises(DataError, match=r"give 'crane' to outputs 1 and 3,.*rename all but one.*'crane 2'") as refusal:
        base_order(["crane", "class 0"], names, outputs)
    assert "\n" not in str(refusal.value)


def test_a_name_that_is_a_number_is_a_name_first() -> None:
    order = base_order(["7", "8", "9"], ["9", "8", "7"], 3)
    assert resolve(["7", "9"], ["7", "8", "9"], order) == (TargetClass("7", 2), TargetClass("9", 0))


def test_where_names_are_numbers_an_index_is_refused() -> None:
    folders = ["1", "10", "2", "7"]
    order = base_order(folders, None, 4)
    assert [t.base_index for t in resolve(["2", "7"], folders, order)] == [2, 3]
    with pytest.raises(
        DataError, match=r"no class is named 0, .* numbers \(1, 10, 2, 7\) indices are not taken; give names alone"
    ):
        resolve(["0", "2"], folders, order)
    base = base_order(["a", "b"], ["a", "17", "b"], 3)
    with pytest.raises(DataError, match=r"no class is named 2, .* numbers \(17\) indices"):
        resolve(["a", "2"], ["a", "b"], base)


@pytest.mark.parametrize("names", [ANIMALS, ["1", "10", "2"]])
def test_an_index_of_thousands_of_digits_is_one_short_line(names: list[str]) -> None:
    with pytest.raises(DataError, match="of 5000 digits") as refusal:
        resolve([names[0], "9" * 5000], names, base_order(names, None, len(names)))
    assert len(str(refusal.value)) < 200


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
    with pytest.raises(
        DataError, match=r"3 classes \('cat', 'dog', 'eel'\) and the base 5 outputs.*--base-classes FILE"
    ):
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
