"""How much memory there is, and how much a training step needs at least."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from edgevit.errors import OptionError
from edgevit.network.dense import DenseFamily
from edgevit.network.detector import Pyramid
from edgevit.network.network import Network
from edgevit.progress import Progress
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


def measured_image_bytes(network: Network, compute: Compute, images: int, *, learns_objects: bool = False) -> int:
    """Measure the bytes that a forward pass keeps for gradients of each of several images, on the device.

    This also counts a head of the user's. Of a detector it is the pyramid, and what reads whole levels if it
    `learns_objects`; the boxes that its other parts then read are not known before.

    Args:
        images: of a micro-batch; of one, all that the pass keeps, and of more, what it keeps of the second.
    """
    module = network.module
    run = module.before_boxes if learns_objects and isinstance(module, Pyramid) else network
    kept = [_kept_bytes(network, run, compute, count) for count in range(1, min(images, 2) + 1)]
    return kept[0] if len(kept) == 1 else kept[1] - kept[0]


def _kept_bytes(network: Network, run: Callable[[Tensor], object], compute: Compute, images: int) -> int:
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
    kept: dict[int, int] = {}

    def see(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = torch.zeros(images, *network.input_size, device=compute.device)
    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor), compute.accelerator.autocast():
        outputs = run(batch)  # while they live, what is kept for them does, so that no address is used twice
    del outputs
    return sum(kept.values())


def fitting(
    network: Network, training: Training, compute: Compute, progress: Progress, *, learns_objects: bool = False
) -> Training:
    """Divide each step into more micro-batches, with a note, where one cannot fit the memory: it gives the same steps.

    Raises:
        OptionError: no image fits.
    """
    room, processes = memory_bytes(compute.device), compute.accelerator.num_processes
    whole = training.batch // processes
    at_once = whole // training.grad_accum
    if isinstance(network.family, DenseFamily):
        image = measured_image_bytes(network, compute, at_once, learns_objects=learns_objects)
    else:
        image = least_image_bytes(network, halves=training.precision != FP32.name)
    least = image * at_once
    if least <= room:
        return training
    device = "this machine" if compute.device.type == "cpu" else compute.device
    fault = f"{at_once} images at once hold at least {least / _GIB:.1f} GiB, and {device} has {room / _GIB:.1f} GiB"
    parts = [n for n in range(training.grad_accum, whole + 1) if whole % n == 0 and 2 * image * (whole // n) <= room]
    if not parts:
        raise OptionError(f"{fault}; give images of fewer pixels, or a machine with more memory")
    progress.note(f"{fault}: a step is of {parts[0]} micro-batches, which gives the same steps")
    return replace(training, grad_accum=parts[0])
