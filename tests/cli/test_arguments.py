"""Words for what the command line takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgevit.cli.arguments import among, kind_name, page_line


def test_an_option_says_in_words_what_it_takes() -> None:
    assert [kind_name(kind) for kind in (bool, int, ("a", "b"))] == ["true or false", "a whole number", "a, b"]


def test_the_page_is_of_the_folder_around_a_model_but_not_of_all_that_lies_where_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (among(Path("runs/t1")), among(Path("t1"))) == (Path("runs"), Path("t1"))
    assert page_line(Path("my runs"), Path("a"), Path("a")) == "One page of it all: edgevit report 'my runs' a"
