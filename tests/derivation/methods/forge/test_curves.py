"""What the cache keeps of a block's curves is as good as what was measured, and a quarter of its size."""

from __future__ import annotations

import torch
from safetensors.torch import save

from edgevit.derivation.measure.sensitivity import Sensitivity
from edgevit.derivation.measure.statistics import BlockStatistics
from edgevit.derivation.methods.forge.curves import BlockCurves, packed, root, unpacked
from edgevit.derivation.solve.factorise import decompose
from edgevit.derivation.solve.least_squares import refit, removal_order
from edgevit.network.anatomy import Ffn

EMBED, NEURONS, HEADS, WIDTH = 32, 256, 2, 8


def _curves(seed: int, *, offset: float = 0.0, query: bool = True) -> BlockCurves:
    """Of random tokens; `offset` is the mean of every neuron, in units of its standard deviation."""
    torch.manual_seed(seed)
    tokens, hidden = torch.randn(1024, EMBED + 1).double(), torch.randn(1024, NEURONS).double() + offset
    tokens[:, -1] = 1
    moment, second = tokens.mT @ tokens / len(tokens), hidden.mT @ hidden / len(hidden)
    statistics = BlockStatistics(
        hidden.sum(0), hidden.abs().mean(0), hidden.mean(0), moment, second, 1.5 * moment if query else None
    )
    (qk,), (vo,) = (decompose([torch.randn(HEADS, WIDTH, EMBED)], [torch.randn(HEADS, WIDTH, EMBED)]) for _ in range(2))
    losses, g = [torch.rand(HEADS, WIDTH).double() for _ in range(2)], torch.randn(64, EMBED).double()
    sensitivity = Sensitivity(*losses, losses[1].sum(1), torch.rand(17).double(), torch.rand(17).double(), g.mT @ g)
    removal = removal_order(torch.randn(EMBED, NEURONS), second, statistics.mean)
    site_losses = torch.rand(2).double()
    block_loss, ridge = torch.rand(1).double(), torch.tensor([1e-2])
    return BlockCurves(statistics, qk, vo, sensitivity, removal, removal.cost, block_loss, site_losses, ridge)


def test_what_is_unpacked_is_what_was_packed_to_the_precision_of_fp32() -> None:
    blocks = [_curves(0), *[_curves(1, query=False)] * 10]  # the tenth sorts before the second
    for block, again in zip(blocks, unpacked(packed(blocks)), strict=True):
        assert (block.statistics.query is None) == (again.statistics.query is None)
        pairs = [(vars(getattr(block, part)), vars(getattr(again, part))) for part in vars(block) if "loss" not in part]
        for one, other in [*pairs, (vars(block), vars(again))]:
            for name, tensor in one.items():
                if isinstance(tensor, torch.Tensor):
                    torch.testing.assert_close(other[name], tensor, rtol=1e-6, atol=1e-6)


def test_neurons_far_from_zero_are_refitted_as_if_nothing_had_been_rounded() -> None:
    """fp32 resolves 6e-8 of a square of 1e8: without its mean taken off, what varies about it would be lost."""
    block = _curves(0, offset=1e4)
    (again,) = unpacked(packed([block]))
    part = Ffn(torch.randn(NEURONS, EMBED), None, torch.randn(EMBED, NEURONS).double(), torch.zeros(EMBED).double())
    made = []
    for s in (block.statistics, again.statistics):
        assert s.hidden is not None
        made.append(refit(part, block.removal.remaining(64), s.hidden, s.mean, ridge=1e-12).w2)
    torch.testing.assert_close(made[1], made[0], rtol=1e-4, atol=1e-4)


def test_a_quarter_of_the_bytes_is_kept() -> None:
    block = _curves(0)
    flat = {part: vars(getattr(block, part)) for part in ("statistics", "sensitivity")}
    whole = {f"{part}.{name}": t.clone() for part, of in flat.items() for name, t in of.items()}
    kept = {name.partition(".")[2]: t for name, t in packed([block]).items()}
    assert len(save({name: kept[name] for name in whole})) < 0.27 * len(save(whole))


def test_a_root_of_a_metric_that_is_blind_to_a_direction() -> None:
    g = torch.randn(4, 8, dtype=torch.float64)
    metric = g.mT @ g
    torch.testing.assert_close(root(metric).mT @ root(metric), metric)
