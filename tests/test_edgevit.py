"""The public names of the package: all there, and nothing heavy until one is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import edgevit


@pytest.mark.parametrize("name", edgevit.__all__)
def test_every_public_name_is_there(name: str) -> None:
    found = getattr(edgevit, name)
    assert found if name == "__version__" else callable(found)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, edgevit; print([m for m in ('torch', 'timm', 'numpy', 'onnx') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'edgevit' has no attribute 'prune'"):
        _ = edgevit.prune
