"""Copies of networks, free of what training and observing left behind."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn


def bare_copy(model: nn.Module, shared: Sequence[nn.Module] = ()) -> nn.Module:
    """Copy a model without its hooks and without a `forward` put on the instance, sharing some of its modules.

    Both would go on calling the original: hooks observe it, and accelerate's mixed precision replaces `forward`.
    """
    return _bare(copy.deepcopy(model, {id(module): module for module in shared}), shared)


def shape_copy(model: nn.Module) -> nn.Module:
    """A bare copy on the meta device, of sizes and types: no value is copied first."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.to("meta")
    return _bare(copy.deepcopy(model, memo))


def _bare(copied: nn.Module, shared: Sequence[nn.Module] = ()) -> nn.Module:
    kept = {id(module) for module in shared}
    for module in copied.modules():
        if id(module) not in kept:
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()
            for name in ("forward", "_original_forward"):
                vars(module).pop(name, None)
    return copied
