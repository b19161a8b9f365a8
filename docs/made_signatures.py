"""Write edgevit/__init__.pyi: the public functions with every option by name, for editors and type checkers.

    python docs/made_signatures.py

The signatures are those that `takes_options` makes from the requests when the package runs. A whole request may be
given in place of the options, so every option has a default here.
"""

from __future__ import annotations

import re
from inspect import Parameter, Signature, getdoc, signature
from pathlib import Path
from typing import Any, get_type_hints

import edgevit

FILE = Path(__file__).parents[1] / "edgevit" / "__init__.pyi"
HEAD = '''"""Made by docs/made_signatures.py from the requests of edgevit; do not edit."""

from typing import TYPE_CHECKING, Any, Literal, Optional, Union

if TYPE_CHECKING:  # so that mypy checks the modules before their package, which they are in a cycle with
'''
_CLASS = re.compile(r"\b((?:[a-z_]\w*\.)+)([A-Z]\w*)")  # edgevit.progress.Progress


def signatures() -> str:
    """The text of the file."""
    imports, functions = set[str](), list[str]()
    for name in sorted(set(edgevit.__all__) - {"__version__"}):
        value = getattr(edgevit, name)
        if not hasattr(value, "__wrapped__"):
            imports.add(f"from {value.__module__} import {name} as {name}\n")
            continue
        text = _function(name, value).replace("pathlib._local.", "pathlib.")  # as Python 3.13 calls its module
        for module, used in _CLASS.findall(text):
            again = f" as {used}" if used in edgevit.__all__ else ""  # as a stub exports a name
            imports.add(f"from {module.rstrip('.')} import {used}{again}\n")
        functions.append(_CLASS.sub(r"\2", text))
    lines = "".join(f"    {line}" for line in sorted(imports))
    return f"{HEAD}{lines}\n__version__: str\n\n{''.join(functions)}"


def _function(name: str, function: Any) -> str:
    types = get_type_hints(function.__wrapped__)
    own = signature(function)
    parameters = [_parameter(item, types.get(item.name, item.annotation)) for item in own.parameters.values()]
    stars = [item.kind is Parameter.KEYWORD_ONLY for item in own.parameters.values()].index(True)
    lines = "".join(f"    {text},\n" for text in (*parameters[:stars], "*", *parameters[stars:]))
    result = Signature(return_annotation=types["return"])
    summary = str(getdoc(function)).partition("\n")[0]
    return f'def {name}(\n{lines}){str(result).removeprefix("()")}:\n    """{summary}"""\n\n'


def _parameter(item: Parameter, kind: Any) -> str:
    """A parameter without its default, unless that is a plain value."""
    plain = isinstance(item.default, (bool, int, float, str, type(None)))
    text = str(item.replace(annotation=kind, default=Parameter.empty, kind=Parameter.KEYWORD_ONLY))
    return f"{text} = {item.default!r}" if plain else f"{text} = ..."


if __name__ == "__main__":
    FILE.write_text(signatures())
