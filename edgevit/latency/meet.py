"""Meet one budget: derive a model that keeps it when it is measured on its target."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgevit.derivation.allocate.budget import Budget, make_budget
from edgevit.derivation.allocate.cost_table import Origin
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.allocate.prices import UNITS
from edgevit.derivation.allocate.prices import Measured as Quantity
from edgevit.derivation.compatibility import refuse_base
from edgevit.derivation.method import find_method
from edgevit.derivation.problem import Stopwatch
from edgevit.derivation.request import depths_of, puts_out_features, tokens_of_output
from edgevit.derivation.session.base_check import check_opened
from edgevit.derivation.session.derive import Derivation, derive
from edgevit.derivation.session.opening import open_for, open_without_labels
from edgevit.derivation.solve.head import open_task_for
from edgevit.errors import BudgetError, ConnectionLostError, EdgeVitError, Interrupted, OptionError, UnreachableError
from edgevit.latency.candidates import CandidateBuilder, shape_in
from edgevit.latency.cost import write_table
from edgevit.latency.paired import PairedBench
from edgevit.latency.request import MeetRequest, identity
from edgevit.latency.rounds import MeasuredFigure, Round, Search, Terms
from edgevit.latency.search import OUT_OF_REACH, SearchOutcome, search_plans
from edgevit.latency.table import GrowingTable
from edgevit.latency.target import probe
from edgevit.network.classifier import with_features
from edgevit.network.folder import load
from edgevit.network.network import Network
from edgevit.network.opening import network_without_weights, open_network
from edgevit.progress import Progress, rounded_duration
from edgevit.records.derivation import FigureRecord, MetRecord, RoundRecord
from edgevit.records.kinds import RecordKind
from edgevit.records.model_folder import ModelFolder
from edgevit.records.unfinished import STATE, open_partial, partial_folder
from edgevit.records.writing import new_folder, write_whole, writing
from edgevit.train.compute import close_compute
from edgevit.version import written_by

ROUNDS = "rounds.json"
_BASE = "base"
_FINAL = "final"  # folder in which the folder of the final model is written, which may have any name
_TINY_LIMIT = 1e-9  # ms or mJ: a limit that no plan keeps, so that the error states the cost of the cheapest plan


@dataclass(frozen=True)
class SearchState:
    """rounds.json of an unfinished search."""

    base_cost: float  # cost of the base by the table, in ms or mJ
    origin: dict[str, Any]  # conditions under which the table was measured; empty: it does not state them
    rounds: tuple[Round, ...] = ()
    edgevit: str | None = None
    earlier: tuple[Round, ...] = ()  # rounds of the budgets that were searched before this one


SEARCH_KIND = RecordKind("rounds", SearchState, STATE)


def open_costs(request: MeetRequest, progress: Progress) -> GrowingTable:
    """Check method and base, and take or measure the costs that all budgets of this base share.

    Raises:
        OptionError: the method cannot cut this base.
        DataError: as the first derivation would be refused.
        CostTableError, BoardError: no table can be taken, or measured.
    """
    on_its_base = request.on_its_base()
    assert on_its_base.base is not None
    network = network_without_weights(
        on_its_base.base, request.model_args, checkpoint=request.checkpoint, pretrained=request.pretrained
    )
    if puts_out_features(request.output):
        network = with_features(network, tokens_of_output(request.output), depths_of(request.output))
    _refuse_method(on_its_base, network)
    _check_base(on_its_base, progress)
    return GrowingTable(network, request, request.run_target, progress)


def _refuse_method(request: MeetRequest, network: Network) -> None:
    """Raise OptionError for a method that cannot cut this base, before a cost is measured for it."""
    policy = make_policy(request.shape, request.ffn_multiple, request.embed_multiple)
    method = find_method(request.method)
    refuse_base(method, method.make_config(request.options), network, policy)


def _check_base(request: MeetRequest, progress: Progress) -> None:
    """Refuse images, or a base, that the first derivation would refuse, before any cost is measured.

    A search that is continued has been checked.

    Raises:
        DataError: an image cannot be read, the base is near chance, or it is better with other preprocessing.
    """
    if request.data is None or request.resume:
        return
    assert request.base is not None
    network = open_network(request.base, **request.opening(), progress=progress)
    if request.puts_out_classes:
        task = open_task_for(network, request, progress)
        check_opened(open_for(network, request, request.head, task, progress), request, progress)
    else:
        open_without_labels(network, request, progress)
    close_compute()


def refuse_elsewhere(requests: Sequence[MeetRequest], progress: Progress) -> None:
    """Raise OptionError if the rounds to be continued were measured on another board, or in another power mode."""
    files = [partial_folder(request.out) / ROUNDS for request in requests]
    origins = {file: origin for file in files if file.is_file() and (origin := SEARCH_KIND.read(file).origin)}
    now = probe(requests[0].run_target, progress) if origins else None
    for file, origin in origins.items():
        if now is not None and (differing := Origin.model_validate(origin).differing(now)):
            raise OptionError(
                f"cannot resume {file.parent}: its rounds were measured with {differing}; set that as it was, "
                "or remove it"
            )


@dataclass(frozen=True)
class BudgetSearch:
    """The search for a model that keeps one budget."""

    request: MeetRequest
    costs: GrowingTable
    progress: Progress

    def carried_out(self, earlier: tuple[Round, ...]) -> tuple[Derivation, tuple[Round, ...]]:
        """Search, derive, verify, and write the folder; return all rounds, too. `earlier` are other budgets'."""
        request, work = self.request, partial_folder(self.request.out)
        budget = self.budget()
        quantity = _quantity(budget)
        with (
            _resumable(work),
            open_partial(
                request.out, identity(request), request.resume, request=request.plain(), overwrite=request.overwrite
            ),
            remove_without_models(work),
        ):
            state = self._state(work, quantity, earlier)
            watch = Stopwatch()
            builder = self._builder(work, quantity, state.base_cost)
            search = Search(budget.limit, state.rounds, state.earlier)
            with watch.stage("rounds"):
                outcome = self._searched(search, builder, work, state, budget)
            derivation = self._finished(outcome, builder, budget, watch)
            with new_folder(request.out, overwrite=request.overwrite) as folder:
                folder.rmdir()
                derivation.folder.rename(folder)
            shutil.rmtree(work, ignore_errors=True)
        return replace(derivation, folder=request.out), (*state.earlier, *outcome.search.rounds)

    def _builder(self, folder: Path, quantity: Quantity, base_cost: float) -> CandidateBuilder:
        out = self.request.out
        base = (out.parent if self.request.among_others else partial_folder(out)) / _BASE
        paired = PairedBench(self.costs.target, quantity, base_cost, self.progress, self.request.data)
        return CandidateBuilder(self.request, folder, base, quantity, self.costs, paired, self.progress)

    def refuse_unreachable(self) -> None:
        """Raise BudgetError if the cheapest plan costs far more than the budget by the table."""
        budget = self.budget()
        quantity = _quantity(budget)
        with tempfile.TemporaryDirectory(prefix="edgevit-meet-") as work:
            builder = self._builder(Path(work), quantity, self.costs.table.in_quantity(quantity).base)
            try:
                builder.allocate(self.costs.table, _TINY_LIMIT)
            except BudgetError as error:
                if error.least is not None and error.least > OUT_OF_REACH * budget.limit:
                    raise self._out_of_reach(error, quantity, budget) from error

    def budget(self) -> Budget:
        """Return the budget by the table; it must be less than the cost of the base.

        Raises:
            OptionError: it is not.
        """
        name = self.request.quantity
        assert name is not None
        return make_budget(1, 1, **{name: self.request.budgets[0]}, table=self.costs.table)

    def _state(self, work: Path, quantity: Quantity, earlier: tuple[Round, ...]) -> SearchState:
        """Read the state of an unfinished search, or begin one: what it begins with is what it is continued with."""
        file = work / ROUNDS
        if file.is_file():
            return SEARCH_KIND.read(file)
        base_cost = self.costs.table.in_quantity(quantity).base
        state = SearchState(base_cost, self.costs.origin, edgevit=written_by(), earlier=earlier)
        if earlier:
            _write_state(work, state)
        return state

    def _searched(
        self, search: Search, builder: CandidateBuilder, work: Path, state: SearchState, budget: Budget
    ) -> SearchOutcome:
        began = time.monotonic()

        def tell(now: Search) -> None:
            nonlocal began
            _write_state(work, replace(state, rounds=now.rounds, edgevit=written_by()))
            took = rounded_duration(time.monotonic() - began)
            more = "" if now.is_done else f"; it took {took}, at most {now.rounds_left} more follow"
            self.progress.note(f"{_format_round(now, UNITS[builder.quantity])}{more}")
            began = time.monotonic()

        try:
            return search_plans(search, builder, tell)
        except BudgetError as error:
            shutil.rmtree(work, ignore_errors=True)
            if error.least is None:
                raise
            raise self._out_of_reach(error, builder.quantity, budget) from error

    def _out_of_reach(self, error: BudgetError, quantity: Quantity, budget: Budget) -> BudgetError:
        """Say that no plan is small enough, the minimum, and what to try."""
        assert error.least is not None and budget.table is not None
        is_rate = self.request.quantity == "fps"
        limit = f", {budget.limit:.4g} ms for {budget.table.batch}," if is_rate else ""
        hint = "ask for fewer images per second" if is_rate else "raise the budget"
        breakdown = f" ({error.breakdown})" if error.breakdown else ""
        return BudgetError(
            f"--{budget.option}{limit} is less than any plan takes in shape {self.request.shape!r}: {error.least:.4g} "
            f"{UNITS[quantity]} by the table measured on {self.costs.table.measured_on}{breakdown}; {hint}, or try "
            "another --shape",
            least=error.least,
            breakdown=error.breakdown,
        )

    def _finished(
        self, outcome: SearchOutcome, builder: CandidateBuilder, budget: Budget, watch: Stopwatch
    ) -> Derivation:
        """Derive the best shape as requested, export and build it, measure it once more, and record the result."""
        best = outcome.search.best
        assert best is not None
        out = builder.folder / _FINAL / self.request.out.name
        number = outcome.search.rounds.index(best) + 1
        self.progress.note(f"round {number} is kept: derived as requested, and measured again")
        with watch.stage("derivation"):
            if not out.is_dir():
                derive(builder.derivation(out, best.name, best.limit, best.at_least), self.progress)
        if shape_in(out) != best.shape:
            self.progress.warn("the model has other widths than the one that was measured in its round")
        with watch.stage("verification"):
            builder.paired.prepare(out, judged=True)
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
        search, costs, paired = outcome.search, self.costs, builder.paired
        factors = search.factors(costs.table.in_quantity(builder.quantity))
        clock, base_clock = paired.clock or (None, None)
        reasons = (
            _reason(outcome, verified),
            None if search.is_within(verified) else self._least_text(factors, builder),
        )
        return MetRecord(
            quantity=builder.quantity,
            budget=search.budget,
            option=budget.option,
            outcome=search.outcome(verified),
            verified=_figure(verified),
            figure=paired.figure,
            base=paired.base_cost,
            rounds=tuple(RoundRecord(r.limit, r.predicted, _figure(r.measured)) for r in search.rounds),
            factors=vars(factors),
            table=costs.table.record(),
            conditions=costs.origin,
            ended="; ".join(filter(None, reasons)) or None,
            seconds=watch.seconds,
            clock=clock,
            base_clock=base_clock,
            request=identity(self.request) if self.request.among_others else None,
        )

    def _least_text(self, factors: Terms, builder: CandidateBuilder) -> str | None:
        """Say what the cheapest plan takes by the corrected table, and what that consists of."""
        try:
            builder.allocate(self.costs.table.corrected(**vars(factors)), _TINY_LIMIT)
        except BudgetError as error:
            if error.least is not None:
                least = f"{error.least:.4g} {UNITS[builder.quantity]}{error.breakdown and f' ({error.breakdown})'}"
                return f"by the corrected table no plan in shape {self.request.shape!r} takes less than {least}"
        return None


def _write_state(work: Path, state: SearchState) -> None:
    with writing(work / ROUNDS):
        write_whole(work / ROUNDS, SEARCH_KIND.text(state))


def _reason(outcome: SearchOutcome, verified: MeasuredFigure) -> str | None:
    """Say why the verified figure misses the budget, or why the search ended; None: the budget is met."""
    search = outcome.search
    assert search.best is not None
    in_round = search.best.measured
    if search.is_within(in_round) and not search.is_within(verified):
        return "measured once more, the plan that is kept takes more than in its round"
    if outcome.reason is not None or search.outcome(verified) == "met":
        return outcome.reason
    if not search.is_sure(in_round):
        return "all rounds were used up"
    return "measured once more, the plan that is kept takes less than in its round"


def _quantity(budget: Budget) -> Quantity:
    return "mj" if budget.quantity == "mj" else "ms"


def _figure(measured: MeasuredFigure) -> FigureRecord:
    return FigureRecord(measured.value, measured.low, measured.high, measured.repeats)


def _format_round(search: Search, unit: str) -> str:
    """Describe the last round in one line: its prediction, its measurement, and the distance to the budget."""
    last = search.rounds[-1]
    figure = last.measured
    interval = f" ({figure.low:.4g} to {figure.high:.4g})" if None not in (figure.low, figure.high) else ""
    off = figure.value / search.budget - 1
    return (
        f"round {len(search.rounds)}: {last.predicted:.4g} {unit} predicted, {figure.value:.4g} measured{interval}, "
        f"{abs(off):.1%} {'over' if off > 0 else 'under'} the budget of {search.budget:.4g} {unit}"
    )


@contextmanager
def remove_without_models(work: Path) -> Iterator[None]:
    """Remove the folder of a search that failed before its first model, so that a corrected command can start."""
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
    """Say how to continue a search that was stopped, or that lost its board.

    Raises:
        Interrupted: Ctrl-C.
    """
    hint = f"the same command goes on from {work}"
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as stop:
        raise Interrupted(f"stopped; {hint}") from stop
    except (ConnectionLostError, UnreachableError) as error:
        raise type(error)(f"{error}; {hint}") from error
