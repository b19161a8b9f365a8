"""From a base, target classes and a budget to a slim model: statistics, plan, training (some methods), surgery.

To add a method, add `methods/<name>.py`; `methods/__init__.py` says what it defines. What methods share lies beside
them, once: budget, shape, statistics, allocation, factorise, collapse, rank, train, surgery.
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


def load_method(name: str) -> ModuleType:
    """Import `methods/<name>.py`.

    Raises:
        UnknownNameError: there is no such file.
    """
    if name not in method_names():
        raise UnknownNameError("method", name, method_names())
    return import_module(f"edgevit.derive.methods.{name}")


class _Callable(ModuleType):
    """This package is also the public function `edgevit.derive(...)`: see docs/decisions/002-callable-packages.md."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from edgevit.derive.pipeline import derive

        return derive(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
