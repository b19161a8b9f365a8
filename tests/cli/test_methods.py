"""`edgevit methods`: which methods there are, and every option of one."""

from __future__ import annotations

import json
from typing import Any

from edgevit.derivation.methods import baseline_names, method_names
from edgevit.derivation.options import describe


def test_methods_are_listed_with_a_line_each(edgevit_main: Any) -> None:
    shown = edgevit_main("methods")
    assert (shown.code, shown.err) == (0, "")
    for name in method_names():
        assert name in shown.out and describe(name).summary[:40] in shown.out
    assert "edgevit methods METHOD" in shown.out
    told = json.loads(edgevit_main("methods", "--json").out)
    assert [entry["name"] for entry in told] == method_names()
    assert [entry["name"] for entry in told if entry["baseline"]] == baseline_names()
    own, _, baselines = shown.out.partition("Baselines")
    assert "forge" in own and "wanda" in baselines and "wanda" not in own


def test_a_method_shows_its_options_with_defaults_and_meanings(edgevit_main: Any) -> None:
    shown = edgevit_main("methods", "forge")
    for text in ("forge.cut_tokens", "never, tried, predicted", "true or false", "a whole number", "512"):
        assert text in shown.out, text
    told = json.loads(edgevit_main("methods", "supernet", "--json").out)
    points = next(option for option in told["options"] if option["name"] == "points")
    assert (points["default"], points["kind"]) == ("10", "a whole number") and points["explanation"].endswith(".")
    assert "did you mean 'forge'" in edgevit_main("methods", "forg").error
