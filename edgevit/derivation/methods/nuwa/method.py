"""NuWa (CVPR 2026): derive without training. Find what the target classes are better off without; cut in closed form.

1. Purification: masks of FFN neurons, trained on the task loss with the base frozen, give the anchor (`purify`).
2. Attention: truncated SVDs of W_Q^T W_K and W_V^T W_O^T.
3. FFN: some neurons are kept, and W_2 is refitted to them by least squares on calibration images.

The paper's own choices are options: purification=always with 10000 steps of one image, factorisation=weights,
widths=energy, neurons=activation. The defaults measured better (benchmarks/papers): attention factorised for the
task's own tokens; neurons chosen by what their removal costs once the others are refitted; widths where they lose the
least output per MAC; and the anchor only where the model derived from it is better on the validation part than the one
derived from the base.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, inf
from typing import Any, Literal

import torch
from torch import Tensor, nn

from edgevit.derivation.allocate import embedding
from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.embedding import Slices, check_width, embed_widths, geometry_at, reason_against
from edgevit.derivation.allocate.policy import Policy, Widths, fit, uniform
from edgevit.derivation.allocate.widths import Curve, energy_width, widths_by_error
from edgevit.derivation.feasibility import SearchSpace, Target, check_embed_width
from edgevit.derivation.measure.statistics import BlockStatistics, Factorisation, calibrate, check_enough
from edgevit.derivation.method import Method
from edgevit.derivation.methods.nuwa.purify import Purification, purify
from edgevit.derivation.plan import AttentionPlan, BlockPlan, EmbedPlan, FfnPlan, Plan
from edgevit.derivation.problem import Derived, Problem, accuracy_on_validation, distillation_for, train_for
from edgevit.derivation.realise import realise
from edgevit.derivation.solve.attention import Spectra, attention_spectra, narrow
from edgevit.derivation.solve.factorise import Spectrum
from edgevit.derivation.solve.least_squares import (
    Refit,
    Removal,
    refit,
    refittable_mean,
    removal_in_order,
    removal_order,
)
from edgevit.errors import BudgetError, OptionError
from edgevit.network.anatomy import Attention, Block, BlockDims, Ffn, attentions, ffns
from edgevit.network.checkpoint import tensors_sha256
from edgevit.network.copies import bare_copy
from edgevit.network.cost import Geometry
from edgevit.network.families import family_of
from edgevit.train.distil import TeacherOptions
from edgevit.train.state import load_tensors, reading_state, save_tensors

QUANTITIES = ("macs", "params", "ms", "mj")
HEAD_BIAS = -100.0  # of the classes outside the task, where the head is left whole


@dataclass(frozen=True)
class Config(TeacherOptions):
    # Where the model is cut from: the purified base (always), the base (none), or whichever gives the better model on
    # the validation part (validated).
    purification: Literal["validated", "always", "none"] = "validated"
    purification_steps: int = 250  # The number of optimiser steps in which the purifying masks are trained.
    purification_batch: int = 16  # The number of images in each of these steps.
    mask_lr: float = 1e-3  # The learning rate of the masks.
    beta_lr: float = 1e-1  # The learning rate of the scalar that says how many neurons each mask keeps.
    mask_decay: float = 0.05  # The weight decay of both.
    # What attention is factorised for: its weights, the task's tokens (activations), or these weighted by what the loss
    # would lose with them (tokens).
    factorisation: Factorisation = "activations"
    # How widths are chosen: the least output lost per MAC (error), a share of the spectrum's energy, or all cut alike
    # (uniform).
    widths: Literal["error", "energy", "uniform"] = "error"
    energy: float = 0.93  # The share of the squared singular values that attention keeps, with widths=energy.
    # Which neurons stay: those that are costly to remove (removal), the most active ones, or any (random).
    neurons: Literal["removal", "activation", "random"] = "removal"
    # What becomes of the FFN's output weights: refitted (least_squares), compensated as optimal brain surgeon does, or
    # left as they are (remove).
    ffn: Refit = "least_squares"
    cut_ffn: bool = True  # Whether neurons may go; false leaves the whole budget to attention, as an ablation does.
    # How strongly the refit of output weights is damped, in units of the neurons' mean square.
    ridge: float = 1e-4
    calibration_images: int = 128  # The number of training images from which the closed form is computed.
    # Whether the embedding may be narrowed, by a change of basis of all blocks at once; by a cost table it may be as
    # narrow as that lists.
    cut_embedding: bool = False
    embed_width: int = 0  # The embedding's width, if it may be narrowed; 0: the one that is measured to lose least.
    # The number of passes over the training images after the cut; --steps counts optimiser steps instead.
    finetune_epochs: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below_one("purification_steps", "purification_batch", "calibration_images")
        check_width("nuwa", self.embed_width)
        if self.embed_width and not self.cut_embedding:
            raise OptionError(f"nuwa.embed_width={self.embed_width} needs cut_embedding=true")
        if self.finetune_epochs < 0:
            raise OptionError(f"nuwa.finetune_epochs={self.finetune_epochs} is negative; 0 trains not at all")
        if not 0 < self.energy <= 1:
            raise OptionError(f"nuwa.energy={self.energy:g} is not in (0, 1]; the paper's is 0.93")
        for name in ("mask_lr", "beta_lr", "mask_decay", "ridge"):
            if not 0 <= getattr(self, name) < inf:
                raise OptionError(f"nuwa.{name}={getattr(self, name):g} is not a number of at least 0")


def search_space(network: nn.Module, config: Config, policy: Policy) -> SearchSpace:
    """What it may take away."""
    embed = embedding.narrowest(network, policy, config.embed_width, "nuwa") if config.cut_embedding else 0
    more = {"cut_ffn": True, "cut_embedding": True, "embed_width": 0}
    return SearchSpace(neurons=config.cut_ffn, embed=embed, images=config.calibration_images, more=more)


def check_options(target: Target, config: Config) -> None:
    check_enough(config.calibration_images, target.images, target.network, "nuwa.calibration_images")
    check_embed_width("nuwa", config.embed_width, target, config.calibration_images)


def default_steps(config: Config, rate: float, images: int, batch_size: int) -> int:
    """Steps of the fine-tuning after the cut: none, unless asked for."""
    return config.finetune_epochs * ceil(images / batch_size)


# -- what is worked out once per task ----------------------------------------------------------------------------------


def _masks(problem: Problem, config: Config) -> list[Tensor]:
    """The anchor's masks [e] per block: from the unfinished run, the cache, or by training them."""
    file = problem.folder / "masks.safetensors"
    names = [f"{i:03}" for i in range(len(family_of(problem.network).read(problem.network)))]
    if not file.is_file():
        how = Purification(
            config.purification_steps, config.purification_batch, config.mask_lr, config.beta_lr, config.mask_decay
        )
        training, task = problem.training, problem.task
        key = {
            **problem.identity,
            "train": task.train.content_sha256(),
            "validation": task.validation.content_sha256(),
            "how": asdict(how),
            "training": [training.seed, training.augment, training.precision],
        }
        with problem.stopwatch.stage("purification"):
            made = problem.cache.tensors("masks", key, lambda: dict(zip(names, purify(problem, how), strict=True)))
        if problem.compute.is_main:
            save_tensors(file, made)
        problem.compute.wait()
    kept = load_tensors(file)
    with reading_state(file):
        return [kept[name] for name in names]


@dataclass(frozen=True)
class _Start:
    """What widths and weights are worked out from: a network that is to be cut, and what is known of it."""

    network: nn.Module
    masks: Sequence[Tensor] | None  # of its FFN neurons, if it is the anchor
    key: dict[str, Any]  # of the cache
    statistics: list[BlockStatistics]
    blocks: list[Block]

    @property
    def attentions(self) -> list[Attention]:
        return attentions(self.blocks)

    @property
    def ffns(self) -> list[Ffn]:
        return ffns(self.blocks)


def _start(problem: Problem, config: Config, masks: Sequence[Tensor] | None) -> _Start:
    """Take the statistics of the base, or of the anchor that these masks make of it."""
    device = problem.compute.device
    network = problem.network if masks is None else _without_neurons(problem.network, masks)
    network.to(device).eval()
    images = problem.task.train.subset(config.calibration_images)
    key = {
        **problem.identity,
        "images": images.content_sha256(),
        "masks": None if masks is None else tensors_sha256({str(i): m for i, m in enumerate(masks)}),
        "factorisation": config.factorisation,
    }

    def take() -> dict[str, Tensor]:
        how: Any = {"factorisation": config.factorisation, "columns": problem.columns, "hidden": True}
        taken = calibrate(network, images, problem.passes, **how)
        return {f"{i}.{name}": tensor for i, s in enumerate(taken) for name, tensor in s.tensors().items()}

    with problem.stopwatch.stage("statistics"):
        flat = problem.cache.tensors("statistics", key, take)
    blocks = family_of(network).read(network)
    statistics = [
        BlockStatistics(**{name.partition(".")[2]: t for name, t in flat.items() if name.startswith(f"{i}.")})
        for i in range(len(blocks))
    ]
    return _Start(network, masks, key, statistics, blocks)


def _spectra(problem: Problem, config: Config, start: _Start) -> Spectra:
    """The factorised attention of every block; of the weights alone it serves every task of the base."""
    moments = _moments(start, config)
    key = {name: problem.identity[name] for name in ("base", "state")} if moments is None else start.key

    def make() -> dict[str, Tensor]:
        spectra = attention_spectra(start.attentions, moments)
        parts = {"qk": spectra.qk, "vo": spectra.vo}
        return {f"{i}.{p}.{n}": t for p, of in parts.items() for i, s in enumerate(of) for n, t in vars(s).items()}

    flat = problem.cache.tensors("spectra", key, make)

    def part(name: str) -> tuple[Spectrum, ...]:
        fields = ("values", "left", "right")
        return tuple(Spectrum(*(flat[f"{i}.{name}.{f}"] for f in fields)) for i in range(len(start.blocks)))

    return Spectra(part("qk"), part("vo"))


def _moments(start: _Start, config: Config) -> list[Tensor] | None:
    if config.factorisation == "weights":
        return None
    return [s.moment for s in start.statistics if s.moment is not None]


def _removals(problem: Problem, config: Config, start: _Start) -> list[Removal]:
    """In which order the neurons of every block go: one order for all widths."""

    def by_cost() -> dict[str, Tensor]:
        made: dict[str, Tensor] = {}
        with problem.progress.stage("order of neurons", len(start.blocks), "block") as stage:
            for i, (part, s) in enumerate(zip(start.ffns, start.statistics, strict=True)):
                assert s.hidden is not None
                removal = removal_order(part.w2, s.hidden, refittable_mean(part, s.mean), ridge=config.ridge)
                made |= {f"{i}.order": removal.order, f"{i}.cost": removal.cost}
                stage.update(i + 1)
        return made

    if config.neurons == "removal":
        flat = problem.cache.tensors("removal-order", {**start.key, "ridge": config.ridge}, by_cost)
        return [Removal(flat[f"{i}.order"], flat[f"{i}.cost"]) for i in range(len(start.blocks))]
    generator = torch.Generator().manual_seed(problem.training.seed)
    removals = []
    for i, (part, s) in enumerate(zip(start.ffns, start.statistics, strict=True)):
        assert s.hidden is not None
        random = torch.rand(len(s.magnitude), generator=generator, dtype=torch.float64)
        score = s.magnitude if config.neurons == "activation" else random
        if start.masks is not None:
            score = score * start.masks[i].to(score)  # what the anchor does without goes first
        order = torch.argsort(score, stable=True)
        centre = refittable_mean(part, s.mean)
        removals.append(removal_in_order(order, part.w2, s.hidden, centre, ridge=config.ridge))
    return removals


# -- closed form -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Known:
    """What all budgets and widths of the embedding share."""

    spectra: Spectra
    removals: Sequence[Removal]


def _share(error: Tensor) -> Tensor:
    return error / error.sum().clamp_min(torch.finfo(error.dtype).tiny)


def _wishes(
    problem: Problem, config: Config, dims: Sequence[BlockDims], known: _Known, geometry: Geometry
) -> Callable[[float], Sequence[Widths]]:
    """The widths wished for at a rate (for `policy.fit`), where costs are of this geometry."""
    spectra, removals = known.spectra, known.removals
    if config.widths == "uniform":
        return uniform(dims)
    if config.widths == "energy":
        attention = [
            (energy_width(qk.values, config.energy), energy_width(vo.values, config.energy))
            for qk, vo in zip(spectra.qk, spectra.vo, strict=True)
        ]
        # Attention is as wide as its energy asks for; the FFN, alike in all blocks, takes what the budget leaves.
        return lambda rate: [Widths(*a, d.ffn * (1 - rate)) for a, d in zip(attention, dims, strict=True)]
    budget = problem.budget
    # By a table a unit has no cost of its own: widths are ranked by MACs, and `fit` finds the rate by the table.
    quantity = budget.linear if budget.prices is None else "macs"
    curves = []
    for n, d, qk, vo, removal in zip(geometry.reaching(dims), dims, spectra.qk, spectra.vo, removals, strict=True):
        unit = geometry.at(n).unit_costs(d.heads, quantity)
        curves.append(Curve(_share(qk.values.square().sum(0)).cpu(), unit.qk))
        curves.append(Curve(_share(vo.values.square().sum(0)).cpu(), unit.vo))
        curves.append(Curve(_share(removal.cost.flip(0)).cpu(), unit.ffn))

    widths_at = widths_by_error(curves)

    def wishes_at(rate: float) -> list[Widths]:
        widths = [float(w) for w in widths_at(rate)]
        return [Widths(*widths[i : i + 3]) for i in range(0, len(widths), 3)]

    return wishes_at


@dataclass(frozen=True)
class _Cut:
    """What became of a network that was cut."""

    network: nn.Module
    plan: Plan
    facts: dict[str, object]


def _cut(problem: Problem, config: Config, start: _Start) -> _Cut:
    """Choose widths inside the budget and solve for the weights."""
    with problem.stopwatch.stage("closed_form"), torch.no_grad():
        known = _Known(_spectra(problem, config, start), _removals(problem, config, start))
    if config.cut_embedding:
        if (reason := reason_against(problem, config.calibration_images)) is None:
            return _cut_narrower(problem, config, start, known)
        problem.progress.note(f"the embedding stays as it is: {reason}")
    whole: int = family_of(start.network).geometry(start.network).embed
    plan = _plan(problem, config, start, known, whole, None)
    with problem.stopwatch.stage("closed_form"):
        return _Cut(realise(start.network, plan), plan, {})


def _cut_narrower(problem: Problem, config: Config, start: _Start, known: _Known) -> _Cut:
    """The same with the embedding's width by which least is lost.

    Nothing here predicts what widths lose in one unit with the embedding, so the model of each rung of the ladder is
    made and measured on the calibration images, against the base. The descent ends where the narrower embedding alone
    loses more than the best model so far.

    Raises:
        BudgetError: no rung reaches the budget; the narrowest one's.
    """
    slices = Slices(problem, config.calibration_images, config.calibration_images, owner="nuwa")
    best, least, refused, rungs = None, inf, None, []
    for width in embed_widths(problem.network, problem.policy, config.embed_width, "nuwa", problem.budget.least_embed):
        if (alone := slices.nats(width)) >= least:
            break
        try:
            plan = _plan(problem, config, start, known, width, slices.plan(width))
        except BudgetError as error:
            refused = error
            continue
        with problem.stopwatch.stage("embedding"):
            slim = realise(start.network, plan)
            lost = slices.lost(slim)
        rungs.append({"width": width, "slice_nats": alone, "measured_nats": lost})
        if lost < least:
            best, least = _Cut(slim, plan, {"embed": width, "embed_rungs": rungs}), lost
    if best is None:
        assert refused is not None
        raise refused
    return best


@torch.no_grad()
def _plan(problem: Problem, config: Config, start: _Start, known: _Known, width: int, embed: EmbedPlan | None) -> Plan:
    """Widths inside the budget for an embedding of this width, and the weights, in the network's own embedding."""
    with problem.stopwatch.stage("closed_form"):
        dims, geometry = [b.dims for b in start.blocks], geometry_at(start.network, width)
        wishes = _wishes(problem, config, dims, known, geometry)
        budget = problem.budget if config.cut_ffn else _keeping_neurons(problem.budget, dims)
        chosen = fit(wishes, dims, geometry, budget, problem.policy)
        narrowed = narrow(
            start.attentions, [(new.qk, new.vo) for new in chosen], _moments(start, config), known.spectra
        )
        plans = []
        parts = zip(narrowed, start.ffns, chosen, known.removals, start.statistics, strict=True)
        for i, (attention, ffn, new, removal, s) in enumerate(parts):
            assert s.hidden is not None
            kept = removal.remaining(new.ffn)
            refitted = refit(ffn, kept, s.hidden, s.mean, config.ffn, config.ridge)
            heads = tuple(range(new.heads))
            planned = AttentionPlan(heads, new.qk, new.vo, weights=attention)
            plans.append(BlockPlan(i, planned, FfnPlan(kept, weights=refitted)))
        return Plan(tuple(plans), embed)


def _keeping_neurons(budget: Budget, dims: Sequence[BlockDims]) -> Budget:
    """The budget with a floor under every FFN: all of its neurons."""
    floors = budget.at_least or {}
    whole = {i: replace(floors.get(i, BlockDims(d.heads, 1, 1, d.ffn)), ffn=d.ffn) for i, d in enumerate(dims)}
    return replace(budget, at_least=whole)


def _cut_best(problem: Problem, config: Config) -> _Cut:
    """Cut the base, the anchor or both, and take the model that is better on the validation part."""
    masks = None if config.purification == "none" else _masks(problem, config)
    facts: dict[str, object] = {}
    if masks is not None:
        facts["anchor_neurons"] = sum(float(m.mean()) for m in masks) / len(masks)
    is_base = masks is None or all(bool(m.all()) for m in masks)
    if is_base or config.purification == "always":
        cut = _cut(problem, config, _start(problem, config, None if is_base else masks))
        facts |= {"purified": not is_base, "accuracy_validation": accuracy_on_validation(problem, cut.network).top1}
        return replace(cut, facts={**facts, **cut.facts})
    cuts = [_cut(problem, config, _start(problem, config, of)) for of in (None, masks)]
    accuracy = [accuracy_on_validation(problem, cut.network).top1 for cut in cuts]
    purified = accuracy[1] > accuracy[0]
    problem.progress.note(
        f"on the validation part: from the base {100 * accuracy[0]:.1f} %, from the anchor {100 * accuracy[1]:.1f} %"
    )
    facts |= {"purified": purified, "accuracy_validation": max(accuracy), "accuracy_unpurified": accuracy[0]}
    cut = cuts[int(purified)]
    return replace(cut, facts={**facts, **cut.facts})


@torch.no_grad()
def _without_neurons(network: nn.Module, masks: Sequence[Tensor]) -> nn.Module:
    """Return a copy in which the FFN neurons [e] whose mask is zero no longer reach the output; no shape changes."""
    copied = bare_copy(network)
    for part, mask in zip(ffns(family_of(copied).read(copied)), masks, strict=True):
        part.w2.mul_(mask.to(part.w2))
    return copied


@torch.no_grad()
def _with_class_bias(network: nn.Module, classes: Sequence[int], bias: float) -> nn.Module:
    """Return a copy that adds this bias to the logits of all other classes (head focus)."""
    copied = bare_copy(network)
    for head in family_of(copied).classifiers(copied):
        others = torch.ones(head.out_features, dtype=torch.bool)
        others[list(classes)] = False
        head.bias[others] += bias
    return copied


def derive(problem: Problem, config: Config) -> Derived:
    if family_of(problem.network).classifiers(problem.network)[0].out_features > len(problem.columns):
        focused = _with_class_bias(problem.network, problem.columns, HEAD_BIAS)
        problem = replace(problem, network=focused)
    cut = _cut_best(problem, config)
    distillation = distillation_for(problem, config, embed=cut.plan.embed)
    done = train_for(problem, cut.network, stage="finetune", distillation=distillation)
    steps = {"steps": done, "steps_planned": problem.training.steps}
    return Derived(cut.network, cut.plan, {**steps, **cut.facts, "reused": problem.cache.reused})


METHOD = Method(Config, default_steps, derive, search_space=search_space, check_options=check_options)
