"""Blocks after which tokens leave, held against the base's own blocks and an attention worked out by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from family_examples import images, narrowed, sweep_vits
from torch import Tensor, nn

import edgevit
from edgevit.derivation.plan import Plan
from edgevit.derivation.realise import realise
from edgevit.errors import PlanError
from edgevit.network.anatomy import Attention, Block, BlockDims
from edgevit.network.cost import Geometry
from edgevit.network.families.vit.tokens import TokenBlock, class_attention, pass_on
from edgevit.network.folder import save
from edgevit.network.model import Model, derived_spec, describe
from edgevit.records.model import TargetClass

ARGS = {"depth": 3}


def kept(network: nn.Module, *counts: int, merged: bool = False) -> Any:
    """The network, its blocks passing on so many tokens."""
    blocks = [replace(b, tokens=n, merged=merged and n > 0) for b, n in zip(network.read(), counts, strict=True)]
    return network.build(blocks).eval()


def attention_map(part: Attention, x: Tensor) -> Tensor:
    """The attention that every token pays to every token, the mean over the heads: [B, N, N]."""
    q, k = (torch.einsum("bnd,hwd->bhnw", x, w) + (0 if b is None else b[:, None])
            for w, b in ((part.wq, part.bq), (part.wk, part.bk)))  # fmt: skip
    return (q @ k.mT / part.qk**0.5).softmax(-1).mean(1)


def by_hand(network: Any, count: int, *, merged: bool) -> Tensor:
    """Logits where `count` tokens go on after the first of two blocks, in the order that they had."""
    seen = []
    inputs = network.attention_inputs[0]
    assert inputs is not None
    hook = inputs.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    x = network.block_modules[0](network.first_tokens(images()))
    hook.remove()
    attention = network.read()[0].attention
    assert attention is not None
    paid = attention_map(attention, seen[0])
    score = paid[:, 0] if network.module.cls_token is not None else paid.mean(1)
    prefix = network.module.num_prefix_tokens
    rows = []
    for tokens, of in zip(x, score, strict=True):
        ranked = sorted(range(prefix, len(tokens)), key=lambda j: -float(of[j]))
        stay = sorted(ranked[: count - prefix - int(merged)])
        gone = [j for j in range(prefix, len(tokens)) if j not in stay]
        mean = (of[gone, None] * tokens[gone]).sum(0, keepdim=True) / of[gone].sum()
        rows.append(torch.cat([tokens[:prefix], tokens[stay], *([mean] if merged else [])]))
    return network.answers(network.block_modules[1](torch.stack(rows)))


@sweep_vits
@pytest.mark.parametrize("merged", [False, True], ids=["dropped", "merged"])
def test_those_that_are_looked_at_most_go_on(
    small_vit: Callable[..., Any], family_name: str, name: str, args: dict[str, Any], merged: bool
) -> None:
    base = small_vit(name, **args)
    if "tokens" in base.geometry.frozen(0):
        return
    before = {key: value.clone() for key, value in base.state_dict().items()}
    network = kept(base, 9, 0, merged=merged)
    assert all(torch.equal(value, before[key]) for key, value in base.state_dict().items())
    assert network.state_dict().keys() == before.keys() and type(base.module.blocks[0]) is not TokenBlock
    with torch.no_grad():
        expected = by_hand(base, 9, merged=merged)
        torch.testing.assert_close(network(images()), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
        assert not torch.allclose(network(images()), base(images()), rtol=1e-3)


@sweep_vits
def test_a_family_knows_where_tokens_leave(
    small_vit: Callable[..., Any], family_name: str, name: str, args: dict[str, Any]
) -> None:
    whole = small_vit(name, **{**args, **ARGS})
    if "tokens" in whole.geometry.frozen(0):
        return
    network = kept(whole, 12, 0, 0)
    geometry: Geometry = network.geometry
    prefix = geometry.tokens - geometry.patches
    assert [block.tokens for block in network.read()] == [12, 0, 0]
    first, second, last = ({s.kind: s.frozen for s in geometry.sites if s.block == i} for i in range(3))
    assert {"site", "block"} <= first["attention"].keys() and "tokens" not in first["attention"]
    assert "site" not in first["ffn"] and "tokens" not in second["ffn"] and "tokens" in last["ffn"]
    with torch.no_grad():
        tokens = [network.first_tokens(images())]
        for layer in network.block_modules:
            tokens.append(layer(tokens[-1]))
        torch.testing.assert_close(network.answers(tokens[-1]), network(images()))
    dims = list(network.dims)
    assert geometry.reaching(dims) == [x.shape[1] for x in tokens[:-1]] == [16 + prefix, 12, 12]
    assert geometry.params(dims) == geometry.params([replace(d, tokens=0) for d in dims])
    assert network.plain_loader() is None
    without = copy.deepcopy(network)
    without.keep_blocks([1, 2])
    assert geometry.reaching(list(without.dims)) == [16 + prefix] * 2


def test_macs_are_those_of_the_tokens_that_reach_each_site(small_vit: Callable[..., Any]) -> None:
    """Of each block, those that a model has whose every block is given as many tokens."""
    network = small_vit(depth=3)
    geometry: Geometry = network.geometry
    whole = list(network.dims)
    left = [replace(dims, tokens=n) for dims, n in zip(whole, (10, 4, 0), strict=True)]
    alone = [geometry.place(dims, n).cost("macs") for n, dims in zip((17, 10, 4), whole, strict=True)]
    assert geometry.macs(left) == geometry.macs([]) + sum(alone) < geometry.macs(whole)
    n, d, q, e = 10, 64, 32, 256
    assert alone[1] == (2 * n * d + n * n) * (q + q) * 2 + 2 * n * d * e + 2 * n * d  # Eq. 24, and both norms


def test_of_equal_scores_the_first_goes_on() -> None:
    x = torch.arange(8.0).reshape(1, 8, 1)
    scores = torch.tensor([[9.0, 0.1, 0.3, 0.1, 0.3, 0.1, 0.3, 0.1]])
    assert pass_on(x, scores, 6, 1, merge=False).flatten().tolist() == [0, 2, 4, 6, 1, 3]
    assert pass_on(x, scores, 5, 1, merge=True).flatten().tolist() == [0, 2, 4, 6, (1 + 3 + 5 + 7) / 4]


@pytest.mark.parametrize("bias", [True, False])
def test_the_class_row_is_that_of_the_whole_attention(small_vit: Callable[..., Any], bias: bool) -> None:
    network = small_vit(qkv_bias=bias).double()
    part, x = network.read()[0].attention, torch.randn(2, 17, 64, dtype=torch.float64)
    assert part is not None
    row = class_attention(x, part)
    torch.testing.assert_close(row, attention_map(part, x)[:, 0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("form", ["narrow", "attention alone"])
def test_blocks_of_other_sizes_pass_on_tokens_too(small_vit: Callable[..., Any], form: str, tmp_path: Path) -> None:
    base = describe(small_vit(**ARGS), "vit_tiny_patch16_224", ARGS_OF_BASE)
    thin = [narrowed(block, BlockDims(2, 24, 8, 40)) for block in base.read()]
    first = thin[0] if form == "narrow" else Block(thin[0].attention, None)
    blocks = [replace(first, tokens=10, merged=True), replace(thin[1], tokens=5), thin[2]]
    network = base.build(blocks).eval()
    again = network.build([Block(b.attention, b.ffn) for b in network.read()]).eval()
    assert list(again.dims) == [b.dims for b in blocks]  # 0: as many as the block does
    labels = tuple(TargetClass(str(i), i) for i in range(10))
    save(Model(network, derived_spec(base.spec, network, "full", labels)), tmp_path / "m")
    loaded = edgevit.load(tmp_path / "m")
    assert [(b.tokens, b.merged) for b in loaded.spec.blocks] == [(10, True), (5, False), (0, False)]
    with torch.no_grad():
        torch.testing.assert_close(loaded(images()), network(images()))
        torch.testing.assert_close(again(images()), network(images()))


ARGS_OF_BASE = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "num_heads": 2, **ARGS}


def planned(network: nn.Module, *counts: int, **changed: Any) -> Plan:
    parts = network.read()
    whole = Plan.narrowed([b.dims for b in parts], [torch.arange(b.dims.ffn) for b in parts])
    pairs = zip(whole.blocks, counts, strict=True)
    return Plan(tuple(replace(block, tokens=n, **(changed if n else {})) for block, n in pairs))


def test_a_plan_says_how_many_tokens_go_on(small_vit: Callable[..., Any]) -> None:
    network = small_vit(**ARGS)
    slim = realise(network, planned(network, 8, 5, 0))
    with torch.no_grad():
        torch.testing.assert_close(slim(images()), kept(network, 8, 5, 0)(images()), rtol=1e-4, atol=1e-5)
    fewer = realise(slim, planned(slim, 0, 3, 0))
    assert [b.tokens for b in fewer.read()] == [8, 3, 0]


@pytest.mark.parametrize(
    ("counts", "changed", "said"),
    [
        ((17, 0, 0), {}, "block 0 has 17 tokens to pass on, expected 2 to 16: 17 reach it, and 1 of them always stay"),
        ((1, 0, 0), {}, "block 0 has 1 tokens to pass on, expected 2 to 16"),
        ((2, 0, 0), {"merged": True}, "block 0 has 2 tokens to pass on, expected 3 to 16"),
        ((6, 6, 0), {}, "block 1 has 6 tokens to pass on, expected 2 to 5: 6 reach it"),
        ((6, 0, 0), {"attention": None}, "6 tokens to pass on, and no attention to rank them by"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(
    small_vit: Callable[..., Any], counts: tuple[int, ...], changed: dict[str, Any], said: str
) -> None:
    network = small_vit(**ARGS)
    with pytest.raises(PlanError, match=said) as refusal:
        realise(network, planned(network, *counts, **changed))
    assert "\n" not in str(refusal.value)


def test_tokens_that_left_earlier_are_counted(small_vit: Callable[..., Any]) -> None:
    slim = kept(small_vit(**ARGS), 0, 8, 0)
    with pytest.raises(PlanError, match="block 1 has 8 tokens to pass on, expected 2 to 5"):
        realise(slim, planned(slim, 6, 0, 0))
