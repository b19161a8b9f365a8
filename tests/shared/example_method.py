"""The method that the docstring of edgevit/derivation/methods has, as a file beside the others."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgevit.derivation import methods

EXAMPLE = "example"


def example() -> str:
    assert methods.__doc__ is not None
    indented = methods.__doc__.partition("A whole method")[2].partition("\n")[2].rpartition("\ntests/derivation/")[0]
    return textwrap.dedent(indented).strip("\n") + "\n"


@contextmanager
def with_the_example(folder: Path) -> Iterator[None]:
    """Let the methods be those of edgevit and the example, which is written to `folder`."""
    (folder / f"{EXAMPLE}.py").write_text(example())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "__path__", [*methods.__path__, str(folder)])
        yield
    sys.modules.pop(f"{methods.__name__}.{EXAMPLE}", None)
