"""Search for the sites to keep where many must be removed, by solving the plans that it judges.

The sum of the losses of single sites predicts poorly what many lose together after the other weights are solved again.
Over sets of sites of equal cost, its rank correlation with the final loss is 0.3, and 0.7 if an affine map replaces
each removed site (decision 010). So plans by both prices, and by geometric means of them, are solved for some images.
Then plans that differ from the best one in one or two sites are solved, until none is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import isfinite
from typing import Protocol, TypeVar

import torch

from edgevit.derivation.methods.forge.curves import BlockCurves
from edgevit.progress import Progress

LEFT_OUT = 0.25  # share of removed sites from which a search is worth its time
MIXED = (0.25, 0.5, 0.75, 1.0)  # weights of affine replacements in the mean prices of the first plans
AT_ONCE, ROUNDS = 12, 4  # plans solved in one sweep, and the number of sweeps around the best plan
_BETTER = 0.97  # the search ends if a sweep does not lower the loss to this share
_FORBIDDEN = 1e6  # nats

Sites = tuple[tuple[bool, bool], ...]  # per block, whether its attention and its FFN stay


class Planned(Protocol):
    @property
    def stay(self) -> Sites: ...

    @property
    def width(self) -> int | None: ...


P = TypeVar("P", bound=Planned)


def mixed_prices(curves: Sequence[BlockCurves], replaced: Sequence[BlockCurves], share: float) -> list[BlockCurves]:
    """Return the curves with geometric means of both prices, `share` the weight of those with replacements."""

    def mean(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.pow(1 - share) * b.pow(share)

    return [
        replace(
            plain,
            block_loss=mean(plain.block_loss, affine.block_loss),
            site_losses=mean(plain.site_losses, affine.site_losses),
        )
        for plain, affine in zip(curves, replaced, strict=True)
    ]


def forced_to(curves: Sequence[BlockCurves], stay: Sites) -> list[BlockCurves]:
    """Return the curves with prices by which exactly these sites stay, if the budget allows."""

    def price(removed: bool) -> float:
        return 0.0 if removed else _FORBIDDEN

    return [
        replace(
            block,
            block_loss=torch.tensor([price(not attention and not ffn)], dtype=torch.float64),
            site_losses=torch.tensor([price(ffn and not attention), price(attention and not ffn)], dtype=torch.float64),
        )
        for block, (attention, ffn) in zip(curves, stay, strict=True)
    ]


def priced(curves: Sequence[BlockCurves], stay: Sites) -> float:
    """Sum the losses of the removed sites, each by itself, in nats; both sites of a block count together."""
    nats = 0.0
    for block, (attention, ffn) in zip(curves, stay, strict=True):
        without_attention, without_ffn = block.site_losses.tolist()
        if not attention and not ffn:
            nats += float(block.block_loss)
        elif not (attention and ffn):
            loss = without_ffn if attention else without_attention
            nats += loss if isfinite(loss) else 0.0  # a site that the base lacks loses nothing
    return nats


def near(stay: Sites, prices: Sequence[tuple[float, float]]) -> list[Sites]:
    """List the sets that differ by one site, or by one removed and one added, the most promising first.

    Args:
        prices: the loss without each site, per block.
    """
    flat = [present for block in stay for present in block]
    worth = [min(nats, _FORBIDDEN) for block in prices for nats in block]  # infinite where a block has one site only
    in_plan, removed = ([i for i, present in enumerate(flat) if present is state] for state in (True, False))
    moves: list[tuple[float, tuple[int, ...]]] = [(worth[i] - worth[j], (i, j)) for i, j in product(in_plan, removed)]
    moves += [(-worth[j], (j,)) for j in removed]
    moves += [(worth[i], (i,)) for i in in_plan]

    def moved(places: tuple[int, ...]) -> Sites:
        changed = [present is not (i in places) for i, present in enumerate(flat)]
        return tuple(zip(changed[::2], changed[1::2], strict=True))

    return [moved(places) for _, places in sorted(moves)]


def search(
    first: Sequence[P],
    forced: Callable[[Sites, int | None], P | None],
    judge: Callable[[Sequence[P]], list[float]],
    prices: Sequence[tuple[float, float]],
    progress: Progress,
) -> tuple[P, int]:
    """Return the plan whose answers are nearest to the base's, and the number of plans solved.

    Args:
        first: the plans to begin with.
        forced: makes the plan with exactly these sites at this width of the embedding; None: the budget is too small.
        judge: solves plans and returns their losses.
        prices: as for `near`.
    """
    solved: set[tuple[Sites, int | None]] = set()

    def untried(plans: Iterator[P | None]) -> list[P]:
        batch: list[P] = []
        for plan in plans:
            if plan is not None and (key := (plan.stay, plan.width)) not in solved:
                solved.add(key)
                batch.append(plan)
                if len(batch) == AT_ONCE:
                    break
        return batch

    with progress.stage("search of sites", 1 + ROUNDS, "sweep") as stage:
        plans = untried(iter(first))
        losses = judge(plans)
        least = min(losses)
        best = plans[losses.index(least)]
        for done in range(1, 1 + ROUNDS):
            stage.update(done, loss=least)
            stay, width = best.stay, best.width
            plans = untried(forced(sites, width) for sites in near(stay, prices))
            if not plans:
                break
            losses = judge(plans)
            if min(losses) >= _BETTER * least:
                break
            least = min(losses)
            best = plans[losses.index(least)]
        stage.update(1 + ROUNDS, loss=least)
    return best, len(solved)
