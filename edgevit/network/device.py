"""Where torch computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgevit.errors import OptionError, UnknownNameError

if TYPE_CHECKING:
    import torch

_DEVICES = ("auto", "cpu", "cuda")


def check_device_name(name: str) -> None:
    """Refuse names that are no device on any machine, before torch is imported.

    Raises:
        UnknownNameError: no such device.
        OptionError: it cannot do what is asked of it.
    """
    kind, _, index = name.partition(":")
    if kind == "mps":
        raise OptionError(f"device {name}: Apple's GPUs have no float64, which edgevit solves in; try --device cpu")
    if kind not in _DEVICES or (index and not index.isdecimal()):
        raise UnknownNameError("device", name, _DEVICES)


def find_device(name: str) -> torch.device:
    """Find a device by name; `auto` takes a GPU if there is one.

    Raises:
        UnknownNameError: no such device.
        OptionError: this machine has none, or it cannot do what is asked of it.
    """
    import torch

    check_device_name(name)
    kind = name.partition(":")[0]
    available = torch.cuda.is_available()
    if kind == "auto":
        return torch.device("cuda" if available else "cpu")
    if kind == "cuda" and not available:
        raise OptionError(f"this machine has no {kind} device that torch can see; try --device cpu")
    return torch.device(name)
