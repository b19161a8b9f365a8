"""The package `edgevit.export` is also the public function."""

from __future__ import annotations

import pytest

import edgevit
from edgevit.errors import CheckpointError


def test_the_package_is_the_public_function() -> None:
    with pytest.raises(CheckpointError, match="nowhere does not exist"):
        edgevit.export("nowhere", accuracy=False)
