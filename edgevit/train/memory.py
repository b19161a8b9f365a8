"""How much memory there is, and how much a training step needs at least."""

from __future__ import annotations

import os
from contextlib import suppress
from math import prod
from pathlib import Path

import torch

from edgevit.errors import OptionError
from edgevit.network.network import Network
from edgevit.records.precisions import FP32
from edgevit.train.compute import Compute
from edgevit.train.settings import Training

_GIB = 2**30


def memory_bytes(device: torch.device, root: Path = Path("/")) -> int:
    """Return the total memory of the device, or of the machine or its container."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no such file, or the word "max"
        return min(machine, int((root / "sys/fs/cgroup/memory.max").read_text()))
    return machine


def least_image_bytes(network: Network, *, halves: bool = False) -> int:
    """Count the bytes that a forward pass at least keeps of one image for gradients: the image and inputs of layers.

    Per token and block of width d these are input and output of the norm of each site (2 d each), queries, keys, values
    and the output of attention (in each head twice the QK and the VO width), and input and output of the activation.

    Args:
        halves: whether products have 16 bits.
    """
    values = 0
    for block in network.geometry.placed(network.dims):
        dims = block.dims
        values += 2 * block.tokens * (len(dims.sites) * block.stage.embed + sum(map(dims.features, dims.sites)))
    return 4 * prod(network.input_size) + (2 if halves else 4) * values


def refuse_large_batch(network: Network, training: Training, compute: Compute) -> None:
    """Refuse a micro-batch that cannot fit the memory, before the system kills the process.

    Raises:
        OptionError: it needs more memory than there is.
    """
    image, room = least_image_bytes(network, halves=training.precision != FP32.name), memory_bytes(compute.device)
    processes = compute.accelerator.num_processes
    whole = training.batch // processes
    least = image * (whole // training.grad_accum)
    if least <= room:
        return
    device = "this machine" if compute.device.type == "cpu" else compute.device
    fitting = [n for n in range(training.grad_accum, whole + 1) if whole % n == 0 and 2 * image * (whole // n) <= room]
    hint = f"try --grad-accum {fitting[0]}, which gives the same steps" if fitting else "try a smaller --batch-size"
    raise OptionError(
        f"{whole // training.grad_accum} images at once hold at least {least / _GIB:.1f} GiB, and {device} has "
        f"{room / _GIB:.1f} GiB; {hint}"
    )
