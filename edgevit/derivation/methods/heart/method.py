"""HEART-ViT: let tokens and whole heads go by how much the loss bends under them, then train with gates that close.

1. Scores: half of each token's and head's curvature z' H z, from the Hessian of gates (`scores`).
2. Choice: how many tokens go on after each block, and which heads go: by cost, by ratios, or by the loss (`choose`).
3. Training with gates that close from step to step (`gates`), or of the model that is cut already.

Differences from the paper. At inference there are no labels and no second derivatives: the number of tokens is
constant, and the block's own attention says which ones go on (`models/families/vit/tokens.py`; the rank correlation of
the two is among the facts). Tokens leave after a block and not before the first. They leave for good, so that one ratio
for all blocks means that all leave after the first. The published FLOPs count linear layers alone, with fewer tokens in
all blocks and no heads gone; here they are those of Eq. 24 (`models/cost.py`). Eq. 8's z-scores, which make blocks
alike, serve the heads' soft gates alone: what goes is chosen by the scores as they are, in nats, over all blocks unless
`ratios=uniform`. Of the published recipe the 100 epochs, cosine, AdamW and weight decay of 0.05 are the defaults here.
Its peak learning rate is 5e-4 for ViT-B and 3e-4 for DeiT-B (here 1e-4, and with a teacher less for a model that is
like it already), its batch 1024 (here 256), its warm-up 5 % of the steps (here 10 %). Beside random crops it has flips,
RandAugment, mixup, CutMix, label smoothing, DropPath of 0.1 and mixed precision, of which none is on here; and it stops
after 15 epochs without a better state, where here all steps are done and the best state is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from typing import Literal

import torch
from torch import nn

from edgevit.derivation.allocate.menus import least_heads
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.feasibility import SearchSpace, Target
from edgevit.derivation.method import Method
from edgevit.derivation.methods.heart import choose
from edgevit.derivation.methods.heart.choose import Candidates, PruningLevels, Ratios
from edgevit.derivation.methods.heart.gates import Closing, ClosingGates, head_gates
from edgevit.derivation.methods.heart.scores import Gated, HessianScores, Labels, Taylor, measure_scores
from edgevit.derivation.plan import AttentionPlan, BlockPlan, FfnPlan, Plan
from edgevit.derivation.problem import (
    Derived,
    Problem,
    accuracy_on_validation,
    distillation_for,
    facts_of_training,
    train_for,
)
from edgevit.derivation.realise import realise
from edgevit.errors import OptionError
from edgevit.network.anatomy import check_all_pass
from edgevit.network.families import family_of
from edgevit.records.model import BlockDims
from edgevit.train.distil import TeacherOptions

QUANTITIES = ("macs", "params", "ms", "mj")


@dataclass(frozen=True)
class Config(TeacherOptions):
    # How much goes: what the budget asks for, at the least predicted loss per MAC or millisecond (macs); shares of the
    # tokens and of the heads (percentile); or what may be lost in nats (loss). What they leave must keep the budget.
    selection: Literal["macs", "percentile", "loss"] = "macs"
    # How the blocks share in it: by how much is lost in each (sensitivity), or alike (uniform).
    ratios: Ratios = "sensitivity"
    # With selection=percentile, the share of the tokens that goes; with both shares 0, as much of both as --rate asks.
    token_ratio: float = 0.0
    head_ratio: float = 0.0  # With selection=percentile, the share of the heads that goes.
    eps: float = 1.0  # With selection=loss, the nats that may be lost at the most, as predicted.
    # What is lost with a token or a head: half the curvature (curvature, Eq. 3), or with the gradient's term (full).
    taylor: Taylor = "curvature"
    # What a token's gate multiplies: the token (tokens), which LayerNorm makes up for in the block behind it, or its
    # weight in all later attention (attention).
    gated: Gated = "tokens"
    # By what tokens leave in the prediction: what the block's attention looks at least, as they will (attention), or
    # their mean score at each place of the image (position, Eq. 5).
    order: Literal["attention", "position"] = "attention"
    # The labels of the cross-entropy whose curvature is taken: the images' own (true), or the base's (predicted).
    labels: Labels = "true"
    calibration_images: int = 32  # The number of training images on which the scores are taken.
    probes: int = 8  # The number of draws of random signs per image, each a double backward pass.
    token_multiple: int = 1  # The number of tokens that go on is a multiple of this: 64 fills a GPU's tiles.
    merge: bool = False  # Whether the tokens that leave after a block are merged into one that goes on.
    # How it is trained: whole, with gates that close on what goes (soft), or cut (hard).
    gates: Literal["soft", "hard"] = "soft"
    # How steep the gates are at the first step; the paper says that this rises, and not from where.
    gamma_first: float = 1.0
    gamma_last: float = 100.0  # How steep they are at the last.
    finetune_epochs: int = 100  # The number of passes over the training images; --steps counts optimiser steps instead.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below_one("calibration_images", "probes", "token_multiple")
        for name in ("token_ratio", "head_ratio"):
            if not 0 <= getattr(self, name) < 1:
                raise OptionError(f"heart.{name}={getattr(self, name):g} is not in [0, 1); 0.4 lets 40 % go")
        if (self.token_ratio or self.head_ratio) and self.selection != "percentile":
            raise OptionError(
                f"heart.token_ratio and heart.head_ratio are not for selection={self.selection}; add --set "
                "heart.selection=percentile"
            )
        for name in ("eps", "gamma_first", "gamma_last"):
            if not 0 < getattr(self, name) < inf:
                raise OptionError(f"heart.{name}={getattr(self, name):g} is not a number above 0")
        if self.gamma_last < self.gamma_first:
            raise OptionError(
                f"heart.gamma_last={self.gamma_last:g} is below gamma_first={self.gamma_first:g}, and gates close"
            )
        if self.finetune_epochs < 0:
            raise OptionError(f"heart.finetune_epochs={self.finetune_epochs} is negative; 0 trains not at all")


def default_steps(config: Config, rate: float, images: int, batch_size: int) -> int:
    """Steps of the fine-tuning."""
    return config.finetune_epochs * ceil(images / batch_size)


def search_space(network: nn.Module, config: Config, policy: Policy) -> SearchSpace:
    """What it may take away: heads, and as many tokens as may leave, all of them behind the first block that can."""
    family = family_of(network)
    geometry, depth = family.geometry(network), len(family.read(network))
    most = choose.lengths(geometry, config.token_multiple, merge=config.merge)[-1]
    first = next((i for i, may in enumerate(choose.may_leave(geometry, depth)) if may), None)
    ladder = tuple(most if i == first and most < geometry.tokens else 0 for i in range(depth))
    return SearchSpace(widths=False, heads=True, ladders=[ladder], more={"token_multiple": 1, "merge": False})


def check_options(target: Target, config: Config) -> None:
    """Refuse gates that a head could not weigh tokens by, and a share that leaves a block without the heads it needs.

    Of the patches one always stays.
    """
    family = family_of(target.network)
    if config.gates == "soft" and not family.reads_mean(target.network):
        raise OptionError(
            "heart.gates=soft is for a head that reads one token or the mean of the patches, and this one pools "
            "otherwise; add --set heart.gates=hard"
        )
    geometry = family.geometry(target.network)
    for i, d in enumerate(block.dims for block in family.read(target.network)):
        gone = int(config.head_ratio * d.heads)
        needs = least_heads(d, target.policy, drop_heads="heads" not in geometry.frozen(i))
        if config.ratios == "uniform" and gone > d.heads - needs:
            raise OptionError(
                f"heart.head_ratio={config.head_ratio:g} leaves {d.heads - gone} of the {d.heads} heads of block {i}, "
                f"and shape {target.policy.name!r} needs {needs}; lower it, or try --shape free"
            )


def _scores(problem: Problem, config: Config) -> HessianScores:
    """Take the scores, or find them in the cache: they depend on the task and not on the budget."""
    images = problem.task.train.subset(config.calibration_images)
    names = ("probes", "taylor", "labels", "gated")
    key = {
        **problem.identity,
        "images": images.content_sha256(),
        "config": {name: getattr(config, name) for name in names},
        "seed": problem.training.seed,
    }

    def take() -> dict[str, torch.Tensor]:
        network = problem.network.to(problem.compute.device).eval()
        how = {name: getattr(config, name) for name in names}
        found = measure_scores(network, images, problem.columns, problem.passes, seed=problem.training.seed, **how)
        return found.tensors()

    with problem.stopwatch.stage("curvature"):
        return HessianScores.of(problem.cache.tensors("heart", key, take))


def _candidates(problem: Problem, config: Config, scores: HessianScores) -> Candidates:
    family = family_of(problem.network)
    dims = [block.dims for block in family.read(problem.network)]
    tokens = scores.ranked if config.order == "attention" else scores.placed.sort(dim=1, stable=True).values
    return Candidates(
        dims, family.geometry(problem.network), problem.budget, scores, tokens=tokens,
        token_multiple=config.token_multiple, least_heads=problem.policy.least_heads, merge=config.merge,
    )  # fmt: skip


def _choose(problem: Problem, config: Config, candidates: Candidates) -> PruningLevels:
    if config.selection == "macs":
        return choose.by_macs(candidates, config.ratios)
    if config.selection == "loss":
        spend = lambda share: choose.by_loss(candidates, config.ratios, share * config.eps)  # noqa: E731
        return choose.least_amount(candidates, spend, f"heart.eps={config.eps:g} nats")
    of = partial(choose.by_ratio, candidates, config.ratios)
    if not config.token_ratio and not config.head_ratio:
        return choose.least_amount(candidates, lambda share: of(share, share), "all that may go")
    both = f"heart.token_ratio={config.token_ratio:g} and head_ratio={config.head_ratio:g}"
    choice = choose.least_amount(candidates, lambda _: of(config.token_ratio, config.head_ratio), both)
    heads, gone = sum(d.heads for d in candidates.dims), sum(choice.heads_gone)
    if gone < (asked := int(config.head_ratio * heads)):  # the least felt are together in some blocks
        problem.progress.warn(
            f"heart.head_ratio={config.head_ratio:g} would let {asked} of {heads} heads go, and {gone} do, a share of "
            f"{gone / heads:.2f}: some blocks have all that may go among these, and shape {problem.policy.name!r} "
            f"leaves each at least {problem.policy.least_heads}"
        )
    return choice


def _plan(network: nn.Module, dims: Sequence[BlockDims], kept: Sequence[Sequence[int]], merge: bool) -> Plan:
    """The plan of these blocks and heads, with the weights that the network has now."""
    plans = []
    for i, (block, new, heads) in enumerate(zip(family_of(network).read(network), dims, kept, strict=True)):
        a, f = block.attention, block.ffn
        attention = None
        if a is not None:
            attention = AttentionPlan(tuple(heads), a.qk, a.vo, weights=a.keep(heads))
        ffn = None if f is None else FfnPlan(torch.arange(f.neurons))
        plans.append(BlockPlan(i, attention, ffn, new.tokens, merge and new.tokens > 0))
    return Plan(tuple(plans))


def _trained(
    problem: Problem, config: Config, candidates: Candidates, choice: PruningLevels, scores: HessianScores
) -> Derived:
    dims, base = candidates.shaped(choice), problem.network.to(problem.compute.device)
    pairs = list(zip(candidates.head_order, choice.heads_gone, strict=True))
    kept = [sorted(order[gone:]) for order, gone in pairs]
    plan_of = partial(_plan, dims=dims, kept=kept, merge=config.merge)
    slim = realise(base, plan_of(base))
    before = accuracy_on_validation(problem, slim).top1
    distillation = distillation_for(problem, config)
    if config.gates == "hard" or not problem.training.steps:
        done = train_for(problem, slim, stage="finetune", distillation=distillation, keep="best")
    else:
        scored = zip(scores.standard_heads(), pairs, strict=True)
        gates = [head_gates(s, order[:gone]) for s, (order, gone) in scored]
        closing = Closing(plan_of, dims, gates, config.gamma_first, config.gamma_last, problem.training.steps)
        watched = ClosingGates(base, closing)
        if distillation is not None and any(d.tokens for d in dims):
            # All tokens are still there while gates close, and those that are to leave have nothing to learn.
            distillation = replace(distillation, compared=watched.prefix)
        done = train_for(problem, base, stage="finetune", constraint=watched, distillation=distillation, keep="best")
        slim = watched.pruned()
    facts: dict[str, object] = {
        **facts_of_training(problem, "finetune", done),
        "accuracy_validation_cut": before,
        "predicted_nats": candidates.lost(choice),
        "tokens": candidates.geometry.reaching(dims),
        "kept_heads": kept,
        "spearman": [round(float(r), 4) for r in scores.spearman],
    }
    return Derived(slim, plan_of(base), facts)


def derive(problem: Problem, config: Config) -> Derived:
    check_all_pass(family_of(problem.network).read(problem.network), "heart")
    scores = _scores(problem, config)
    with problem.stopwatch.stage("allocation"):
        candidates = _candidates(problem, config, scores)
        choice = _choose(problem, config, candidates)
    return _trained(problem, config, candidates, choice, scores)


METHOD = Method(
    Config,
    default_steps,
    derive,
    search_space=search_space,
    check_options=check_options,
    gentle=True,
    cuts_half_blocks=True,
)
