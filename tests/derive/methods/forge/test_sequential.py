"""The sequential closed form: what is whole stays, later blocks mend what earlier ones lost, and memory is bounded."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from edgevit.data.task import open_task
from edgevit.derive.algebra.attention import keep_heads
from edgevit.derive.methods.forge import sequential
from edgevit.derive.methods.forge.sequential import solve_in_sequence
from edgevit.errors import OutputError
from edgevit.models.anatomy import Block
from edgevit.models.checkpoint import describe
from edgevit.models.families import vit
from edgevit.models.slim import bare_copy
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training

PASSES = open_passes(Training(device="cpu"))


@pytest.fixture(scope="module")
def task(small_vit: Any) -> Any:
    preprocessing = describe(small_vit(), "vit_tiny_patch16_224", {}).preprocessing
    return open_task("digits", "3,7,9", preprocessing=preprocessing, base_outputs=10)


@pytest.fixture(scope="module")
def network(small_vit: Any) -> Any:
    """A small random ViT whose modules put out enough to be felt."""
    made = small_vit()
    with torch.no_grad():
        for block in made.blocks:
            block.attn.proj.weight.mul_(3)
            block.mlp.fc2.weight.mul_(3)
        made.head.weight.mul_(5)
    return made.eval()


def _images(task: Any, count: int = 128) -> torch.Tensor:
    return torch.cat([batch for batch, _ in task.train.subset(count).batches(32)])


def _solve(base: Any, slim: Any, kept: list[int], task: Any, ridge: float = 1e-4) -> None:
    even = [(torch.ones(17).double(), torch.ones(17).double())] * len(base.blocks)
    solve_in_sequence(base, slim, kept, task.train.subset(128), even, PASSES, ridge=ridge)


def test_a_network_that_lost_nothing_is_left_as_it_is(network: Any, task: Any) -> None:
    same, images = bare_copy(network), _images(task, 32)
    _solve(network, same, [0, 1], task)
    torch.testing.assert_close(same(images), network(images), atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_later_blocks_mend_what_earlier_ones_lost(network: Any, task: Any) -> None:
    damaged, images = bare_copy(network), _images(task, 64)
    generator = torch.Generator().manual_seed(0)
    ffn = vit.read(damaged)[0].ffn
    ffn.w1[::2] = 0.05 * torch.randn(ffn.w1[::2].shape, generator=generator)
    wanted = network.forward_features(images)
    before = float((damaged.forward_features(images) - wanted).square().mean())
    _solve(network, damaged, [0, 1], task)
    assert float((damaged.forward_features(images) - wanted).square().mean()) < 0.5 * before


@torch.no_grad()
def test_tokens_that_would_not_fit_into_memory_lie_in_files(
    network: Any, task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, spilt = bare_copy(network), bare_copy(network)
    for slim in (held, spilt):
        vit.read(slim)[0].ffn.w1[::2] *= 0.1
    _solve(network, held, [0, 1], task)
    monkeypatch.setattr(sequential, "IN_MEMORY_BYTES", 40_000)  # of 17 * 64 values an image: some batches of both
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = []
    allocate = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", lambda *a: made.append(a[2]) or allocate(*a))
    _solve(network, spilt, [0, 1], task)
    assert 0 < len(made) <= 8 and sum(made) >= 2 * 128 * 17 * 64 * 4 - 40_000
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    for name, value in held.state_dict().items():
        assert torch.equal(value, spilt.state_dict()[name])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutputError, match="No space left on device"):
        _solve(network, spilt, [0, 1], task)


@torch.no_grad()
def test_a_block_takes_over_what_it_can_of_those_dropped_after_it(network: Any, task: Any) -> None:
    shorter, images = bare_copy(network), _images(task, 64)
    vit.keep_blocks(shorter, [0])
    wanted = network.forward_features(images)
    before = float((shorter.forward_features(images) - wanted).square().mean())
    _solve(network, shorter, [0], task)
    assert float((shorter.forward_features(images) - wanted).square().mean()) < 0.7 * before


@torch.no_grad()
def test_what_dropped_heads_put_out_on_average_stays_in_the_bias(network: Any) -> None:
    first, second = vit.read(network)
    x = torch.ones(1, 5, 64) * torch.randn(64, generator=torch.Generator().manual_seed(0))  # all tokens alike
    token = torch.cat([x[0, 0], torch.ones(1)]).double()
    fewer = keep_heads(first.attention, [1], torch.outer(token, token))
    rest = vit.build(network, [Block(fewer, first.ffn), second])
    torch.testing.assert_close(rest.blocks[0].attn(x), network.blocks[0].attn(x), atol=1e-5, rtol=1e-5)
