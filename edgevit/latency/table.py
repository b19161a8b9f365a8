"""Measure the cost table of a base at a target; only sizes that have not been measured there before are measured."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgevit.board.bench import Setting, look
from edgevit.board.connection import open_board
from edgevit.board.profiles import load_profile
from edgevit.derivation.allocate.cost_table import READER, SCHEMA, CostTable, Origin, described, load_cost_table
from edgevit.derivation.allocate.policy import POLICIES, Policy, make_policy, tile_counts
from edgevit.derivation.allocate.prices import Measured
from edgevit.derivation.method import find_method
from edgevit.engines.build import check_board, check_int8
from edgevit.errors import CostTableError, UnfitBoardError
from edgevit.latency.cost_request import POINTS, ROUNDS
from edgevit.latency.fit import (
    FittedCosts,
    FittedTable,
    StackFigure,
    fit_costs,
    fit_table,
    predicted_cost,
    stack_figures,
)
from edgevit.latency.grid import Grid
from edgevit.latency.measure import StackBench, scratch
from edgevit.latency.request import MeetRequest
from edgevit.latency.stacks import Stack, whole_blocks
from edgevit.latency.store import Store
from edgevit.latency.target import MeasurementTarget, probe
from edgevit.network.anatomy import BlockDims
from edgevit.network.dense import DenseFamily
from edgevit.network.network import Network
from edgevit.progress import Progress, Silent
from edgevit.records.precisions import PRECISIONS

_AT_ONCE = 4  # stacks that are measured before doubts are computed again
_CLOSE = 0.01  # accepted error as a share of the base's cost: interpolation need not be more certain than this


def measured_table(
    network: Network,
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
    """Measure the costs of a base's sites at each size that a policy can ask for, and at narrower embeddings.

    Earlier measurements of such a base at such a target are reused. Called again with the blocks of a plan as `sizes`,
    and the width of its embedding, this measures those in addition.

    Args:
        network: the base; weights and the classes of its head have no influence.
        points: largest number of stacks of a stage, not counting those of `sizes` and of narrower embeddings; the
            coarse grid is measured in any case.
        embed: a width of the embedding to be measured beside `sizes`; None: none.
        narrower: whether the embedding may be narrowed, if this base allows it.
        tokens: whether blocks may drop tokens, if this base allows it.
        energy: whether to measure energy, which is refused for a target without a power meter.
        folder: where runs are kept, instead of the user's cache folder.

    Raises:
        UnsupportedModelError: no family reads the network, or it has too few whole blocks.
        UnknownNameError, OptionError: the target is invalid.
        UnfitBoardError: the board throttles, changes its clocks or lacks something; or noise hides most costs.
        ProfileError, BoardError, EngineError, ExportError: as their names say; finished runs are kept.
    """
    target.check()
    progress = progress or Silent()
    grids = grids_of(network, policy, narrower=narrower, tokens=tokens)
    anchor = Stack.joined([grid.anchor for grid in grids])
    coarse = list(dict.fromkeys([anchor, *(stack for grid in grids for stack in grid.coarse())]))
    profile = None if target.profile is None else load_profile(target.profile)
    with open_board(target.board, ssh_config=target.ssh_config) as board, scratch() as files:
        setting = look(board, profile, target.conditions(), progress)
        if energy:
            _check_power(board.host, setting)
        if target.builds:
            check_board(board.host, setting.facts, target.profile)
            if PRECISIONS[target.computes_in].calibrated:
                check_int8(setting.facts.tensorrt)
        origin = target.origin(setting)
        store = Store.of(_key(network, origin, target.runtime(setting)), folder)
        with store.alone(progress):
            bench = StackBench(network, target, board, setting, store, anchor, progress, files, energy)
            narrow = [stack for grid in grids for embed in grid.narrower for stack in grid.at_width(embed)]
            cuts = [stack for grid in grids for count in grid.fewer for stack in grid.behind_cuts(count)]
            bench.measure([*coarse, *narrow, *cuts], rounds)
            quantities: tuple[Measured, ...] = ("ms", "mj") if energy else ("ms",)
            for quantity in quantities:
                if figures := _figures(bench, coarse, quantity):
                    _judge(fit_costs(figures), quantity, progress)
            if sizes:
                more = [stack for grid in grids for stack in grid.at(sizes)]
                bench.measure([*more, *(grids[0].at_width(embed) if embed else ())], rounds)
            else:
                _refine(bench, grids, points, rounds)
            bench.tidy()
    return _table(network, origin, _fits(bench, grids))


def grids_of(network: Network, policy: Policy, *, narrower: bool, tokens: bool) -> list[Grid]:
    """Return the grid of each stage with blocks; only a network of one stage has narrower embeddings or fewer tokens.

    Raises:
        UnsupportedModelError: it has too few whole blocks.
    """
    geometry, blocks = network.geometry, network.dims
    embed = geometry.embed if narrower and geometry.fixed_channels is None else None
    grids = []
    for numbers in whole_blocks(network).values():
        frozen = geometry.frozen(numbers[0])
        counts = tile_counts(geometry) if tokens and "tokens" not in frozen else ()
        grids.append(Grid.of([blocks[i] for i in numbers], policy, embed, counts, frozen))
    return grids


def _check_power(host: str, setting: Setting) -> None:
    """Raise UnfitBoardError if no power meter can be read, or no profile names the rails of the module."""
    if not setting.facts.has_power:
        reason = next(iter(f": {reason}" for reason in setting.facts.meters.values() if reason), "")
        raise UnfitBoardError(
            f"--mj: no power can be read on {host}{reason}; give --ms, or a --board whose rails can be read"
        )
    if setting.profile is None:
        raise UnfitBoardError(
            f"--mj: no profile says which rails of {host} make up the module; give --profile, or --ms"
        )


def _refine(bench: StackBench, grids: Sequence[Grid], points: int, rounds: int) -> None:
    """Measure more sizes where interpolation is least certain, a few at a time."""
    while True:
        figures = _figures(bench, _within(bench, grids))
        costs = fit_costs(figures)
        limit = _CLOSE * predicted_cost(costs, bench.anchor) / sum(grid.count for grid in grids)
        more = list[Stack]()
        for grid in grids:
            of_stage = costs[grid.stage]
            doubts = grid.between(of_stage.attention, of_stage.ffn, of_stage.noise)
            doubtful = [stack for doubt, stack in doubts if doubt > limit and stack not in figures]
            more += doubtful[: min(_AT_ONCE, max(points - sum(s.stage == grid.stage for s in figures), 0))]
        if not more:
            return
        bench.measure(more, rounds)


def _within(bench: StackBench, grids: Sequence[Grid]) -> list[Stack]:
    """List the measured stacks at the base's own embedding that are no larger than the base, and the base."""
    within = (stack for grid in grids for stack in grid.within(bench.measured))
    return list(dict.fromkeys([bench.anchor, *within]))


def _figures(bench: StackBench, stacks: Collection[Stack], quantity: Measured = "ms") -> dict[Stack, StackFigure]:
    """Return the figures of these stacks, in mJ only of those with energy."""
    samples = [sample for sample in bench.samples(quantity) if sample.stack in stacks]
    return stack_figures(samples, bench.anchor, bench.anchor_ms() if quantity == "ms" else None) if samples else {}


def _fits(bench: StackBench, grids: Sequence[Grid]) -> dict[Measured, dict[int, FittedTable]]:
    """Fit all costs, by quantity and stage; energy only if all runs have it."""
    measured, grid = set(bench.measured), grids[0]  # only a network of one stage has narrower embeddings
    embeds = {stack.embed for stack in measured if stack.embed is not None}
    counts = {stack.cut.tokens for stack in measured if stack.cut is not None}
    widths = {embed for embed in embeds if measured.issuperset(grid.at_width(embed))}
    cuts = [stack for n in counts if measured.issuperset(grid.behind_cuts(n)) for stack in grid.behind_cuts(n)]
    stacks = [*_within(bench, grids), *(stack for stack in bench.measured if stack.embed in widths), *cuts]
    fits: dict[Measured, dict[int, FittedTable]] = {"ms": fit_table(_figures(bench, stacks))}
    energy = _figures(bench, stacks, "mj")
    return {**fits, "mj": fit_table(energy)} if set(energy) == set(stacks) else fits


def _judge(costs: Mapping[int, FittedCosts], quantity: Measured, progress: Progress) -> None:
    """Warn if noise hides differences between sizes, and say if most differences are negligible.

    Raises:
        UnfitBoardError: noise hides most of them.
    """
    steps = [step for of_stage in costs.values() for step in of_stage.steps]
    noise = max(of_stage.noise for of_stage in costs.values())
    hidden = [step.text for step in steps if step.is_hidden]
    hint = "lock the clocks with --lock-clocks, close other programs, or measure more with `edgevit cost --rounds`"
    if len(hidden) > len(steps) / 2:
        raise UnfitBoardError(
            f"noise of {noise:.1%} in {quantity} hides {len(hidden)} of {len(steps)} steps from one size "
            f"to the next, {hidden[0]} among them; {hint}"
        )
    if hidden:
        progress.warn(
            f"noise of {noise:.1%} in {quantity} hides {len(hidden)} of {len(steps)} steps from one size "
            f"to the next, such as {hidden[0]}; {hint}"
        )
    free = [step.text for step in steps if step.is_free]
    if len(free) > len(steps) / 2:
        progress.note(
            f"{len(free)} of {len(steps)} steps from one size to the next take next to nothing, such as "
            f"{free[0]}: budgets in {quantity} are met here by fewer attentions and FFNs, hardly by narrower ones"
        )


def _key(network: Network, origin: Origin, runtime: str | None = None) -> dict[str, object]:
    """Return what the costs of a base's blocks depend on: neither weights, nor the numbers of blocks and classes."""
    geometry, family = network.geometry, network.family
    layer = network.block_modules[min(number for numbers in whole_blocks(network).values() for number in numbers)]
    stages = [[stage.embed, stage.tokens, stage.pairs] for stage in geometry.stages]
    builder = None
    if isinstance(family, DenseFamily) and family.builder is not None:
        builder = [family.builder.sha256, family.builder.function]
    return {
        "family": network.family_name,
        "input": list(network.input_size),
        **{name: getattr(geometry, name) for name in ("embed", "tokens", "patch_values")},
        **({"stages": stages} if len(stages) > 1 else {}),
        **({} if builder is None else {"builder": builder}),
        **({"classified": geometry.classified} if geometry.classified > 1 else {}),
        **({} if builder or not isinstance(family, DenseFamily) else {"read": family.read}),
        "modules": [type(module).__name__ for module in layer.modules()],
        "origin": origin.model_dump(mode="json", exclude={"edgevit"}),
        **({} if runtime is None else {"runtime": runtime}),
    }


def _table(network: Network, origin: Origin, fits: Mapping[Measured, Mapping[int, FittedTable]]) -> CostTable:
    sizes = [dims.sizes for dims in network.dims]
    content = {
        "schema": SCHEMA,
        "measured_on": _origin_text(origin),
        "origin": origin.model_dump(mode="json", exclude_none=True),
        "noise": next(iter(fits["ms"].values())).base.noise,
        "base": {
            **described(network.family_name, network.dims, network.geometry),
            "blocks": sizes if any(others != sizes[0] for others in sizes) else sizes[:1],
        },
        "costs": [*cost_rows(fits)],
    }
    return READER.checked(content, CostTable, "the measured cost table")


def cost_rows(fits: Mapping[Measured, Mapping[int, FittedTable]]) -> Iterator[dict[str, object]]:
    """Yield the rows of a cost table, in all quantities."""
    first = min(fits["ms"])
    for stage in fits["ms"]:
        for row in _rows_of({quantity: of_stages[stage] for quantity, of_stages in fits.items()}):
            if row["part"] != "fixed":
                yield {**row, **({"stage": stage} if stage else {})}
            elif stage == first:
                yield row


def _rows_of(fits: Mapping[Measured, FittedTable]) -> Iterator[dict[str, object]]:
    """Yield the rows of one stage."""
    for of_quantities in zip(*(fitted.costs() for fitted in fits.values()), strict=True):
        costs = dict(zip(fits, (fitted for _, _, fitted in of_quantities), strict=True))
        embed, tokens, of_ms = of_quantities[0]
        at = {name: size for name, size in (("embed", embed), ("tokens", tokens)) if size is not None}
        if tokens is None:
            yield {"part": "fixed", **at, **{quantity: fitted.fixed for quantity, fitted in costs.items()}}
            yield {"part": "block", **at, **{quantity: fitted.together for quantity, fitted in costs.items()}}
        for heads, width in of_ms.attention:
            figures = {quantity: fitted.attention[heads, width] for quantity, fitted in costs.items()}
            yield {"part": "attention", "heads": heads, "width": width, **at, **figures}
        for width in of_ms.ffn:
            figures = {quantity: fitted.ffn[width] for quantity, fitted in costs.items()}
            yield {"part": "ffn", "width": width, **at, **figures}
    for i, fewer in enumerate(fits["ms"].fewer):
        yield {"part": "cut", "tokens": fewer.tokens, **{q: fitted.fewer[i].cut for q, fitted in fits.items()}}


def _origin_text(origin: Origin) -> str:
    """Describe the conditions in words."""
    mode = origin.power_mode and f"mode {origin.power_mode}"
    clocks = {True: "clocks locked", False: "clocks free", None: None}[origin.clocks_locked]
    threads = origin.threads and f"{origin.threads} thread{'s' if origin.threads > 1 else ''}"
    runtime = f"{origin.runner} {origin.provider or ''}".strip()
    parts = (
        origin.board or origin.processor,
        mode,
        clocks,
        runtime,
        origin.precision,
        threads,
        f"batch {origin.batch}",
    )
    return ", ".join(str(part) for part in parts if part)


class GrowingTable:
    """The cost table of a base on its target, with all sizes that have been measured."""

    def __init__(self, network: Network, request: MeetRequest, target: MeasurementTarget, progress: Progress) -> None:
        self.network, self.target, self.progress = network, target, progress
        self.policy = make_policy(request.shape, request.ffn_multiple, request.embed_multiple)
        self.energy = request.quantity == "mj"
        method = find_method(request.method)
        config = method.make_config(request.on_its_base().options)
        space = method.search_space(self.network, config, self.policy)
        self.tokens = space.tokens
        self.narrower = 0 < space.embed < self.network.geometry.embed
        self.from_file = None if request.cost_table is None else self._checked(load_cost_table(request.cost_table))
        self.extend(())

    def extend(self, sizes: tuple[BlockDims, ...], embed: int | None = None) -> None:
        """Measure these sizes and this embedding, as far as the table lacks them."""
        self.table = self.from_file or measured_table(
            self.network,
            self.target,
            policy=self.policy,
            sizes=sizes,
            embed=embed,
            narrower=self.narrower,
            tokens=self.tokens,
            energy=self.energy,
            progress=self.progress,
        )

    @property
    def origin(self) -> dict[str, Any]:
        """The origin of the table, for records; empty: it has none."""
        origin = self.table.origin
        return {} if origin is None else origin.model_dump(mode="json", exclude_none=True)

    def _checked(self, table: CostTable) -> CostTable:
        """Make sure that a table belongs to this base and this target."""
        geometry, dims = self.network.geometry, list(self.network.dims)
        table.check(self.network.family_name, dims, geometry, self.policy)
        if table.origin is None:
            raise CostTableError(
                "cost table: it does not say where it was measured, so no figure can be set against it; leave it out"
            )
        table.origin.check(probe(self.target, self.progress))
        return table
