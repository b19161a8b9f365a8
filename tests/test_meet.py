"""`edgevit.meet` is a package that can be called."""

from __future__ import annotations

import pytest

import edgevit
from edgevit.errors import OptionError


def test_the_package_is_the_public_function() -> None:
    with pytest.raises(OptionError, match=r"edgevit\.meet has no option 'mss'; did you mean 'ms'\?"):
        edgevit.meet("vit_tiny_patch16_224", mss=5, out="out")
