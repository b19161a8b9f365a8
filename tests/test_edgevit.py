"""The public names of the package: all there, and nothing heavy until one is used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import pytest
from made_signatures import FILE, signatures

import edgevit
from edgevit.request import options_of


@pytest.mark.parametrize("name", edgevit.__all__)
def test_every_public_name_is_there(name: str) -> None:
    found = getattr(edgevit, name)
    assert found if name == "__version__" else callable(found)


def test_completion_shows_the_public_names_and_signatures_the_options() -> None:
    assert dir(edgevit) == sorted(edgevit.__all__)
    requests = {"bench_in_turns": "Bench", "derive_many": "DeriveMany"}
    for name in edgevit.__all__:
        function = getattr(edgevit, name)
        if not name.islower() or name in ("load", "__version__"):
            continue
        request = getattr(edgevit, f"{requests.get(name, name.capitalize())}Request")
        parameters = signature(function).parameters
        missing = {one.field for one in options_of(request) if one.field not in parameters}
        assert not missing and Parameter.VAR_KEYWORD not in {one.kind for one in parameters.values()}, name
    rate = signature(edgevit.derive).parameters["rate"]
    assert rate.default is None and rate.annotation == float | str | None


def test_type_checkers_see_the_signatures() -> None:
    """tests/shared/typed_calls.py shows that mypy refuses a wrong one."""
    assert FILE.read_text() == signatures(), "run `python docs/made_signatures.py`"


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, edgevit; print([m for m in ('torch', 'timm', 'numpy', 'onnx') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'edgevit' has no attribute 'prune'"):
        _ = edgevit.prune


@pytest.mark.parametrize("function", [edgevit.derive, edgevit.export, edgevit.evaluate, edgevit.bench])
def test_what_is_neither_a_path_nor_a_name_is_a_type_error(function: Callable[..., object]) -> None:
    with pytest.raises(
        TypeError,
        match=rf"edgevit\.{function.__name__} takes a path( or|,) a timm name( or a module)?, not set",
    ):
        function({"not a path"}, **({"out": "model"} if function is edgevit.derive else {}))


@pytest.mark.parametrize("folder", [None, ["runs/t1"]])
def test_a_model_is_loaded_from_one_path(folder: Any) -> None:
    with pytest.raises(TypeError, match=r"edgevit\.load takes the path of a model folder, not (NoneType|list)"):
        edgevit.load(folder)
