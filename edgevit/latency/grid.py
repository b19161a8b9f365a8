"""The sizes that are measured: a coarse grid, then sizes where linear interpolation is least certain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from edgevit.derivation.allocate.embedding import candidate_widths
from edgevit.derivation.allocate.menus import least_heads
from edgevit.derivation.allocate.policy import Policy, limits
from edgevit.latency.stacks import Cut, Stack
from edgevit.network.anatomy import Axis, BlockDims
from edgevit.records.model import HEAD_WIDTHS

_DEPTH = 6  # blocks of a stack: enough to show their cost, few enough to export and build quickly
SHARES = (0.125, 0.25, 0.5, 0.75)  # measured shares of the neurons between the fewest and all
_TILE = 64  # neurons of a kernel's tile: coarse sizes lie between two multiples, where a line errs to neither side
_BEND = 0.25  # assumed error of a line at its middle, as a share of the change of slope
_NARROWER = (1 / 2, 1 / 4)  # measured shares of the embedding's width, beside the narrowest
_JUMP = 0.1  # assumed error as a share of the rise between two sizes, which may be a step


@dataclass(frozen=True)
class Grid:
    """The sizes that a policy allows for the blocks of one stage of a base."""

    count: int  # number of whole blocks of the stage
    most: BlockDims  # the largest size along each axis
    fewest_heads: int
    least_width: int
    least_neurons: int
    heads: frozenset[int]  # the numbers of heads that blocks of the base have
    policy: Policy
    narrower: tuple[int, ...] = ()  # widths of the embedding below the base's own, the widest first
    fewer: tuple[int, ...] = ()  # numbers of tokens below all, the most first
    stage: int = 0

    @classmethod
    def of(
        cls,
        blocks: Sequence[BlockDims],
        policy: Policy,
        embed: int | None = None,
        counts: Sequence[int] = (),
        frozen: Collection[Axis] = (),
    ) -> Grid:
        """Return the grid of a stage with these whole blocks.

        Args:
            embed: the width of the embedding, if that may be narrowed.
            counts: numbers of tokens that blocks may get.
            frozen: axes along which no block can be cut.
        """
        most = blocks[0].with_sizes({axis: max(b[axis] for b in blocks) for axis in blocks[0].sizes})
        least = [limits(b, policy, frozen) for b in blocks]
        return cls(
            len(blocks),
            most,
            min(least_heads(b, policy, drop_heads=True) for b in blocks),
            min(sum(low[axis][0] for axis in HEAD_WIDTHS) // 2 for low in least),
            min(low["ffn"][0] for low in least),
            frozenset(b.heads for b in blocks),
            policy,
            () if embed is None else _narrower(embed, policy),
            _some(counts),
            most.stage,
        )

    @property
    def depth(self) -> int:
        """Number of blocks in a stack."""
        return min(self.count, _DEPTH)

    @property
    def width(self) -> int:
        return self.most.head_width

    @property
    def anchor(self) -> Stack:
        """The blocks of the base itself, if they are all alike: everything is measured in turns with it."""
        return Stack(self.count, self.most.heads, self.width, self.most.ffn, stage=self.stage)

    def attention(self, heads: int, width: int) -> Stack:
        return Stack(self.depth, heads, width, 0, stage=self.stage)

    def ffn(self, neurons: int) -> Stack:
        return Stack(self.depth, 0, 0, neurons, stage=self.stage)

    def _sizes(self) -> tuple[list[int], list[int], list[int]]:
        """Return heads, widths and neurons of the coarse grid."""
        heads = sorted({self.fewest_heads, (self.fewest_heads + self.most.heads) // 2, *self.heads})
        middle = _multiple((self.least_width + self.width) // 2, self.policy.head_step)
        widths = sorted({self.least_width, min(max(middle, self.least_width), self.width), self.width})
        step = _TILE if self.most.ffn >= 8 * _TILE else self.policy.step("ffn")
        amid = _TILE // 2 if self.policy.step("ffn") < step else 0
        inner = (_multiple(round(share * self.most.ffn), step) + amid for share in SHARES)
        neurons = sorted({self.least_neurons, self.most.ffn, *(n for n in inner if n > self.least_neurons)})
        return heads, widths, neurons

    def _middle(self) -> Stack:
        """Return blocks with both sites of middle size."""
        heads, width, neurons = (sizes[len(sizes) // 2] for sizes in self._sizes())
        return Stack(self.depth, heads, width, neurons, stage=self.stage)

    def coarse(self) -> list[Stack]:
        """List the stacks of every table at the base's own embedding; the anchor comes first."""
        heads, widths, neurons = self._sizes()
        whole = [self._middle(), replace(self._middle(), heads=heads[0], width=widths[0], neurons=neurons[0])]
        stacks = [
            self.anchor,
            replace(self.ffn(self.least_neurons), count=1),  # against six of these: the cost outside the blocks
            *(self.attention(*size) for size in product(heads, widths)),
            *(self.ffn(n) for n in neurons),
            *whole,
        ]
        return list(dict.fromkeys(stacks))

    def at_width(self, embed: int) -> list[Stack]:
        """List the stacks that `fit_narrower` needs at this width of the embedding."""
        heads, widths, neurons = self._sizes()
        stacks = [
            replace(self.ffn(neurons[0]), count=1),
            self.ffn(neurons[0]),
            self.ffn(neurons[-1]),
            self.attention(heads[0], widths[0]),
            self.attention(heads[-1], widths[-1]),
            self._middle(),
        ]
        return [replace(stack, embed=embed) for stack in dict.fromkeys(stacks)]

    def behind_cuts(self, tokens: int) -> list[Stack]:
        """List the stacks that `fit_fewer` needs with so many tokens."""
        heads, widths, neurons = self._sizes()
        cut, depth = Cut(tokens, heads[0], widths[0]), max(min(self.count - 1, _DEPTH), 1)
        stacks = [
            Stack(0, 0, 0, 0),
            self.ffn(neurons[0]),
            self.ffn(neurons[-1]),
            self.attention(heads[0], widths[0]),
            self.attention(heads[-1], widths[-1]),
        ]
        return [replace(stack, count=min(stack.count, depth), cut=cut) for stack in dict.fromkeys(stacks)]

    def at(self, sizes: Sequence[BlockDims]) -> list[Stack]:
        """List the stacks that measure blocks of these sizes: one for each attention, and one for each FFN."""
        sizes = [d for d in sizes if d.stage == self.stage]
        attentions = [self.attention(d.heads, round(sum(d.head_widths) / 2)) for d in sizes if d.has("attention")]
        return list(dict.fromkeys([*attentions, *(self.ffn(d.ffn) for d in sizes if d.has("ffn"))]))

    def within(self, stacks: Iterable[Stack]) -> list[Stack]:
        """List the stacks at the base's own embedding that are no larger than it: a store may hold larger ones."""
        most = (self.most.heads, self.width, self.most.ffn)
        at_base = (s for s in stacks if (s.embed, s.cut, s.stage, s.later) == (None, None, self.stage, None))
        return [s for s in at_base if all(a <= b for a, b in zip((s.heads, s.width, s.neurons), most, strict=True))]

    def between(
        self, attention: Mapping[tuple[int, int], float], ffn: Mapping[int, float], noise: float = 0.0
    ) -> list[tuple[float, Stack]]:
        """List sizes halfway between two measured ones, with the possible error of a line there, the largest first.

        Args:
            attention: costs by heads and width.
            ffn: costs by neurons.
            noise: relative standard error of these costs, which is no error of the line.
        """
        heads, widths = (sorted({size[i] for size in attention}) for i in (0, 1))
        full_heads, full_width = heads[-1], widths[-1]
        doubts = [
            *_halfway({w: attention[full_heads, w] for w in widths}, self.policy.head_step, noise,
                      lambda width: self.attention(full_heads, width)),
            *_halfway({h: attention[h, full_width] for h in heads}, 1, noise,
                      lambda count: self.attention(count, full_width)),
            *_halfway(ffn, self.policy.step("ffn"), noise, self.ffn),
        ]  # fmt: skip
        return sorted(doubts, key=lambda doubt: -doubt[0])


def _narrower(embed: int, policy: Policy) -> tuple[int, ...]:
    """List the measured widths below an embedding's own, the widest first; those between are interpolated."""
    _, *widths = candidate_widths(embed, policy.embed_step)
    nearest = (min(widths, key=lambda width: abs(width - share * embed)) for share in _NARROWER if widths)
    return tuple(sorted({*nearest, *widths[-1:]}, reverse=True))


def _some(counts: Sequence[int]) -> tuple[int, ...]:
    """Return the most, the fewest and the middle count; those between are interpolated."""
    rising = sorted(counts)
    return tuple(sorted({rising[0], rising[len(rising) // 2], rising[-1]}, reverse=True)) if rising else ()


def _multiple(size: int, step: int) -> int:
    """Round down to a multiple of a step."""
    return size // step * step


def _halfway(
    costs: Mapping[int, float], step: int, noise: float, stack_of: Callable[[int], Stack]
) -> list[tuple[float, Stack]]:
    """List the stack between each pair of neighbours, and the possible error of a line there."""
    sizes = sorted(costs)
    slopes = [(costs[b] - costs[a]) / (b - a) for a, b in pairwise(sizes)]
    doubts = []
    for i, (low, high) in enumerate(pairwise(sizes)):
        middle = low + _multiple((high - low) // 2, step)
        if not low < middle < high:
            continue
        bends = [abs(slopes[i] - slopes[j]) * (high - low) / 2 for j in (i - 1, i + 1) if 0 <= j < len(slopes)]
        jump = abs(costs[high] - costs[low])
        doubt = max([_BEND * bend for bend in bends] + [_JUMP * jump])
        doubts.append((max(doubt - noise * costs[high], 0.0), stack_of(middle)))
    return doubts
