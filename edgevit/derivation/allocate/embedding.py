"""Choose a narrower embedding, for any method: the possible widths, and the loss of each by itself.

A method makes its plans in the network's own embedding, and adds the `EmbedPlan` of `Slices.plan`: `realise` narrows
last. Costs at another width are those of `Network.geometry_at`.

    if (reason := reason_against(problem, images)) is None:
        slices = Slices(problem, images, images)
        for width in embed_widths(problem.network, problem.policy): ...

A method that predicts losses in nats searches these widths with `climb`. The loss at a width is a sum of two: that of
narrowing the embedding by itself, which one pass over validation images measures, and that which the method
predicts for the budget at that width, where every unit costs less. The widest is the network's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf, sqrt
from typing import Generic, TypeVar

import torch
from torch import Tensor

from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.measure.divergence import base_outputs, divergences, mean_nats, network_outputs
from edgevit.derivation.measure.embedding import (
    TokenStatistics,
    enough_images,
    measure_tokens,
    stable_images,
    token_weights,
)
from edgevit.derivation.plan import EmbedPlan
from edgevit.derivation.problem import Problem
from edgevit.derivation.realise import narrow_embedding
from edgevit.errors import BudgetError
from edgevit.network.network import Network

_STEPS = 12  # widths, evenly spaced
_LEAST = 2  # smallest width in these steps

T = TypeVar("T")


def candidate_widths(embed: int, multiple: int) -> list[int]:
    """Widths that the embedding may have, the widest first: its own, and multiples of `multiple` below."""
    below = {round(embed * k / _STEPS / multiple) * multiple for k in range(_LEAST, _STEPS)}
    return [embed, *sorted((width for width in below if 2 <= width < embed), reverse=True)]


def embed_widths(network: Network, policy: Policy, least: int = 0) -> list[int]:
    """The widths the embedding may have, the widest first; `least` is the narrowest that the budget can count."""
    geometry = network.geometry
    widths = geometry.widths(candidate_widths(geometry.stages[0].embed, policy.embed_step))
    return [width for width in widths if width >= least]


def narrowest(network: Network, policy: Policy) -> int:
    """The last of `embed_widths`; the network's own where it cannot be narrowed."""
    geometry = network.geometry
    return geometry.embed if geometry.fixed_embed is not None else embed_widths(network, policy)[-1]


def reason_against(problem: Problem, calibration_images: int) -> str | None:
    """Why the embedding stays as it is; None: it can be narrowed."""
    return why_it_stays(problem.network, problem.budget, min(len(problem.task.train), calibration_images))


def why_it_stays(network: Network, budget: Budget, images: int) -> str | None:
    """Why this embedding cannot be narrowed within a budget, with so many calibration images; None: it can be."""
    geometry = network.geometry
    if geometry.fixed_embed is not None:
        return geometry.fixed_embed
    if budget.at_least_embed == geometry.embed:
        return "a plan of this width grows"
    if budget.least_embed == geometry.embed:
        is_one = len(geometry.stages) == 1
        why = "`edgevit cost` measures them" if is_one else "several stages are measured at their own widths alone"
        return f"the cost table lists no narrower one; {why}"
    if images < (enough := enough_images(network)):
        return f"{images} calibration images do not determine the directions of its tokens, {enough} would"
    return None


def has_directions(network: Network, images: int) -> bool:
    """Whether a budget may narrow the embedding: so many images must determine its directions."""
    return network.geometry.fixed_embed is None and images >= enough_images(network)


def more_images(problem: Problem, method: str, images: int, enough: int) -> str:
    """Name the option that raises a method's calibration images from `images` to `enough`, or as far as possible."""
    available = len(problem.task.train)
    if available <= images:
        return f"add training images, of which there are {available}"
    return f"give --set {method}.calibration_images={min(enough, available)}"


class Slices:
    """The loss when the embedding alone is narrowed; each width is measured once per task.

    Args:
        tokens: their statistics, from `measure.embedding.TokenMoments`; None: two more passes measure them.
        fitted: whether fitted decoders restore the tokens, and few directions are chosen for that; else the transposed
            rotation of the largest directions does.
        quick: as for `Passes.show`, for the passes whose answers are compared with the base's.
        owner: the method whose option `calibration_images` is named where there are few.
    """

    def __init__(
        self,
        problem: Problem,
        calibration_images: int,
        sensitivity_images: int,
        tokens: TokenStatistics | None = None,
        *,
        fitted: bool = True,
        quick: bool = False,
        owner: str = "METHOD",
    ) -> None:
        self.problem, self.fitted, self.quick = problem, fitted, quick
        self.owner, self.calibration_images = owner, calibration_images
        self.calibration = problem.calibration(calibration_images)
        self.sensitivity = problem.gradient_images(sensitivity_images)
        self.judged = problem.judging_images(sensitivity_images)  # nothing is fitted to these
        self.whole, self.measured = problem.network.geometry.embed, tokens
        self.key = {
            **problem.identity,
            "images": self.calibration.content_sha256(),
            "gradients": self.sensitivity.content_sha256(),
            "judged": self.judged.content_sha256(),
            "seed": problem.training.seed,
        }
        self.outputs: Tensor | None = None  # outputs of the base; None: not computed yet
        self.slices = dict[int, tuple[Sequence[Tensor], float]]()
        # Dozens of plans of a search share a few widths, whose decoders take seconds and many megabytes.
        self._plan = lru_cache(maxsize=4)(lambda width: self._planned(self._slice(width)[0]))

    @cached_property
    def tokens(self) -> TokenStatistics:
        """The statistics from which encoder and decoders are made, measured when first needed."""
        problem, tokens = self.problem, self.measured
        if len(self.calibration) < (stable := stable_images(problem.network)):
            more = more_images(problem, self.owner, self.calibration_images, stable)
            problem.progress.warn(
                f"the directions of the embedding are those of {len(self.calibration)} images; with {stable} a "
                f"narrower one loses less: {more}"
            )
        if tokens is None:
            tokens = TokenStatistics.pop_from(dict(problem.cache.tensors("directions", self.key, self._measure_tokens)))
        assert tokens is not None
        return tokens

    def _measure_tokens(self) -> dict[str, Tensor]:
        p = self.problem
        with p.stopwatch.stage("embedding"):
            weights = token_weights(p.network, self.sensitivity, p.passes, seed=p.training.seed)
            return measure_tokens(p.network, self.calibration, weights, p.passes).tensors()

    def plan(self, width: int) -> EmbedPlan | None:
        """The plan of the embedding at a width; None at its own."""
        if width == self.whole:
            return None
        return self._plan(width)

    def nats(self, width: int) -> float:
        """The loss at a width; 0 at its own."""
        return 0.0 if width == self.whole else self._slice(width)[1]

    def lost(self, network: Network) -> float:
        """The divergence of a network from the base."""
        return mean_nats(self.lost_by_image(network))

    def lost_by_image(self, network: Network) -> Tensor:
        """The divergence [images] of a network from the base on each image that judges."""
        p = self.problem
        if self.outputs is None:
            self.outputs = base_outputs(p, self.judged, quick=self.quick)
        outputs = network_outputs(network, self.judged, p.passes, quick=self.quick)
        return divergences(p.network.output, self.outputs, outputs)

    def _planned(self, encoders: Sequence[Tensor]) -> EmbedPlan:
        decoders = self.tokens.decoders(encoders) if self.fitted else None
        return EmbedPlan(len(encoders[-1]), tuple(encoders), decoders)

    def _slice(self, width: int) -> tuple[Sequence[Tensor], float]:
        """The encoders [d', d] of a width, and its loss."""
        tokens = self.tokens

        def measure() -> dict[str, Tensor]:
            with self.problem.stopwatch.stage("embedding"):
                encoders = tokens.encoders(width, fitted=self.fitted)
                network = self.problem.network.to(self.problem.compute.device)
                nats = self.lost(narrow_embedding(network, self._planned(encoders)))
                tensors = {f"encode.{i}": encode for i, encode in enumerate(encoders)}
                return {**tensors, "nats": torch.tensor([nats], dtype=torch.float64)}

        if width not in self.slices:
            measured = self.problem.cache.tensors(
                "slice", {**self.key, "width": width, "fitted": self.fitted, "quick": self.quick}, measure
            )
            encoders = [measured[f"encode.{i}"] for i in range(len(measured) - 1)]
            self.slices[width] = encoders, float(measured["nats"])
        return self.slices[width]


@dataclass(frozen=True)
class WidthCandidate(Generic[T]):
    """One width of the embedding, and the shape that meets the budget at it."""

    width: int
    shape: T
    slice_nats: float
    shape_nats: float  # predicted loss of the shape, added to that of the narrower embedding

    @property
    def nats(self) -> float:
        return self.slice_nats + self.shape_nats

    def facts(self) -> dict[str, float]:
        """The figures for a record: `predicted_nats` is of the whole."""
        return {"width": self.width, "slice_nats": self.slice_nats, "predicted_nats": self.nats}


def climb(
    widths: list[int],
    allocate: Callable[[int], tuple[T, float]],
    slice_nats: Callable[[int], float],
    begin: float = inf,
    enough: float = 0.0,
) -> list[WidthCandidate[T]]:
    """Search the widths; return the candidates, the one with the least predicted loss first.

    The search starts at the width nearest to `begin` and descends to the first one whose slice alone loses more than
    the best candidate, as narrower slices lose more; then it ascends from the start. A width whose shape alone loses
    more than the best candidate is skipped, and its slice is not measured: from a good start few are.

    Args:
        allocate: the shape at a width, and its predicted loss.
        enough: the first candidate with no more predicted loss ends the search.

    Raises:
        BudgetError: no candidate reaches the budget; the error is that of the narrowest.
    """
    candidates: list[WidthCandidate[T]] = []
    refused = dict[int, BudgetError]()
    first = min(range(len(widths)), key=lambda i: abs(widths[i] - min(begin, widths[0])))

    def try_width(width: int) -> bool:
        """Try a width; return whether narrower ones may lose less."""
        best = min((candidate.nats for candidate in candidates), default=inf)
        if best <= enough:
            return False
        try:
            shape, predicted = allocate(width)
        except BudgetError as error:
            refused[width] = error
            return True
        if predicted >= best:
            return True
        candidates.append(WidthCandidate(width, shape, slice_nats(width), predicted))
        return candidates[-1].slice_nats < best

    for width in widths[first:]:
        if not try_width(width):
            break
    for width in reversed(widths[:first]):
        try_width(width)
    if not candidates:
        raise refused[min(refused)]
    return sorted(candidates, key=lambda candidate: candidate.nats)


def balanced_width(network: Network, budget: Budget) -> float:
    """The width at which the embedding contributes half of the reduction, where the search often ends.

    A share r of the MACs remains with sqrt(r) of the embedding and sqrt(r) of the other dimensions.
    """
    return network.geometry.embed * sqrt(budget.limit / budget.base)
