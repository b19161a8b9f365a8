"""The plan: what to keep of a network. A method decides it, `realise` carries it out, plan.json records it.

For each remaining block a plan lists its heads, their widths, and its neurons. Weights that a method computed are part
of the plan; otherwise `realise` factorises attention, and merges or drops neurons. All of that refers to the network's
own embedding; a plan that narrows the embedding does so last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from edgevit.errors import PlanError
from edgevit.network.anatomy import Attention, Block, BlockDims, Decoder, Ffn, SizeAxis
from edgevit.records.model import HEAD_WIDTHS, SITE_AXES, axis_name
from edgevit.records.names import PLAN
from edgevit.records.plan import (
    AttentionRecord,
    BlockRecord,
    FfnRecord,
    StepRecord,
    from_ranges,
    in_ranges,
)
from edgevit.records.state import DECIDED_KIND, DecidedStep
from edgevit.records.writing import write_whole, writing
from edgevit.train.state import reading_state, save_tensors
from edgevit.version import written_by

_MOMENTS = "plan.safetensors"  # file of tensors beside the plan of an unfinished run


@dataclass(frozen=True)
class AttentionPlan:
    """The plan of an attention."""

    heads: tuple[int, ...]  # numbers of the heads that remain
    widths: tuple[int, int]  # width of queries and keys, and width of values, per head
    # [d + 1, d + 1] second moment of the inputs, to factorise for; None: factorise the weights.
    moment: Tensor | None = None
    # The attention after the cut, where the method computed it; None: it is factorised.
    weights: Attention | None = None

    @classmethod
    def of(
        cls,
        dims: BlockDims,
        heads: Sequence[int] | None = None,
        moment: Tensor | None = None,
        weights: Attention | None = None,
    ) -> AttentionPlan:
        """The plan of an attention of these sizes; heads None: the first ones."""
        return cls(tuple(range(dims.heads) if heads is None else heads), dims.head_widths, moment, weights)

    @property
    def sizes(self) -> dict[SizeAxis, int]:
        return dict(zip(SITE_AXES["attention"], (len(self.heads), *self.widths), strict=True))


@dataclass(frozen=True)
class FfnPlan:
    """The plan of an FFN: some neurons remain; the others are dropped, or merged into those."""

    neurons: Tensor  # [r] int64: numbers of the neurons that remain, in this order
    # [e] int64: for each neuron, the index in `neurons` of the one it is merged into; None: no merging.
    labels: Tensor | None = None
    # The FFN after the cut, where the method computed it; None: it follows from neurons and labels.
    weights: Ffn | None = None

    @property
    def width(self) -> int:
        return len(self.neurons)


@dataclass(frozen=True)
class BlockPlan:
    """The plan of a block; a site that is None is removed."""

    block: int
    attention: AttentionPlan | None
    ffn: FfnPlan | None
    tokens: int = 0  # number of tokens that the block passes on; 0: as many as before
    merged: bool = False  # whether one of the tokens passed on is the mean of the removed tokens

    @property
    def dims(self) -> BlockDims:
        sizes = BlockDims(0, 0, 0, 0 if self.ffn is None else self.ffn.width, self.tokens, self.merged)
        return sizes if self.attention is None else sizes.with_sizes(self.attention.sizes)


@dataclass(frozen=True)
class EmbedPlan:
    """The plan of the embedding: tokens are multiplied by `encoders` (`solve.embedding`)."""

    width: int  # of the tokens that the classifier reads
    # Of each basis (`Geometry.bases`) the fp64 matrix [d', d] that multiplies its tokens; None: unknown, as in a plan
    # read from a file.
    encoders: tuple[Tensor, ...] | None = None
    # One for each of `Network.token_norms`; None: those of `encoders`
    decoders: tuple[Decoder, ...] | None = None

    @property
    def encode(self) -> Tensor | None:
        """The matrix [width, d] that narrows the tokens of the last basis, which the classifier reads."""
        return None if self.encoders is None else self.encoders[-1]

    def check(self, bases: Sequence[int]) -> None:
        """Check the plan against the widths of a network's bases.

        Raises:
            PlanError: it does not fit.
        """
        embed = bases[-1]
        if not 2 <= self.width <= embed:
            raise PlanError(f"the plan has an embedding of width {self.width}, expected 2 to {embed}")
        if self.encoders is None:
            raise PlanError("the plan has an embedding's width and no matrix for it: a plan that was read has none")
        if len(self.encoders) != len(bases):
            raise PlanError(f"the plan has {len(self.encoders)} matrices for its embedding, expected {len(bases)}")
        for encode, whole in zip(self.encoders, bases, strict=True):
            width = self.width * whole // embed
            if encode.shape != (width, whole) or encode.dtype != torch.float64:
                raise PlanError(
                    f"the plan has a matrix {list(encode.shape)} {encode.dtype} for its embedding, expected "
                    f"[{width}, {whole}] torch.float64"
                )


@dataclass(frozen=True)
class Plan:
    """The remaining blocks, in order, and the embedding."""

    blocks: tuple[BlockPlan, ...]
    embed: EmbedPlan | None = None  # plan of the embedding; None: it keeps its width

    @classmethod
    def narrowed(cls, dims: Sequence[BlockDims], neurons: Sequence[Tensor]) -> Plan:
        """Keep every block with all of its heads, at these dimensions and with these neurons, int64 [ffn] each."""
        pairs = enumerate(zip(dims, neurons, strict=True))
        return cls(tuple(BlockPlan(i, AttentionPlan.of(d), FfnPlan(n)) for i, (d, n) in pairs))

    @property
    def encoders(self) -> tuple[Tensor, ...] | None:
        """The matrices [d', d] that narrow the tokens; None: the embedding keeps its width."""
        return None if self.embed is None else self.embed.encoders

    @property
    def dims(self) -> tuple[BlockDims, ...]:
        return tuple(block.dims for block in self.blocks)

    @property
    def kept_blocks(self) -> list[int]:
        return [block.block for block in self.blocks]

    def check(self, blocks: Sequence[Block]) -> None:
        """Check that the plan fits these blocks.

        Raises:
            PlanError: it does not; the message names the block, and what was expected of it.
        """
        numbers = self.kept_blocks
        if not numbers or numbers != sorted(set(numbers)) or numbers[0] < 0 or numbers[-1] >= len(blocks):
            raise PlanError(
                f"the plan keeps the blocks {in_ranges(numbers) or 'none'}, expected some of 0 to {len(blocks) - 1}, "
                f"each once and in order"
            )
        for plan in self.blocks:
            if (fault := next(_faults(blocks[plan.block], plan), None)) is not None:
                raise PlanError(f"the plan of block {plan.block} has {fault}")

    def record(self, method: str) -> StepRecord:
        """Return the plan as it is recorded in plan.json."""
        blocks = tuple(_recorded(block) for block in self.blocks)
        return StepRecord(method, blocks, None if self.embed is None else self.embed.width)


def _faults(block: Block, plan: BlockPlan) -> Iterator[str]:
    """Yield why a block's plan cannot be realised; each check assumes that the earlier ones passed."""
    if plan.attention is None and plan.ffn is None:
        yield "neither attention nor FFN; leave the block out"
    for site, planned, part in (
        ("an attention", plan.attention, block.attention),
        ("an FFN", plan.ffn, block.ffn),
    ):
        if planned is not None and part is None:
            yield f"{site}, and the network has none there"
    if plan.attention is None and (plan.tokens or block.tokens):
        yield f"{plan.tokens or block.tokens} tokens to pass on, and no attention to rank them by"
    if plan.merged and not plan.tokens:
        yield "merged tokens, and no number of tokens to pass on"
    if plan.attention is not None and block.attention is not None:
        yield from _attention_faults(block.attention, plan.attention)
    if plan.ffn is not None and block.ffn is not None:
        yield from _ffn_faults(block.ffn, plan.ffn)


def _attention_faults(part: Attention, plan: AttentionPlan) -> Iterator[str]:
    heads = list(plan.heads)
    if not heads or len(set(heads)) < len(heads) or min(heads) < 0 or max(heads) >= part.heads:
        yield f"heads {heads}, expected some of 0 to {part.heads - 1}, each once"
    # Rotated queries and keys stay as they are.
    least = [1 if part.rotary is None else part.widths[0], 1]
    for axis, width, low, high in zip(HEAD_WIDTHS, plan.widths, least, part.widths, strict=True):
        if not low <= width <= high:
            yield f"{axis_name(axis)} width {width}, expected {low} to {high}"
    side = part.embed + 1
    if plan.moment is not None and plan.moment.shape != (side, side):
        yield f"a moment {list(plan.moment.shape)}, expected [{side}, {side}]"
    weights = plan.weights
    if weights is not None and (weights.heads, weights.widths) != (len(heads), plan.widths):
        yield f"weights of {weights.heads} heads, QK and VO {weights.widths}, expected those that it plans"


def _ffn_faults(part: Ffn, plan: FfnPlan) -> Iterator[str]:
    count, neurons, labels = part.neurons, plan.neurons, plan.labels
    if neurons.ndim != 1 or not len(neurons) or neurons.dtype != torch.int64:
        yield (
            f"neurons {list(neurons.shape)} {neurons.dtype}, expected at least one index, torch.int64; "
            f"mask.nonzero().flatten() makes indices of a mask"
        )
    numbers = sorted(neurons.tolist())
    if numbers[0] < 0 or numbers[-1] >= count:
        yield f"neurons from {numbers[0]} to {numbers[-1]}, expected 0 to {count - 1}"
    if twice := [a for a, b in pairwise(numbers) if a == b]:
        yield f"neuron {twice[0]} more than once, expected every neuron at most once"
    if labels is not None:
        yield from _label_faults(count, neurons, labels)
    if plan.weights is not None and plan.weights.neurons != plan.width:
        yield f"weights of {plan.weights.neurons} neurons, expected {plan.width}"


def _label_faults(count: int, neurons: Tensor, labels: Tensor) -> Iterator[str]:
    if labels.shape != (count,) or labels.dtype != torch.int64:
        yield f"labels {list(labels.shape)} {labels.dtype}, expected [{count}] torch.int64"
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(neurons):
        yield f"cluster labels from {low} to {high}, expected 0 to {len(neurons) - 1}; leave labels out to drop neurons"
    strange = (labels[neurons] != torch.arange(len(neurons), device=labels.device)).nonzero().flatten().tolist()
    if strange:
        first = strange[0]
        yield f"neuron {int(neurons[first])} for cluster {first}, expected one of the cluster's members"


# -- as a record -------------------------------------------------------------------------------------------------------


def _recorded(plan: BlockPlan) -> BlockRecord:
    a, f = plan.attention, plan.ffn
    attention = None if a is None else AttentionRecord(in_ranges(a.heads), *a.widths)
    return BlockRecord(plan.block, attention, None if f is None else _recorded_ffn(f), plan.tokens, plan.merged)


def _recorded_ffn(plan: FfnPlan) -> FfnRecord:
    neurons = plan.neurons.tolist()
    if plan.labels is None:
        return FfnRecord(plan.width, in_ranges(neurons))
    members: dict[str, list[int]] = {}
    for neuron, place in enumerate(plan.labels.tolist()):
        if neuron != neurons[place]:
            members.setdefault(str(neurons[place]), []).append(neuron)
    return FfnRecord(plan.width, in_ranges(neurons), {anchor: in_ranges(others) for anchor, others in members.items()})


def planned(record: StepRecord) -> Plan:
    """Read the plan of a record: sizes and remaining units, without weights and moments.

    Raises:
        PlanError: it names a neuron to be merged into one that does not stay.
    """
    embed = None if record.embed is None else EmbedPlan(record.embed)
    return Plan(tuple(_planned_block(block) for block in record.blocks), embed)


def _planned_block(record: BlockRecord) -> BlockPlan:
    a, f = record.attention, record.ffn
    attention = None if a is None else AttentionPlan(tuple(from_ranges(a.heads)), a.widths)
    ffn = None if f is None else _planned_ffn(record.block, f)
    return BlockPlan(record.block, attention, ffn, record.tokens, record.merged)


def _planned_ffn(block: int, record: FfnRecord) -> FfnPlan:
    neurons = from_ranges(record.neurons)
    if record.merged is None:
        return FfnPlan(torch.tensor(neurons))
    place = {neuron: i for i, neuron in enumerate(neurons)}
    into = dict(place)
    for anchor, others in record.merged.items():
        if int(anchor) not in place:
            raise PlanError(f"the plan of block {block} merges neurons into {anchor}, which does not stay")
        into |= dict.fromkeys(from_ranges(others), place[int(anchor)])
    if sorted(into) != list(range(len(into))):
        raise PlanError(f"the plan of block {block} neither keeps nor merges some neuron below {max(into)}")
    labels = torch.tensor([into[neuron] for neuron in range(len(into))])
    return FfnPlan(torch.tensor(neurons), labels)


# -- beside an unfinished run ------------------------------------------------------------------------------------------


def save_plan(plan: Plan, method: str, folder: Path) -> None:
    """Save a plan without its weights, for a run that may be interrupted."""
    tensors = {str(b.block): b.attention.moment for b in plan.blocks if b.attention is not None}
    if plan.embed is not None:
        tensors |= {f"encode.{i}": encode for i, encode in enumerate(plan.embed.encoders or ())}
        for i, decode in enumerate(plan.embed.decoders or ()):
            tensors |= {f"embed.{i}.weight": decode.weight, f"embed.{i}.bias": decode.bias}
    decided = DecidedStep(**vars(plan.record(method)), edgevit=written_by())
    with writing(folder):
        save_tensors(folder / _MOMENTS, {name: t for name, t in tensors.items() if t is not None})
        write_whole(folder / PLAN, DECIDED_KIND.text(decided))  # last: one that exists is complete


def load_plan(folder: Path) -> Plan | None:
    """Read the plan of an unfinished run; None: it had not decided one."""
    if not (folder / PLAN).is_file():
        return None
    plan = planned(DECIDED_KIND.read(folder / PLAN))
    with reading_state(folder / _MOMENTS):
        moments = load_file(folder / _MOMENTS)
    blocks = []
    for block in plan.blocks:
        a = block.attention
        blocks.append(
            block if a is None else replace(block, attention=replace(a, moment=moments.get(str(block.block))))
        )
    count = sum(name.startswith("embed.") and name.endswith(".weight") for name in moments)
    decoders = tuple(Decoder(moments[f"embed.{i}.weight"], moments.get(f"embed.{i}.bias")) for i in range(count))
    encoders = tuple(moments[f"encode.{i}"] for i in range(sum(name.startswith("encode.") for name in moments)))
    embed = plan.embed and replace(plan.embed, encoders=encoders or None, decoders=decoders or None)
    return Plan(tuple(blocks), embed)
