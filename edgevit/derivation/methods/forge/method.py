"""Forge, edgevit's own method: price every width by its loss, spend one budget on all of them, solve, then distil.

1. Curves: the loss in nats of each direction of QK and VO, each head, each FFN neuron and each block. Attention is
   factorised for the task's own tokens. Neurons are removed in the order of optimal brain surgeon's elimination in the
   loss's own metric. Tokens are weighted by the loss's sensitivity to them (`measure.sensitivity`, `allocate.menus`).
2. Allocation: the least predicted loss within the budget over QK and VO, FFN, heads and whole blocks at once, in the
   steps of the shape policy, by dynamic programming (`allocate.knapsack` bounds its error); repeated for candidate
   widths of the embedding, of which the one of least loss is chosen. Where the loss is large, likewise for some token
   schedules, as a second plan (`choose`).
3. Closed form: output weights are solved block by block for the slim network's own inputs (`sequential`), for both
   plans at once. The second plan is used only if its answers are clearly nearer to the base's on the validation images
   (`solve`).
4. Distillation from the base restricted to the classes. The best state on the validation part is kept, the closed form
   included. `--steps 0` skips it: nothing is trained, and no label is used.

Each step has an option that turns it off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from edgevit.data.task import Split
from edgevit.derivation.allocate import embedding
from edgevit.derivation.allocate.embedding import has_directions, more_images
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.feasibility import SearchSpace
from edgevit.derivation.measure.affine_replacement import fit_replacements
from edgevit.derivation.measure.embedding import TokenMoments, TokenStatistics, norm_gradients
from edgevit.derivation.measure.sensitivity import Sensitivity, measure_sensitivity
from edgevit.derivation.measure.statistics import BlockStatistics, calibrate, minimum_images
from edgevit.derivation.measure.thinning import ENOUGH_TOKENS, thinnings
from edgevit.derivation.method import Method
from edgevit.derivation.methods.forge.choose import AS_PREDICTED, choose, plan_of
from edgevit.derivation.methods.forge.config import RIDGES, Config
from edgevit.derivation.methods.forge.curves import BlockCurves, moment_of, packed, root, unpacked
from edgevit.derivation.methods.forge.measured import measure_losses, measure_replaced
from edgevit.derivation.methods.forge.schedules import schedules
from edgevit.derivation.methods.forge.solve import judge_plans, solve
from edgevit.derivation.methods.forge.streams import keeping, show_stream
from edgevit.derivation.problem import (
    Derived,
    Problem,
    accuracy_on_validation,
    distillation_for,
    facts_of_training,
    train_for,
)
from edgevit.derivation.solve.attention import Spectra, attention_spectra, mean_values, narrow
from edgevit.derivation.solve.least_squares import Removal, refittable_mean, removal_in_order, removal_order
from edgevit.network.anatomy import Block, Ffn
from edgevit.network.network import Network
from edgevit.train.passes import Observer
from edgevit.train.settings import usual_steps

NEEDS_LABELS = False
_PROBE = 8  # FFN curves are scaled to the loss measured at 1 / _PROBE of the width
_ATTENTION_PROBE = 4  # curves of attention's directions, likewise at 1 / _ATTENTION_PROBE of queries and of values
_PER_NEURON = 8  # least number of tokens per neuron of the widest FFN in second moments
_PER_CHANNEL = 16  # least number of tokens per channel of the embedding in an affine replacement of a site


def default_steps(config: Config, rate: float, images: int, batch_size: int) -> int:
    """Return the steps of distillation."""
    return usual_steps(images, batch_size)


def search_space(network: Network, config: Config, policy: Policy) -> SearchSpace:
    """Return what the method may remove from a network."""
    blocks = network.read()
    return SearchSpace(
        heads=config.drop_heads,
        blocks=config.drop_blocks,
        sites=config.drop_sites,
        embed=embedding.narrowest(network, policy) if config.cut_embedding else 0,
        images=config.calibration_images,
        token_schedules=schedules(network.geometry, len(blocks)) if config.cut_tokens == "predicted" else (),
        more={
            **dict.fromkeys(("cut_embedding", "drop_blocks", "drop_heads", "drop_sites"), True),
            "cut_tokens": "predicted",
        },
    )


# -- curves ------------------------------------------------------------------------------------------------------------


def _sensitivities(problem: Problem, config: Config, network: Network, stage: str, **options: Any) -> list[Sensitivity]:
    images, seed = problem.gradient_images(config.sensitivity_images), problem.training.seed
    return measure_sensitivity(network, images, problem.passes, seed=seed, stage=stage, **options)


def _curves(problem: Problem, config: Config) -> tuple[list[BlockCurves], TokenStatistics | None]:
    """Take the curves of every block and the tokens' moments, or read them from the cache.

    They depend on the task and not on the budget. The moments are None where the embedding cannot be narrowed.
    """
    images = problem.calibration(config.calibration_images)
    key = {
        **problem.identity,
        "images": images.content_sha256(),
        "thinnings": [(of.every, of.tokens, of.prefix) for of in thinnings(problem.network, len(images), _PER_NEURON)],
        "gradients": problem.gradient_images(config.sensitivity_images).content_sha256(),
        "stream": config.sequential,
        "measured": problem.judging_images(config.measured_images).content_sha256(),
        "quick": config.quick,
        "ridges": RIDGES,
        "sites": config.drop_sites,
        "seed": problem.training.seed,
    }
    tensors = dict(problem.cache.tensors("curves", key, lambda: _make_curves(problem, config)))
    tokens = TokenStatistics.pop_from(tensors)
    return unpacked(tensors), tokens


def _make_curves(problem: Problem, config: Config) -> dict[str, Tensor]:
    network = problem.network.to(problem.compute.device).eval()
    images = problem.calibration(config.calibration_images)
    thinned = thinnings(network, len(images), _PER_NEURON)
    # One pass takes the gradients for the sites and the norms, and another the moments of the tokens, weighted by them.
    # The first pass may be rounded: the weight of a token is not a small difference, as that of a direction may be.
    norms = [norm_gradients(network)] if has_directions(network, len(images)) else []
    with problem.stopwatch.stage("sensitivity"):
        sensitivities = _sensitivities(problem, config, network, "worth of tokens", also=norms, quick=config.quick)
    moment = None
    for worth in norms:
        weights = worth.means(len(problem.gradient_images(config.sensitivity_images)), problem.passes)
        of_stages = {block.stage: thinning for block, thinning in zip(network.blocks, thinned, strict=True)}
        moment = TokenMoments(network, weights, problem.passes, of_stages)
    with problem.stopwatch.stage("statistics"):
        statistics = calibrate(
            network, images, problem.passes, show=_shown(problem, config, images, moment),
            factorisation="activations", hidden=True, by_token=[s.by_token for s in sensitivities], thinnings=thinned,
        )  # fmt: skip
    tensors = packed(_block_curves(problem, config, statistics))
    if moment is not None:
        with problem.stopwatch.stage("embedding"):
            tensors |= moment.statistics().tensors()
    return tensors


def _shown(
    problem: Problem, config: Config, images: Split, moment: TokenMoments | None
) -> Callable[[Sequence[Observer]], None]:
    """Return the pass of the calibration images through the base, for the moments of its sites and of its tokens.

    If the sequential solution will need the outputs of the sites, the pass stores them. A GPU, which computes them
    faster than they are read, stores nothing.
    """
    network, passes = problem.network, problem.passes
    of_tokens = [] if moment is None else [moment.observer]

    def show(observers: Sequence[Observer]) -> None:
        every = [*observers, *of_tokens]
        if config.sequential and problem.compute.device.type == "cpu":
            keep = keeping(problem, images, quick=config.quick)
            show_stream(network, images, passes, every, keep=keep, quick=config.quick)
        else:
            stage = "statistics of activations"
            passes.run(network, images, lambda *_: None, every, stage=stage, quick=config.quick)

    return show


def _block_curves(problem: Problem, config: Config, statistics: Sequence[BlockStatistics]) -> list[BlockCurves]:
    blocks = problem.network.read()
    spectra = _spectra(problem, blocks, statistics)
    sensitivities = _of_directions(problem, config, blocks, statistics, spectra)
    by_ridge: list[list[BlockCurves]] = [[] for _ in RIDGES]
    with (
        problem.stopwatch.stage("closed_form"),
        problem.progress.stage("order of neurons", len(blocks), "block") as stage,
    ):
        for i, (block, s, of_attention) in enumerate(zip(blocks, statistics, spectra, strict=True)):
            of_qk, of_vo = (None, None) if of_attention is None else of_attention
            weights = (
                None if block.ffn is None else root(sensitivities[i].metric) @ block.ffn.w2.detach().double().cpu()
            )
            for ridge, curves in zip(RIDGES, by_ridge, strict=True):
                removal, losses = _removal(block.ffn, weights, s, ridge)
                of_block, of_sites = (torch.full((count,), inf, dtype=torch.float64) for count in (1, 2))
                used = torch.tensor([ridge], dtype=torch.float64)
                curves.append(BlockCurves(s, of_qk, of_vo, sensitivities[i], removal, losses, of_block, of_sites, used))
            stage.update(i + 1)
    return _scaled(problem, config, blocks, by_ridge)


def _removal(
    part: Ffn | None, weights: Tensor | None, statistics: BlockStatistics, ridge: float
) -> tuple[Removal | None, Tensor]:
    """Order an FFN's neurons for removal, with the loss of each; None and no losses without an FFN.

    Args:
        weights: R W_2, as the error of W_2 in the metric of the loss R^T R is the plain error of R W_2.
    """
    if part is None or weights is None:
        return None, torch.empty(0, dtype=torch.float64)
    assert statistics.hidden is not None
    centre = refittable_mean(part, statistics.mean)
    removal = removal_order(weights, statistics.hidden, centre, ridge=ridge)
    ordered = removal_in_order(removal.order, weights, statistics.hidden, centre, ridge=ridge)
    return removal, ordered.cost / 2


def _spectra(problem: Problem, blocks: Sequence[Block], statistics: Sequence[BlockStatistics]) -> list[Spectra | None]:
    """Factorise the attention of each block for the task's tokens; None: it has none."""
    parts = {i: block.attention for i, block in enumerate(blocks) if block.attention is not None}
    if not parts:
        return [None] * len(blocks)
    with problem.stopwatch.stage("closed_form"), torch.no_grad():
        queries = [s.query for s in statistics if s.query is not None] or None
        moments = [moment_of(statistics[i]) for i in parts]
        spectra = attention_spectra(list(parts.values()), moments, query_moments=queries)
    by_block = dict(zip(parts, spectra, strict=True))
    return [by_block.get(i) for i in range(len(blocks))]


def _of_directions(
    problem: Problem,
    config: Config,
    blocks: Sequence[Block],
    statistics: Sequence[BlockStatistics],
    spectra: Sequence[Spectra | None],
) -> list[Sensitivity]:
    """Measure the sensitivity to each direction of the spectra, in a network rotated into them."""
    turned, restored = [], list[Tensor | None]()
    with problem.stopwatch.stage("closed_form"), torch.no_grad():
        for block, s, of_attention in zip(blocks, statistics, spectra, strict=True):
            whole = None
            if block.attention is not None and of_attention is not None:
                (whole,) = narrow([block.attention], [block.attention.widths], [moment_of(s)], [of_attention])
            turned.append(Block(whole, block.ffn))
            restored.append(None if whole is None or whole.bo is None else mean_values(whole, moment_of(s)))
        rotated = problem.network.build(turned)
    with problem.stopwatch.stage("sensitivity"):
        return _sensitivities(problem, config, rotated, "worth of attention's directions", restored=restored)


def _scaled(
    problem: Problem, config: Config, blocks: Sequence[Block], by_ridge: Sequence[Sequence[BlockCurves]]
) -> list[BlockCurves]:
    """Choose the ridge of each FFN, scale all curves to the loss measured at one width, and measure removed blocks.

    Losses are measured on validation images. So a ridge is as strong as the number of calibration images requires, and
    a curve has the loss on images to which nothing was fitted.
    """
    probes = [max(b.dims.ffn // _PROBE, 1) for b in blocks]
    with problem.stopwatch.stage("closed_form"), torch.no_grad():
        thin = [
            [
                Block(b.attention, None if b.ffn is None else c.refitted(b.ffn, width))
                for b, c, width in zip(blocks, curves, probes, strict=True)
            ]
            for curves in by_ridge
        ]
        pairs = [_narrow_attention(block, curves) for block, curves in zip(blocks, by_ridge[0], strict=True)]
        thin.append([block for block, _ in pairs])
        narrowed = [problem.network.build(changed) for changed in thin]
    with problem.stopwatch.stage("sensitivity"):
        images = problem.judging_images(config.measured_images)
        measured = measure_losses(problem, narrowed, images, sites=config.drop_sites, quick=config.quick)
    scaled = []
    *of_ffns, of_attention = measured.narrowed
    least = torch.stack(of_ffns).min(0)
    for i, (probe, (_, predicted)) in enumerate(zip(probes, pairs, strict=True)):
        curves = by_ridge[int(least.indices[i])][i]
        of_neurons = curves.ffn_losses[: len(curves.ffn_losses) - probe].sum()
        sensitivity, by = curves.sensitivity, _scale(of_attention[i], predicted)
        scaled.append(
            replace(
                curves,
                sensitivity=sensitivity.scaled(by),
                ffn_losses=curves.ffn_losses * _scale(least.values[i], of_neurons),
                block_loss=measured.without[i].reshape(1),
                site_losses=measured.sites[i].clone(),
            )
        )
    return scaled


def _scale(measured: Tensor, predicted: Tensor) -> Tensor:
    """The factor from predicted to measured losses; 1 where either is zero."""
    return measured / predicted if predicted > 0 and measured > 0 else torch.ones((), dtype=torch.float64)


def _narrow_attention(block: Block, curves: BlockCurves) -> tuple[Block, Tensor]:
    """Narrow the attention of a block as far as `_ATTENTION_PROBE` says; return the predicted loss, too."""
    part, spectra = block.attention, curves.spectra
    if part is None or spectra is None:
        return block, torch.zeros((), dtype=torch.float64)
    of_queries, of_values = (max(width // _ATTENTION_PROBE, 1) for width in part.widths)
    widths = (of_queries if part.rotary is None else part.widths[0], of_values)
    (slim,) = narrow([part], [widths], [moment_of(curves.statistics)], [spectra])
    return Block(slim, block.ffn), curves.sensitivity.beyond(widths)


def _with_replacements(problem: Problem, config: Config, curves: Sequence[BlockCurves]) -> list[BlockCurves]:
    """Return the curves with removed blocks and sites priced with an affine map in their place.

    The losses are measured, or read from the cache: they depend on the task and not on the budget.
    """
    network = problem.network
    enough = max(-(-max(_PER_CHANNEL * s.embed, ENOUGH_TOKENS) // s.tokens) for s in network.geometry.stages)
    fitted = problem.calibration(min(enough, config.calibration_images))
    images = problem.judging_images(config.measured_images)

    def measure() -> dict[str, Tensor]:
        with problem.stopwatch.stage("sensitivity"), torch.no_grad():
            maps = fit_replacements(network, fitted, problem.passes)
            without, sites = measure_replaced(problem, maps, images, sites=config.drop_sites, quick=config.quick)
        return {"without": without, "sites": sites}

    key = {
        **problem.identity,
        "images": [fitted.content_sha256(), images.content_sha256()],
        "sites": config.drop_sites,
        "quick": config.quick,
    }
    losses = problem.cache.tensors("replacements", key, measure)
    rows = zip(curves, losses["without"], losses["sites"], strict=True)
    return [replace(c, block_loss=without.reshape(1), site_losses=sites) for c, without, sites in rows]


def _warn_of_few_images(problem: Problem, config: Config) -> None:
    images, enough = len(problem.calibration(config.calibration_images)), minimum_images(problem.network)
    if images < enough:
        problem.progress.warn(
            f"{images} calibration images do not determine the widest layer, {enough} would: the ridge decides the "
            f"rest; {more_images(problem, 'forge', config.calibration_images, enough)}"
        )


def derive(problem: Problem, config: Config) -> Derived:
    _warn_of_few_images(problem, config)
    curves, tokens = _curves(problem, config)
    with problem.stopwatch.stage("allocation"):
        blocks = problem.network.read()
        by_token = [c.sensitivity.by_token for c in curves]
        replaced = partial(_with_replacements, problem, config, curves)
        choices = choose(
            problem, config, blocks, curves, tokens, replaced, partial(judge_plans, problem, config, by_token)
        )
    with problem.stopwatch.stage("closed_form"):
        plans = {
            name: plan_of(blocks, curves, c.shape, c.embed, refitted=not config.sequential)
            for name, c in choices.items()
        }
    if choices[AS_PREDICTED].loses_little:
        config = replace(config, align=False, refit_head=False)
    if not problem.network.ends.classifiers:  # a head of the user's stays as it is
        config = replace(config, refit_head=False)
    curves.clear()  # the second moments, most of the memory, are not needed after the plans are made
    solved = solve(problem, config, by_token, plans)
    slim, chosen, plan = solved.network, choices[solved.name], plans[solved.name]
    shape = chosen.shape
    closed_form: dict[str, object] = {}
    if problem.task.classes:
        closed_form["accuracy_validation_closed_form"] = accuracy_on_validation(problem, slim).top1
    distillation = distillation_for(problem, plan.embed)
    done = train_for(problem, slim, stage="distil", distillation=distillation, keep="best")
    facts: dict[str, object] = {
        **facts_of_training(problem, "distil", done),
        **closed_form,
        "predicted_nats": shape.predicted_nats,
        "tried": {n: {"kept": t.helped, "before": t.before, "after": t.after} for n, t in solved.tried.items()},
        **chosen.facts,
        "kept_blocks": plan.kept_blocks,
        "kept_heads": [[] if b[0] is None else list(b[0].heads) for b in shape.blocks if b is not None],
    }
    return Derived(slim, plan, facts)


METHOD = Method(
    Config,
    default_steps,
    derive,
    search_space=search_space,
    gentle=True,
    imitates_base=True,
    cuts_half_blocks=True,
    reads_unlabelled=True,
)
