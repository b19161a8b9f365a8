"""Progressive importance-aware dropout (SKD super-network): order a network's units by importance while it trains.

A unit is a group of neighbouring dimensions of one module: of the query, key and value widths of all heads alike, or of
the FFN's neurons. The units of a module are dropped from the last to the first, so that the remaining ones are a
prefix. During training the list of units that may be dropped grows to its target, and every step drops a random number
of them, the least important first.

A dropped unit is masked (`masks`). Channels of the embedding may be units, too, if the network has its largest
directions in the first channels (`solve.embedding.nested_basis`). Rivals of PIAD draw otherwise what a step drops
(`dropout`); the list grows in the same way.

Differences from the paper: a module counts as skipped when all its units are masked and its output bias stays, as in
every slice; and the random cut may drop the whole list, because that slice is offered, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.isotonic import isotonic_regression
from torch import Tensor

from edgevit.data.task import Split
from edgevit.derivation.allocate.policy import Policy, smallest
from edgevit.derivation.methods.skd.dropout import Rival
from edgevit.derivation.methods.skd.masks import Dropping, make_masks, masking
from edgevit.derivation.plan import AttentionPlan, BlockPlan, EmbedPlan, FfnPlan, Plan
from edgevit.derivation.realise import realise
from edgevit.derivation.solve.embedding import prefix
from edgevit.derivation.solve.factorise import one_thread
from edgevit.network.anatomy import Block, BlockDims, attentions, ffns, unpack
from edgevit.network.cost import Geometry
from edgevit.network.network import Network
from edgevit.records.model import HEAD_WIDTHS, SITE_AXES
from edgevit.records.supernet import Module, ModuleKind, Unit
from edgevit.train.passes import Passes, observed

# -- units -------------------------------------------------------------------------------------------------------------


def narrowed(dims: BlockDims, kind: ModuleKind, width: int) -> BlockDims:
    """Return the block with one of its modules narrowed to at most this width."""
    axes = SITE_AXES["ffn"] if kind == "ffn" else HEAD_WIDTHS
    return dims.with_sizes({axis: min(dims[axis], width) for axis in axes})


def embed_without(embed: int, dropped: Sequence[Unit]) -> int:
    """Return the width of the embedding without the dropped units."""
    return min([embed, *(unit.first for unit in dropped if unit.kind == "embed")])


def _cuts(width: int, minimum: int, step: int, groups: int) -> list[int]:
    """List about `groups` widths from the whole one down to the minimum, multiples of `step` but for the whole one."""
    size = step * ceil(width / groups / step)
    return [width, *(w for w in range(width // size * size, minimum, -size) if w < width), minimum]


def make_units(
    dims: Sequence[BlockDims],
    geometry: Geometry,
    policy: Policy,
    attention_groups: int,
    ffn_groups: int,
    embeds: Sequence[int] = (),
) -> list[Unit]:
    """Divide every module into units that the policy allows to drop, those of a module from the last to the first.

    Args:
        embeds: the widths that the embedding may have, its own first; empty if it stays.
    """
    units = []
    for last, first in pairwise(embeds):
        macs = geometry.with_embed(last).macs(dims) - geometry.with_embed(first).macs(dims)
        units.append(Unit(0, "embed", first, last, macs))
    for i, (block, least) in enumerate(zip(dims, smallest(dims, policy, geometry), strict=True)):
        attention = _cuts(block.head_width, least.head_width, policy.head_step, attention_groups)
        kinds: tuple[tuple[ModuleKind, list[int]], ...] = (
            ("attention", attention),
            ("ffn", _cuts(block.ffn, least.ffn, policy.ffn_step, ffn_groups)),
        )
        for kind, cuts in kinds:
            for last, first in pairwise(cuts):
                tokens = geometry.stages[block.stage].tokens
                whole, cut = (geometry.place(narrowed(block, kind, w), tokens) for w in (last, first))
                before, after = whole.cost("macs"), cut.cost("macs")
                if before > after:
                    units.append(Unit(i, kind, first, last, before - after))
    return units


def dims_without(dims: Sequence[BlockDims], dropped: Sequence[Unit]) -> tuple[BlockDims, ...]:
    """Return the dimensions of the blocks without the dropped units."""
    remaining = list(dims)
    for unit in dropped:
        if unit.kind == "embed":
            continue
        remaining[unit.block] = narrowed(remaining[unit.block], unit.kind, unit.first)
    return tuple(remaining)


def slice_plan(blocks: Sequence[Block], dims: Sequence[BlockDims], embed: int | None = None) -> Plan:
    """Make the plan of the slice with the first dimensions of every module and these first channels."""
    plans = []
    for i, (attention, ffn, d) in enumerate(zip(attentions(blocks), ffns(blocks), dims, strict=True)):
        assert d.heads == attention.heads
        first = attention.first(*d.head_widths)
        planned = AttentionPlan.of(d, weights=first)
        ffn_plan = FfnPlan(torch.arange(d.ffn), weights=ffn.keep(slice(d.ffn)))
        plans.append(BlockPlan(i, planned, ffn_plan))
    whole = attentions(blocks)[-1].embed
    if embed is None or embed == whole:
        return Plan(tuple(plans))
    return Plan(tuple(plans), EmbedPlan(embed, (prefix(embed, whole),)))


@torch.no_grad()
def cut(network: Network, dims: Sequence[BlockDims], embed: int | None = None) -> Network:
    """Return a slim copy with the first dimensions of every module and these first channels of the embedding."""
    with one_thread():  # each copy is too short for several threads on a busy machine
        return realise(network, slice_plan(network.read(), dims, embed))


# -- importance --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Importance:
    """The importance of each dimension, to first order (Eq. 9), and the loss without each module."""

    loss: float  # mean loss over the images, with all modules
    taylor: dict[Module, Tensor]  # [w] per module: |gradient * activation|, summed over heads, tokens and images
    skipped: dict[Module, float]  # mean loss without the module, by module
    narrowed: dict[int, float] = field(default_factory=dict)  # mean loss by width of a narrower embedding


def _by_width(scores: Tensor, dims: BlockDims) -> Tensor:
    """Sum scores [H * (2q + v)] of queries, keys and values to those of head widths [max(q, v)]: query plus value."""
    query, _, value = unpack(scores, dims)
    total = scores.new_zeros(dims.head_width)
    total[: query.shape[1]] += query.sum(0)
    total[: dims.vo] += value.sum(0)
    return total


def measure_importance(
    network: Network,
    images: Split,
    passes: Passes,
    *,
    dims: Sequence[BlockDims] | None = None,
    embed: int | None = None,
    skip: Sequence[Module] = (),
    embeds: Sequence[int] = (),
) -> Importance:
    """Take importances in one forward and backward pass of the network, or of its slice of `dims` and `embed`.

    Args:
        skip: modules to measure the loss without: one more forward pass each.
        embeds: widths of the embedding to measure the loss at, likewise.
    """
    compute = passes.compute
    whole = list(network.dims)
    dims = whole if dims is None else dims
    variants = [make_masks(whole, dims, compute.device, embed)]
    for block, kind in skip:
        fewer = [narrowed(d, kind, 0) if i == block else d for i, d in enumerate(dims)]
        variants.append(make_masks(whole, fewer, compute.device, embed))
    variants += [replace(variants[0], embed=width) for width in embeds]
    target = torch.as_tensor(network.columns, device=compute.device)
    losses = torch.zeros(len(variants), dtype=torch.float64, device=compute.device)
    sums: list[Tensor] = [torch.zeros((), dtype=torch.float64, device=compute.device)] * (2 * len(whole))
    outputs: list[Tensor] = []  # outputs of the pass with gradients: projection and neurons of each block in turn
    masks = variants[0]

    def keep(i: int, inputs: Any, output: Tensor) -> None:
        tensor = output if i < len(whole) else inputs[0]  # queries, keys and values; or the neurons
        if tensor.requires_grad:
            outputs.append(tensor)

    def loss_of(batch: Tensor, labels: Tensor) -> Tensor:
        with compute.accelerator.autocast():
            return F.cross_entropy(network(batch).float(), target[labels], reduction="sum")

    def add(batch: Tensor, labels: Tensor) -> None:
        nonlocal masks
        masks = variants[0]
        loss = loss_of(batch, labels)
        losses[0] += loss.detach()
        for i, (h, gradient) in enumerate(zip(outputs, torch.autograd.grad(loss, outputs), strict=True)):
            sums[i] = sums[i] + (h.detach() * gradient).abs().sum((0, 1), dtype=torch.float64)
        outputs.clear()
        with torch.no_grad():
            for i, masks in enumerate(variants[1:], 1):  # noqa: B007  # read by `masking`
                losses[i] += loss_of(batch, labels)

    watched = [*network.projections, *network.ffn_outputs]
    with masking(network, lambda: masks), observed(watched, keep):
        passes.show(network, images, add, gradients=True)
    loss, *more = (compute.sum(losses) / max(len(images), 1)).tolist()
    sums = [compute.sum(s).cpu() for s in sums]
    taylor: dict[Module, Tensor] = {(i, "attention"): _by_width(sums[2 * i], d) for i, d in enumerate(whole)}
    taylor |= {(i, "ffn"): sums[2 * i + 1] for i in range(len(whole))}
    without, narrower = more[: len(skip)], more[len(skip) :]
    skipped = dict(zip(skip, without, strict=True))
    return Importance(loss, taylor, skipped, dict(zip(embeds, narrower, strict=True)))


def score_units(units: Sequence[Unit], importance: Importance) -> list[float]:
    """Compute importance per MAC (Eq. 13 to 15), made to fall from each module's first unit to its last.

    A unit cannot stay if one before it is dropped: where a later one scores higher than an earlier one, both get their
    mean. The importance of the embedding's channels is measured, width by width.
    """
    scores = [0.0] * len(units)
    for module in {u.module for u in units}:
        indices = sorted((i for i, u in enumerate(units) if u.module == module), key=lambda i: -units[i].first)
        worth = _worth([units[i] for i in indices], importance)
        raw = [w / units[i].macs for i, w in zip(indices, worth, strict=True)]
        pooled = isotonic_regression(raw, sample_weight=[units[i].macs for i in indices])
        for i, score in zip(indices, pooled, strict=True):
            scores[i] = float(score)
    return scores


def _worth(units: Sequence[Unit], importance: Importance) -> list[float]:
    """Compute the relative rise of the loss without each unit of one module, from the last to the first."""
    tiny = torch.finfo(torch.float64).tiny
    module, scale = units[0].module, max(importance.loss, tiny)
    if module[1] == "embed":
        losses = [importance.loss, *(importance.narrowed[u.first] for u in units)]
        return [(after - before) / scale for before, after in pairwise(losses)]
    taylor = importance.taylor[module]
    sensitivity = (importance.skipped[module] - importance.loss) / scale
    whole = float(taylor.sum().clamp_min(tiny))
    return [sensitivity * (float(taylor[u.first : u.last].sum()) / whole) for u in units]


# -- training ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DropoutSchedule:
    """How the dropout list grows."""

    macs: int  # MACs of the units that are on the list at the end
    updates: int  # P_e: the number of times that the list grows
    steps: int  # the number of training steps in which it grows


class ProgressiveDropout:
    """The dropout list, and the sub-network of each step: a `train.constraint.Constraint`."""

    def __init__(
        self,
        network: Network,
        units: Sequence[Unit],
        growth: DropoutSchedule,
        proxy: Split,
        passes: Passes,
        seed: int,
        rival: Rival | None = None,
    ) -> None:
        """Begin with an empty list.

        Args:
            rival: draws the sub-networks in place of the list.
        """
        self.network, self.units, self.growth, self.passes = network, units, growth, passes
        self.proxy, self.seed, self.rival = proxy, seed, rival
        self.whole, self.geometry = list(network.dims), network.geometry
        self.order: list[int] = []  # indices of units, in the order of dropping
        self.updates, self.steps = 0, 0
        self.masks: Dropping | None = None
        self.share = 1.0  # share of the units' MACs in the present step; share of the dimensions, if a rival draws

    @property
    def dropped(self) -> list[Unit]:
        """The dropout list."""
        return [self.units[i] for i in self.order]

    # -- the list --------------------------------------------------------------------------------------------------

    def _embed(self, dropped: Sequence[Unit]) -> int:
        return embed_without(self.geometry.embed, dropped)

    def saved_macs(self) -> int:
        """Return the MACs that dropping the whole list saves; they are less than the sum over its units."""
        smallest = self.geometry.with_embed(self._embed(self.dropped)).macs(dims_without(self.whole, self.dropped))
        return self.geometry.macs(self.whole) - smallest

    def grow(self) -> None:
        """Add the least important units of the smallest sub-network so far, up to this update's share of MACs."""
        self.updates += 1
        remaining = sorted(set(range(len(self.units))) - set(self.order))
        due = self.growth.macs * self.updates / self.growth.updates
        if not remaining or self.saved_macs() >= due:
            return
        units = [self.units[i] for i in remaining]
        importance = measure_importance(
            self.network,
            self.proxy,
            self.passes,
            dims=dims_without(self.whole, self.dropped),
            embed=self._embed(self.dropped),
            skip=sorted({u.module for u in units if u.kind != "embed"}),
            embeds=[u.first for u in units if u.kind == "embed"],
        )
        scores = score_units(units, importance)
        # Where scores of a module are equal, the last unit is dropped first, so that the remaining units are a prefix.
        for i in sorted(range(len(units)), key=lambda i: (scores[i], units[i].module, -units[i].first)):
            if self.saved_macs() >= due:
                break
            self.order.append(remaining[i])

    def finish(self) -> None:
        """Let the list grow to its target, if training ended before."""
        while self.updates < self.growth.updates:
            self.grow()

    def _prepare(self) -> None:
        """Grow the list if an update is due, and draw the next step's sub-network from seed and step alone."""
        every = max(self.growth.steps // self.growth.updates, 1)
        while self.updates < min(1 + self.steps // every, self.growth.updates):
            self.grow()
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.steps)
        device = self.passes.compute.device
        if self.rival is not None:
            self.masks, self.share = self.rival.draw(self.whole, generator, device)
            return
        count = int(torch.randint(len(self.order) + 1, (), generator=generator))
        dropped = self.dropped[:count]
        dims = dims_without(self.whole, dropped)
        self.masks = make_masks(self.whole, dims, device, self._embed(dropped))
        self.share = 1 - sum(u.macs for u in dropped) / sum(u.macs for u in self.units)

    # -- train.constraint.Constraint -------------------------------------------------------------------------------

    @contextmanager
    def watch(self) -> Iterator[None]:
        self._prepare()
        with masking(self.network, lambda: self.masks if self.network.training else None):
            yield

    def penalty(self) -> tuple[Tensor, dict[str, float]]:
        return torch.zeros((), device=self.passes.compute.device), {"units_kept": self.share}

    def after_step(self) -> None:
        self.steps += 1
        self._prepare()

    def pruned(self) -> Network:
        """Return the smallest slice."""
        return cut(self.network, dims_without(self.whole, self.dropped), self._embed(self.dropped))

    def state(self) -> dict[str, Tensor]:
        counts = torch.tensor([self.updates, self.steps])
        return {"order": torch.tensor(self.order, dtype=torch.int64), "counts": counts}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.order = [int(i) for i in state["order"]]
        self.updates, self.steps = (int(n) for n in state["counts"])
