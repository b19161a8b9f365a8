"""The sequential closed form: what is whole stays, later blocks mend what earlier ones lost, and memory is bounded."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from edgevit.derivation.measure.thinning import ALL, Thinning
from edgevit.derivation.methods.forge import streams
from edgevit.derivation.methods.forge.sequential import Slim, solve_in_sequence
from edgevit.derivation.solve.attention import keep_heads
from edgevit.derivation.solve.embedding import encoder, flat_basis
from edgevit.errors import OutputError
from edgevit.network.anatomy import Block
from edgevit.network.copies import bare_copy
from edgevit.train import products
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training

PASSES = open_passes(Training(device="cpu"))


def _images(task: Any, count: int = 128) -> torch.Tensor:
    return torch.cat([batch for batch, _ in task.train.subset(count).batches(32)])


def _solve(base: Any, slim: Any, kept: list[int], task: Any, *, align: bool = False, quick: bool = False) -> None:
    _solve_all(base, [Slim(slim, kept, align)], task, quick=quick)


def _solve_all(base: Any, slims: list[Slim], task: Any, **how: Any) -> None:
    even = [(torch.ones(17).double(), torch.ones(17).double())] * len(base.blocks)
    solve_in_sequence(base, slims, task.train.subset(128), even, PASSES, **how)


@torch.no_grad()
def _error(slim: Any, base: Any, images: torch.Tensor) -> float:
    return float((slim.forward_features(images) - base.forward_features(images)).square().mean())


def test_a_network_that_lost_nothing_is_left_as_it_is(network: Any, task: Any) -> None:
    same, images = bare_copy(network), _images(task, 32)
    _solve(network, same, [0, 1], task)
    torch.testing.assert_close(same(images), network(images), atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_later_blocks_mend_what_earlier_ones_lost(network: Any, task: Any) -> None:
    damaged, images = bare_copy(network), _images(task, 64)
    generator = torch.Generator().manual_seed(0)
    ffn = damaged.read()[0].ffn
    ffn.w1[::2] = 0.05 * torch.randn(ffn.w1[::2].shape, generator=generator)
    wanted = network.forward_features(images)
    before = float((damaged.forward_features(images) - wanted).square().mean())
    _solve(network, damaged, [0, 1], task)
    assert float((damaged.forward_features(images) - wanted).square().mean()) < 0.5 * before


@torch.no_grad()
def test_products_of_8_bits_mend_as_much(network: Any, task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "multiplies_bf16", lambda: True)
    images, lost = _images(task, 64), {}
    for quick in (False, True):
        slim = bare_copy(network)
        slim.read()[0].ffn.w1[::2] *= 0.1
        before = _error(slim, network, images)
        _solve(network, slim, [0, 1], task, quick=quick)
        lost[quick] = _error(slim, network, images)
    assert lost[True] != lost[False] and lost[True] < 1.1 * lost[False] < 0.5 * before


@torch.no_grad()
@pytest.mark.parametrize("align", [False, True], ids=["as they are", "aligned"])
def test_from_every_class_token_and_half_of_the_patches_as_much_is_mended(network: Any, task: Any, align: bool) -> None:
    images, lost = _images(task, 64), {}
    for thinning in (ALL, Thinning(2, 17, 1)):
        slim = bare_copy(network)
        slim.read()[0].ffn.w1[::2] *= 0.1
        before = _error(slim, network, images)
        _solve_all(network, [Slim(slim, [0, 1], align)], task, thinnings=[thinning] * 2)
        lost[thinning.every] = _error(slim, network, images)
    assert lost[2] != lost[1] and max(lost.values()) < 0.5 * before


@torch.no_grad()
def test_tokens_that_would_not_fit_into_memory_lie_in_files(
    network: Any, task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, spilt = bare_copy(network), bare_copy(network)
    for slim in (held, spilt):
        slim.read()[0].ffn.w1[::2] *= 0.1
    _solve(network, held, [0, 1], task)
    monkeypatch.setattr(streams, "IN_MEMORY_BYTES", 40_000)  # of 17 * 64 values an image: some batches of both
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = []
    allocate = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", lambda *a: made.append(a[2]) or allocate(*a))
    _solve(network, spilt, [0, 1], task)
    assert made and max(made) <= 64 * 17 * 256 * 4, "no file holds more than the neurons of a batch"
    assert sum(made) >= (2 * 64 + 2 * (64 + 256)) * 128 * 17 * 4 - 40_000, "both streams, and what layers are given"
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
    shorter.keep_blocks([0])
    wanted = network.forward_features(images)
    before = float((shorter.forward_features(images) - wanted).square().mean())
    _solve(network, shorter, [0], task)
    assert float((shorter.forward_features(images) - wanted).square().mean()) < 0.7 * before


@torch.no_grad()
def test_the_ffn_of_a_block_that_stands_for_two_is_weighted_by_what_the_second_ones_tokens_matter(
    network: Any, task: Any
) -> None:
    even, first = torch.ones(17).double(), torch.eye(17)[0].double() + 0.01  # all tokens alike, or the class token

    def solved(*of_ffns: torch.Tensor) -> torch.Tensor:
        slim = bare_copy(network)
        slim.keep_blocks([0])
        by_token = [(even, of_ffn) for of_ffn in of_ffns]
        solve_in_sequence(network, [Slim(slim, [0], False)], task.train.subset(128), by_token, PASSES)
        found: torch.Tensor = slim.read()[0].ffn.w2
        return found

    assert torch.equal(solved(first, even), solved(even, even))
    assert not torch.allclose(solved(even, first), solved(even, even), rtol=1e-2)


@torch.no_grad()
def test_what_is_left_of_a_block_makes_up_for_what_went(network: Any, task: Any) -> None:
    """Either half of the first block: an attention has the tokens after the FFN as its target, too."""
    images, (first, second) = _images(task, 64), network.read()
    for half in (Block(first.attention, None), Block(None, first.ffn)):
        slim = network.build([half, second])
        before = _error(slim, network, images)
        _solve(network, slim, [0, 1], task)
        assert _error(slim, network, images) < 0.7 * before


@torch.no_grad()
@pytest.mark.parametrize("align", [False, True])
def test_a_change_of_basis_that_changes_nothing(align: bool, network: Any, task: Any) -> None:
    """Targets are the base's tokens in the basis of the slim network's; here both are the same."""
    one, other = bare_copy(network), bare_copy(network)
    for slim in (one, other):
        slim.read()[0].ffn.w1[::2] *= 0.1
    _solve_all(network, [Slim(one, [0, 1], align), Slim(other, [0, 1], align, [torch.eye(64).double()])], task)
    images = _images(task, 32)
    torch.testing.assert_close(one(images), other(images), atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_networks_that_share_a_pass_are_solved_as_each_alone(network: Any, task: Any) -> None:
    first, second = network.read()
    plans = [([0], [first]), ([0, 1], [Block(first.attention, None), second]), ([0, 1], [first, second])]

    def made() -> list[Slim]:
        slims = []
        for i, (kept, blocks) in enumerate(plans):
            shorter = bare_copy(network)
            shorter.keep_blocks(kept)
            slims.append(Slim(bare_copy(shorter.build(blocks)), kept, align=i == 1))
        return slims

    together = made()
    _solve_all(network, together, task)
    for shared, alone in zip(together, made(), strict=True):
        _solve_all(network, [alone], task)
        for name, value in shared.network.state_dict().items():
            assert torch.equal(value, alone.network.state_dict()[name])


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
def test_readers_are_aligned_to_what_the_base_reads(bias: bool, small_vit: Any, task: Any) -> None:
    """The slim network's norms turn its tokens; readers undo it, and it answers as the base does."""
    base, images = small_vit(qkv_bias=bias).eval(), _images(task, 64)
    slim = bare_copy(base)
    for block in slim.module.blocks:
        for norm in (block.norm1, block.norm2):
            norm.weight.mul_(torch.linspace(0.5, 2, 64))
            norm.bias.add_(0.5 if bias or norm is block.norm2 else 0.0)
    plain = bare_copy(slim)
    before = _error(slim, base, images)
    _solve(base, plain, [0, 1], task)
    _solve(base, slim, [0, 1], task, align=True)
    assert _error(slim, base, images) < 0.05 * min(before, _error(plain, base, images))


@torch.no_grad()
def test_what_dropped_heads_put_out_on_average_stays_in_the_bias(network: Any) -> None:
    first, second = network.read()
    x = torch.ones(1, 5, 64) * torch.randn(64, generator=torch.Generator().manual_seed(0))  # all tokens alike
    token = torch.cat([x[0, 0], torch.ones(1)]).double()
    fewer = keep_heads(first.attention, [1], torch.outer(token, token))
    rest = network.build([Block(fewer, first.ffn), second])
    torch.testing.assert_close(rest.module.blocks[0].attn(x), network.module.blocks[0].attn(x), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_network_of_another_embedding_is_brought_back_to_the_bases_tokens(small_vit: Any, task: Any) -> None:
    """At full width nothing is lost; what a narrow one lost is mended in its own channels."""
    base = small_vit(init_values=0.5)
    for block in base.module.blocks:
        block.attn.proj.weight.mul_(3)
        block.mlp.fc2.weight.mul_(3)
    images = _images(task, 64)
    for width, change in ((64, None), (40, 0.9)):
        encode = encoder(flat_basis(64), width)
        slim = base.with_embedding(encode)
        wanted = base.module.blocks(base.first_tokens(images)) @ encode.float().mT
        before = slim.module.blocks(slim.first_tokens(images))
        even = [(torch.ones(17).double(), torch.ones(17).double())] * 2
        mended = [Slim(slim, [0, 1], encoders=[encode])]
        solve_in_sequence(base, mended, task.train.subset(128), even, PASSES)
        after = slim.module.blocks(slim.first_tokens(images))
        if change is None:
            torch.testing.assert_close(after, wanted, atol=1e-3, rtol=1e-3)
        else:
            assert (after - wanted).square().mean() < change * (before - wanted).square().mean()


@torch.no_grad()
def test_channels_that_layer_scale_shuts_ask_for_nothing(small_vit: Any, task: Any) -> None:
    base = small_vit(init_values=0.5)
    base.module.blocks[0].ls1.gamma[3] = base.module.blocks[1].ls2.gamma[7] = 0.0
    blocks, images = base.read(), _images(task, 64)
    slim = base.build([replace(b, ffn=b.ffn and b.ffn.keep(torch.arange(40))) for b in blocks])
    wanted, before = (n.module.blocks(n.first_tokens(images)) for n in (base, slim))
    even = [(torch.ones(17).double(), torch.ones(17).double())] * 2
    solve_in_sequence(base, [Slim(slim, [0, 1])], task.train.subset(128), even, PASSES)
    after = slim.module.blocks(slim.first_tokens(images))
    assert all(parameter.isfinite().all() for parameter in slim.parameters())
    assert (after - wanted).square().mean() < 0.9 * (before - wanted).square().mean()
