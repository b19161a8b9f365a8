"""A budget in milliseconds, millijoules or images per second, met by measuring: allocate, build, measure, correct.

`rounds` says what measurements mean for the table and the next limit, and when to stop; `loop` goes round; `workshop`
makes plans into models, and the base beside them; `in_turns` measures them against it; `run` is the whole of it, and
`request` what is asked.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """This package is also the public function `edgevit.meet(...)`: see docs/decisions/002-callable-packages.md."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from edgevit.meet.run import meet

        return meet(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
