"""A batch that cannot fit is divided before the system ends the process for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from detectors import write_detectors
from family_examples import SWIN
from teaching import Bench
from torch import Tensor, nn

from edgevit.errors import OptionError
from edgevit.network.anatomy import Block
from edgevit.network.opening import open_network
from edgevit.progress import Silent
from edgevit.train import memory
from edgevit.train.memory import fitting, least_image_bytes, measured_image_bytes, memory_bytes
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training


def kept_bytes(network: nn.Module, images: Tensor, *targets: Any) -> int:
    """What autograd keeps of a forward pass, besides weights; with targets, of a detector's losses."""
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
    kept: dict[int, int] = {}

    def see(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
        outputs = network.train()(images, *targets)
        (sum(outputs[1].values()) if targets else outputs.sum()).backward()
    network.eval()
    return sum(kept.values())


@pytest.mark.parametrize(
    "args",
    [
        {"img_size": 224, "patch_size": 16},
        {"name": SWIN},
        {"name": SWIN, "depths": [2, 1], "window_size": 3},  # shifted, and padded
    ],
    ids=["ViT", "Swin", "Swin, padded"],
)
def test_it_is_no_more_than_what_autograd_keeps_and_most_of_it(small_vit: Callable[..., Any], args: Any) -> None:
    network = small_vit(**args)
    ratio = kept_bytes(network, torch.randn(8, *network.input_size)) / (8 * least_image_bytes(network))
    assert 1 <= ratio < 1.5


@pytest.mark.parametrize("function", ["masks", "retina", "fast"])
def test_of_a_detector_it_is_measured_with_what_reads_whole_levels(function: str, tmp_path: Path) -> None:
    network = open_network(f"{write_detectors(tmp_path)}:{function}")
    compute = open_passes(Training(device="cpu")).compute
    pyramid, learning, alone = (
        measured_image_bytes(network, compute, images, learns_objects=learns)
        for images, learns in ((4, False), (4, True), (1, False))
    )
    assert least_image_bytes(network) < pyramid <= alone <= kept_bytes(network, torch.randn(1, 3, 64, 64))
    target = {"boxes": torch.tensor([[4.0, 8.0, 40.0, 50.0]]), "labels": torch.tensor([2])}
    target["masks"] = torch.ones(1, 64, 64, dtype=torch.uint8)
    images = torch.randn(4, 3, 64, 64)
    assert 1 <= kept_bytes(network, images) / (4 * pyramid) < 1.1
    ratio = kept_bytes(network, images, [target] * 4) / (4 * learning)
    assert ratio >= 1 and (ratio < 1.25 or function != "retina"), "one stage reads no boxes"
    assert (pyramid == learning) == (function == "fast"), "a module of the user's proposes boxes"


def test_a_batch_that_does_not_fit_beside_the_pyramid_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, training = open_network(f"{write_detectors(tmp_path)}:masks"), Training(device="cpu", batch_size=8)
    compute = open_passes(training).compute
    monkeypatch.setattr(memory, "memory_bytes", lambda device: 9 * least_image_bytes(network))
    assert fitting(network, training, compute, Silent(), learns_objects=True) == replace(training, grad_accum=4)
    few = replace(training, batch_size=6)
    assert fitting(network, few, compute, Silent(), learns_objects=True) == few


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


def test_a_batch_that_cannot_fit_is_divided_and_gives_the_same_steps(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = bench.spoilt()
    divided, room = copy.deepcopy(network), memory_bytes(torch.device("cpu"))
    monkeypatch.setattr(memory, "memory_bytes", lambda device: room)
    bench.train(network, 3, training={"batch_size": 32, "lr": 1e-5})
    room = 20 * least_image_bytes(network)
    images = []
    hook = divided.module.register_forward_hook(lambda _, inputs, __: images.append(len(inputs[0])))
    bench.train(divided, 3, training={"batch_size": 32, "lr": 1e-5})
    hook.remove()
    assert images.count(8) == 3 * 4
    for one, other in zip(network.parameters(), divided.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    room = least_image_bytes(network) // 2
    with pytest.raises(OptionError, match=r"32 images at once hold at least .*; give images of fewer pixels"):
        bench.train(network, 1, training={"batch_size": 32})
