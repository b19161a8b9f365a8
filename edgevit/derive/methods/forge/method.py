"""Forge, edgevit's own method: measure what every width is worth, spend one budget on all of them, solve, then distil.

1. Curves: what the answers lose with each direction of QK and VO, each head, each FFN neuron and each block, in nats.
   Attention is factorised for the task's own tokens; neurons go in the order of optimal brain surgeon's elimination in
   the loss's own metric; tokens count by how much the answers feel them (`measure.sensitivity`, `allocate.menus`).
2. Allocation: the least predicted loss within the budget over QK and VO, FFN, heads and whole blocks at once, in the
   steps that the shape policy allows: by dynamic programming, as exact as `allocate.knapsack` says; and so for every
   rung of a ladder of embedding widths, of which the one that loses least is taken (`derive.embedding`).
3. Closed form: block by block, output weights solved for the slim network's own inputs (`sequential`).
4. Distillation from the base restricted to the classes; the best state on the validation part is kept, and the closed
   form is among them. `--steps 0` leaves it out: nothing is trained, and no label is looked at.

Each step can be taken away by its option; benchmarks/RESULTS.md has what each is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import gcd, inf
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derive import embedding
from edgevit.derive.algebra.attention import Spectra, attention_spectra, keep_heads, mean_values, narrow
from edgevit.derive.algebra.factorise import Spectrum
from edgevit.derive.algebra.least_squares import refit, refittable_mean, removal_in_order, removal_order
from edgevit.derive.allocate.knapsack import Choice, allocate
from edgevit.derive.allocate.menus import Heads
from edgevit.derive.allocate.policy import Policy, fit, uniform
from edgevit.derive.allocate.widths import adaptive
from edgevit.derive.embedding import (
    Rung,
    Slices,
    check_width,
    climb,
    geometry_at,
    has_directions,
    reason_against,
    widths,
)
from edgevit.derive.measure.embedding import TokenMoment, worth_to_norms
from edgevit.derive.measure.sensitivity import Sensitivity, measure_sensitivity
from edgevit.derive.measure.statistics import BlockStatistics, calibrate, minimum_images
from edgevit.derive.method import Method
from edgevit.derive.methods.forge.curves import BlockCurves, blind, packed, root, unpacked
from edgevit.derive.methods.forge.ladders import Ladder, containing, ladders, passing, worthwhile
from edgevit.derive.methods.forge.ladders import reason_against as no_tokens
from edgevit.derive.methods.forge.measured import measure
from edgevit.derive.methods.forge.menus import Goes, block_costs, block_menu
from edgevit.derive.methods.forge.solve import solve
from edgevit.derive.methods.forge.streams import keeping, show_stream
from edgevit.derive.plan import AttentionPlan, BlockPlan, EmbedPlan, FfnPlan, Plan
from edgevit.derive.problem import Derived, Problem, distillation_for, train_for
from edgevit.derive.reach import Asked, Cuts, check_embed_width
from edgevit.derive.realise import realise
from edgevit.errors import BudgetError, OptionError
from edgevit.models.anatomy import Attention, Block, Ffn, attentions, ffns
from edgevit.models.cost import Geometry
from edgevit.models.families import family_of
from edgevit.train.distil import TeacherOptions
from edgevit.train.passes import Observer, evaluate, multiplies_bf16

QUANTITIES = ("macs", "params", "ms", "mj")
PROBE = 8  # FFN curves are scaled to the loss measured at this part of the width
MOST_MEASURED = 4  # widths of the embedding that are realised, and their loss measured
ENOUGH_TOKENS, PER_NEURON = 25_000, 8  # for an FFN's second moments: tokens at least, and for each of its neurons
LITTLE = 0.01  # nats: where less is predicted to be lost, aligning and refitting the head won 0.0002 at most (lab log)
PASSES = 10  # over the training images, in distillation


@dataclass(frozen=True)
class Config(TeacherOptions):
    # Whose answers are learnt: the base's, restricted to the classes, as it is (restricted) or after training on them
    # (finetuned); or nobody's (none).
    teacher: Literal["none", "restricted", "finetuned"] = "restricted"
    # The weight of the final tokens' squared error, relative to the teacher's square; 0 leaves the tokens alone.
    token_weight: float = 1.0
    calibration_images: int = 512  # The number of training images from which the closed form is computed.
    sensitivity_images: int = 64  # The number of training images on which gradients are taken, the sensitivities.
    # The number of training images on which it is measured what the loss is with each block changed or left out.
    measured_images: int = 32
    # Whether passes of images multiply in bf16, where the processor has it: 3 times as fast. Gradients, sums, what is
    # solved and what is tried on the validation images stay in fp32.
    bf16: bool = True
    # What widths are judged by: what the loss feels (fisher), or the output that each module loses (none).
    sensitivity: Literal["fisher", "none"] = "fisher"
    # How the budget is spent: over all widths, heads and blocks at once (joint), all cut alike (uniform), or as the
    # method vulcan does.
    allocation: Literal["joint", "uniform", "vulcan"] = "joint"
    drop_heads: bool = True  # Whether whole heads may go; those of a block that stay have one width.
    # Whether whole blocks may go; with sensitivity=none none does, as nothing says what one is worth.
    drop_blocks: bool = True
    # Whether the attention or the FFN of a block may go without the other; with sensitivity=none none does.
    drop_sites: bool = True
    # Whether the embedding may be narrowed, by a change of basis of all blocks at once; only with allocation=joint and
    # sensitivity=fisher. By a cost table it may be as narrow as that lists.
    cut_embedding: bool = True
    embed_width: int = 0  # The embedding's width, if it may be narrowed; 0: the one that is predicted to lose least.
    # Whether some tokens may leave behind blocks of the deeper half; only where the embedding may be narrowed, for a
    # budget in MACs or by a cost table that lists fewer tokens.
    cut_tokens: bool = False
    # Whether output weights are solved again, block by block, for the slim network's own inputs.
    sequential: bool = True
    # How strongly the refit of output weights is drawn to zero, in units of the neurons' mean square.
    ridge: float = 1e-4
    # Whether what reads normalised tokens is aligned to the base's: where more than 0.01 nats are predicted to be lost,
    # and kept where it helps on the validation images.
    align: bool = True
    # Whether the head is fitted again to the base's answers: where more than 0.01 nats are predicted to be lost, and
    # kept where it helps on the validation images.
    refit_head: bool = True
    sequential_ridge: float = 1e-3  # How strongly the sequential solution is drawn to the refit, in the same units.

    @property
    def by_loss(self) -> bool:
        """Whether losses are known in nats."""
        return self.sensitivity == "fisher"

    @property
    def quick(self) -> bool:
        """Whether bf16 is asked for, and there."""
        return self.bf16 and multiplies_bf16()

    @property
    def cuts_embedding(self) -> bool:
        return self.cut_embedding and self.allocation == "joint" and self.by_loss

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("calibration_images", "sensitivity_images", "measured_images"):
            if getattr(self, name) < 1:
                raise OptionError(f"forge.{name}={getattr(self, name)} is less than 1")
        check_width("forge", self.embed_width)
        if self.cut_tokens and not self.cuts_embedding:
            raise OptionError("forge.cut_tokens=true needs cut_embedding=true, allocation=joint, sensitivity=fisher")
        if self.embed_width and not self.cuts_embedding:
            raise OptionError(
                f"forge.embed_width={self.embed_width} needs cut_embedding=true, allocation=joint, sensitivity=fisher"
            )
        for name in ("ridge", "sequential_ridge"):
            if not 0 <= getattr(self, name) < inf:
                raise OptionError(f"forge.{name}={getattr(self, name):g} is not a number of at least 0")


def default_steps(config: Config, rate: float, images: int, batch_size: int) -> int:
    """Steps of distillation."""
    return max(round(PASSES * images / batch_size), 1)


def cuts(network: nn.Module, config: Config, policy: Policy) -> Cuts:
    """What it may take away."""
    family, joint = family_of(network), config.allocation == "joint"
    blocks = family.read(network)
    switches = ("cut_embedding", "drop_blocks", "drop_heads", "drop_sites", "cut_tokens")
    return Cuts(
        heads=joint and config.drop_heads,
        blocks=joint and config.by_loss and config.drop_blocks,
        sites=joint and config.by_loss and config.drop_sites,
        embed=embedding.narrowest(network, policy, config.embed_width, "forge") if config.cuts_embedding else 0,
        images=config.calibration_images,
        ladders=ladders(family.geometry(network), len(blocks)) if config.cut_tokens else (),
        more={**dict.fromkeys(switches, True), "embed_width": 0, "allocation": "joint", "sensitivity": "fisher"},
    )


def check_options(asked: Asked, config: Config) -> None:
    check_embed_width("forge", config.embed_width, asked, config.calibration_images)


# -- curves ------------------------------------------------------------------------------------------------------------


def _sensitivities(problem: Problem, config: Config, network: nn.Module, stage: str, **how: Any) -> list[Sensitivity]:
    images, seed = problem.task.train.subset(config.sensitivity_images), problem.training.seed
    return measure_sensitivity(network, images, problem.columns, problem.passes, seed=seed, stage=stage, **how)


def _curves(problem: Problem, config: Config) -> tuple[list[BlockCurves], Tensor | None]:
    """Take the curves of every block, or find them in the cache: they depend on the task and not on the budget.

    And the directions of the tokens; None where the embedding has to stay, or nothing says what is felt.
    """
    names = ("sensitivity", "ridge")
    key = {
        **problem.identity,
        "images": problem.task.train.subset(config.calibration_images).content_sha256(),
        "gradients": problem.task.train.subset(config.sensitivity_images).content_sha256(),
        "stream": config.sequential,
        "measured": problem.task.train.subset(config.measured_images).content_sha256(),
        "quick": config.quick,
        "config": {name: getattr(config, name) for name in names},
        "sites": config.drop_sites and config.by_loss,
        "seed": problem.training.seed,
    }
    found = dict(problem.cache.tensors("curves", key, lambda: _make_curves(problem, config)))
    directions = found.pop("directions", None)
    return unpacked(found), directions


def _make_curves(problem: Problem, config: Config) -> dict[str, Tensor]:
    network = problem.network.to(problem.compute.device).eval()
    images = problem.task.train.subset(config.calibration_images)
    by_token, moment = None, None
    if config.by_loss:
        # One pass for the sites and for the norms, and one for the moments that their tokens are weighed in.
        norms = [worth_to_norms(network)] if has_directions(network, len(images)) else []
        with problem.stopwatch.stage("sensitivity"):
            by_token = [s.by_token for s in _sensitivities(problem, config, network, "worth of tokens", beside=norms)]
        for worth in norms:
            weights = worth.means(len(problem.task.train.subset(config.sensitivity_images)), problem.passes)
            moment = TokenMoment(network, weights, problem.passes)
    with problem.stopwatch.stage("statistics"):
        how: Any = {"factorisation": "activations", "hidden": True, "by_token": by_token}
        how["every"] = _every(network, len(images))
        statistics = calibrate(network, images, problem.passes, show=_shown(problem, config, images, moment), **how)
    found = packed(_block_curves(problem, config, statistics))
    if moment is not None:
        with problem.stopwatch.stage("embedding"):
            found["directions"] = moment.directions()
    return found


def _every(network: nn.Module, images: int) -> int:
    """How many tokens there are for each that is enough for the second moments of all FFNs, as `calibrate` takes it."""
    family = family_of(network)
    tokens: int = family.geometry(network).tokens
    widest = max(f.neurons for f in ffns(family.read(network)))
    every = max(images * tokens // max(ENOUGH_TOKENS, PER_NEURON * widest), 1)
    while gcd(every, tokens) > 1:
        every -= 1
    return every


def _shown(
    problem: Problem, config: Config, images: Split, moment: TokenMoment | None
) -> Callable[[Sequence[Observer]], None]:
    """How the calibration images are shown to the base: once, for the moments of its sites and of its tokens.

    And where the sequential solution will want what the sites put out, as its stream: what that keeps is there then.
    On a GPU, which passes images sooner than tokens come and go, it keeps nothing.
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
        parts = zip(ffns(blocks), spectra.qk, spectra.vo, strict=True)
        felt = [blind(tokens, len(f.w2), qk, vo) for f, qk, vo in parts]
    made = []
    with (
        problem.stopwatch.stage("closed_form"),
        problem.progress.stage("order of neurons", len(blocks), "block") as stage,
    ):
        for i, (part, s) in enumerate(zip(ffns(blocks), statistics, strict=True)):
            assert s.hidden is not None
            # the error of W_2 in the metric of the loss is the plain error of R W_2
            seen = root(felt[i].metric) @ part.w2.detach().double().cpu()
            centre = refittable_mean(part, s.mean)
            removal = removal_order(seen, s.hidden, centre, ridge=config.ridge)
            losses = removal_in_order(removal.order, seen, s.hidden, centre, ridge=config.ridge).cost / 2
            unknown = [torch.full((count,), inf, dtype=torch.float64) for count in (1, 2)]
            made.append(BlockCurves(s, spectra.qk[i], spectra.vo[i], felt[i], removal, losses, *unknown))
            stage.update(i + 1)
    if not by_loss:
        return [replace(b, ffn_losses=b.ffn_losses / b.ffn_losses.sum()) for b in made]
    return _scaled(problem, config, blocks, made)


def _spectra(problem: Problem, blocks: Sequence[Block], statistics: Sequence[BlockStatistics]) -> Spectra:
    """Factorise attention for the task's tokens."""
    with problem.stopwatch.stage("closed_form"), torch.no_grad():
        queries = [s.query for s in statistics if s.query is not None] or None
        return attention_spectra(attentions(blocks), [_moment(s) for s in statistics], query_moments=queries)


def _felt(
    problem: Problem,
    config: Config,
    blocks: Sequence[Block],
    statistics: Sequence[BlockStatistics],
    spectra: Spectra,
) -> list[Sensitivity]:
    """Measure each direction of the spectra in the network that has them and is otherwise equal."""
    with problem.stopwatch.stage("closed_form"), torch.no_grad():
        moments = [_moment(s) for s in statistics]
        parts = attentions(blocks)
        whole = narrow(parts, [(a.qk, a.vo) for a in parts], moments, spectra)
        restored = [mean_values(a, m) if a.bo is not None else None for a, m in zip(whole, moments, strict=True)]
        pairs = zip(whole, ffns(blocks), strict=True)
        rotated = family_of(problem.network).build(problem.network, [Block(*pair) for pair in pairs])
    with problem.stopwatch.stage("sensitivity"):
        return _sensitivities(problem, config, rotated, "worth of attention's directions", restored=restored)


def _moment(statistics: BlockStatistics) -> Tensor:
    assert statistics.moment is not None
    return statistics.moment


def _refit(part: Ffn, known: BlockCurves, width: int, config: Config) -> Ffn:
    s = known.statistics
    assert s.hidden is not None
    return refit(part, known.removal.kept(width), s.hidden, s.mean, ridge=config.ridge)


def _scaled(
    problem: Problem, config: Config, blocks: Sequence[Block], curves: Sequence[BlockCurves]
) -> list[BlockCurves]:
    """Scale each FFN's curve to the loss measured at one width, and measure what leaving each block out loses."""
    probes = [max(b.dims.ffn // PROBE, 1) for b in blocks]
    with problem.stopwatch.stage("closed_form"), torch.no_grad():
        parts = zip(blocks, ffns(blocks), curves, probes, strict=True)
        thin = [Block(b.attention, _refit(ffn, known, width, config)) for b, ffn, known, width in parts]
        narrowed = family_of(problem.network).build(problem.network, thin)
    with problem.stopwatch.stage("sensitivity"):
        images = problem.task.train.subset(config.measured_images)
        measured = measure(problem, narrowed, images, sites=config.drop_sites, quick=config.quick)
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


# -- allocation --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shape:
    """What becomes of each block of the base: its attention and FFN width, None where they go; or None: it goes."""

    blocks: Sequence[tuple[Heads | None, int | None] | None]
    predicted_nats: float | None
    tokens: Ladder | None = None  # that each block of the base passes on; None: all


def _allocate(
    problem: Problem,
    config: Config,
    blocks: Sequence[Block],
    curves: Sequence[BlockCurves],
    geometry: Geometry,
    ladder: Ladder | None = None,
) -> _Shape:
    """Spend the budget on a network of this geometry, whose blocks pass on as many tokens as the ladder says.

    Raises:
        BudgetError: it is not reachable.
    """
    budget, policy = problem.budget, problem.policy
    dims = [b.dims for b in blocks]
    if config.allocation != "joint":
        activations = [known.statistics.activation for known in curves]
        wishes = uniform(dims) if config.allocation == "uniform" else adaptive(blocks, activations, policy)
        chosen = fit(wishes, dims, geometry, budget, policy)
        return _Shape([(Heads(tuple(range(d.heads)), d.qk, d.vo), d.ffn) for d in chosen], None)
    if ladder is not None:
        dims = passing(dims, ladder)
    stay = budget.at_least or dict.fromkeys(range(len(dims)))
    menus = []
    for i, (d, known, tokens) in enumerate(zip(dims, curves, geometry.reaching(dims), strict=True)):
        if i not in stay:
            continue
        # The first block always stays: a network has one. One behind which tokens leave needs its attention.
        goes = Goes(
            config.drop_heads,
            config.drop_blocks and i > 0 and not d.tokens,
            config.drop_sites and config.by_loss and not d.tokens,
        )
        costs = block_costs(budget, geometry.at(tokens), i, d.tokens)
        menus.append(block_menu(d, known, policy, costs, goes, geometry.frozen(i), stay[i]))
    prices = budget.prices_at(geometry)
    fixed = geometry.fixed(0, budget.linear) if prices is None else prices.fixed
    made = dict(zip(stay, allocate(menus, budget.limit - fixed), strict=True))
    found = [made.get(i) for i in range(len(dims))]
    lost = [
        float(known.block_loss) if pair is None else sum(choice.loss for choice in pair if choice is not None)
        for known, pair in zip(curves, found, strict=True)
    ]

    def value(choice: Choice | None) -> Any:
        return None if choice is None else choice.value

    return _Shape([None if pair is None else (value(pair[0]), value(pair[1])) for pair in found], sum(lost), ladder)


@dataclass(frozen=True)
class _Chosen:
    """What becomes of the whole network."""

    shape: _Shape
    embed: EmbedPlan | None
    facts: dict[str, object]


def _widths(problem: Problem, config: Config) -> list[int]:
    return widths(problem.network, problem.policy, config.embed_width, "forge", problem.budget.least_embed)


def _choose(
    problem: Problem,
    config: Config,
    blocks: Sequence[Block],
    curves: Sequence[BlockCurves],
    directions: Tensor | None,
) -> _Chosen:
    """Spend the budget, which is reachable, on the embedding and all blocks.

    What a slice of the embedding loses is measured, and what its blocks lose a sum of parts, which a deep cut exceeds
    several times: so the width that seems best is realised and measured, what the sums fall short by is learnt from it,
    and so on, until the width that seems best is one that was measured.
    """
    network = problem.network
    whole = family_of(network).geometry(network).embed
    if not config.cuts_embedding:
        return _Chosen(_allocate(problem, config, blocks, curves, geometry_at(network, whole)), None, {})
    if (reason := reason_against(problem, config.calibration_images)) is not None:
        problem.progress.note(f"the embedding stays as it is: {reason}")
        if not config.cut_tokens or no_tokens(problem) is not None:
            return _Chosen(_allocate(problem, config, blocks, curves, geometry_at(network, whole)), None, {})
    allowed = _widths(problem, config) if reason is None else [whole]
    slices = Slices(problem, config.calibration_images, config.sensitivity_images, directions, quick=config.quick)

    rungs = _rungs(problem, config, slices, allowed, lambda width, ladder: _allocate(
        problem, config, blocks, curves, geometry_at(network, width), ladder
    ))  # fmt: skip
    measured: dict[int, float] = {}
    while len(rungs) > 1 and (seems := _seems_best(rungs, measured)) not in measured and len(measured) < MOST_MEASURED:
        rung = rungs[seems]
        with problem.stopwatch.stage("embedding"):
            slim = realise(network, _plan(config, blocks, curves, rung.shape, slices.plan(rung.width)))
            measured[seems] = slices.lost(slim.to(problem.compute.device))
    best = rungs[min(measured, key=measured.__getitem__, default=0)]
    told = [
        {**rung.facts(), "measured_nats": measured.get(i), **({"tokens": t} if (t := rung.shape.tokens) else {})}
        for i, rung in sorted(enumerate(rungs), key=lambda pair: -pair[1].width)
    ]
    facts: dict[str, object] = {"embed": best.width, "embed_rungs": told}
    if best.shape.tokens:
        facts["tokens"] = best.shape.tokens
    shape = replace(best.shape, predicted_nats=best.nats)
    return _Chosen(shape, slices.plan(best.width), facts)


def _seems_best(rungs: Sequence[Rung[_Shape]], measured: Mapping[int, float]) -> int:
    """The number of the rung with the least loss, where those that were measured tell how far sums of parts fall short.

    `measured`: nats by the number of the rung.
    """
    shortfalls = [
        max(nats - rungs[i].slice_nats, 0.0) / rungs[i].shape_nats
        for i, nats in measured.items()
        if rungs[i].shape_nats > 0
    ]
    factor = median(shortfalls) if shortfalls else 1.0
    expected = [measured.get(i, rung.slice_nats + factor * rung.shape_nats) for i, rung in enumerate(rungs)]
    return expected.index(min(expected))


def _rungs(
    problem: Problem,
    config: Config,
    slices: Slices,
    widths: list[int],
    allocate_at: Callable[[int, Ladder | None], _Shape],
) -> list[Rung[_Shape]]:
    """The widths of the embedding worth a thought, each with every ladder of tokens; the least predicted loss first.

    Raises:
        BudgetError: none reaches the budget.
    """
    found: list[tuple[Ladder | None, float]] = [(None, 0.0)]
    if config.cut_tokens:
        if (reason := no_tokens(problem)) is None:
            grown = problem.budget.at_least
            found = [
                (ladder if any(ladder) else None, nats)
                for ladder, nats in worthwhile(problem, slices)
                if grown is None or containing(ladder, grown)
            ]
        else:
            problem.progress.note(f"all tokens stay: {reason}")
    rungs: list[Rung[_Shape]] = []
    refused: BudgetError | None = None
    for ladder, nats in found:

        def allocate(width: int, ladder: Ladder | None = ladder, nats: float = nats) -> tuple[_Shape, float]:
            shape = allocate_at(width, ladder)
            assert shape.predicted_nats is not None
            return shape, shape.predicted_nats + nats

        try:
            rungs += climb(widths, allocate, slices.nats)
        except BudgetError as error:
            refused = error
    if not rungs:
        assert refused is not None
        raise refused
    return sorted(rungs, key=lambda rung: rung.nats)


# -- closed form -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _plan(
    config: Config, blocks: Sequence[Block], curves: Sequence[BlockCurves], shape: _Shape, embed: EmbedPlan | None
) -> Plan:
    """Carry the allocation out in the base's own terms: factors, neurons and output weights for its inputs."""
    plans = []
    parts = zip(attentions(blocks), ffns(blocks), curves, shape.blocks, strict=True)
    for i, (attention, ffn, known, decided) in enumerate(parts):
        if decided is None:
            continue
        chosen, width = decided
        neurons = None
        if width is not None:
            neurons = FfnPlan(known.removal.kept(width), weights=_refit(ffn, known, width, config))
        passed = 0 if shape.tokens is None else shape.tokens[i]
        planned = None if chosen is None else _plan_attention(attention, known, chosen)
        plans.append(BlockPlan(i, planned, neurons, passed))
    return Plan(tuple(plans), embed)


def _plan_attention(attention: Attention, known: BlockCurves, chosen: Heads) -> AttentionPlan:
    heads, moment = list(chosen.heads), _moment(known.statistics)
    spectra = Spectra(*((_of_heads(part, heads),) for part in (known.qk, known.vo)))
    (slim,) = narrow([keep_heads(attention, heads, moment)], [(chosen.qk, chosen.vo)], [moment], spectra)
    return AttentionPlan(chosen.heads, chosen.qk, chosen.vo, weights=slim)


def _of_heads(spectrum: Spectrum, heads: Sequence[int]) -> Spectrum:
    return Spectrum(*(tensor[list(heads)] for tensor in vars(spectrum).values()))


def _warn_of_few_images(problem: Problem, config: Config) -> None:
    images, enough = min(len(problem.task.train), config.calibration_images), minimum_images(problem.network)
    if images < enough:
        problem.progress.warn(
            f"{images} calibration images do not determine the widest layer, {enough} would: the ridge decides the rest"
        )


def derive(problem: Problem, config: Config) -> Derived:
    _warn_of_few_images(problem, config)
    curves, directions = _curves(problem, config)
    with problem.stopwatch.stage("allocation"):
        blocks = family_of(problem.network).read(problem.network)
        chosen = _choose(problem, config, blocks, curves, directions)
    shape = chosen.shape
    with problem.stopwatch.stage("closed_form"):
        plan = _plan(config, blocks, curves, shape, chosen.embed)
    mended = config
    if shape.predicted_nats is not None and shape.predicted_nats < LITTLE:
        mended = replace(config, align=False, refit_head=False)
    solved = solve(problem, mended, [known.felt.by_token for known in curves], plan)
    slim = solved.network
    task = problem.task
    validation = evaluate(slim, task.validation, problem.columns, task.class_names, problem.passes).top1
    felt = [known.felt.by_token[1] for known in curves] if config.by_loss else None
    distillation = distillation_for(problem, config, plan.encode, plan.kept_blocks, felt)
    done = train_for(problem, slim, stage="distil", distillation=distillation, keep="best")
    outcome = problem.history.outcome("distil")
    facts: dict[str, object] = {
        "reused": problem.cache.reused,
        "steps": done,
        "steps_planned": problem.training.steps,
        "accuracy_validation_closed_form": validation,
        **(asdict(outcome) if outcome else {}),
        "predicted_nats": shape.predicted_nats,
        "tried": {name: asdict(tried) for name, tried in solved.tried.items()},
        **chosen.facts,
        "kept_blocks": plan.kept_blocks,
        "kept_heads": [[] if b[0] is None else list(b[0].heads) for b in shape.blocks if b is not None],
    }
    return Derived(slim, plan, facts)


METHOD = Method(Config, default_steps, derive, cuts=cuts, check_options=check_options, gentle=True)
