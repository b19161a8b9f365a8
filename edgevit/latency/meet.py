"""`edgevit.meet`: derive so that the model, measured where it is to run, keeps a budget."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgevit.derivation.allocate.budget import Budget, make_budget
from edgevit.derivation.allocate.cost_table import Where
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.allocate.prices import UNITS
from edgevit.derivation.allocate.prices import Measured as Quantity
from edgevit.derivation.cache import shared_cache
from edgevit.derivation.compatibility import refuse_base
from edgevit.derivation.method import find_method, refuse_training
from edgevit.derivation.problem import Stopwatch
from edgevit.derivation.session.base_check import check_opened
from edgevit.derivation.session.derive import Derivation
from edgevit.derivation.session.derive import run as derive
from edgevit.derivation.session.opening import open_for
from edgevit.derivation.solve.head import open_task_for
from edgevit.errors import (
    BudgetError,
    ConnectionLostError,
    EdgeVitError,
    Interrupted,
    OptionError,
    UnreachableError,
)
from edgevit.latency.candidates import CandidateBuilder, shape_in
from edgevit.latency.cost import write_table
from edgevit.latency.growing_table import GrowingTable
from edgevit.latency.paired import PairedBench
from edgevit.latency.request import MeetRequest, identity
from edgevit.latency.rounds import MOST, MeasuredFigure, Round, Search, Terms
from edgevit.latency.search import OUT_OF_REACH, SearchOutcome
from edgevit.latency.search import search_plans as search_for
from edgevit.latency.target import probe
from edgevit.network.checkpoint import load, network_without_weights, open_network
from edgevit.progress import OnlyOnce, Progress, Silent, rounded_duration
from edgevit.records.derivation import FigureRecord, MetRecord, RoundRecord
from edgevit.records.kinds import RecordKind
from edgevit.records.model_folder import ModelFolder
from edgevit.records.unfinished import STATE, open_partial, partial_folder
from edgevit.records.writing import new_folder, write_whole, writing
from edgevit.request import as_request, takes_options
from edgevit.train.compute import close_compute
from edgevit.version import written_by

if TYPE_CHECKING:
    from torch import nn

ROUNDS = "rounds.json"
BASE = "base"
KEPT = "kept"  # the folder of the model that is kept, which may have any name
NEXT_TO_NOTHING = 1e-9  # ms or mJ: a limit that no plan keeps, so that the refusal says what the cheapest takes


@dataclass(frozen=True)
class KeptSearch:
    """rounds.json of an unfinished search."""

    base_takes: float  # by the table, in ms or mJ
    where: dict[str, Any]  # where the table was measured; empty: it does not say
    rounds: tuple[Round, ...] = ()
    edgevit: str | None = None


SEARCH_KIND = RecordKind("rounds", KeptSearch, STATE)


@takes_options(MeetRequest)
def meet(
    base: str | Path | MeetRequest | None = None, *, progress: Progress | None = None, **options: Any
) -> tuple[Derivation, ...]:
    """Derive a small model that takes at most `ms` milliseconds, or `mj` millijoules, where it is to run.

        meet("deit_base_patch16_224", checkpoint="base.safetensors", data="photos", ms=5, out="runs/t1",
             board="jetson@orin-nx")

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
        Interrupted: Ctrl-C; the same call goes on.
    """
    return run(as_request(MeetRequest, "base", base, options), progress)


def run(request: MeetRequest, progress: Progress | None = None) -> tuple[Derivation, ...]:
    """Do what is asked; `meet` says what is raised. Without a budget that is measured, it derives."""
    request = request.going_on()
    request.check()
    progress = progress or Silent()
    if not request.is_measured:
        return (derive(request.derivation(), progress),)
    refuse_training(request)
    _refuse_elsewhere(request, progress)
    once, derivations = OnlyOnce(progress), []
    earlier: tuple[Round, ...] = ()  # of the budgets before
    with shared_cache(request.cache) as cache:
        shared = replace(request, cache=cache)
        base = shared.on_its_base().base
        assert base is not None
        network = network_without_weights(base, shared.model_args, checkpoint=shared.checkpoint)
        _refuse_method(shared.on_its_base(), network)
        _check_base(shared.on_its_base(), once)
        costs = GrowingTable(network, shared, shared.run_target, once)
        if len(each := shared.each()) > 1:
            _refuse_any([_Task(one, costs, once, _base_folder(request, one)) for one in each if not one.is_there])
        for one in each:
            if one.is_there:
                derivations.append(_read(one.out))
                continue
            derivation, search = _Task(one, costs, once, _base_folder(request, one)).carried_out(earlier)
            derivations.append(derivation)
            earlier = (*earlier, *search.rounds)
    return tuple(derivations)


def _refuse_method(request: MeetRequest, network: nn.Module) -> None:
    """Raise OptionError for a method that cannot cut this base, before a cost is measured for it."""
    policy = make_policy(request.shape, request.ffn_multiple, request.embed_multiple)
    method = find_method(request.method)
    refuse_base(method, method.make_config(request.settings), network, policy)


def _check_base(request: MeetRequest, progress: Progress) -> None:
    """Refuse images, or a base on them, that the first derivation would refuse, before a cost is measured for it.

    A search that is gone on with has been checked.

    Raises:
        DataError: an image cannot be read, the base is near chance, or it does better with other preprocessing.
    """
    if request.data is None or request.resume:
        return
    assert request.base is not None
    found = open_network(request.base, **request.opening(), progress=progress)
    task = open_task_for(found, request, progress)
    check_opened(open_for(found, request, request.head, task, progress), request, progress)
    close_compute()


def _base_folder(request: MeetRequest, one: MeetRequest) -> Path:
    """Where the base lies: with several budgets beside their models, to be kept."""
    return (request.out if len(request.budgets) > 1 else partial_folder(one.out)) / BASE


def _refuse_elsewhere(request: MeetRequest, progress: Progress) -> None:
    """Raise OptionError for rounds to be gone on with that were measured on another board, or in another power mode."""
    files = [partial_folder(one.out) / ROUNDS for one in request.each() if request.resume]
    measured = {file: where for file in files if file.is_file() and (where := SEARCH_KIND.read(file).where)}
    here = probe(request.run_target, progress) if measured else None
    for file, where in measured.items():
        if here is not None and (differing := Where.model_validate(where).differing(here)):
            raise OptionError(
                f"cannot resume {file.parent}: its rounds were measured with {differing}; set that as it was, "
                "or remove it"
            )


def _refuse_any(tasks: Sequence[_Task]) -> None:
    """Refuse, before the first of several budgets takes its time, any that is not below the base or out of reach.

    Raises:
        OptionError, BudgetError: one of them is.
    """
    if tasks:
        min(tasks, key=lambda task: task.budget().limit).refuse_unreachable()


def _read(folder: Path) -> Derivation:
    record = ModelFolder(folder).derivation()
    assert record is not None
    return Derivation(folder, load(folder), record)


@dataclass(frozen=True)
class _Task:
    """One budget to be met."""

    request: MeetRequest
    costs: GrowingTable
    progress: Progress
    base: Path

    def carried_out(self, earlier: tuple[Round, ...]) -> tuple[Derivation, Search]:
        """Search, derive, verify, and write the folder; `earlier` are the rounds of other budgets."""
        asked, work = self.request, partial_folder(self.request.out)
        budget = self.budget()
        quantity = _quantity(budget)
        same = identity(asked)
        with (
            _resumable(work),
            open_partial(asked.out, same, asked.resume, request=asked.told(), overwrite=asked.overwrite),
            remove_without_models(work),
        ):
            kept = self._kept(work, quantity)
            watch = Stopwatch()
            builder = self._builder(work, quantity, kept.base_takes)
            with watch.stage("rounds"):
                outcome = self._searched(Search(budget.limit, kept.rounds, earlier), builder, work, kept, budget)
            derivation = self._finished(outcome, builder, budget, watch)
            with new_folder(asked.out, overwrite=asked.overwrite) as folder:
                folder.rmdir()
                derivation.folder.rename(folder)
            shutil.rmtree(work, ignore_errors=True)
        return replace(derivation, folder=asked.out), outcome.search

    def _builder(self, folder: Path, quantity: Quantity, base_takes: float) -> CandidateBuilder:
        measuring = PairedBench(self.costs.target, quantity, base_takes, self.progress)
        return CandidateBuilder(self.request, folder, self.base, quantity, self.costs, measuring, self.progress)

    def refuse_unreachable(self) -> None:
        """Raise BudgetError where the cheapest plan costs far more than the budget by the table."""
        budget = self.budget()
        quantity = _quantity(budget)
        with tempfile.TemporaryDirectory(prefix="edgevit-meet-") as work:
            builder = self._builder(Path(work), quantity, self.costs.table.in_quantity(quantity).base)
            try:
                builder.allocate(self.costs.table, NEXT_TO_NOTHING)
            except BudgetError as error:
                if error.least is not None and error.least > OUT_OF_REACH * budget.limit:
                    raise self._out_of_reach(error, quantity, budget) from error

    def budget(self) -> Budget:
        """Return the budget by the table; it must be less than what the base takes.

        Raises:
            OptionError: it is not.
        """
        name = self.request.quantity
        assert name is not None
        return make_budget(1, 1, **{name: self.request.budgets[0]}, table=self.costs.table)

    def _kept(self, work: Path, quantity: Quantity) -> KeptSearch:
        file = work / ROUNDS
        if file.is_file():
            return SEARCH_KIND.read(file)
        return KeptSearch(self.costs.table.in_quantity(quantity).base, self.costs.where)

    def _searched(
        self, search: Search, builder: CandidateBuilder, work: Path, kept: KeptSearch, budget: Budget
    ) -> SearchOutcome:
        began = time.monotonic()

        def tell(now: Search) -> None:
            nonlocal began
            with writing(work / ROUNDS):
                state = replace(kept, rounds=now.rounds, edgevit=written_by())
                write_whole(work / ROUNDS, SEARCH_KIND.text(state))
            took = rounded_duration(time.monotonic() - began)
            more = "" if now.is_done else f"; it took {took}, at most {MOST - len(now.rounds)} more follow"
            self.progress.note(f"{format_round(now, UNITS[builder.quantity])}{more}")
            began = time.monotonic()

        try:
            return search_for(search, builder, tell)
        except BudgetError as error:
            shutil.rmtree(work, ignore_errors=True)  # soon made again
            if error.least is None:
                raise
            raise self._out_of_reach(error, builder.quantity, budget) from error

    def _out_of_reach(self, error: BudgetError, quantity: Quantity, budget: Budget) -> BudgetError:
        """Say that no plan is small enough, the minimum, and what to try."""
        assert error.least is not None and budget.table is not None
        is_rate = self.request.quantity == "fps"
        limit = f", {budget.limit:.4g} ms for {budget.table.batch}," if is_rate else ""
        hint = "ask for fewer images per second" if is_rate else "raise the budget"
        made_of = f" ({error.made_of})" if error.made_of else ""
        return BudgetError(
            f"--{budget.asked}{limit} is less than any plan takes in shape {self.request.shape!r}: {error.least:.4g} "
            f"{UNITS[quantity]} by the table measured on {self.costs.table.measured_on}{made_of}; {hint}, or try "
            "another --shape",
            least=error.least,
            made_of=error.made_of,
        )

    def _finished(
        self, outcome: SearchOutcome, builder: CandidateBuilder, budget: Budget, watch: Stopwatch
    ) -> Derivation:
        """Derive the best shape as asked, export and build it, measure it once more, and record the result."""
        best = outcome.search.best
        assert best is not None
        out = builder.folder / KEPT / self.request.out.name
        number = outcome.search.rounds.index(best) + 1
        self.progress.note(f"round {number} is kept: derived as asked, and measured again")
        with watch.stage("derivation"):
            if not out.is_dir():
                derive(builder.derivation(out, best.name, best.limit, best.at_least), self.progress)
        if shape_in(out) != best.shape:
            self.progress.warn("the model has other widths than the one that was measured in its round")
        with watch.stage("verification"):
            builder.measuring.ready(out, judged=True)
            verified = builder.measured(out)
        record = ModelFolder(out).derivation()
        assert record is not None
        record = replace(record, met=self._record(outcome, verified, builder, budget, watch))
        ModelFolder(out).write_derivation(record)
        write_table(self.costs.table, ModelFolder(out).cost_table_file)
        return Derivation(out, load(out), record)

    def _record(
        self,
        outcome: SearchOutcome,
        verified: MeasuredFigure,
        builder: CandidateBuilder,
        budget: Budget,
        watch: Stopwatch,
    ) -> MetRecord:
        search, costs, measuring = outcome.search, self.costs, builder.measuring
        factors = search.factors(costs.table.in_quantity(builder.quantity))
        clock, base_clock = measuring.clock or (None, None)
        reasons = (_why(outcome, verified), None if search.holds(verified) else self._least_text(factors, builder))
        return MetRecord(
            quantity=builder.quantity,
            budget=search.budget,
            option=budget.asked,
            outcome=search.outcome(verified),
            verified=_figure(verified),
            figure=measuring.figure,
            base=measuring.base_takes,
            rounds=tuple(RoundRecord(one.limit, one.predicted, _figure(one.measured)) for one in search.rounds),
            factors=vars(factors),
            table=costs.table.record(),
            conditions=costs.where,
            ended="; ".join(filter(None, reasons)) or None,
            seconds=watch.seconds,
            clock=clock,
            base_clock=base_clock,
            request=identity(self.request) if self.request.among_others else None,
        )

    def _least_text(self, factors: Terms, builder: CandidateBuilder) -> str | None:
        """Say what the cheapest plan takes by the corrected table, and what that consists of."""
        try:
            builder.allocate(self.costs.table.corrected(**vars(factors)), NEXT_TO_NOTHING)
        except BudgetError as error:
            if error.least is not None:
                least = f"{error.least:.4g} {UNITS[builder.quantity]}{error.made_of and f' ({error.made_of})'}"
                return f"by the corrected table no plan in shape {self.request.shape!r} takes less than {least}"
        return None


def _why(outcome: SearchOutcome, verified: MeasuredFigure) -> str | None:
    """Say why the verified figure does not meet the budget, or why the search ended; None: the budget is met."""
    search = outcome.search
    assert search.best is not None
    in_round = search.best.measured
    if search.holds(in_round) and not search.holds(verified):
        return "measured once more, the plan that is kept takes more than in its round"
    if outcome.why is not None or search.outcome(verified) == "met":
        return outcome.why
    if not search.is_sure(in_round):
        return "all rounds were used up"
    return "measured once more, the plan that is kept takes less than in its round"


def _quantity(budget: Budget) -> Quantity:
    return "mj" if budget.quantity == "mj" else "ms"


def _figure(measured: MeasuredFigure) -> FigureRecord:
    return FigureRecord(measured.value, measured.low, measured.high, measured.repeats)


def format_round(search: Search, unit: str) -> str:
    """Describe the last round in one line: its prediction, its measurement, and the distance to the budget."""
    last = search.rounds[-1]
    seen = last.measured
    interval = f" ({seen.low:.4g} to {seen.high:.4g})" if seen.low is not None and seen.high is not None else ""
    off = seen.value / search.budget - 1
    return (
        f"round {len(search.rounds)}: {last.predicted:.4g} {unit} predicted, {seen.value:.4g} measured{interval}, "
        f"{abs(off):.1%} {'over' if off > 0 else 'under'} the budget of {search.budget:.4g} {unit}"
    )


@contextmanager
def remove_without_models(work: Path) -> Iterator[None]:
    """Remove the folder of a search that failed before its first model, so that the command can be corrected."""
    try:
        yield
    except (Interrupted, ConnectionLostError, UnreachableError):
        raise
    except EdgeVitError:
        if not any(ModelFolder(folder).is_model for folder in (work / "rounds").glob("*")):
            shutil.rmtree(work, ignore_errors=True)
        raise


@contextmanager
def _resumable(work: Path) -> Iterator[None]:
    """Say how a search is gone on with when it is stopped, or the board lost.

    Raises:
        Interrupted: Ctrl-C.
    """
    again = f"the same command goes on from {work}"
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as stop:
        raise Interrupted(f"stopped; {again}") from stop
    except (ConnectionLostError, UnreachableError) as error:
        raise type(error)(f"{error}; {again}") from error
