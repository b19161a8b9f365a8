"""How many tokens go on after each block: a few ladders, each with what the answers lose by it alone.

A ladder says of each block of the base how many tokens it passes on, 0 for as many as it is given; which ones is
decided image by image, by what its attention looks at (`models.families.vit.tokens`). Counts are multiples of a tile,
which is what a matrix unit takes at once: 197 tokens are four tiles of 64, and 192 are three. What is lost with a
ladder is measured by one pass over the sensitivity images, once per task, and is taken as what it adds to the losses of
widths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, combinations
from math import inf
from operator import ge

import torch
from torch import Tensor

from edgevit.derivation.allocate.embedding import Slices
from edgevit.derivation.allocate.tokens import tile_counts
from edgevit.derivation.methods.forge.config import Config
from edgevit.derivation.plan import Plan
from edgevit.derivation.problem import Problem
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry
from edgevit.network.families import family_of

Ladder = tuple[int, ...]  # per block of the base

PLACES = (1 / 2, 2 / 3, 5 / 6)  # shares of the depth behind which tokens leave


def reason_against(problem: Problem, config: Config) -> str | None:
    """Why all tokens stay; None: some may leave."""
    geometry = family_of(problem.network).geometry(problem.network)
    compared = config.teacher != "none" and config.token_weight > 0 and problem.training.steps != 0
    if compared and geometry.tokens == geometry.patches:
        return "training compares tokens, and without a class token none always stays; set forge.token_weight to 0"
    if problem.budget.quantity == "params":
        return "they have no parameters"
    if any(block.tokens for block in family_of(problem.network).read(problem.network)):
        return "tokens leave this base already"
    return None


def ladders(geometry: Geometry, depth: int) -> list[Ladder]:
    """Ladders of one step or two, that in which all tokens stay first."""
    counts = tile_counts(geometry)
    places = sorted({round(depth * share) - 1 for share in PLACES} & set(range(depth - 1)))
    places = [i for i in places if "tokens" not in geometry.frozen(i)]
    steps = [[(i, n)] for i in places for n in counts]
    steps += [[(i, n), (j, m)] for i, j in combinations(places, 2) for m, n in combinations(counts, 2)]
    return [(0,) * depth, *(tuple(dict(step).get(i, 0) for i in range(depth)) for step in steps)]


def worthwhile(problem: Problem, slices: Slices) -> list[tuple[Ladder, float]]:
    """The ladders that no other beats both in MACs and in loss, with what each loses in nats; all tokens first."""
    network = problem.network
    family = family_of(network)
    blocks, geometry = family.read(network), family.geometry(network)

    def macs(ladder: Ladder) -> int:
        return geometry.macs(with_ladder([b.dims for b in blocks], ladder))

    def lost_with(ladder: Ladder) -> float:
        slim = family.build(network, [replace(b, tokens=n) for b, n in zip(blocks, ladder, strict=True)])
        return slices.lost(slim.to(problem.compute.device)) if any(ladder) else 0.0

    def measure() -> dict[str, Tensor]:
        with problem.stopwatch.stage("tokens"):
            return {"nats": torch.tensor([lost_with(ladder) for ladder in known], dtype=torch.float64)}

    found: list[tuple[Ladder, float]] = []
    known = sorted(ladders(geometry, len(blocks)), key=macs, reverse=True)
    losses = problem.cache.tensors("ladders", {**slices.key, "ladders": known, "quick": slices.quick}, measure)["nats"]
    for ladder, lost in zip(known, losses.tolist(), strict=True):
        # The next has fewer MACs than all before it: those that lose more are beaten by it.
        found = [(other, nats) for other, nats in found if nats < lost or not any(other)] + [(ladder, lost)]
    return found


def with_ladder(dims: Sequence[BlockDims], ladder: Ladder) -> list[BlockDims]:
    """The blocks with what they pass on."""
    return [replace(d, tokens=n) for d, n in zip(dims, ladder, strict=True)]


def containing(ladder: Ladder, at_least: Mapping[int, BlockDims]) -> bool:
    """Whether each of these blocks is given at least as many tokens by the ladder, which cuts at no other block."""
    kept = sorted(at_least)
    given = accumulate((ladder[i] for i in kept), lambda before, now: now or before, initial=inf)
    least = accumulate((at_least[i].tokens for i in kept), lambda before, now: now or before, initial=inf)
    return not any(n for i, n in enumerate(ladder) if i not in at_least) and all(map(ge, given, least))


def without_tokens(plan: Plan) -> Plan:
    """The same with all tokens staying: what a network is solved by, token by token."""
    return replace(plan, blocks=tuple(replace(block, tokens=0) for block in plan.blocks))
