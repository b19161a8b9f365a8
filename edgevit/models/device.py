"""Where torch computes."""

from __future__ import annotations

import torch

from edgevit.errors import OptionError, UnknownNameError

DEVICES = ("auto", "cpu", "cuda", "mps")


def find_device(name: str) -> torch.device:
    """Find a device by name; `auto` takes what there is.

    Raises:
        UnknownNameError: no such device.
        OptionError: this machine has none.
    """
    kind, _, index = name.partition(":")
    if kind not in DEVICES or (index and not index.isdecimal()):
        raise UnknownNameError("device", name, DEVICES)
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind == "auto":
        return torch.device(next((other for other, there in available.items() if there), "cpu"))
    if not available.get(kind, True):
        raise OptionError(f"this machine has no {kind} device that torch can see; try --device cpu")
    return torch.device(name)
