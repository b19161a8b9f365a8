"""A narrower embedding as a step that any method can take: which widths there are, and what each loses by itself.

A method works out its plans in the network's own embedding, and gives one an `EmbedPlan` of `Slices.plan`: `realise`
narrows last. Costs at another width are those of `geometry_at`.

    if (reason := reason_against(problem, images)) is None:
        slices = Slices(problem, images, images)
        for width in embed_widths(problem.network, problem.policy): ...

A method that predicts losses in nats climbs down the ladder with `climb`: what is lost at a width is taken as the sum
of two: what narrowing the embedding costs by itself, which one pass over the sensitivity images measures, and what the
method predicts for the budget at that width, where every unit costs less. The widest rung is the embedding as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf, sqrt
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.measure.divergence import answers, base_answers, divergence
from edgevit.derivation.measure.embedding import SeenTokens, enough_images, see_tokens, stable_images, token_weights
from edgevit.derivation.plan import EmbedPlan
from edgevit.derivation.problem import Problem
from edgevit.derivation.realise import narrow_embedding
from edgevit.derivation.solve.embedding import encoder
from edgevit.errors import BudgetError, OptionError
from edgevit.network.copies import shape_copy
from edgevit.network.cost import Geometry
from edgevit.network.families import family_of

STEPS = 12  # rungs of the ladder, about as far apart from one another
LEAST = 2  # of them that stay in any case

T = TypeVar("T")


def ladder(embed: int, multiple: int) -> list[int]:
    """Widths that the embedding may have, the widest first: its own, and multiples of `multiple` below."""
    below = {round(embed * k / STEPS / multiple) * multiple for k in range(LEAST, STEPS)}
    return [embed, *sorted((width for width in below if 2 <= width < embed), reverse=True)]


def check_width(owner: str, width: int) -> None:
    """Refuse what is no width: the option `embed_width` of the method `owner`, where 0 stands for none.

    Raises:
        OptionError: it is none.
    """
    if width < 0 or width == 1:
        raise OptionError(f"{owner}.embed_width={width} is not 0 or a number of at least 2")


def embed_widths(network: nn.Module, policy: Policy, asked: int = 0, owner: str = "", least: int = 0) -> list[int]:
    """Those that the embedding may have, the widest first: the one that the method `owner` was asked for, or a ladder.

    `least` is the narrowest that the budget can count.

    Raises:
        OptionError: the one that is asked for is wider than the network's.
    """
    whole = family_of(network).geometry(network).embed
    if asked > whole:
        raise OptionError(f"{owner}.embed_width={asked} is wider than the base's embedding, which has {whole}")
    return [asked] if asked else [width for width in ladder(whole, policy.embed_step) if width >= least]


def narrowest(network: nn.Module, policy: Policy, asked: int, owner: str) -> int:
    """The last of `embed_widths`; the network's own where it cannot be narrowed."""
    geometry = family_of(network).geometry(network)
    return geometry.embed if geometry.fixed_embed is not None else embed_widths(network, policy, asked, owner)[-1]


def geometry_at(network: nn.Module, width: int) -> Geometry:
    """What the costs of a network depend on when its embedding has another width; nothing is worked out for it."""
    family = family_of(network)
    old = family.geometry(network)
    if width == old.embed:
        return old
    encode = torch.empty(width, old.embed, dtype=torch.float64, device="meta")
    return family.geometry(family.with_embedding(shape_copy(network), encode))


def reason_against(problem: Problem, calibration_images: int) -> str | None:
    """Why the embedding stays as it is; None: it can be narrowed."""
    return why_it_stays(problem.network, problem.budget, min(len(problem.task.train), calibration_images))


def why_it_stays(network: nn.Module, budget: Budget, images: int) -> str | None:
    """Why this embedding cannot be narrowed within a budget, with so many calibration images; None: it can be."""
    geometry = family_of(network).geometry(network)
    if geometry.fixed_embed is not None:
        return geometry.fixed_embed
    if budget.at_least_embed == geometry.embed:
        return "a plan of this width grows"
    if budget.least_embed == geometry.embed:
        return "the cost table lists no narrower one; `edgevit cost` measures them"
    if images < (enough := enough_images(network)):
        return f"{images} calibration images do not determine the directions of its tokens, {enough} would"
    return None


def has_directions(network: nn.Module, images: int) -> bool:
    """Whether some budget may narrow the embedding, whose directions so many images determine."""
    return family_of(network).geometry(network).fixed_embed is None and images >= enough_images(network)


def more_images(problem: Problem, method: str, asked: int, enough: int) -> str:
    """The option that gives a method `enough` calibration images, as far as the task has more than it asked for."""
    available = len(problem.task.train)
    if available <= asked:
        return f"add training images, of which there are {available}"
    return f"give --set {method}.calibration_images={min(enough, available)}"


class Slices:
    """What the answers lose when the embedding is narrowed and nothing else; each width is measured once per task.

    Args:
        tokens: what is known of them, as `measure.embedding.TokenMoments` sees it; None: two passes of their own do.
        fitted: whether tokens are taken back by the decoders that fit them best, and few directions chosen for that;
            else by the transposed rotation of the largest directions.
        quick: as for `Passes.show`, of the passes whose answers are compared with the base's.
        owner: the method, whose option `calibration_images` is named where there are few.
    """

    def __init__(
        self,
        problem: Problem,
        calibration_images: int,
        sensitivity_images: int,
        tokens: SeenTokens | None = None,
        *,
        fitted: bool = True,
        quick: bool = False,
        owner: str = "METHOD",
    ) -> None:
        self.problem, self.fitted, self.quick = problem, fitted, quick
        self.owner, self.asked = owner, calibration_images
        self.calibration = problem.task.train.subset(calibration_images)
        self.felt = problem.task.train.subset(sensitivity_images)
        self.whole, self.known = family_of(problem.network).geometry(problem.network).embed, tokens
        self.key = {
            **problem.identity,
            "images": self.calibration.content_sha256(),
            "gradients": self.felt.content_sha256(),
            "seed": problem.training.seed,
        }
        self.answers: Tensor | None = None
        self.slices = dict[int, tuple[Tensor, float]]()

    @cached_property
    def tokens(self) -> SeenTokens:
        """What a narrower embedding is made from; one that has to stay may have no norms to see its tokens."""
        problem, tokens = self.problem, self.known
        if len(self.calibration) < (stable := stable_images(problem.network)):
            more = more_images(problem, self.owner, self.asked, stable)
            problem.progress.warn(
                f"the directions of the embedding are those of {len(self.calibration)} images; with {stable} a "
                f"narrower one loses less: {more}"
            )
        if tokens is None:
            tokens = SeenTokens.taken_from(dict(problem.cache.tensors("directions", self.key, self._see_tokens)))
        assert tokens is not None
        return tokens

    def _see_tokens(self) -> dict[str, Tensor]:
        p = self.problem
        with p.stopwatch.stage("embedding"):
            weights = token_weights(p.network, self.felt, p.columns, p.passes, seed=p.training.seed)
            return see_tokens(p.network, self.calibration, weights, p.passes).tensors()

    def plan(self, width: int) -> EmbedPlan | None:
        """What becomes of the embedding; None at its own width: it stays."""
        if width == self.whole:
            return None
        return self._plan(self._slice(width)[0])

    def nats(self, width: int) -> float:
        """What is lost at a width; nothing at the whole."""
        return 0.0 if width == self.whole else self._slice(width)[1]

    def lost(self, network: nn.Module) -> float:
        """KL(base || network) in nats per image."""
        p = self.problem
        if self.answers is None:
            self.answers = base_answers(p, self.felt, quick=self.quick)
        return divergence(self.answers, answers(network, self.felt, p.columns, p.passes, quick=self.quick))

    def _plan(self, encode: Tensor) -> EmbedPlan:
        return EmbedPlan(len(encode), encode, self.tokens.decoders(encode) if self.fitted else None)

    def _slice(self, width: int) -> tuple[Tensor, float]:
        """How the embedding narrows [d', d], and what that loses."""
        tokens = self.tokens

        def measure() -> dict[str, Tensor]:
            with self.problem.stopwatch.stage("embedding"):
                encode = tokens.encoder(width) if self.fitted else encoder(tokens.directions, width)
                network = self.problem.network.to(self.problem.compute.device)
                nats = self.lost(narrow_embedding(network, self._plan(encode)))
                return {"encode": encode, "nats": torch.tensor([nats], dtype=torch.float64)}

        if width not in self.slices:
            found = self.problem.cache.tensors(
                "slice", {**self.key, "width": width, "fitted": self.fitted, "quick": self.quick}, measure
            )
            self.slices[width] = found["encode"], float(found["nats"])
        return self.slices[width]


@dataclass(frozen=True)
class Rung(Generic[T]):
    """One width of the embedding, and what the budget gives at it."""

    width: int
    shape: T
    slice_nats: float
    shape_nats: float  # predicted of the shape, beside that

    @property
    def nats(self) -> float:
        return self.slice_nats + self.shape_nats

    def facts(self) -> dict[str, float]:
        """What a record says of it: `predicted_nats` of the whole."""
        return {"width": self.width, "slice_nats": self.slice_nats, "predicted_nats": self.nats}


def climb(
    widths: list[int],
    allocate: Callable[[int], tuple[T, float]],
    slice_nats: Callable[[int], float],
    begin: float = inf,
    enough: float = 0.0,
) -> list[Rung[T]]:
    """The rungs worth a thought, the one that is predicted to lose least first.

    It begins at the width next to `begin` and goes down to the first rung whose slice alone loses more than the best
    rung, as narrower ones lose more by it; then up from there. A rung whose shape alone loses more than the best rung
    is passed over, and its slice not measured: with a good beginning few are.

    Args:
        allocate: the shape at a width, and what it is predicted to lose.
        enough: the first rung that is predicted to lose no more ends the search.

    Raises:
        BudgetError: no rung reaches the budget; the narrowest one's.
    """
    found: list[Rung[T]] = []
    refused = dict[int, BudgetError]()
    first = min(range(len(widths)), key=lambda i: abs(widths[i] - min(begin, widths[0])))

    def look(width: int) -> bool:
        """Whether narrower ones may lose less."""
        best = min((rung.nats for rung in found), default=inf)
        if best <= enough:
            return False
        try:
            shape, predicted = allocate(width)
        except BudgetError as error:
            refused[width] = error
            return True
        if predicted >= best:
            return True
        found.append(Rung(width, shape, slice_nats(width), predicted))
        return found[-1].slice_nats < best

    for width in widths[first:]:
        if not look(width):
            break
    for width in reversed(widths[:first]):
        look(width)
    if not found:
        raise refused[min(refused)]
    return sorted(found, key=lambda rung: rung.nats)


def balanced_width(network: nn.Module, budget: Budget) -> float:
    """The width that takes as large a share of the budget's cut as all other dimensions together: where it often ends.

    A share r of the MACs is left by sqrt(r) of the embedding and sqrt(r) of what blocks do with it.
    """
    return family_of(network).geometry(network).embed * sqrt(budget.limit / budget.base)
