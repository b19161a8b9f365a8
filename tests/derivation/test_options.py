"""What is read from a method's source is what the method is: every option, its type, its default, and a sentence."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import edgevit.derivation.session.supernet  # noqa: F401  # edgevit.derivation.session.supernet is a module, edgevit.supernet a function
from edgevit.derivation.methods import load_method, method_names
from edgevit.derivation.options import SUPERNET, describe, read_options
from edgevit.errors import UnknownNameError

OWNERS = [*method_names(), SUPERNET]


def config_of(owner: str) -> Any:
    return (sys.modules["edgevit.derivation.session.supernet"] if owner == SUPERNET else load_method(owner)).Config


@pytest.mark.parametrize("owner", OWNERS)
def test_the_source_says_what_the_class_has(owner: str) -> None:
    config = config_of(owner)
    hints, described = get_type_hints(config), describe(owner)
    assert [o.name for o in described.options] == [f.name for f in fields(config)]
    for option, field in zip(described.options, fields(config), strict=True):
        hint = hints[field.name]
        assert option.kind == (get_args(hint) if get_origin(hint) is Literal else hint), option
        if option.default != "1 / 3":  # as it is written
            assert option.convert(owner, option.default) == field.default, option


@pytest.mark.parametrize("owner", OWNERS)
def test_every_method_and_every_option_is_explained_by_a_sentence(owner: str) -> None:
    described = describe(owner)
    for text in (described.summary, *(option.explanation for option in described.options)):
        assert text.endswith(".") and text[0] in "`ABCDEFGHIJKLMNOPQRSTUVWXYZ" and len(text.split()) > 3, text


def test_an_option_is_read_without_its_method_being_imported() -> None:
    assert read_options("forge", {"drop_heads": "no", "calibration_images": "64", "cut_tokens": "never"}) == {
        "drop_heads": False,
        "calibration_images": 64,
        "cut_tokens": "never",
    }
    assert read_options("nuwa", {"ridge": "1e-3"}) == {"ridge": 1e-3}
    with pytest.raises(UnknownNameError, match="supernet has no option 'point'; did you mean 'points'"):
        read_options("supernet", {"point": 3})
    with pytest.raises(UnknownNameError, match=r"vulcan\.factorisation has no value 'token'; did you mean 'tokens'"):
        read_options("vulcan", {"factorisation": "token"})
