"""The device and the processes that compute, through accelerate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from torch import Tensor

from edgevit.data.loading import workers_for
from edgevit.data.task import Split
from edgevit.errors import OptionError
from edgevit.network.device import find_device
from edgevit.records.precisions import FP16, FP32
from edgevit.train.settings import Training


@dataclass(frozen=True)
class Compute:
    """The device and the processes that compute, through accelerate."""

    accelerator: Accelerator
    workers: int  # number of processes that decode images

    @property
    def device(self) -> torch.device:
        device: torch.device = self.accelerator.device
        return device

    @property
    def is_main(self) -> bool:
        return bool(self.accelerator.is_main_process)

    def mean(self, value: Tensor) -> Tensor:
        """Average a tensor over the processes."""
        if self.accelerator.num_processes == 1:
            return value
        reduced: Tensor = self.accelerator.reduce(value, reduction="mean")
        return reduced

    def sum(self, value: Tensor) -> Tensor:
        """Sum a tensor over the processes."""
        if self.accelerator.num_processes == 1:
            return value
        reduced: Tensor = self.accelerator.reduce(value, reduction="sum")
        return reduced

    def share(self, split: Split) -> Split:
        """Select this process's share of the images."""
        count = self.accelerator.num_processes
        return split if count == 1 else split.part(self.accelerator.process_index, count)

    def share_rows(self, table: Tensor) -> Tensor:
        """Select the rows of this process's share from a table with a row per image."""
        return table[self.accelerator.process_index :: self.accelerator.num_processes]

    @contextmanager
    def accumulating(self, micro_batches: int) -> Iterator[None]:
        """Have so many micro-batches make a step of the optimiser within the block."""
        accelerator = self.accelerator
        accelerator.gradient_accumulation_steps, accelerator.step = micro_batches, 0
        try:
            yield
        finally:
            accelerator.gradient_accumulation_steps, accelerator.step = 1, 0

    def wait(self) -> None:
        """Wait for all processes."""
        if self.device.type == "cpu" and self.accelerator.num_processes > 1:
            torch.distributed.barrier()  # accelerate would use a GPU here, if the machine has one
        else:
            self.accelerator.wait_for_everyone()


def open_compute(training: Training) -> Compute:
    """Start accelerate for this device and precision.

    Raises:
        UnknownNameError: no such device.
        OptionError: the machine lacks the device, or the device the precision.
    """
    device = find_device(training.device)
    if device.type == "cpu" and training.precision == FP16.name:
        raise OptionError("fp16 trains on CUDA only; on the CPU try --precision bf16 or fp32")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    if not torch.distributed.is_initialized():
        # The state outlives an Accelerator, and a second derivation in one process may use another precision.
        AcceleratorState._reset_state(reset_partial_state=True)
    mixed = "no" if training.precision == FP32.name else training.precision
    accelerator = Accelerator(mixed_precision=mixed, cpu=device.type == "cpu")
    parts = training.grad_accum * accelerator.num_processes
    if training.batch % parts:
        raise OptionError(
            f"batch size {training.batch} does not divide into {training.grad_accum} micro-batches on "
            f"{accelerator.num_processes} processes; make it a multiple of {parts}"
        )
    sharing = accelerator.num_processes
    return Compute(accelerator, workers_for(training.workers, device.type, training.batch, sharing=sharing))


def close_compute() -> None:
    """Leave the process group, if there is one."""
    if torch.distributed.is_initialized():
        PartialState().destroy_process_group()
