"""HEART-ViT: remove tokens and whole heads by Hessian-based loss increase, and train with gates that close.

1. Scores: half of each token's and head's curvature z' H z, from the Hessian of gates (`scores`).
2. Choice: how many tokens each block passes on, and which heads it loses: by cost or by ratios (`choose`).
3. Training with gates that close from step to step (`gates`), or of the model after the cut.

Differences from the paper. At inference there are no labels and no second derivatives. So the number of tokens is
constant, and the block's own attention ranks them (`network/families/vit/tokens.py`); the facts have the rank
correlation of both scores. Tokens are removed after a block, not before the first one, and do not return, so with one
ratio for all blocks they all go after the first. The published FLOPs count linear layers alone, with fewer tokens in
all blocks and no head removed; here they are those of Eq. 24 (`network/cost.py`). Eq. 8's z-scores make blocks alike,
so here they serve the heads' soft gates alone; the choice uses the scores in nats over all blocks, unless
`ratios=uniform`. Of the published recipe, 100 epochs, cosine, AdamW and a weight decay of 0.05 are the defaults here.
Its peak learning rate is 5e-4 for ViT-B and 3e-4 for DeiT-B (here 1e-4, lowered for a model that is near its teacher),
its batch 1024 (here 256), its warm-up 5 % of the steps (here 10 %). It adds flips, RandAugment, mixup, CutMix, label
smoothing and DropPath of 0.1 to random crops, which `--augment deit` does here, and mixed precision. It stops after 15
epochs without a better state; here all steps are done and the best state is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Literal

import torch

from edgevit.derivation.allocate.menus import least_heads
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.feasibility import SearchSpace, Target
from edgevit.derivation.method import Method
from edgevit.derivation.methods.heart import choose
from edgevit.derivation.methods.heart.choose import Candidates, PruningLevels, Ratios
from edgevit.derivation.methods.heart.gates import Closing, ClosingGates, head_gates
from edgevit.derivation.methods.heart.scores import HessianScores, measure_scores
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
from edgevit.network.dense import DenseFamily
from edgevit.network.network import Network
from edgevit.numbers import COUNT, check_number
from edgevit.records.model import BlockDims

DROPS_TOKENS = True


@dataclass(frozen=True)
class Config:
    # Whether the paper's choices replace the defaults: selection=percentile, and tokens are scored by position (Eq. 5)
    # instead of by their order in the block's attention, by which they are removed.
    as_published: bool = False
    # What sets how much is removed: the budget, at the least predicted loss per MAC or millisecond (macs), or shares of
    # the tokens and heads (percentile). The result must meet the budget.
    selection: Literal["macs", "percentile"] = "macs"
    ratios: Ratios = "sensitivity"  # Whether blocks lose by their scores (sensitivity) or equal parts (uniform).
    # With selection=percentile, the share of tokens to remove; with both shares 0, the same share of tokens and heads
    # that meets the budget.
    token_ratio: float = 0.0
    head_ratio: float = 0.0  # With selection=percentile, the share of heads to remove.
    calibration_images: int = 32  # The number of training images on which the scores are taken.
    probes: int = 8  # The number of draws of random signs per image, each a double backward pass.
    # What is trained: the whole network with gates that close on what is removed (soft), or the cut one (hard).
    gates: Literal["soft", "hard"] = "soft"
    # The steepness of the gates at the first step; the paper says that it rises, but not from where.
    gamma_first: float = 1.0
    gamma_last: float = 100.0  # The steepness of the gates at the last step.
    finetune_epochs: int = 100  # The number of passes over the training images; --steps counts optimiser steps instead.

    def __post_init__(self) -> None:
        if self.as_published and self.selection == "macs":
            object.__setattr__(self, "selection", "percentile")
        for name in ("calibration_images", "probes"):
            check_number(f"heart.{name}", getattr(self, name), COUNT)
        for name in ("token_ratio", "head_ratio"):
            check_number(f"heart.{name}", getattr(self, name), "[0, 1)", "0.4 removes 40 %")
        if (self.token_ratio or self.head_ratio) and self.selection != "percentile":
            raise OptionError(
                f"heart.token_ratio and heart.head_ratio are not for selection={self.selection}; add --set "
                "heart.selection=percentile"
            )
        for name in ("gamma_first", "gamma_last"):
            check_number(f"heart.{name}", getattr(self, name), "(0, inf)")
        if self.gamma_last < self.gamma_first:
            raise OptionError(
                f"heart.gamma_last={self.gamma_last:g} is below gamma_first={self.gamma_first:g}; gates must close"
            )
        check_number("heart.finetune_epochs", self.finetune_epochs, "[0, 2**31)", "0 does not train")


def default_steps(config: Config, rate: float, images: int, batch_size: int) -> int:
    """Return the steps of the fine-tuning."""
    return config.finetune_epochs * ceil(images / batch_size)


def search_space(network: Network, config: Config, policy: Policy) -> SearchSpace:
    """Return what it may remove: heads, and all tokens that may be removed after the first possible block."""
    geometry, depth = network.geometry, len(network.read())
    most = choose.lengths(geometry)[-1]
    first = next((i for i, may in enumerate(choose.may_leave(geometry, depth)) if may), None)
    schedule = tuple(most if i == first and most < geometry.tokens else 0 for i in range(depth))
    return SearchSpace(widths=False, heads=True, token_schedules=[schedule])


def check_options(target: Target, config: Config) -> None:
    """Refuse soft gates for a head that cannot weigh tokens, and a share that leaves a block too few heads.

    A head that reads tokens after several blocks needs them all.
    """
    if target.network.ends.read:
        hint = "derive from the base without a head, which then gets one of a token or their mean, or "
        pools = not isinstance(target.network.family, DenseFamily)  # by attention, also without a head
        raise OptionError(
            "heart drops tokens, and the head of this base reads all of those after some blocks; "
            f"{'derive ' if pools else hint}with another --method"
        )
    if config.gates == "soft" and not target.network.ends.reads_mean:
        raise OptionError(
            "heart.gates=soft is for a head that reads one token or the mean of the patches, and this one pools "
            "otherwise; add --set heart.gates=hard"
        )
    geometry = target.network.geometry
    for i, d in enumerate(block.dims for block in target.network.read()):
        stay = d.heads - int(config.head_ratio * d.heads)
        needs = least_heads(d, target.policy, drop_heads="heads" not in geometry.frozen(i))
        if config.ratios == "uniform" and stay < needs:
            raise OptionError(
                f"heart.head_ratio={config.head_ratio:g} leaves {stay} of the {d.heads} heads of block {i}, "
                f"and shape {target.policy.name!r} needs {needs}; lower it, or try --shape free"
            )


def _scores(problem: Problem, config: Config) -> HessianScores:
    """Take the scores, or read them from the cache: they depend on the task and not on the budget."""
    images, seed = problem.task.train.subset(config.calibration_images), problem.training.seed
    key = {**problem.identity, "images": images.content_sha256(), "probes": config.probes, "seed": seed}

    def take() -> dict[str, torch.Tensor]:
        network = problem.network.to(problem.compute.device).eval()
        scores = measure_scores(network, images, problem.passes, probes=config.probes, seed=seed)
        return scores.tensors()

    with problem.stopwatch.stage("curvature"):
        return HessianScores.of(problem.cache.tensors("heart", key, take))


def _candidates(problem: Problem, config: Config, scores: HessianScores) -> Candidates:
    dims = list(problem.network.dims)
    tokens = scores.placed.sort(dim=1, stable=True).values if config.as_published else scores.ranked
    return Candidates(
        dims, problem.network.geometry, problem.budget, scores, tokens=tokens,
        least_heads=problem.policy.least_heads,
    )  # fmt: skip


def _choose(problem: Problem, config: Config, candidates: Candidates) -> PruningLevels:
    if config.selection == "macs":
        return choose.by_macs(candidates, config.ratios)
    by_ratio = partial(choose.by_ratio, candidates, config.ratios)
    if not config.token_ratio and not config.head_ratio:
        return choose.least_amount(candidates, lambda share: by_ratio(share, share), "removing all that may go")
    both = f"heart.token_ratio={config.token_ratio:g} and head_ratio={config.head_ratio:g}"
    choice = choose.least_amount(candidates, lambda _: by_ratio(config.token_ratio, config.head_ratio), both)
    heads, removed = sum(d.heads for d in candidates.dims), sum(choice.heads)
    if removed < (due := int(config.head_ratio * heads)):  # the lowest scores are all in a few blocks
        problem.progress.warn(
            f"heart.head_ratio={config.head_ratio:g} asks to remove {due} of {heads} heads; {removed} are removed, a "
            f"share of {removed / heads:.2f}, because shape {problem.policy.name!r} leaves each block at least "
            f"{problem.policy.least_heads}"
        )
    return choice


def _plan(network: Network, dims: Sequence[BlockDims], heads: Sequence[Sequence[int]]) -> Plan:
    """Make the plan of these blocks and heads, with the present weights of the network."""
    plans = []
    for i, (block, new, stay) in enumerate(zip(network.read(), dims, heads, strict=True)):
        a, f = block.attention, block.ffn
        attention = None
        if a is not None:
            attention = AttentionPlan.of(block.dims, stay, weights=a.keep(stay))
        ffn = None if f is None else FfnPlan(torch.arange(f.neurons))
        plans.append(BlockPlan(i, attention, ffn, new.tokens))
    return Plan(tuple(plans))


def _trained(
    problem: Problem, config: Config, candidates: Candidates, choice: PruningLevels, scores: HessianScores
) -> Derived:
    dims, base = candidates.shaped(choice), problem.network.to(problem.compute.device)
    pairs = list(zip(candidates.head_order, choice.heads, strict=True))
    heads = [sorted(order[removed:]) for order, removed in pairs]
    plan_of = partial(_plan, dims=dims, heads=heads)
    slim = realise(base, plan_of(base))
    before = accuracy_on_validation(problem, slim).top1
    distillation = distillation_for(problem)
    if config.gates == "hard" or not problem.training.steps:
        done = train_for(problem, slim, stage="finetune", distillation=distillation, keep="best")
    else:
        scored = zip(scores.standard_heads(), pairs, strict=True)
        gates = [head_gates(s, order[:removed]) for s, (order, removed) in scored]
        closing = Closing(plan_of, dims, gates, config.gamma_first, config.gamma_last, problem.training.steps)
        watched = ClosingGates(base, closing)
        if distillation is not None and any(d.tokens for d in dims):
            # While gates close the network has all tokens, and those that will be removed have nothing to learn.
            distillation = replace(distillation, compared=watched.prefix)
        done = train_for(problem, base, stage="finetune", constraint=watched, distillation=distillation, keep="best")
        slim = watched.pruned()
    facts: dict[str, object] = {
        **facts_of_training(problem, "finetune", done),
        "accuracy_validation_cut": before,
        "predicted_nats": candidates.loss(choice),
        "tokens": candidates.geometry.reaching(dims),
        "kept_heads": heads,
        "spearman": [round(float(r), 4) for r in scores.spearman],
    }
    return Derived(slim, plan_of(base), facts)


def derive(problem: Problem, config: Config) -> Derived:
    check_all_pass(problem.network.read(), "heart")
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
