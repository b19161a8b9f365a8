"""NuWa (CVPR 2026): derive without training, by what the target classes need, in closed form.

1. Purification: masks of FFN neurons, trained on the task loss with the base frozen, give the anchor model (`purify`).
2. Attention: truncated SVDs of W_Q^T W_K and W_V^T W_O^T.
3. FFN: some neurons are removed, and least squares on calibration images refit W_2 to the others.

The defaults measured better than the paper's choices: attention is factorised for the task's own tokens; the neurons
removed are those whose removal costs least after the refit; each width is where the least output is lost per MAC; and
the model is cut from the anchor only if that gives a better model on the validation part than the base does.
`as_published` gives the paper's: always the anchor, trained for 10,000 steps of one image; attention factorised for its
weights, with the widths that hold 93 % of the squared singular values; FFNs alike in all blocks; and the least active
neurons removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, inf
from typing import Any, Literal

import torch
from torch import Tensor

from edgevit.derivation.allocate import embedding
from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.embedding import Slices, embed_widths, reason_against
from edgevit.derivation.allocate.policy import Policy, Widths, fit
from edgevit.derivation.allocate.widths import Curve, energy_width, widths_by_error
from edgevit.derivation.feasibility import SearchSpace, Target
from edgevit.derivation.measure.statistics import BlockStatistics, calibrate, check_enough
from edgevit.derivation.method import Method
from edgevit.derivation.methods.nuwa.purify import purify
from edgevit.derivation.plan import AttentionPlan, BlockPlan, EmbedPlan, FfnPlan, Plan
from edgevit.derivation.problem import (
    Derived,
    Problem,
    distillation_for,
    facts_of_training,
    score_on_validation,
    train_for,
)
from edgevit.derivation.realise import realise
from edgevit.derivation.solve.attention import Spectra, attention_spectra, narrow
from edgevit.derivation.solve.factorise import Spectrum
from edgevit.derivation.solve.least_squares import Removal, refit, refittable_mean, removal_in_order, removal_order
from edgevit.errors import BudgetError, OptionError
from edgevit.network.anatomy import Attention, Block, BlockDims, Ffn, SizeAxis, attentions, ffns
from edgevit.network.copies import bare_copy
from edgevit.network.cost import Geometry
from edgevit.network.model import tensors_sha256
from edgevit.network.network import Network
from edgevit.network.output import Logits, may_be_varied
from edgevit.numbers import COUNT, check_number
from edgevit.records.model import HEAD_WIDTHS, WIDTHS
from edgevit.train.state import load_tensors, reading_state, save_tensors
from edgevit.train.validation import Keep

NEEDS_LABELS = False
_HEAD_BIAS = -100.0  # added to the logits of classes outside the task, where the head keeps them
_ENERGY = 0.93  # share of the squared singular values that attention keeps, as published
_PUBLISHED: Mapping[str, Any] = {"purification": "always", "purification_steps": 10_000, "neurons": "activation"}


@dataclass(frozen=True)
class Config:
    # Whether the paper's choices replace the defaults: purification=always with 10000 steps of one image,
    # neurons=activation, and attention factorised for its weights at 93 % of their energy.
    as_published: bool = False
    # The network that is cut: the anchor, which is the base after purification (always); the base (none); or the one
    # that gives the better model on the validation part (validated).
    purification: Literal["validated", "always", "none"] = "validated"
    purification_steps: int = 250  # The number of optimiser steps in which the purifying masks are trained.
    # The neurons that stay: those whose removal costs most (removal), the most active ones, or random ones.
    neurons: Literal["removal", "activation", "random"] = "removal"
    refit: bool = True  # Whether least squares refit the FFN's output weights to the neurons that stay.
    cut_ffn: bool = True  # Whether neurons may be removed; false leaves the whole budget to attention.
    ridge: float = 1e-4  # The ridge of that least squares problem, in units of the neurons' mean square.
    calibration_images: int = 128  # The number of training images from which the closed form is computed.
    # Whether the embedding may be narrowed, by a change of basis of all blocks at once. With a cost table its width
    # must be one that the table lists.
    cut_embedding: bool = False
    # The number of passes over the training images after the cut; --steps counts optimiser steps instead.
    finetune_epochs: int = 0

    def __post_init__(self) -> None:
        if self.as_published:  # replaces the options that have their default
            for name, value in _PUBLISHED.items():
                if getattr(self, name) == getattr(Config, name):
                    object.__setattr__(self, name, value)
        for name in ("purification_steps", "calibration_images"):
            check_number(f"nuwa.{name}", getattr(self, name), COUNT)
        check_number("nuwa.finetune_epochs", self.finetune_epochs, "[0, 2**31)", "0 does not train")
        check_number("nuwa.ridge", self.ridge, "[0, inf)")

    @property
    def purification_batch(self) -> int:
        """The number of images in each step of the purification."""
        return 1 if self.as_published else 16


def search_space(network: Network, config: Config, policy: Policy) -> SearchSpace:
    """Return what the method may remove from a network."""
    embed = embedding.narrowest(network, policy) if config.cut_embedding else 0
    more = {"cut_ffn": True, "cut_embedding": True}
    return SearchSpace(neurons=config.cut_ffn, embed=embed, images=config.calibration_images, more=more)


def check_options(target: Target, config: Config) -> None:
    check_enough(config.calibration_images, target.images, target.network, "nuwa.calibration_images")
    if config.purification != "none" and may_be_varied(target.network.output):
        raise OptionError(
            f"nuwa purifies by labels, and images of an output of {target.network.output.noun} have none; try "
            "--set nuwa.purification=none"
        )


def default_steps(config: Config, rate: float, images: int, batch_size: int) -> int:
    """Return the steps of the fine-tuning after the cut."""
    return config.finetune_epochs * ceil(images / batch_size)


# -- computed once per task --------------------------------------------------------------------------------------------


def _masks(problem: Problem, config: Config) -> list[Tensor]:
    """Return the anchor's masks [e] per block, from the unfinished run or the cache, or train them."""
    file = problem.folder / "masks.safetensors"
    names = [f"{i:03}" for i in range(len(problem.network.read()))]
    if not file.is_file():
        steps, batch_size = config.purification_steps, config.purification_batch
        training, task = problem.training, problem.task
        key = {
            **problem.identity,
            "train": task.train.content_sha256(),
            "validation": task.validation.content_sha256(),
            "purification": [steps, batch_size],
            "training": [training.seed, training.augment, training.precision],
        }

        def train() -> dict[str, Tensor]:
            return dict(zip(names, purify(problem, steps, batch_size), strict=True))

        with problem.stopwatch.stage("purification"):
            masks = problem.cache.tensors("masks", key, train)
        if problem.compute.is_main:
            save_tensors(file, masks)
        problem.compute.wait()
    saved = load_tensors(file)
    with reading_state(file):
        return [saved[name] for name in names]


@dataclass(frozen=True)
class _Start:
    """A network to cut, the base or its anchor, with its statistics."""

    network: Network
    # One mask per block for the FFN neurons of the anchor; None: the network is the base.
    masks: Sequence[Tensor] | None
    key: dict[str, Any]  # key of the statistics in the cache
    statistics: list[BlockStatistics]
    blocks: list[Block]

    @property
    def attentions(self) -> list[Attention]:
        return attentions(self.blocks)

    @property
    def ffns(self) -> list[Ffn]:
        return ffns(self.blocks)


def _start(problem: Problem, config: Config, masks: Sequence[Tensor] | None) -> _Start:
    """Take the statistics of the base, or with masks those of its anchor."""
    device = problem.compute.device
    network = problem.network if masks is None else _without_neurons(problem.network, masks)
    network.to(device).eval()
    images = problem.task.train.subset(config.calibration_images)
    key = {
        **problem.identity,
        "images": images.content_sha256(),
        "masks": None if masks is None else tensors_sha256({str(i): m for i, m in enumerate(masks)}),
        "factorisation": "weights" if config.as_published else "activations",
    }

    def take() -> dict[str, Tensor]:
        statistics = calibrate(network, images, problem.passes, factorisation=key["factorisation"], hidden=True)
        return {f"{i}.{name}": tensor for i, s in enumerate(statistics) for name, tensor in s.tensors().items()}

    with problem.stopwatch.stage("statistics"):
        flat = problem.cache.tensors("statistics", key, take)
    blocks = network.read()
    statistics = [
        BlockStatistics(**{name.partition(".")[2]: t for name, t in flat.items() if name.startswith(f"{i}.")})
        for i in range(len(blocks))
    ]
    return _Start(network, masks, key, statistics, blocks)


def _spectra(problem: Problem, config: Config, start: _Start) -> list[Spectra]:
    """Factorise the attention of every block; a factorisation of the weights alone serves every task of the base."""
    moments = _moments(start, config)
    key = {name: problem.identity[name] for name in ("base", "state")} if moments is None else start.key

    def make() -> dict[str, Tensor]:
        spectra = attention_spectra(start.attentions, moments)
        named = {f"{i}.{axis}": s for i, pair in enumerate(spectra) for axis, s in zip(HEAD_WIDTHS, pair, strict=True)}
        return {f"{name}.{field}": tensor for name, s in named.items() for field, tensor in vars(s).items()}

    flat = problem.cache.tensors("spectra", key, make)

    def of(block: int, axis: SizeAxis) -> Spectrum:
        return Spectrum(*(flat[f"{block}.{axis}.{field.name}"] for field in fields(Spectrum)))

    return [(of(i, "qk"), of(i, "vo")) for i in range(len(start.blocks))]


def _moments(start: _Start, config: Config) -> list[Tensor] | None:
    if config.as_published:
        return None
    return [s.moment for s in start.statistics if s.moment is not None]


def _removals(problem: Problem, config: Config, start: _Start) -> list[Removal]:
    """Order the neurons of every block for removal: one order serves all widths."""

    def by_cost() -> dict[str, Tensor]:
        orders: dict[str, Tensor] = {}
        with problem.progress.stage("order of neurons", len(start.blocks), "block") as stage:
            for i, (part, s) in enumerate(zip(start.ffns, start.statistics, strict=True)):
                assert s.hidden is not None
                removal = removal_order(part.w2, s.hidden, refittable_mean(part, s.mean), ridge=config.ridge)
                orders |= {f"{i}.order": removal.order, f"{i}.cost": removal.cost}
                stage.update(i + 1)
        return orders

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
            score = score * start.masks[i].to(score)  # neurons that the anchor lacks are removed first
        order = torch.argsort(score, stable=True)
        centre = refittable_mean(part, s.mean)
        removals.append(removal_in_order(order, part.w2, s.hidden, centre, ridge=config.ridge))
    return removals


# -- closed form -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Solution:
    """The part of the closed form that serves all budgets and widths of the embedding."""

    spectra: Sequence[Spectra]
    removals: Sequence[Removal]


def _share(error: Tensor) -> Tensor:
    return error / error.sum().clamp_min(torch.finfo(error.dtype).tiny)


def _wishes(
    problem: Problem, config: Config, dims: Sequence[BlockDims], solution: _Solution, geometry: Geometry
) -> Callable[[float], Sequence[Widths]]:
    """Return the widths before rounding as a function of the rate, for `policy.fit`, with the costs of this geometry.

    As published, attention keeps a share of its energy and FFNs, alike in all blocks, take the rest of the budget.
    """
    spectra, removals = solution.spectra, solution.removals
    if config.as_published:
        attention = [(energy_width(qk.values, _ENERGY), energy_width(vo.values, _ENERGY)) for qk, vo in spectra]
        pairs = list(zip(attention, dims, strict=True))
        return lambda rate: [dict(zip(WIDTHS, (*a, d.ffn * (1 - rate)), strict=True)) for a, d in pairs]
    budget = problem.budget
    # A cost table has no cost of a single unit: MACs rank the units, and `fit` finds the rate by the table.
    quantity = budget.linear if budget.prices is None else "macs"
    curves = []
    for block, (qk, vo), removal in zip(geometry.placed(dims), spectra, removals, strict=True):
        errors = (qk.values.square().sum(0), vo.values.square().sum(0), removal.cost.flip(0))
        for axis, error in zip(WIDTHS, errors, strict=True):
            curves.append(Curve(_share(error).cpu(), block.unit_cost(axis, quantity)))

    widths_at = widths_by_error(curves)

    def wishes_at(rate: float) -> list[Widths]:
        widths = [float(w) for w in widths_at(rate)]
        count = len(WIDTHS)
        return [dict(zip(WIDTHS, widths[i : i + count], strict=True)) for i in range(0, len(widths), count)]

    return wishes_at


@dataclass(frozen=True)
class _Cut:
    """A network after the cut, the plan of the cut, and facts for the record."""

    network: Network
    plan: Plan
    facts: dict[str, object]


def _cut(problem: Problem, config: Config, start: _Start) -> _Cut:
    """Choose widths inside the budget and solve for the weights."""
    with problem.stopwatch.stage("closed_form"), torch.no_grad():
        solution = _Solution(_spectra(problem, config, start), _removals(problem, config, start))
    if config.cut_embedding:
        if (reason := reason_against(problem, config.calibration_images)) is None:
            return _cut_narrower(problem, config, start, solution)
        problem.progress.note(f"the embedding stays as it is: {reason}")
    whole: int = start.network.geometry.embed
    plan = _plan(problem, config, start, solution, whole, None)
    with problem.stopwatch.stage("closed_form"):
        return _Cut(realise(start.network, plan), plan, {})


def _cut_narrower(problem: Problem, config: Config, start: _Start, solution: _Solution) -> _Cut:
    """Do the same with the width of the embedding that loses least.

    The loss of a width of the embedding and that of a block's widths have no common unit here, so a model of each
    candidate width is realised and its loss against the base measured on the calibration images. The descent ends where
    the narrower embedding alone loses more than the best model so far.

    Raises:
        BudgetError: no candidate width reaches the budget; the error is that of the narrowest.
    """
    slices = Slices(problem, config.calibration_images, config.calibration_images, owner="nuwa")
    best, least, refused, candidates = None, inf, None, []
    for width in embed_widths(problem.network, problem.policy, problem.budget.least_embed):
        if (alone := slices.nats(width)) >= least:
            break
        try:
            plan = _plan(problem, config, start, solution, width, slices.plan(width))
        except BudgetError as error:
            refused = error
            continue
        with problem.stopwatch.stage("embedding"):
            slim = realise(start.network, plan)
            loss = slices.lost(slim)
        candidates.append({"width": width, "slice_nats": alone, "measured_nats": loss})
        if loss < least:
            best, least = _Cut(slim, plan, {"embed": width, "embed_widths": candidates}), loss
    if best is None:
        assert refused is not None
        raise refused
    return best


@torch.no_grad()
def _plan(
    problem: Problem, config: Config, start: _Start, solution: _Solution, width: int, embed: EmbedPlan | None
) -> Plan:
    """Choose widths within the budget for an embedding of this width, and solve weights for the whole embedding."""
    with problem.stopwatch.stage("closed_form"):
        dims, geometry = [b.dims for b in start.blocks], start.network.geometry_at(width)
        wishes = _wishes(problem, config, dims, solution, geometry)
        budget = problem.budget if config.cut_ffn else _keeping_neurons(problem.budget, dims)
        chosen = fit(wishes, dims, geometry, budget, problem.policy)
        widths = [new.head_widths for new in chosen]
        narrowed = narrow(start.attentions, widths, _moments(start, config), solution.spectra)
        plans = []
        parts = zip(narrowed, start.ffns, chosen, solution.removals, start.statistics, strict=True)
        for i, (attention, ffn, new, removal, s) in enumerate(parts):
            assert s.hidden is not None
            neurons = removal.remaining(new.ffn)
            weights = refit(ffn, neurons, s.hidden, s.mean, "least_squares" if config.refit else "remove", config.ridge)
            planned = AttentionPlan.of(new, weights=attention)
            plans.append(BlockPlan(i, planned, FfnPlan(neurons, weights=weights)))
        return Plan(tuple(plans), embed)


def _keeping_neurons(budget: Budget, dims: Sequence[BlockDims]) -> Budget:
    """Return the budget with all neurons of every FFN as its minimum."""
    floors = budget.at_least or {}
    whole = {i: replace(floors.get(i, d.with_head_width(1)), ffn=d.ffn) for i, d in enumerate(dims)}
    return replace(budget, at_least=whole)


def _cut_best(problem: Problem, config: Config) -> _Cut:
    """Cut the base, the anchor or both, and keep the model that is better on the validation part."""
    masks = None if config.purification == "none" else _masks(problem, config)
    facts: dict[str, object] = {}
    if masks is not None:
        facts["anchor_neurons"] = sum(float(m.mean()) for m in masks) / len(masks)
    is_base = masks is None or all(bool(m.all()) for m in masks)
    if is_base or config.purification == "always":
        cut = _cut(problem, config, _start(problem, config, None if is_base else masks))
        facts |= {"purified": not is_base, "accuracy_validation": score_on_validation(problem, cut.network)}
        return replace(cut, facts={**facts, **cut.facts})
    cuts = [_cut(problem, config, _start(problem, config, choice)) for choice in (None, masks)]
    accuracy = [score_on_validation(problem, cut.network) or 0.0 for cut in cuts]
    purified = accuracy[1] > accuracy[0]
    problem.progress.note(
        f"on the validation part: from the base {100 * accuracy[0]:.1f} %, from the anchor {100 * accuracy[1]:.1f} %"
    )
    facts |= {"purified": purified, "accuracy_validation": max(accuracy), "accuracy_unpurified": accuracy[0]}
    cut = cuts[int(purified)]
    return replace(cut, facts={**facts, **cut.facts})


@torch.no_grad()
def _without_neurons(network: Network, masks: Sequence[Tensor]) -> Network:
    """Return a copy in which the FFN neurons [e] with a mask of zero do not reach the output; no shape changes."""
    copied = bare_copy(network)
    for part, mask in zip(ffns(copied.read()), masks, strict=True):
        part.w2.mul_(mask.to(part.w2))
    return copied


@torch.no_grad()
def _with_class_bias(network: Network, classes: Sequence[int], bias: float) -> Network:
    """Return a copy with this bias added to the logits of all other classes (head focus)."""
    copied = bare_copy(network)
    for head in copied.classifiers:
        others = torch.ones(head.out_features, dtype=torch.bool)
        others[list(classes)] = False
        head.bias[others] += bias
    return copied


def derive(problem: Problem, config: Config) -> Derived:
    output = problem.network.output
    if isinstance(output, Logits) and problem.network.classifiers[0].out_features > len(output.columns):
        focused = _with_class_bias(problem.network, problem.network.columns, _HEAD_BIAS)
        problem = replace(problem, network=focused)
    cut = _cut_best(problem, config)
    distillation = distillation_for(problem, embed=cut.plan.embed)
    # The paper trains on labels. Where there are none, it can only go away from a good closed form.
    imitates = may_be_varied(output)
    keep: Keep = "best" if imitates else "last"
    done = train_for(problem, cut.network, stage="finetune", distillation=distillation, keep=keep)
    facts = facts_of_training(problem, "finetune", done)
    if not imitates:
        facts = {name: facts[name] for name in ("steps", "steps_planned", "reused")}
    return Derived(cut.network, cut.plan, {**facts, **cut.facts})


METHOD = Method(
    Config, default_steps, derive, search_space=search_space, check_options=check_options,
    reads_labels=lambda config: config.purification != "none",
)  # fmt: skip
