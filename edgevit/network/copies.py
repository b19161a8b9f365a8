"""Copies of networks without hooks, and networks without values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

# Functions that fill a tensor, and those that timm's truncated normal applies afterwards.
_FILLS = {
    *(Tensor.uniform_, Tensor.normal_, Tensor.fill_, Tensor.zero_, Tensor.erfinv_, Tensor.mul_, Tensor.add_),
    *(Tensor.clamp_, init.uniform_, init.normal_, init.constant_, init.kaiming_uniform_),
}
_DROPPED = ("_forward_hooks", "_forward_pre_hooks")
_ATOMIC = (bool, int, float, str, type(None), type)

AnyModule = TypeVar("AnyModule", bound=nn.Module)


class _SkipFills(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        filled = (args[0] if args else keywords.get("tensor")) if func in _FILLS else None
        return filled if filled is not None and filled.is_meta else func(*args, **keywords)


@contextmanager
def without_values() -> Iterator[None]:
    """Create networks on the meta device: their tensors have shapes and types, but no values.

    Their initialisation is skipped: it has no effect, and is slow Python code on this device.
    """
    with torch.device("meta"), _SkipFills():
        yield


def bare_copy(model: AnyModule, shared: Sequence[nn.Module] = ()) -> AnyModule:
    """Copy a model without hooks and without a `forward` of the instance, sharing some of its modules.

    Both would still call the original: hooks observe it, and accelerate's mixed precision replaces `forward`.
    """
    return _bare_copy(model, {id(module): module for module in shared})


def shape_copy(model: AnyModule) -> AnyModule:
    """A bare copy on the meta device, without copying values."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.to("meta")
    return _bare_copy(model, memo)


def _bare_copy(module: AnyModule, memo: dict[int, Any]) -> AnyModule:
    """Copy deeply, without the empty dictionaries of every module, on which `copy.deepcopy` spends most of its time."""
    if id(module) in memo:
        copied: AnyModule = memo[id(module)]
        return copied
    copied = memo[id(module)] = module.__class__.__new__(module.__class__)
    of_module: Any = module.__reduce_ex__(4)[2]  # its state; `Network` replaces its family by a name
    state: dict[str, Any] = {}
    for name, value in of_module.items():
        if name in _DROPPED:
            state[name] = type(value)() if isinstance(value, dict) else None
        elif name == "_modules":
            parts = ((key, None if part is None else _bare_copy(part, memo)) for key, part in value.items())
            state[name] = type(value)(parts)
        elif isinstance(value, _ATOMIC):
            state[name] = value
        elif isinstance(value, (dict, set)) and not value:
            state[name] = type(value)()
        else:
            state[name] = copy.deepcopy(value, memo)
    for name in ("forward", "_original_forward"):
        state.pop(name, None)
    copied.__setstate__(state)  # type: ignore[no-untyped-call]
    return copied
