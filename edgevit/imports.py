"""Import torch and what comes with it in less processor time.

Importing makes millions of objects that live as long as the program. Python's collector looks through all of them again
and again meanwhile: 0.6 of 4.3 seconds.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_MANY_MODULES = 100  # torch alone has ten times as many


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage while the block imports, and never look through what it imported.

    What is there when the block ends stays until the program does; so this is for programs, and does nothing in one
    that has imported it all before. At its end all is let go: libraries complain of what they have not got back, as
    nanobind does of triton's functions.
    """
    before, collected = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) - before > _MANY_MODULES:
            gc.freeze()
            atexit.register(gc.unfreeze)
        if collected:
            gc.enable()
