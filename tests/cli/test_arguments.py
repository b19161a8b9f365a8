"""Words for what the command line takes."""

from __future__ import annotations

from edgevit.cli.arguments import kind_name


def test_an_option_says_in_words_what_it_takes() -> None:
    assert [kind_name(kind) for kind in (bool, int, ("a", "b"))] == ["true or false", "a whole number", "a, b"]
