"""From a base, target classes and a budget to a slim model: statistics, plan, training (some methods), surgery.

To add a method, add `methods/<name>.py`, or a folder with `method.py` in it where it has files of its own;
`methods/__init__.py` says what it defines. What methods share: `measure/`, what images say of a network; `algebra/`,
closed forms on weights; `allocate/`, how a budget is spent; and `edgevit/train/`.
"""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from edgevit.errors import UnknownNameError


def method_names() -> list[str]:
    from edgevit.derive import methods

    return sorted(module.name for module in pkgutil.iter_modules(methods.__path__))


def method_module(name: str) -> str:
    """Where a method is: `methods/<name>.py`, or `methods/<name>/method.py` where it has files of its own."""
    from edgevit.derive import methods

    is_folder = {module.name: module.ispkg for module in pkgutil.iter_modules(methods.__path__)}
    return f"edgevit.derive.methods.{name}{'.method' if is_folder[name] else ''}"


def load_method(name: str) -> ModuleType:
    """Import a method.

    Raises:
        UnknownNameError: there is no such file.
    """
    if name not in method_names():
        raise UnknownNameError("method", name, method_names())
    return import_module(method_module(name))


class _Callable(ModuleType):
    """This package is also the public function `edgevit.derive(...)`: see docs/decisions/002-callable-packages.md."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from edgevit.derive.session import derive

        return derive(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
