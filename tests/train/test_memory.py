"""A batch that cannot fit is refused before the system ends the process for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from teaching import Bench
from torch import Tensor, nn

from edgevit.errors import OptionError
from edgevit.network.anatomy import Block
from edgevit.train import memory
from edgevit.train.memory import least_image_bytes, memory_bytes


def kept_bytes(network: nn.Module, images: Tensor) -> int:
    """What autograd keeps of a forward pass, besides weights."""
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
    kept: dict[int, int] = {}

    def see(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
        network.train()(images).sum().backward()
    return sum(kept.values())


def test_it_is_no_more_than_what_autograd_keeps_and_most_of_it(small_vit: Callable[..., Any]) -> None:
    network, images = small_vit(img_size=224, patch_size=16), torch.randn(8, 3, 224, 224)
    ratio = kept_bytes(network, images) / (8 * least_image_bytes(network))
    assert 1 <= ratio < 1.5


def test_a_site_that_is_gone_holds_nothing(small_vit: Callable[..., Any]) -> None:
    network, images = small_vit(), torch.randn(8, 3, 32, 32)
    whole = least_image_bytes(network)
    first, second = network.read()[:2]
    cut = network.build([Block(first.attention, None), Block(None, second.ffn)])
    assert least_image_bytes(cut) < whole and 1 <= kept_bytes(cut, images) / (8 * least_image_bytes(cut)) < 1.5


def test_a_container_has_less_than_its_machine(tmp_path: Path) -> None:
    cpu, limit = torch.device("cpu"), tmp_path / "sys/fs/cgroup/memory.max"
    machine = memory_bytes(cpu, tmp_path)
    limit.parent.mkdir(parents=True)
    limit.write_text("max\n")
    assert memory_bytes(cpu, tmp_path) == machine
    limit.write_text(f"{2**20}\n")
    assert memory_bytes(cpu, tmp_path) == 2**20


def test_a_batch_that_cannot_fit_is_refused_with_what_fits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    network = bench.spoilt()
    room = 20 * least_image_bytes(network)
    monkeypatch.setattr(memory, "memory_bytes", lambda device: room)
    with pytest.raises(OptionError, match=r"32 images at once hold at least .*; try --grad-accum 4, "):
        bench.train(network, 1, training={"batch_size": 32})
    assert bench.train(network, 1, training={"batch_size": 32, "grad_accum": 4}).lines
    room = least_image_bytes(network) // 2
    with pytest.raises(OptionError, match="try a smaller --batch-size"):
        bench.train(network, 1, training={"batch_size": 32})
