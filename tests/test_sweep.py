"""The package `edgevit.sweep` is also the public function."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgevit
from edgevit.errors import OptionError


def test_the_package_is_the_public_function(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no rates"):
        edgevit.sweep("deit_tiny_patch16_224", data="digits", out=tmp_path / "s", rates=())
