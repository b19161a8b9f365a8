"""The base's stream is the base's own, whether it is worked out or found, and what is kept of it is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained
from torch import Tensor

from edgevit.data.task import open_task
from edgevit.derivation.cache import Cache, entries
from edgevit.derivation.measure.statistics import add_outer, symmetric
from edgevit.derivation.methods.forge.streams import BaseStream, TensorStore, keeping, show_stream
from edgevit.derivation.problem import Problem
from edgevit.network.model import describe
from edgevit.train import products

IMAGES = 80  # more than a batch


@pytest.fixture(params=["plain", "LayerScale", "norms after"])
def problem(request: Any, small_vit: Any, tmp_path: Path) -> Problem:
    more: dict[str, Any] = {"LayerScale": {"init_values": 0.5}, "norms after": {"block_fn": _post_norm()}}
    network = small_vit(**more.get(request.param, {}))
    base = describe(network, "vit_tiny_patch16_224", {})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    return replace(untrained(base, task, 0.5, tmp_path / "work"), cache=Cache(tmp_path / "cache"))


def _post_norm() -> Any:
    from timm.models.vision_transformer import ResPostBlock

    return ResPostBlock


@torch.no_grad()
def _tokens(problem: Problem, *, cached: bool) -> Iterator[Tensor]:
    """The tokens after each layer."""
    images = problem.task.train.subset(IMAGES)
    keep = keeping(problem, images) if cached else None
    stream = BaseStream(problem.network, images, problem.passes, keep)
    for layer in range(len(problem.network.blocks)):
        for passed in stream.past(layer):
            attention, ffn = problem.network.layers[layer]
            assert attention is not None and ffn is not None and passed.attention is not None
            torch.testing.assert_close(passed.middle, passed.before + attention.added(passed.attention))
        yield torch.cat(stream.tokens)


def test_a_stream_that_is_found_is_the_one_that_was_worked_out_to_the_last_bit(problem: Problem) -> None:
    alone, made = (list(_tokens(problem, cached=cached)) for cached in (False, True))
    problem = replace(problem, cache=Cache(problem.cache.folder))  # of another derivation
    found = list(_tokens(problem, cached=True))
    assert problem.cache.reused == ["streams"]
    for one, other, third in zip(alone, made, found, strict=True):
        assert torch.equal(one, other) and torch.equal(one, third)


@torch.no_grad()
def test_a_stream_is_the_bases_but_for_the_rounding_of_what_its_sites_put_out(problem: Problem) -> None:
    x = problem.network.first_tokens(next(iter(problem.task.train.subset(IMAGES).batches(IMAGES)))[0])
    for block, found in zip(problem.network.block_modules, _tokens(problem, cached=False), strict=True):
        x = block(x)
        assert (found - x).norm() < 2**-11 * x.norm()


@torch.no_grad()
def test_a_quick_stream_is_the_bases_to_the_bits_of_bf16_and_what_is_summed_up_has_all_of_its_own(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "multiplies_bf16", lambda: True)  # others do it, too, but slowly
    images, total = problem.task.train.subset(IMAGES), torch.zeros(64, 64, dtype=torch.float64)
    given: list[Tensor] = []

    def see(i: int, inputs: Any, _: Tensor) -> None:
        given.append(inputs[0].flatten(0, 1).float())
        add_outer(total, given[-1])

    keep = keeping(problem, images, quick=True)
    assert list(_tokens(problem, cached=True)), "what is kept in fp32 is another entry"
    observers = [([problem.network.module.blocks[1].attn.proj], see)]
    show_stream(problem.network, images, problem.passes, observers, keep, quick=True)
    seen = torch.cat(given).double()
    torch.testing.assert_close(symmetric(total), seen.mT @ seen, rtol=1e-5, atol=1e-4)  # bf16 is off by 4e-3
    stream = BaseStream(problem.network, images, problem.passes, keep, quick=True)
    for layer, exact in enumerate(_tokens(problem, cached=False)):
        for _ in stream.past(layer):
            pass
        assert 2**-14 < (torch.cat(stream.tokens) - exact).norm() / exact.norm() < 2**-7


def test_one_layer_that_is_gone_is_worked_out_again_and_nothing_else(problem: Problem) -> None:
    wanted = list(_tokens(problem, cached=True))
    assert problem.cache.folder is not None
    before = {entry.file: entry.used_s for entry in entries(problem.cache.folder)}
    gone = next(iter(before))
    gone.unlink()
    made = []
    module = problem.network.module.blocks[0].mlp.register_forward_hook(lambda *_: made.append(0))
    other = problem.network.module.blocks[1].mlp.register_forward_hook(lambda *_: made.append(1))
    found = list(_tokens(problem, cached=True))
    for hook in (module, other):
        hook.remove()
    assert len(set(made)) == 1 and gone.is_file()
    assert all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True))


@torch.no_grad()
def test_who_observes_a_stream_sees_every_token_of_the_base_and_what_is_kept_is_there(problem: Problem) -> None:
    images, seen = problem.task.train.subset(IMAGES), [0] * 2

    def see(i: int, given: Any, _: Tensor) -> None:
        seen[i] += given[0].shape[:2].numel()

    observers = [(problem.network.ffn_outputs, see)]
    for again in range(2):  # where it is kept already, it is computed all the same
        show_stream(problem.network, images, problem.passes, observers, keeping(problem, images))
        assert seen == [IMAGES * 17 * (again + 1)] * 2
    blocks = problem.network.module.blocks
    hooks = [block.mlp.register_forward_hook(lambda *_: pytest.fail("it was kept")) for block in blocks]
    alone = list(_tokens(problem, cached=True))
    for hook in hooks:
        hook.remove()
    assert problem.cache.reused == [], "nothing of another derivation was used"
    assert all(torch.equal(one, two) for one, two in zip(alone, _tokens(problem, cached=False), strict=True))


@torch.no_grad()
def test_what_fp16_does_not_reach_is_kept_as_it_is(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit()
    network.module.blocks[0].mlp.fc2.bias[3] = 1e6
    base = describe(network, "vit_tiny_patch16_224", {})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    problem = replace(untrained(base, task, 0.5, tmp_path / "work"), cache=Cache(tmp_path / "cache"))
    for cached in (True, True, False):
        first = next(_tokens(problem, cached=cached))
        assert first.isfinite().all() and first[..., 3].min() > 9e5


def test_streams_that_would_push_themselves_out_are_not_kept(problem: Problem) -> None:
    images = problem.task.train.subset(IMAGES)
    nbytes = 2 * 2 * 2 * IMAGES * 17 * 64  # fp16, two sites, two layers
    for limit, kept in ((2 * nbytes, True), (2 * nbytes - 2, False)):
        cache = replace(problem.cache, limit_bytes=limit)
        assert (keeping(replace(problem, cache=cache), images) is not None) == kept
    assert keeping(replace(problem, cache=Cache(None)), images) is None


def test_memory_is_free_again_without_a_reference_to_the_tensor() -> None:
    store = TensorStore()
    tensor = store.copy(torch.ones(5))
    assert store.bytes == 20 and torch.equal(tensor, torch.ones(5))
    del tensor
    assert store.bytes == 0
