"""How a network is observed while images pass through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def observed(modules: Sequence[nn.Module], see: Callable[[int, Any, Tensor], None]) -> Iterator[None]:
    """Call `see(index, inputs, output)` after each forward pass of each module."""
    with ExitStack() as stack:
        for i, module in enumerate(modules):
            hook = module.register_forward_hook(lambda _, inputs, output, i=i: see(i, inputs, output))
            stack.callback(hook.remove)
        yield
