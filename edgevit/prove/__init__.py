"""What an Orin's owner runs once and sends back: how networks of many shapes run there, without data or weights.

`suite` says which networks, and which question each is there for; `run` builds and measures them, question by question,
each in turns with the dense network; `record` is the file that comes of it; `published` what others found on such
boards; `answers` what the figures say.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """This package is also the public function `edgevit.prove(...)`: see docs/decisions/002-callable-packages.md."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from edgevit.prove.run import prove

        return prove(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
