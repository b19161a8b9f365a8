"""Which sizes are measured: a coarse grid first, then where straight lines between neighbours are least certain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from edgevit.derivation.allocate.embedding import ladder
from edgevit.derivation.allocate.menus import least_heads
from edgevit.derivation.allocate.policy import Policy, limits
from edgevit.latency.stacks import Cut, Stack
from edgevit.network.anatomy import Axis, BlockDims

DEPTH = 6  # blocks of a stack: enough for what they take to show, few enough to be exported and built soon
SHARES = (0.125, 0.25, 0.5, 0.75)  # of the neurons, beside the fewest and all
TILE = 64  # neurons that kernels like: a coarse grid has sizes amid two such, where a line errs to neither side
BEND = 0.25  # assumed error of a straight line at its middle, as a share of the change of slope
NARROWER = (1 / 2, 1 / 4)  # of the embedding's width, beside the narrowest that may be asked for
JUMP = 0.1  # assumed error as a share of the rise from one size to the next: that rise may be a step


@dataclass(frozen=True)
class Grid:
    """The sizes that a policy can ask of a base."""

    count: int  # whole blocks of the base
    most: BlockDims  # the largest of each size
    fewest_heads: int
    least_width: int
    least_neurons: int
    heads: frozenset[int]  # numbers of heads that blocks of the base have
    policy: Policy
    narrower: tuple[int, ...] = ()  # widths of the embedding, beside the base's own, the widest first
    fewer: tuple[int, ...] = ()  # numbers of tokens, beside all, the most first

    @classmethod
    def of(
        cls,
        blocks: Sequence[BlockDims],
        policy: Policy,
        embed: int | None = None,
        counts: Sequence[int] = (),
        frozen: Collection[Axis] = (),
    ) -> Grid:
        """The grid of a base with these whole blocks.

        Args:
            embed: the width of an embedding that may be narrowed.
            counts: numbers of tokens that some of them may be given.
            frozen: axes along which none of them can be cut.
        """
        most = BlockDims(*(max(getattr(b, name) for b in blocks) for name in ("heads", "qk", "vo", "ffn")))
        least = [limits(b, policy, frozen) for b in blocks]
        return cls(
            len(blocks),
            most,
            min(least_heads(b, policy, drop_heads=True) for b in blocks),
            min((low["qk"][0] + low["vo"][0]) // 2 for low in least),
            min(low["ffn"][0] for low in least),
            frozenset(b.heads for b in blocks),
            policy,
            () if embed is None else _rungs(embed, policy),
            _some(counts),
        )

    @property
    def depth(self) -> int:
        """Blocks of a stack."""
        return min(self.count, DEPTH)

    @property
    def width(self) -> int:
        return max(self.most.qk, self.most.vo)

    @property
    def anchor(self) -> Stack:
        """The base itself, where its blocks are all alike: what everything is measured in turns with."""
        return Stack(self.count, self.most.heads, self.width, self.most.ffn)

    def attention(self, heads: int, width: int) -> Stack:
        return Stack(self.depth, heads, width, 0)

    def ffn(self, neurons: int) -> Stack:
        return Stack(self.depth, 0, 0, neurons)

    def _sizes(self) -> tuple[list[int], list[int], list[int]]:
        """Heads, widths and neurons of the coarse grid."""
        heads = sorted({self.fewest_heads, (self.fewest_heads + self.most.heads) // 2, *self.heads})
        middle = _multiple((self.least_width + self.width) // 2, self.policy.head_step)
        widths = sorted({self.least_width, min(max(middle, self.least_width), self.width), self.width})
        step = TILE if self.most.ffn >= 8 * TILE else self.policy.ffn_step
        amid = TILE // 2 if self.policy.ffn_step < step else 0
        inner = (_multiple(round(share * self.most.ffn), step) + amid for share in SHARES)
        neurons = sorted({self.least_neurons, self.most.ffn, *(n for n in inner if n > self.least_neurons)})
        return heads, widths, neurons

    def _middle(self) -> Stack:
        """Blocks with both sites, neither small nor large."""
        heads, width, neurons = (sizes[len(sizes) // 2] for sizes in self._sizes())
        return Stack(self.depth, heads, width, neurons)

    def coarse(self) -> list[Stack]:
        """What every table is made of at the base's own embedding; the anchor is the first."""
        heads, widths, neurons = self._sizes()
        whole = [self._middle(), Stack(self.depth, heads[0], widths[0], neurons[0])]
        found = [
            self.anchor,
            replace(self.ffn(self.least_neurons), count=1),  # beside six of these: what lies outside the blocks
            *(self.attention(*size) for size in product(heads, widths)),
            *(self.ffn(n) for n in neurons),
            *whole,
        ]
        return list(dict.fromkeys(found))

    def rung(self, embed: int) -> list[Stack]:
        """Stacks by which `cost.narrower` finds how costs at this embedding follow from those at the base's."""
        heads, widths, neurons = self._sizes()
        found = [
            replace(self.ffn(neurons[0]), count=1),
            self.ffn(neurons[0]),
            self.ffn(neurons[-1]),
            self.attention(heads[0], widths[0]),
            self.attention(heads[-1], widths[-1]),
            self._middle(),
        ]
        return [replace(stack, embed=embed) for stack in dict.fromkeys(found)]

    def behind_cuts(self, tokens: int) -> list[Stack]:
        """Stacks by which `cost.fewer_tokens` finds how costs with so many tokens follow from those with all."""
        heads, widths, neurons = self._sizes()
        cut, depth = Cut(tokens, heads[0], widths[0]), max(min(self.count - 1, DEPTH), 1)
        found = [
            Stack(0, 0, 0, 0),
            self.ffn(neurons[0]),
            self.ffn(neurons[-1]),
            self.attention(heads[0], widths[0]),
            self.attention(heads[-1], widths[-1]),
        ]
        return [replace(stack, count=min(stack.count, depth), cut=cut) for stack in dict.fromkeys(found)]

    def at(self, sizes: Sequence[BlockDims]) -> list[Stack]:
        """The stacks that say most of blocks of these sizes: one of each attention alone, and one of each FFN alone."""
        found = [self.attention(d.heads, round((d.qk + d.vo) / 2)) for d in sizes if d.has_attention]
        return list(dict.fromkeys([*found, *(self.ffn(d.ffn) for d in sizes if d.has_ffn)]))

    def within(self, stacks: Iterable[Stack]) -> list[Stack]:
        """The stacks at the base's own embedding that are no larger than it: a store may hold those of larger bases."""
        most = (self.most.heads, self.width, self.most.ffn)
        own = (s for s in stacks if s.embed is None and s.cut is None)
        return [s for s in own if all(a <= b for a, b in zip((s.heads, s.width, s.neurons), most, strict=True))]

    def between(
        self, attention: Mapping[tuple[int, int], float], ffn: Mapping[int, float], noise: float = 0.0
    ) -> list[tuple[float, Stack]]:
        """Sizes halfway between two that are known, with what a straight line may be wrong by there, the worst first.

        Shapes: `attention` by heads and width, `ffn` by neurons: what one site takes. `noise` is the relative standard
        error of that, which is no reason for doubt.
        """
        heads, widths = (sorted({size[i] for size in attention}) for i in (0, 1))
        full_heads, full_width = heads[-1], widths[-1]
        found = [
            *_halfway({w: attention[full_heads, w] for w in widths}, self.policy.head_step, noise,
                      lambda width: self.attention(full_heads, width)),
            *_halfway({h: attention[h, full_width] for h in heads}, 1, noise,
                      lambda count: self.attention(count, full_width)),
            *_halfway(ffn, self.policy.ffn_step, noise, self.ffn),
        ]  # fmt: skip
        return sorted(found, key=lambda one: -one[0])


def _rungs(embed: int, policy: Policy) -> tuple[int, ...]:
    """The widths that are measured beside an embedding's own: what lies between them is interpolated."""
    _, *widths = ladder(embed, policy.embed_step)
    nearest = (min(widths, key=lambda width: abs(width - share * embed)) for share in NARROWER if widths)
    return tuple(sorted({*nearest, *widths[-1:]}, reverse=True))


def _some(counts: Sequence[int]) -> tuple[int, ...]:
    """The most, the fewest and the middle of them: what lies between is interpolated."""
    rising = sorted(counts)
    return tuple(sorted({rising[0], rising[len(rising) // 2], rising[-1]}, reverse=True)) if rising else ()


def _multiple(size: int, step: int) -> int:
    """The nearest multiple of a step, down."""
    return size // step * step


def _halfway(
    known: Mapping[int, float], step: int, noise: float, made: Callable[[int], Stack]
) -> list[tuple[float, Stack]]:
    """Between neighbours further apart than a step: the stack in the middle, and how wrong a straight line may be."""
    sizes = sorted(known)
    slopes = [(known[b] - known[a]) / (b - a) for a, b in pairwise(sizes)]
    found = []
    for i, (low, high) in enumerate(pairwise(sizes)):
        middle = low + _multiple((high - low) // 2, step)
        if not low < middle < high:
            continue
        bends = [abs(slopes[i] - slopes[j]) * (high - low) / 2 for j in (i - 1, i + 1) if 0 <= j < len(slopes)]
        jump = abs(known[high] - known[low])
        doubt = max([BEND * bend for bend in bends] + [JUMP * jump])
        found.append((max(doubt - noise * known[high], 0.0), made(middle)))
    return found
