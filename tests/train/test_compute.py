"""What one of several processes computes; the processes themselves are in derive/measure and derive/test_session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from edgevit.data.task import open_task
from edgevit.errors import OptionError
from edgevit.train.compute import Compute, open_compute
from edgevit.train.settings import Training

CPU = torch.device("cpu")
PREPROCESSING = {
    "input_size": (3, 32, 32), "interpolation": "bicubic", "crop_pct": 1.0, "mean": (0.5,) * 3, "std": (0.5,) * 3,
}  # fmt: skip


@dataclass
class Place:
    """Where a process stands among how many."""

    process_index: int
    num_processes: int
    device: torch.device = CPU


def test_shares_are_the_whole_and_rows_go_with_their_images() -> None:
    images = open_task("digits", "1,7", preprocessing=PREPROCESSING, base_outputs=10).train.subset(7)
    table = torch.arange(7)
    seen = {}
    for rank in range(3):
        compute = Compute(Place(rank, 3), workers=0)
        seen |= dict(zip(compute.share(images).references, compute.share_rows(table).tolist(), strict=True))
    assert seen == dict(zip(images.references, range(7), strict=True))


def test_one_process_adds_nothing_up() -> None:
    compute, value = open_compute(Training(device="cpu")), torch.rand(3, dtype=torch.float64)
    assert torch.equal(compute.sum(value), value) and torch.equal(compute.mean(value), value)
    assert compute.is_main and compute.device.type == "cpu"


def test_processes_on_the_cpu_meet_where_a_machine_has_a_gpu_for_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    monkeypatch.setattr(torch._C, "_get_accelerator", lambda: torch.device("cuda"))
    try:
        with pytest.raises((RuntimeError, AssertionError), match=r"(?i)cuda|nvidia"):  # what accelerate does
            torch.distributed.barrier(device_ids=[99])
        Compute(Place(0, 2), workers=0).wait()
    finally:
        torch.distributed.destroy_process_group()


def test_a_batch_that_does_not_divide_is_refused_with_one_that_does() -> None:
    with pytest.raises(OptionError, match=r"batch size 10 does not divide into 4 micro-batches .*; make it a multiple"):
        open_compute(Training(device="cpu", batch_size=10, grad_accum=4))
