"""Which rate? Several derivations of one task in closed form, judged and measured side by side with the base.

`record` is what sweep.json says and which model it makes one choose; `run` does the work.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """This package is also the public function `edgevit.sweep(...)`: see docs/decisions/002-callable-packages.md."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from edgevit.sweep.run import sweep

        return sweep(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
