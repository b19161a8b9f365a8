"""Make the table of what each site of a base takes at a target; measure what is not known yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from edgevit.board.bench import Setting, look
from edgevit.board.connection import open_board
from edgevit.board.profiles import load_profile
from edgevit.derivation.allocate.cost_table import READER, SCHEMA, CostTable, Where
from edgevit.derivation.allocate.policy import POLICIES, Policy
from edgevit.derivation.allocate.prices import Measured
from edgevit.derivation.allocate.tokens import TokenPrices, tile_counts
from edgevit.engines.build import check_board
from edgevit.errors import UnfitBoardError
from edgevit.latency.cost_request import POINTS, ROUNDS
from edgevit.latency.fewer_tokens import fit_fewer
from edgevit.latency.fit import FittedCosts, StackFigure, fit_costs, stack_figures
from edgevit.latency.grid import Grid
from edgevit.latency.measure import StackBench, scratch
from edgevit.latency.narrower import fit_narrower
from edgevit.latency.stacks import Stack, whole_blocks
from edgevit.latency.store import Store
from edgevit.latency.target import MeasurementTarget
from edgevit.network.anatomy import BlockDims
from edgevit.network.families import family_of, name_of
from edgevit.progress import Progress, Silent

AT_ONCE = 4  # stacks between two looks at where interpolation is least certain
CLOSE = 0.01  # of the base's cost: interpolation need not be more certain than this


def measured_table(
    network: nn.Module,
    target: MeasurementTarget,
    *,
    policy: Policy = POLICIES["fused"],
    points: int = POINTS,
    rounds: int = ROUNDS,
    sizes: Sequence[BlockDims] = (),
    embed: int | None = None,
    narrower: bool = True,
    tokens: bool = False,
    energy: bool = False,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> CostTable:
    """Measure what each site of a base takes at each size that a policy can ask for, and at narrower embeddings.

    What was measured before of such a base at such a target is used, and only the rest measured: called again with the
    blocks of a plan as `sizes`, and the width of its embedding, it measures those alone, and the table has them among
    its own.

    Args:
        network: the base; its weights are not looked at, and the classes of its head do not count.
        points: stacks that may be measured in all, beside those of `sizes` and of narrower embeddings; at least the
            coarse grid is.
        embed: a width of the embedding to be measured beside `sizes`; None: none.
        narrower: whether the embedding may be narrowed, as far as that of this base can be.
        tokens: whether tokens may leave, as far as those of this base can.
        energy: what a target without a power meter cannot tell, and is refused for before anything is measured.
        folder: where runs are kept, in place of the user's cache folder.

    Raises:
        UnsupportedModelError: no family reads the network, or it has too few whole blocks.
        UnknownNameError, OptionError: the target makes no sense.
        UnfitBoardError: the board throttles, moves its clocks or lacks something; or its noise hides what sizes cost.
        ProfileError, BoardError, EngineError, ExportError: as their names say; what was measured is kept.
    """
    target.check()
    told, family = progress or Silent(), family_of(network)
    blocks = [family.read(network)[i].dims for i in whole_blocks(network)]
    geometry = family.geometry(network)
    embeds = geometry.embed if narrower and geometry.fixed_embed is None else None
    frozen = geometry.frozen(whole_blocks(network)[0])
    counts = tile_counts(geometry) if tokens and "tokens" not in frozen else ()
    grid = Grid.of(blocks, policy, embeds, counts, frozen)
    profile = None if target.profile is None else load_profile(target.profile)
    with open_board(target.board, ssh_config=target.ssh_config) as board, scratch() as files:
        setting = look(board, profile, target.conditions(), told)
        if energy:
            _check_power(board.host, setting)
        if target.builds:
            check_board(board.host, setting.facts, target.profile)
        where = target.where(setting)
        store = Store.of(_key(network, where, target.runtime(setting)), folder)
        with store.alone(told):
            bench = StackBench(network, target, board, setting, store, grid.anchor, told, files, energy)
            rungs = [stack for embed in grid.narrower for stack in grid.rung(embed)]
            cuts = [stack for count in grid.fewer for stack in grid.behind_cuts(count)]
            bench.measure([*grid.coarse(), *rungs, *cuts], rounds)
            quantities: tuple[Measured, ...] = ("ms", "mj") if energy else ("ms",)
            for quantity in quantities:
                if seen := _figures(bench, grid.coarse(), quantity):
                    _judge(fit_costs(seen), quantity, told)
            if sizes:
                bench.measure([*grid.at(sizes), *(grid.rung(embed) if embed else ())], rounds)
            else:
                _refine(bench, grid, points, rounds)
            bench.tidy()
    return _table(network, where, _found(bench, grid))


def _check_power(host: str, setting: Setting) -> None:
    """Raise UnfitBoardError where energy cannot be told: no meter can be read, or no profile names the rails."""
    if not setting.facts.has_power:
        why = next(iter(f": {reason}" for reason in setting.facts.meters.values() if reason), "")
        raise UnfitBoardError(
            f"--mj: no power can be read on {host}{why}; give --ms, or a --board whose rails can be read"
        )
    if setting.profile is None:
        raise UnfitBoardError(
            f"--mj: no profile says which rails of {host} make up the module; give --profile, or --ms"
        )


def _refine(bench: StackBench, grid: Grid, points: int, rounds: int) -> None:
    """Measure more sizes where straight lines are least certain, a few at a time."""
    while True:
        seen = _figures(bench, grid.within(bench.known))
        costs = fit_costs(seen)
        limit = CLOSE * costs.predicted(grid.anchor) / grid.count
        doubts = grid.between(costs.attention, costs.ffn, costs.noise)
        found = [stack for doubt, stack in doubts if doubt > limit and stack not in seen]
        more = found[: min(AT_ONCE, max(points - len(seen), 0))]
        if not more:
            return
        bench.measure(more, rounds)


def _figures(bench: StackBench, stacks: Collection[Stack], quantity: Measured = "ms") -> dict[Stack, StackFigure]:
    """What these take, in ms or mJ; in mJ only those of which it is known."""
    samples = [sample for sample in bench.samples(quantity) if sample.stack in stacks]
    return stack_figures(samples, bench.anchor, bench.anchor_ms() if quantity == "ms" else None) if samples else {}


@dataclass(frozen=True)
class _Found:
    """What was found, in ms or mJ."""

    own: FittedCosts  # at the base's own embedding, with all tokens
    narrower: dict[int, FittedCosts]  # by the embedding's width, the widest first
    fewer: list[TokenPrices]  # the most tokens first


def _found(bench: StackBench, grid: Grid) -> dict[Measured, _Found]:
    """By quantity; energy only where all runs have it."""
    known = set(bench.known)
    embeds = {stack.embed for stack in known if stack.embed is not None}
    counts = {stack.cut.tokens for stack in known if stack.cut is not None}
    rungs = {embed for embed in embeds if known.issuperset(grid.rung(embed))}
    cuts = [stack for n in counts if known.issuperset(grid.behind_cuts(n)) for stack in grid.behind_cuts(n)]
    stacks = [*grid.within(bench.known), *(stack for stack in bench.known if stack.embed in rungs), *cuts]
    found: dict[Measured, _Found] = {"ms": _fit(_figures(bench, stacks))}
    energy = _figures(bench, stacks, "mj")
    return {**found, "mj": _fit(energy)} if set(energy) == set(stacks) else found


def _fit(seen: Mapping[Stack, StackFigure]) -> _Found:
    """Costs at the base's own embedding with all tokens, and from these at narrower ones and with fewer tokens."""
    by_width: dict[int, dict[Stack, StackFigure]] = {}
    by_count: dict[int, dict[Stack, StackFigure]] = {}
    for stack, figure in seen.items():
        if stack.cut is not None:
            by_count.setdefault(stack.cut.tokens, {})[stack] = figure
        elif stack.embed is not None:
            by_width.setdefault(stack.embed, {})[stack] = figure
    own = fit_costs({stack: figure for stack, figure in seen.items() if stack.embed is None and stack.cut is None})
    return _Found(own, fit_narrower(own, by_width), fit_fewer(own, by_count))


def _judge(costs: FittedCosts, quantity: Measured, progress: Progress) -> None:
    """Say where noise of milliseconds or of millijoules hides what sizes cost, and where they cost next to nothing.

    Raises:
        UnfitBoardError: noise hides nearly everything.
    """
    hidden = [step.told for step in costs.steps if step.is_hidden]
    mend = "lock the clocks with --lock-clocks, close other programs, or measure more with `edgevit cost --rounds`"
    if len(hidden) > len(costs.steps) / 2:
        raise UnfitBoardError(
            f"noise of {costs.noise:.1%} in {quantity} hides {len(hidden)} of {len(costs.steps)} steps from one size "
            f"to the next, {hidden[0]} among them; {mend}"
        )
    if hidden:
        progress.warn(
            f"noise of {costs.noise:.1%} in {quantity} hides {len(hidden)} of {len(costs.steps)} steps from one size "
            f"to the next, such as {hidden[0]}; {mend}"
        )
    free = [step.told for step in costs.steps if step.is_free]
    if len(free) > len(costs.steps) / 2:
        progress.note(
            f"{len(free)} of {len(costs.steps)} steps from one size to the next take next to nothing, such as "
            f"{free[0]}: budgets in {quantity} are met here by fewer attentions and FFNs, hardly by narrower ones"
        )


def _key(network: nn.Module, where: Where, runtime: str | None = None) -> dict[str, Any]:
    """What the times of a base's blocks depend on; neither weights, nor how many blocks or classes there are."""
    family = family_of(network)
    geometry = family.geometry(network)
    layer = family.layers(network)[whole_blocks(network)[0]]
    return {
        "family": name_of(family),
        "input": list(family.input_size(network)),
        **{name: getattr(geometry, name) for name in ("embed", "tokens", "patch_values")},
        "modules": [type(module).__name__ for module in layer.modules()],
        "where": where.model_dump(mode="json", exclude={"edgevit"}),
        **({} if runtime is None else {"runtime": runtime}),
    }


def _table(network: nn.Module, where: Where, found: Mapping[Measured, _Found]) -> CostTable:
    family = family_of(network)
    geometry, dims = family.geometry(network), [block.dims for block in family.read(network)]
    alike = dims if len(set(dims)) > 1 else dims[:1]
    own, narrower, fewer = found["ms"].own, found["ms"].narrower, found["ms"].fewer
    of_own = {quantity: one.own for quantity, one in found.items()}
    content = {
        "schema": SCHEMA,
        "measured_on": _told(where),
        "where": where.model_dump(mode="json", exclude_none=True),
        "noise": own.noise,
        "between": "linear",
        "base": {
            "family": name_of(family),
            **{name: getattr(geometry, name) for name in ("embed", "tokens", "patch_values")},
            "depth": len(dims),
        },
        **_fixed(of_own),
        "blocks": [{"base": block.sizes, **_sites(of_own)} for block in alike],
    }
    if narrower:
        by_width = {embed: {quantity: one.narrower[embed] for quantity, one in found.items()} for embed in narrower}
        content["narrower"] = [
            {"embed": embed, **_fixed(costs), "blocks": [_sites(costs) for _ in alike]}
            for embed, costs in by_width.items()
        ]
    if fewer:
        listed = [{quantity: one.fewer[i] for quantity, one in found.items()} for i in range(len(fewer))]
        content["fewer_tokens"] = [{"tokens": one["ms"].tokens, **_of_fewer(one)} for one in listed]
    return READER.checked(content, CostTable, "the measured cost table")


def _of_fewer(found: Mapping[Measured, TokenPrices]) -> dict[str, Any]:
    """What a table lists of one number of tokens."""

    def law(site: str) -> dict[str, float]:
        laws = {quantity: getattr(prices, site) for quantity, prices in found.items()}
        return {quantity: one.start for quantity, one in laws.items()} | {
            f"share_{quantity}": one.slope for quantity, one in laws.items()
        }

    cuts = {f"cut_{quantity}": prices.cut for quantity, prices in found.items()}
    return {**cuts, "attention": law("attention"), "ffn": law("ffn")}


def _fixed(found: Mapping[Measured, FittedCosts]) -> dict[str, float]:
    return {f"fixed_{quantity}": costs.fixed for quantity, costs in found.items()}


def _sites(found: Mapping[Measured, FittedCosts]) -> dict[str, Any]:
    """What a block of any size takes, as a table lists it."""

    def listed(read: Callable[[FittedCosts], float]) -> dict[str, float]:
        return {quantity: read(costs) for quantity, costs in found.items()}

    return {
        **{f"block_{quantity}": costs.together for quantity, costs in found.items()},
        "attention": [
            {"heads": h, "width": w, **listed(lambda costs, size=(h, w): costs.attention[size])}  # type: ignore[misc]
            for h, w in found["ms"].attention
        ],
        "ffn": [{"width": n, **listed(lambda costs, n=n: costs.ffn[n])} for n in found["ms"].ffn],  # type: ignore[misc]
    }


def _told(where: Where) -> str:
    """The target in words."""
    mode = where.power_mode and f"mode {where.power_mode}"
    clocks = {True: "clocks locked", False: "clocks free", None: None}[where.clocks_locked]
    threads = where.threads and f"{where.threads} thread{'s' if where.threads > 1 else ''}"
    runs = f"{where.runner} {where.provider or ''}".strip()
    parts = (where.board or where.processor, mode, clocks, runs, where.precision, threads, f"batch {where.batch}")
    return ", ".join(str(part) for part in parts if part)
