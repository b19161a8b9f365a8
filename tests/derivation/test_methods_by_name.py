"""Methods by name."""

from __future__ import annotations

import pytest

from edgevit.derivation.methods import baseline_names, load_method, method_module, method_names
from edgevit.errors import UnknownNameError


def test_a_method_is_a_file_or_a_folder_with_a_file_of_that_name() -> None:
    assert method_names() == ["forge", "heart", "nuwa", "skd", "vulcan", *baseline_names()]
    assert "wanda" in baseline_names() and "common" not in baseline_names()
    for name in method_names():
        assert load_method(name).__name__ == method_module(name)


def test_an_unknown_method_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="no method 'vulcanus'; did you mean 'vulcan'"):
        load_method("vulcanus")
