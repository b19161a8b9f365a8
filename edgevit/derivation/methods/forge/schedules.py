"""Token schedules: how many tokens each block passes on, with the loss of each schedule by itself.

A schedule has an entry per block of the base: the number of tokens that the block passes on, or 0 for all that it gets.
Its attention ranks the tokens per image (`network.families.vit.tokens`). Counts are multiples of a tile, the number of
rows that a matrix unit takes at once: 197 tokens need four tiles of 64, and 192 need three. The loss of a schedule is
measured in one pass over the sensitivity images, once per task, and counts as an addition to the losses of widths.
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
from edgevit.derivation.allocate.policy import tile_counts
from edgevit.derivation.plan import Plan
from edgevit.derivation.problem import Problem
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry

Schedule = tuple[int, ...]  # per block of the base

_PLACES = (1 / 2, 2 / 3, 5 / 6)  # shares of the depth after which tokens are removed


def reason_against(problem: Problem) -> str | None:
    """Return why no tokens can be removed; None if they can."""
    geometry = problem.network.geometry
    training = problem.training
    if training.has_teacher and training.token_weight and geometry.tokens == geometry.patches:
        return "training compares tokens, and without a class token none always stays; add --token-weight 0"
    if problem.budget.quantity == "params":
        return "tokens have no parameters"
    if any(block.tokens for block in problem.network.read()):
        return "this base removes tokens already"
    return None


def schedules(geometry: Geometry, depth: int) -> list[Schedule]:
    """List the schedules with one or two removals, after the one without any."""
    counts = tile_counts(geometry)
    places = sorted({round(depth * share) - 1 for share in _PLACES} & set(range(depth - 1)))
    places = [i for i in places if "tokens" not in geometry.frozen(i)]
    steps = [[(i, n)] for i in places for n in counts]
    steps += [[(i, n), (j, m)] for i, j in combinations(places, 2) for m, n in combinations(counts, 2)]
    return [(0,) * depth, *(tuple(dict(step).get(i, 0) for i in range(depth)) for step in steps)]


def worthwhile(problem: Problem, slices: Slices) -> list[tuple[Schedule, float]]:
    """List the schedules that no other beats in both MACs and loss, each with its loss in nats; all tokens first."""
    network = problem.network
    blocks, geometry = network.read(), network.geometry

    def macs(schedule: Schedule) -> int:
        return geometry.macs(with_schedule([b.dims for b in blocks], schedule))

    def loss(schedule: Schedule) -> float:
        slim = network.build([replace(b, tokens=n) for b, n in zip(blocks, schedule, strict=True)])
        return slices.lost(slim.to(problem.compute.device)) if any(schedule) else 0.0

    def measure() -> dict[str, Tensor]:
        with problem.stopwatch.stage("tokens"):
            return {"nats": torch.tensor([loss(schedule) for schedule in every], dtype=torch.float64)}

    every = sorted(schedules(geometry, len(blocks)), key=macs, reverse=True)
    losses = problem.cache.tensors(
        "token_schedules", {**slices.key, "token_schedules": every, "quick": slices.quick}, measure
    )["nats"]
    best: list[tuple[Schedule, float]] = []
    for schedule, nats in zip(every, losses.tolist(), strict=True):
        # It has fewer MACs than all before it, so it beats those that lose more.
        best = [entry for entry in best if entry[1] < nats or not any(entry[0])] + [(schedule, nats)]
    return best


def with_schedule(dims: Sequence[BlockDims], schedule: Schedule) -> list[BlockDims]:
    """Return the blocks with the schedule's numbers of tokens."""
    return [replace(d, tokens=n) for d, n in zip(dims, schedule, strict=True)]


def containing(schedule: Schedule, at_least: Mapping[int, BlockDims]) -> bool:
    """Whether the schedule leaves these blocks at least their tokens, and no other block removes any."""
    blocks = sorted(at_least)
    reaching = accumulate((schedule[i] for i in blocks), lambda before, now: now or before, initial=inf)
    least = accumulate((at_least[i].tokens for i in blocks), lambda before, now: now or before, initial=inf)
    return not any(n for i, n in enumerate(schedule) if i not in at_least) and all(map(ge, reaching, least))


def without_tokens(plan: Plan) -> Plan:
    """Return the plan with all tokens, by which a network is solved token by token."""
    return replace(plan, blocks=tuple(replace(block, tokens=0) for block in plan.blocks))
