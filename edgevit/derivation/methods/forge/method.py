"""Forge, edgevit's own method: measure what every width is worth, spend one budget on all of them, solve, then distil.

1. Curves: what the answers lose with each direction of QK and VO, each head, each FFN neuron and each block, in nats.
   Attention is factorised for the task's own tokens; neurons go in the order of optimal brain surgeon's elimination in
   the loss's own metric; tokens count by how much the answers feel them (`measure.sensitivity`, `allocate.menus`).
2. Allocation: the least predicted loss within the budget over QK and VO, FFN, heads and whole blocks at once, in the
   steps that the shape policy allows: by dynamic programming, as exact as `allocate.knapsack` says; and so for every
   rung of a ladder of embedding widths, of which the one that loses least is taken (`derive.embedding`). Where much
   is lost, likewise for some ladders of tokens that leave, as a second plan (`choose`).
3. Closed form: block by block, output weights solved for the slim network's own inputs (`sequential`), for both plans
   at once; the second stays only if its answers are clearly nearer to the base's on the validation images (`solve`).
4. Distillation from the base restricted to the classes; the best state on the validation part is kept, and the closed
   form is among them. `--steps 0` leaves it out: nothing is trained, and no label is looked at.

Each step can be taken away by its option; benchmarks/product/RESULTS.md has what each is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derivation.allocate import embedding
from edgevit.derivation.allocate.embedding import has_directions, more_images
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.feasibility import SearchSpace, Target, check_embed_width
from edgevit.derivation.measure.affine_replacement import fit_replacements
from edgevit.derivation.measure.embedding import TokenMoments, TokenStatistics, norm_gradients
from edgevit.derivation.measure.sensitivity import Sensitivity, measure_sensitivity
from edgevit.derivation.measure.statistics import BlockStatistics, calibrate, minimum_images
from edgevit.derivation.measure.thinning import ENOUGH_TOKENS, thinning
from edgevit.derivation.method import Method
from edgevit.derivation.methods.forge.choose import AS_PREDICTED, choose, plan_of
from edgevit.derivation.methods.forge.config import Config
from edgevit.derivation.methods.forge.curves import BlockCurves, blind, moment_of, packed, root, unpacked
from edgevit.derivation.methods.forge.ladders import ladders
from edgevit.derivation.methods.forge.measured import measure_losses, measure_replaced
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
from edgevit.derivation.solve.factorise import Spectrum
from edgevit.derivation.solve.least_squares import Removal, refittable_mean, removal_in_order, removal_order
from edgevit.network.anatomy import Block, Ffn
from edgevit.network.families import family_of
from edgevit.train.passes import Observer
from edgevit.train.settings import usual_steps

QUANTITIES = ("macs", "params", "ms", "mj")
PROBE = 8  # FFN curves are scaled to the loss measured at this part of the width
PER_NEURON = 8  # tokens at least for each neuron of the widest FFN, in second moments
PER_STAND_IN = 16  # tokens at least for each width of the embedding, in what stands in for a site


def default_steps(config: Config, rate: float, images: int, batch_size: int) -> int:
    """Steps of distillation."""
    return usual_steps(images, batch_size)


def search_space(network: nn.Module, config: Config, policy: Policy) -> SearchSpace:
    """What it may take away."""
    family, joint = family_of(network), config.allocation == "joint"
    blocks = family.read(network)
    switches = ("cut_embedding", "drop_blocks", "drop_heads", "drop_sites")
    return SearchSpace(
        heads=joint and config.drop_heads,
        blocks=joint and config.by_loss and config.drop_blocks,
        sites=joint and config.by_loss and config.drop_sites,
        embed=embedding.narrowest(network, policy, config.embed_width, "forge") if config.cuts_embedding else 0,
        images=config.calibration_images,
        ladders=ladders(family.geometry(network), len(blocks)) if config.cut_tokens == "predicted" else (),
        more={
            **dict.fromkeys(switches, True),
            "cut_tokens": "predicted",
            "embed_width": 0,
            "allocation": "joint",
            "sensitivity": "fisher",
        },
    )


def check_options(target: Target, config: Config) -> None:
    check_embed_width("forge", config.embed_width, target, config.calibration_images)


# -- curves ------------------------------------------------------------------------------------------------------------


def _sensitivities(problem: Problem, config: Config, network: nn.Module, stage: str, **how: Any) -> list[Sensitivity]:
    images, seed = problem.task.train.subset(config.sensitivity_images), problem.training.seed
    return measure_sensitivity(network, images, problem.columns, problem.passes, seed=seed, stage=stage, **how)


def _curves(problem: Problem, config: Config) -> tuple[list[BlockCurves], TokenStatistics | None]:
    """Take the curves of every block, or find them in the cache: they depend on the task and not on the budget.

    Beside them what is known of the tokens; None where the embedding has to stay, or nothing says what is felt.
    """
    names = ("sensitivity", "ridge")
    images = problem.task.train.subset(config.calibration_images)
    key = {
        **problem.identity,
        "images": images.content_sha256(),
        "thinning": astuple(thinning(problem.network, len(images), PER_NEURON)),
        "gradients": problem.task.train.subset(config.sensitivity_images).content_sha256(),
        "stream": config.sequential,
        "measured": problem.task.train.subset(config.measured_images).content_sha256(),
        "quick": config.quick,
        "config": {name: getattr(config, name) for name in names},
        "sites": config.drop_sites and config.by_loss,
        "seed": problem.training.seed,
    }
    found = dict(problem.cache.tensors("curves", key, lambda: _make_curves(problem, config)))
    tokens = TokenStatistics.pop_from(found)
    return unpacked(found), tokens


def _make_curves(problem: Problem, config: Config) -> dict[str, Tensor]:
    network = problem.network.to(problem.compute.device).eval()
    images = problem.task.train.subset(config.calibration_images)
    thinned = thinning(network, len(images), PER_NEURON)
    by_token, moment = None, None
    if config.by_loss:
        # One pass for the sites and for the norms, and one for the moments that their tokens are weighed in. The first
        # may be rounded: what a token is worth hangs on no small difference, as what a direction is worth may.
        norms = [norm_gradients(network)] if has_directions(network, len(images)) else []
        with problem.stopwatch.stage("sensitivity"):
            how: Any = {"also": norms, "quick": config.quick}
            by_token = [s.by_token for s in _sensitivities(problem, config, network, "worth of tokens", **how)]
        for worth in norms:
            weights = worth.means(len(problem.task.train.subset(config.sensitivity_images)), problem.passes)
            moment = TokenMoments(network, weights, problem.passes, thinned)
    with problem.stopwatch.stage("statistics"):
        how = {"factorisation": "activations", "hidden": True, "by_token": by_token, "thinning": thinned}
        statistics = calibrate(network, images, problem.passes, show=_shown(problem, config, images, moment), **how)
    found = packed(_block_curves(problem, config, statistics))
    if moment is not None:
        with problem.stopwatch.stage("embedding"):
            found |= moment.statistics().tensors()
    return found


def _shown(
    problem: Problem, config: Config, images: Split, moment: TokenMoments | None
) -> Callable[[Sequence[Observer]], None]:
    """How the calibration images are shown to the base: once, for the moments of its sites and of its tokens.

    Where the sequential solution will want what the sites put out, they pass as its stream, which keeps that. On a GPU,
    which passes images sooner than tokens come and go, nothing is kept.
    """
    network, passes = problem.network, problem.passes
    beside = [] if moment is None else [moment.observer]

    def show(observers: Sequence[Observer]) -> None:
        if config.sequential and problem.compute.device.type == "cpu":
            how: dict[str, Any] = {"keep": keeping(problem, images, quick=config.quick), "quick": config.quick}
            show_stream(network, images, passes, [*observers, *beside], **how)
        else:
            how = {"stage": "statistics of activations", "quick": config.quick}
            passes.run(network, images, lambda *_: None, [*observers, *beside], **how)

    return show


def _block_curves(problem: Problem, config: Config, statistics: Sequence[BlockStatistics]) -> list[BlockCurves]:
    network, by_loss = problem.network, config.by_loss
    blocks = family_of(network).read(network)
    spectra = _spectra(problem, blocks, statistics)
    if by_loss:
        felt = _felt(problem, config, blocks, statistics, spectra)
    else:
        tokens: int = family_of(network).geometry(network).tokens
        felt = [blind(tokens, b.embed, *pair) for b, pair in zip(blocks, spectra, strict=True)]
    made = []
    with (
        problem.stopwatch.stage("closed_form"),
        problem.progress.stage("order of neurons", len(blocks), "block") as stage,
    ):
        for i, (block, s) in enumerate(zip(blocks, statistics, strict=True)):
            removal, losses = _removal(config, block.ffn, s, felt[i])
            unknown = [torch.full((count,), inf, dtype=torch.float64) for count in (1, 2)]
            qk, vo = spectra[i]
            made.append(BlockCurves(s, qk, vo, felt[i], removal, losses, *unknown))
            stage.update(i + 1)
    if not by_loss:
        return [replace(b, ffn_losses=b.ffn_losses / b.ffn_losses.sum()) for b in made]
    return _scaled(problem, config, blocks, made)


def _removal(
    config: Config, part: Ffn | None, known: BlockStatistics, felt: Sensitivity
) -> tuple[Removal | None, Tensor]:
    """The order in which an FFN's neurons go, and what is lost as each does; neither where there is no FFN."""
    if part is None:
        return None, torch.empty(0, dtype=torch.float64)
    assert known.hidden is not None
    # the error of W_2 in the metric of the loss is the plain error of R W_2
    seen = root(felt.metric) @ part.w2.detach().double().cpu()
    centre = refittable_mean(part, known.mean)
    removal = removal_order(seen, known.hidden, centre, ridge=config.ridge)
    return removal, removal_in_order(removal.order, seen, known.hidden, centre, ridge=config.ridge).cost / 2


_Pair = tuple[Spectrum, Spectrum] | tuple[None, None]  # QK and VO of a block; none where it has no attention


def _spectra(problem: Problem, blocks: Sequence[Block], statistics: Sequence[BlockStatistics]) -> list[_Pair]:
    """Factorise attention for the task's tokens."""
    parts = {i: block.attention for i, block in enumerate(blocks) if block.attention is not None}
    if not parts:
        return [(None, None)] * len(blocks)
    with problem.stopwatch.stage("closed_form"), torch.no_grad():
        queries = [s.query for s in statistics if s.query is not None] or None
        moments = [moment_of(statistics[i]) for i in parts]
        found = attention_spectra(list(parts.values()), moments, query_moments=queries)
    pairs = dict(zip(parts, zip(found.qk, found.vo, strict=True), strict=True))
    return [pairs.get(i, (None, None)) for i in range(len(blocks))]


def _felt(
    problem: Problem,
    config: Config,
    blocks: Sequence[Block],
    statistics: Sequence[BlockStatistics],
    spectra: Sequence[_Pair],
) -> list[Sensitivity]:
    """Measure each direction of the spectra in the network that has them and is otherwise equal."""
    turned, restored = [], list[Tensor | None]()
    with problem.stopwatch.stage("closed_form"), torch.no_grad():
        for block, known, (qk, vo) in zip(blocks, statistics, spectra, strict=True):
            whole = None
            if block.attention is not None and qk is not None and vo is not None:
                a, moment = block.attention, moment_of(known)
                (whole,) = narrow([a], [(a.qk, a.vo)], [moment], Spectra((qk,), (vo,)))
            turned.append(Block(whole, block.ffn))
            restored.append(None if whole is None or whole.bo is None else mean_values(whole, moment_of(known)))
        rotated = family_of(problem.network).build(problem.network, turned)
    with problem.stopwatch.stage("sensitivity"):
        return _sensitivities(problem, config, rotated, "worth of attention's directions", restored=restored)


def _scaled(
    problem: Problem, config: Config, blocks: Sequence[Block], curves: Sequence[BlockCurves]
) -> list[BlockCurves]:
    """Scale each FFN's curve to the loss measured at one width, and measure what leaving each block out loses."""
    probes = [max(b.dims.ffn // PROBE, 1) for b in blocks]
    with problem.stopwatch.stage("closed_form"), torch.no_grad():
        thin = [
            Block(b.attention, None if b.ffn is None else known.refitted(b.ffn, width, config.ridge))
            for b, known, width in zip(blocks, curves, probes, strict=True)
        ]
        narrowed = family_of(problem.network).build(problem.network, thin)
    with problem.stopwatch.stage("sensitivity"):
        images = problem.task.train.subset(config.measured_images)
        measured = measure_losses(problem, narrowed, images, sites=config.drop_sites, quick=config.quick)
    scaled = []
    rows = zip(curves, probes, measured.narrowed, measured.without, measured.sites, strict=True)
    for known, probe, loss, without, sites in rows:
        predicted = known.ffn_losses[: len(known.ffn_losses) - probe].sum()
        scale = loss / predicted if predicted > 0 and loss > 0 else torch.ones(())
        losses = {
            "ffn_losses": known.ffn_losses * scale,
            "block_loss": without.reshape(1),
            "site_losses": sites.clone(),
        }
        scaled.append(replace(known, **losses))
    return scaled


def _stood_in(problem: Problem, config: Config, curves: Sequence[BlockCurves]) -> list[BlockCurves]:
    """The curves with blocks and sites that go priced with what stands in for them in their place.

    It is measured when it is first asked for, or found in the cache: it depends on the task and not on the budget.
    """
    network, task = problem.network, problem.task
    geometry = family_of(network).geometry(network)
    tokens = max(PER_STAND_IN * geometry.embed, ENOUGH_TOKENS)
    fitted = task.train.subset(min(-(-tokens // geometry.tokens), config.calibration_images))
    images = task.train.subset(config.measured_images)

    def measure() -> dict[str, Tensor]:
        with problem.stopwatch.stage("sensitivity"), torch.no_grad():
            how: Any = {"sites": config.drop_sites, "quick": config.quick}
            found = measure_replaced(problem, fit_replacements(network, fitted, problem.passes), images, **how)
        return dict(zip(("without", "sites"), found, strict=True))

    key = {
        **problem.identity,
        "images": [fitted.content_sha256(), images.content_sha256()],
        "sites": config.drop_sites,
        "quick": config.quick,
    }
    found = problem.cache.tensors("replacements", key, measure)
    losses = zip(curves, found["without"], found["sites"], strict=True)
    return [replace(known, block_loss=without.reshape(1), site_losses=sites) for known, without, sites in losses]


def _warn_of_few_images(problem: Problem, config: Config) -> None:
    images, enough = min(len(problem.task.train), config.calibration_images), minimum_images(problem.network)
    if images < enough:
        problem.progress.warn(
            f"{images} calibration images do not determine the widest layer, {enough} would: the ridge decides the "
            f"rest; {more_images(problem, 'forge', config.calibration_images, enough)}"
        )


def derive(problem: Problem, config: Config) -> Derived:
    _warn_of_few_images(problem, config)
    curves, tokens = _curves(problem, config)
    with problem.stopwatch.stage("allocation"):
        blocks = family_of(problem.network).read(problem.network)
        by_token = [known.felt.by_token for known in curves]
        stand, judge = partial(_stood_in, problem, config, curves), partial(judge_plans, problem, config, by_token)
        choices = choose(problem, config, blocks, curves, tokens, stand, judge)
    with problem.stopwatch.stage("closed_form"):
        plans = {name: plan_of(config, blocks, curves, one.shape, one.embed) for name, one in choices.items()}
    mended = replace(config, align=False, refit_head=False) if choices[AS_PREDICTED].loses_little else config
    curves.clear()  # second moments are most of what is in memory, and the plans hold what was wanted of them
    solved = solve(problem, mended, by_token, plans)
    slim, chosen, plan = solved.network, choices[solved.name], plans[solved.name]
    shape = chosen.shape
    validation = accuracy_on_validation(problem, slim).top1
    felt = [of_ffn for _, of_ffn in by_token] if config.by_loss else None
    distillation = distillation_for(problem, config, plan.embed, plan.kept_blocks, felt)
    done = train_for(problem, slim, stage="distil", distillation=distillation, keep="best")
    facts: dict[str, object] = {
        **facts_of_training(problem, "distil", done),
        "accuracy_validation_closed_form": validation,
        "predicted_nats": shape.predicted_nats,
        "tried": {name: asdict(tried) for name, tried in solved.tried.items()},
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
    check_options=check_options,
    gentle=True,
    cuts_half_blocks=True,
)
