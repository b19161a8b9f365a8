"""The package `edgevit.prove` is also the public function."""

from __future__ import annotations

import pytest

import edgevit
from edgevit.errors import UnknownNameError


def test_the_package_is_the_public_function() -> None:
    with pytest.raises(UnknownNameError, match="no size 'huge'"):
        edgevit.prove(sizes=("huge",))
