"""Text from outside shows what it holds and does nothing to a terminal."""

import pytest

from edgevit.text import printable, printable_values, shortened


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\r\nb\tc", "a\\x0d\\x0ab\\x09c"),
        ("a\x00\x7f\x9bb", "a\\x00\\x7f\\x9bb"),
        ("\u202eabc\u2069\u200f\u061c", "\\u202eabc\\u2069\\u200f\\u061c"),
        ("a\u2028b\u2029c", "a\\u2028b\\u2029c"),
        ("\ud800", "\\ud800"),
        ("größe ● 图像 [/b] :smile: \U0001f600", "größe ● 图像 [/b] :smile: \U0001f600"),
    ],
)
def test_a_control_character_is_shown_by_its_number(text, shown):
    assert printable(text) == shown


def test_lines_are_kept_where_they_are_asked_for():
    assert printable("a\n\tb\r", keep="\n\t") == "a\n\tb\\x0d"


def test_every_text_of_an_answer_is_printable_and_a_traceback_has_its_lines():
    answer = {"a\x1b": ["\u202e", {"traceback": "one\n  two\x1b", "message": "one\ntwo"}], "n": [1, 2.5, None, True]}
    assert printable_values(answer) == {
        "a\\x1b": ["\\u202e", {"traceback": "one\n  two\\x1b", "message": "one\\x0atwo"}],
        "n": [1, 2.5, None, True],
    }


def test_a_long_text_lacks_its_middle():
    assert shortened("short") == "short"
    assert shortened("a" * 100 + "z" * 100, 20) == "aaaaaaaaaaa...zzzzzz"
    assert len(shortened("a" * 10**6)) == 80
