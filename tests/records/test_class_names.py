"""One spelling for every class name."""

from __future__ import annotations

import os

from edgevit.errors import CheckpointError
from edgevit.records.class_names import class_name
from edgevit.records.documents import Reader
from edgevit.records.model import TargetClass


def test_names_that_look_alike_are_equal_and_others_are_not() -> None:
    for composed, apart in (("Kn\u00f6chel", "Kno\u0308chel"), ("\uac00", "\u1100\u1161"), ("\u1ed7", "o\u0302\u0303")):
        assert class_name(apart) == class_name(composed) == composed
    assert class_name("\ufb01sh") != class_name("fish"), "a ligature is another spelling"


def test_bytes_that_the_locale_could_not_decode_are_utf8_or_stay() -> None:
    assert class_name("".join(chr(0xDC00 + byte) for byte in "\u00f6".encode())) == "\u00f6"
    assert class_name(latin := os.fsdecode(b"\xf6")) == latin


def test_a_record_is_read_with_its_names_in_one_spelling() -> None:
    text = '{"name": "o\u0308", "base_index": 0}'
    assert Reader(CheckpointError, "").parse(text, TargetClass, "model.json") == TargetClass("\u00f6", 0)
