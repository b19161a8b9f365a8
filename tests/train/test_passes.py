"""A pass shows every image once, in a batch of its own, and leaves the network as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from edgevit.data.task import Split, open_task
from edgevit.network.model import describe
from edgevit.progress import Silent, Stage
from edgevit.train import passes as passes_module
from edgevit.train import products
from edgevit.train.passes import Passes, accuracy_of, open_passes
from edgevit.train.settings import Training

CPU = Training(device="cpu")


@pytest.fixture(scope="module")
def network(small_vit: Callable[..., Any]) -> Any:
    return small_vit()


@pytest.fixture(scope="module")
def images(network: Any) -> Split:
    preprocessing = describe(network, "vit_tiny_patch16_224", {}).preprocessing
    return open_task("digits", "3,7,9", preprocessing=preprocessing, base_outputs=10).train.subset(70)


class Counting(Silent):
    """A progress that remembers what was told of one stage."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, int | None, str]] = []
        self.done: list[int] = []

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Stage]:
        self.opened.append((name, total, unit))
        count = self.done

        class Here:
            def update(self, done: int, **figures: float | None) -> None:
                count.append(done)

        yield Here()


def test_every_image_is_seen_once_in_order_and_counted(network: Any, images: Split) -> None:
    progress, shown = Counting(), []
    passes = open_passes(CPU, progress)
    passes.show(network, images, lambda batch, labels: shown.append((batch, labels)), stage="look")
    assert progress.opened == [("look", 70, "image")] and progress.done == [64, 70]
    expected, labels = next(images.batches(70))
    assert torch.equal(torch.cat([batch for batch, _ in shown]), expected)
    assert torch.equal(torch.cat([label for _, label in shown]), labels)


def test_a_pass_leaves_no_hook_and_the_mode_it_found(network: Any, images: Split) -> None:
    seen: list[int] = []
    network.train()
    modes: list[bool] = []
    observers = [(network.block_modules, lambda i, *_: seen.append(i))]
    open_passes(CPU).run(network, images, lambda *_: modes.append(network.training), observers)
    assert seen == [0, 1, 0, 1] and modes == [False, False]
    assert network.training and not any(block._forward_hooks for block in network.block_modules)


@pytest.mark.parametrize("gradients", [False, True])
def test_gradients_are_there_where_they_are_asked_for(network: Any, images: Split, gradients: bool) -> None:
    passes, asked = open_passes(CPU), []
    for _ in range(2):  # what is kept of the images by the first pass takes no gradients either
        passes.run(network, images, lambda logits, _: asked.append(logits.requires_grad), gradients=gradients)
    assert asked == [gradients] * 4
    assert not any(b.requires_grad for b, _ in passes.decoded.batches(images, 70))


def test_a_quick_pass_is_rounded_where_the_processor_multiplies_bf16(
    network: Any, images: Split, monkeypatch: Any
) -> None:
    def answers(*, quick: bool) -> Any:
        found: list[Any] = []
        open_passes(CPU).run(network, images.subset(4), lambda logits, _: found.append(logits.float()), quick=quick)
        return torch.cat(found)

    exact = answers(quick=False)
    for has in (False, True):
        monkeypatch.setattr(products, "multiplies_bf16", lambda has=has: has)
        rounded = answers(quick=True)
        assert torch.equal(rounded, exact) != has
        torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05 * float(exact.abs().max()))


def test_a_pass_in_the_trainings_precision_multiplies_in_it(network: Any, images: Split) -> None:
    types: list[torch.dtype] = []
    for mixed in (False, True):
        passes = open_passes(replace(CPU, precision="bf16"))
        passes.run(network, images.subset(4), lambda logits, _: types.append(logits.dtype), mixed=mixed)
    assert types == [torch.float32, torch.bfloat16]


def test_the_batch_is_no_matter_of_the_optimiser(network: Any) -> None:
    sizes = {open_passes(replace(CPU, batch_size=size)).batch_size(network) for size in (1, 24, 512)}
    assert sizes == {64}


def _large(small_vit: Callable[..., Any]) -> tuple[nn.Module, nn.Module]:
    """197 tokens as in DeiT, and a network of 1025."""
    return small_vit(img_size=224, patch_size=16), small_vit(img_size=256, patch_size=8)


def test_a_batch_is_smaller_the_more_tokens_an_image_has(small_vit: Callable[..., Any]) -> None:
    passes = open_passes(CPU)
    sizes = [(passes.batch_size(n), passes.batch_size(n, gradients=True)) for n in _large(small_vit)]
    assert sizes == [(64, 10), (19, 1)]


def test_a_batch_is_smaller_where_memory_is_short(small_vit: Callable[..., Any], monkeypatch: Any) -> None:
    passes, (network, _) = open_passes(CPU), _large(small_vit)
    monkeypatch.setattr(passes_module, "memory_bytes", lambda device: 50 * 2**20)
    assert 1 < passes.batch_size(network) < 64 and 1 <= passes.batch_size(network, gradients=True) < 10
    monkeypatch.setattr(passes_module, "memory_bytes", lambda device: 1)
    assert passes.batch_size(network) == 1


def test_accuracy_is_the_share_of_images_that_are_right_whatever_the_batches(
    network: Any, images: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, labels = next(images.batches(70))
    with torch.no_grad():
        right = network.eval()(batch)[:, [3, 7, 9]].argmax(1) == labels
    passes: Passes = open_passes(CPU)
    for most in (64, 9):
        monkeypatch.setattr(passes_module, "IMAGES", most)
        seen = accuracy_of(network.with_columns([3, 7, 9]), images, ["3", "7", "9"], passes)
        assert (sum(seen.restricted), seen.images) == (int(right.sum()), 70)
        assert seen.which is not None and seen.which.flags() == right.tolist()
        assert seen.which.classes == {str(n): int((labels == i).sum()) for i, n in enumerate((3, 7, 9))}
