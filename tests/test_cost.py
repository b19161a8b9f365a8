"""The package `edgevit.cost` is also the public function."""

import pytest

import edgevit
from edgevit.errors import OptionError


def test_the_package_is_the_public_function():
    with pytest.raises(OptionError, match="--batch 0 is not in"):
        edgevit.cost("deit_tiny_patch16_224", batch=0)
    with pytest.raises(OptionError, match="no option 'bord'; did you mean 'board'"):
        edgevit.cost("deit_tiny_patch16_224", bord="b")
