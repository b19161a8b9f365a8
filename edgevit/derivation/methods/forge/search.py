"""Which sites stay, where many have to go: a search that solves what it judges.

Sums of what each site is worth by itself say little of what many lose together once the rest is solved again: over sets
of sites that take as long, their rank correlation with what is lost in the end is 0.3, and 0.7 with an affine map where
a site was (decision 009). So plans by both prices, and by means of them, are solved for some images, and then those
that differ from the best one in a site or two, until none of them is better.
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

LEFT_OUT = 0.25  # of the sites: a search is worth its time where the plan leaves out so many
MIXED = (0.25, 0.5, 0.75, 1.0)  # shares of stand-ins in the geometric means of prices, of the plans that it begins with
AT_ONCE, ROUNDS = 12, 4  # plans that are solved in one sweep, and how often those near the best one are
BETTER = 0.97  # of what the best plan loses: else the search ends
FORBIDDEN = 1e6  # nats

Sites = tuple[tuple[bool, bool], ...]  # per block, whether its attention and its FFN stay


class Planned(Protocol):
    @property
    def stay(self) -> Sites: ...

    @property
    def width(self) -> int | None: ...


P = TypeVar("P", bound=Planned)


def mixed_prices(curves: Sequence[BlockCurves], stood_in: Sequence[BlockCurves], share: float) -> list[BlockCurves]:
    """The curves with geometric means of both prices: `share` of those with stand-ins."""

    def mean(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.pow(1 - share) * b.pow(share)

    return [
        replace(
            known,
            block_loss=mean(known.block_loss, other.block_loss),
            site_losses=mean(known.site_losses, other.site_losses),
        )
        for known, other in zip(curves, stood_in, strict=True)
    ]


def forced_to(curves: Sequence[BlockCurves], stay: Sites) -> list[BlockCurves]:
    """The curves with prices by which exactly these sites stay, if the budget is enough for them."""

    def price(gone: bool) -> float:
        return 0.0 if gone else FORBIDDEN

    return [
        replace(
            known,
            block_loss=torch.tensor([price(not attention and not ffn)], dtype=torch.float64),
            site_losses=torch.tensor([price(ffn and not attention), price(attention and not ffn)], dtype=torch.float64),
        )
        for known, (attention, ffn) in zip(curves, stay, strict=True)
    ]


def priced(curves: Sequence[BlockCurves], stay: Sites) -> float:
    """What the sites that go lose by themselves, in nats: both of a block together."""
    nats = 0.0
    for known, (attention, ffn) in zip(curves, stay, strict=True):
        without_attention, without_ffn = known.site_losses.tolist()
        if not attention and not ffn:
            nats += float(known.block_loss)
        elif not (attention and ffn):
            lost = without_ffn if attention else without_attention
            nats += lost if isfinite(lost) else 0.0  # a site that the base has not loses nothing
    return nats


def near(stay: Sites, prices: Sequence[tuple[float, float]]) -> list[Sites]:
    """The sets that differ in one site, or in one that goes for one that comes; by what that seems to be worth.

    prices: what each site loses that goes, per block.
    """
    flat = [there for block in stay for there in block]
    worth = [min(nats, FORBIDDEN) for block in prices for nats in block]  # infinite where a block has but one
    there, away = ([i for i, kept in enumerate(flat) if kept is which] for which in (True, False))
    moves: list[tuple[float, tuple[int, ...]]] = [(worth[i] - worth[j], (i, j)) for i, j in product(there, away)]
    moves += [(-worth[j], (j,)) for j in away]
    moves += [(worth[i], (i,)) for i in there]

    def moved(places: tuple[int, ...]) -> Sites:
        now = [kept is not (i in places) for i, kept in enumerate(flat)]
        return tuple(zip(now[::2], now[1::2], strict=True))

    return [moved(places) for _, places in sorted(moves)]


def search(
    begun: Sequence[P],
    forced: Callable[[Sites, int | None], P | None],
    judge: Callable[[Sequence[P]], list[float]],
    prices: Sequence[tuple[float, float]],
    progress: Progress,
) -> tuple[P, int]:
    """The plan whose answers are the nearest to the base's, and how many were solved.

    Args:
        begun: plans to begin with.
        forced: the plan with exactly these sites at this width of the embedding; None: the budget is not enough.
        judge: what plans lose once they are solved.
        prices: as for `near`.
    """
    seen: set[tuple[Sites, int | None]] = set()

    def unseen(plans: Iterator[P | None]) -> list[P]:
        found: list[P] = []
        for plan in plans:
            if plan is not None and (key := (plan.stay, plan.width)) not in seen:
                seen.add(key)
                found.append(plan)
                if len(found) == AT_ONCE:
                    break
        return found

    with progress.stage("search of sites", 1 + ROUNDS, "sweep") as stage:
        plans = unseen(iter(begun))
        losses = judge(plans)
        least = min(losses)
        best = plans[losses.index(least)]
        for done in range(1, 1 + ROUNDS):
            stage.update(done, loss=least)
            of_best = best
            plans = unseen(forced(stay, of_best.width) for stay in near(of_best.stay, prices))
            if not plans:
                break
            losses = judge(plans)
            if min(losses) >= BETTER * least:
                break
            least = min(losses)
            best = plans[losses.index(least)]
        stage.update(1 + ROUNDS, loss=least)
    return best, len(seen)
