"""`edgevit.meet`: derive so that the model, measured where it is to run, keeps a budget."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgevit.cost.place import look_there
from edgevit.cost.table import measured_table
from edgevit.derive.allocate.budget import Budget, make_budget
from edgevit.derive.allocate.cost_table import CostTable, Where, load_cost_table
from edgevit.derive.allocate.policy import make_policy
from edgevit.derive.allocate.prices import Measured as Quantity
from edgevit.derive.allocate.prices import Prices, parts_told
from edgevit.derive.method import find_method
from edgevit.derive.problem import Stopwatch
from edgevit.derive.session import Derivation
from edgevit.derive.session import run as derive
from edgevit.errors import BudgetError, ConnectionLostError, CostTableError, Interrupted, OptionError, UnreachableError
from edgevit.folder.derivation import DERIVATION_KIND, FigureRecord, MetRecord, RoundRecord
from edgevit.folder.model import BlockDims
from edgevit.folder.model_folder import ModelFolder
from edgevit.folder.records import plain
from edgevit.folder.unfinished import STATE, open_partial, partial_folder
from edgevit.folder.writing import new_folder, write_whole, writing
from edgevit.meet.in_turns import InTurns
from edgevit.meet.loop import Found
from edgevit.meet.loop import meet as search_for
from edgevit.meet.request import MeetRequest, identity
from edgevit.meet.rounds import Measured, Round, Search, Terms
from edgevit.meet.workshop import Workshop, shape_of
from edgevit.models.checkpoint import load, network_without_weights
from edgevit.models.families import family_of, name_of
from edgevit.progress import OnlyOnce, Progress, Silent
from edgevit.request import as_request

ROUNDS = "rounds.json"
BASE = "base"
UNITS = {"ms": "ms", "mj": "mJ"}


@dataclass(frozen=True)
class _Kept:
    """rounds.json of an unfinished search."""

    base_takes: float
    where: dict[str, Any]  # the table was measured
    rounds: tuple[Round, ...] = ()


def meet(
    base: str | Path | MeetRequest | None = None, *, progress: Progress | None = None, **options: Any
) -> tuple[Derivation, ...]:
    """Derive a small model that takes at most `ms` milliseconds, or `mj` millijoules, where it is to run.

        meet("deit_base_patch16_224", checkpoint="base.safetensors", data="photos", ms=5, out="runs/t1",
             place=Place(board="jetson@orin-nx"))

    What each size takes there is measured once (`edgevit.cost`); then a plan is allocated by that table, realised in
    closed form, exported, built, and measured in turns with the base; the table is corrected by what was measured, and
    the next plan allocated, in at most five rounds. The last shape is derived as asked, with training, and measured
    again: `record.met` of what is returned says what came of it, and its `outcome` whether the budget is kept.

    Args:
        base: a timm name, a model folder, or a whole request.
        options: the fields of `MeetRequest`; with several budgets, `out` gets a folder for each.

    Raises:
        OptionError: also of an option that there is not.
        BudgetError: no plan is as small; the message has the minimum.
        EdgeVitError: whatever else is wrong, in one line.
        Interrupted: Ctrl-C; the same call with `resume` goes on.
    """
    return run(as_request(MeetRequest, "base", base, options), progress)


def run(request: MeetRequest, progress: Progress | None = None) -> tuple[Derivation, ...]:
    """Do what is asked; `meet` says what is raised. Without a budget that is measured, it derives."""
    request.check()
    progress = progress or Silent()
    if not request.is_measured:
        return (derive(request.derivation(), progress),)
    _refuse_elsewhere(request, progress)
    once, found, earlier = OnlyOnce(progress), [], tuple[Round, ...]()
    with _shared(request) as shared:
        costs = _Costs(shared, once)
        for one in shared.each():
            if one.is_there:
                found.append(_read(one.out))
                continue
            derivation, rounds = _One(one, costs, once, _base_folder(request, one)).carried_out(earlier)
            found.append(derivation)
            earlier += rounds
    return tuple(found)


def _base_folder(request: MeetRequest, one: MeetRequest) -> Path:
    """Where the base lies: with several budgets beside their models, to be kept."""
    return (request.out if len(request.budgets) > 1 else partial_folder(one.out)) / BASE


def _refuse_elsewhere(request: MeetRequest, progress: Progress) -> None:
    """Raise OptionError for rounds to be gone on with that were measured on another board, or in another power mode."""
    files = [partial_folder(one.out) / ROUNDS for one in request.each() if request.resume]
    kept = {file: STATE.json(file, _Kept).where for file in files if file.is_file()}
    here = look_there(request.place, progress) if any(kept.values()) else None
    for file, where in kept.items():
        if where and here is not None and (differing := Where.model_validate(where).differing(here)):
            raise OptionError(
                f"cannot resume {file.parent}: its rounds were measured with {differing}; set that as it was, "
                "or remove it"
            )


def _read(folder: Path) -> Derivation:
    record = ModelFolder(folder).derivation()
    assert record is not None
    return Derivation(folder, load(folder), record)


@contextmanager
def _shared(request: MeetRequest) -> Iterator[MeetRequest]:
    """The same request with a cache, for rounds share nearly all of their work."""
    if request.cache:
        yield request
    else:
        with tempfile.TemporaryDirectory(prefix="edgevit-meet-") as folder:
            yield replace(request, cache=Path(folder))


class _Costs:
    """The table of a base at a place, which grows; or the one that is given, which does not."""

    def __init__(self, request: MeetRequest, progress: Progress) -> None:
        base = request.supernet_folder() or request.base
        assert base is not None
        self.network = network_without_weights(base, request.model_args)
        self.place, self.progress = request.place, progress
        self.policy = make_policy(request.shape, request.ffn_multiple)
        self.energy = request.quantity == "mj"
        method = find_method(request.method)
        folder = request.supernet_folder()
        options = {**request.options, **({} if folder is None else {"supernet": str(folder)})}
        cuts = method.cuts(self.network, method.make_config(options), self.policy)
        self.narrower = 0 < cuts.embed < family_of(self.network).geometry(self.network).embed
        self.given = None if request.cost_table is None else self._checked(load_cost_table(request.cost_table))
        self.table = self.measured(())

    def measured(self, sizes: tuple[BlockDims, ...], embed: int | None = None) -> CostTable:
        self.table = self.given or measured_table(
            self.network,
            self.place,
            policy=self.policy,
            sizes=sizes,
            embed=embed,
            narrower=self.narrower,
            energy=self.energy,
            progress=self.progress,
        )
        return self.table

    @property
    def where(self) -> dict[str, Any]:
        """Where the table was measured, for records; empty: it does not say."""
        where = self.table.where
        return {} if where is None else where.model_dump(mode="json", exclude_none=True)

    def _checked(self, table: CostTable) -> CostTable:
        """Make sure that a table is of this base and this place."""
        family = family_of(self.network)
        geometry, dims = family.geometry(self.network), [block.dims for block in family.read(self.network)]
        table.check(name_of(family), dims, geometry, self.policy)
        if table.where is None:
            raise CostTableError(
                "cost table: it does not say where it was measured, so no figure can be set against it; leave it out"
            )
        table.where.check(look_there(self.place, self.progress))
        return table


@dataclass(frozen=True)
class _One:
    """One budget."""

    request: MeetRequest
    costs: _Costs
    progress: Progress
    base: Path

    def carried_out(self, earlier: tuple[Round, ...]) -> tuple[Derivation, tuple[Round, ...]]:
        """Search, derive, verify, and write the folder."""
        asked, work = self.request, partial_folder(self.request.out)
        assert asked.quantity is not None
        budget = make_budget(1, 1, **{asked.quantity: asked.budgets[0]}, table=self.costs.table)
        same = identity(asked)
        with (
            _resumable(work),
            open_partial(asked.out, same, asked.resume, asked=asked.told(), overwrite=asked.overwrite),
        ):
            kept = self._kept(work, budget)
            watch = Stopwatch()
            measuring = InTurns(asked.place, _quantity(budget), kept.base_takes, self.progress)
            shop = Workshop(
                asked, work, self.base, _quantity(budget), self.costs.table, self.costs.measured, measuring,
                self.progress,
            )  # fmt: skip
            with watch.stage("rounds"):
                found = self._searched(Search(budget.limit, kept.rounds, earlier), shop, work, kept, budget)
            derivation = self._finished(found, shop, budget, watch)
            with new_folder(asked.out, overwrite=asked.overwrite) as folder:
                folder.rmdir()
                derivation.folder.rename(folder)
            shutil.rmtree(work, ignore_errors=True)
        return replace(derivation, folder=asked.out), found.search.rounds

    def _kept(self, work: Path, budget: Budget) -> _Kept:
        file = work / ROUNDS
        return STATE.json(file, _Kept) if file.is_file() else _Kept(budget.base, self.costs.where)

    def _searched(self, search: Search, shop: Workshop, work: Path, kept: _Kept, budget: Budget) -> Found:
        def tell(now: Search) -> None:
            with writing(work / ROUNDS):
                write_whole(work / ROUNDS, json.dumps(plain(replace(kept, rounds=now.rounds))))
            self.progress.note(round_told(now, budget))

        try:
            return search_for(search, shop, tell)
        except BudgetError as error:
            shutil.rmtree(work, ignore_errors=True)  # soon made again
            if error.least is None:
                raise
            unit = UNITS[shop.quantity]
            made_of = f" ({error.made_of})" if error.made_of else ""
            raise BudgetError(
                f"--{budget.asked} is less than any plan takes in shape {self.request.shape!r}: {error.least:.4g} "
                f"{unit} by the table measured on {self.costs.table.measured_on}{made_of}; raise the budget, or try "
                "another --shape",
                least=error.least,
                made_of=error.made_of,
            ) from error

    def _finished(self, found: Found, shop: Workshop, budget: Budget, watch: Stopwatch) -> Derivation:
        """Derive the best shape as asked, export and build it, measure it once more, and say what came of it."""
        search, best = found.search, found.search.best
        assert best is not None
        out = shop.folder / self.request.out.name
        self.progress.note(f"round {search.rounds.index(best) + 1} is kept: derived as asked, and measured again")
        with watch.stage("derivation"):
            if not out.is_dir():
                derive(shop.derivation(out, best.name, best.limit, best.at_least), self.progress)
        if shape_of(out) != best.shape:
            self.progress.warn("the model has other widths than the one that was measured in its round")
        with watch.stage("verification"):
            shop.measuring.ready(out, judged=True)
            verified = shop.measured(out)
        record = ModelFolder(out).derivation()
        assert record is not None
        record = replace(record, met=self._record(found, verified, shop, budget, watch))
        with writing(out):
            write_whole(ModelFolder(out).derivation_file, DERIVATION_KIND.text(record))
        return Derivation(out, load(out), record)

    def _record(self, found: Found, verified: Measured, shop: Workshop, budget: Budget, watch: Stopwatch) -> MetRecord:
        search, table = found.search, self.costs.table
        factors = search.factors(shop.prices(), search.rounds)
        return MetRecord(
            quantity=shop.quantity,
            budget=search.budget,
            asked=budget.asked,
            outcome=search.outcome(verified),
            verified=_figure(verified),
            figure=shop.measuring.figure,
            base=shop.measuring.base_takes,
            rounds=tuple(RoundRecord(one.limit, one.predicted, _figure(one.measured)) for one in search.rounds),
            factors=vars(factors),
            table=table.record(),
            where=self.costs.where,
            ended=_ended(found, shop.prices(), factors),
            seconds=watch.seconds,
        )


def _ended(found: Found, prices: Prices, factors: Terms) -> str | None:
    """Why no further round was measured; where the smallest plan is over the budget, also what makes it so large."""
    best = found.search.best
    if best is None or found.search.holds(best.measured):
        return found.why
    parts = best.shape.terms(prices).times(factors).values
    told = f"by the corrected table the smallest that was measured takes: {parts_told(parts, prices.quantity)}"
    return told if found.why is None else f"{found.why}; {told}"


def _quantity(budget: Budget) -> Quantity:
    return "mj" if budget.quantity == "mj" else "ms"


def _figure(measured: Measured) -> FigureRecord:
    return FigureRecord(measured.value, measured.low, measured.high, measured.repeats)


def round_told(search: Search, budget: Budget) -> str:
    """The last round in one line: prediction and measurement, and how near it is."""
    last, unit = search.rounds[-1], UNITS[_quantity(budget)]
    seen = last.measured
    interval = f" ({seen.low:.4g} to {seen.high:.4g})" if seen.low is not None and seen.high is not None else ""
    off = seen.value / search.budget - 1
    return (
        f"round {len(search.rounds)}: {last.predicted:.4g} {unit} predicted, {seen.value:.4g} measured{interval}, "
        f"{abs(off):.1%} {'over' if off > 0 else 'under'} the budget of {search.budget:.4g} {unit}"
    )


@contextmanager
def _resumable(work: Path) -> Iterator[None]:
    """Say how a search is gone on with when it is stopped, or the board lost.

    Raises:
        Interrupted: Ctrl-C.
    """
    again = f"the same command with --resume goes on from {work}"
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as stop:
        raise Interrupted(f"stopped; {again}") from stop
    except (ConnectionLostError, UnreachableError) as error:
        raise type(error)(f"{error}; {again}") from error
