"""`edgevit.meet`: derive a model for each of one or several budgets that are measured on their target."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from edgevit.derivation.cache import shared_cache
from edgevit.derivation.method import refuse_training
from edgevit.derivation.session.derive import Derivation, derive
from edgevit.derivation.session.in_memory import IN_MEMORY, as_files
from edgevit.jobs.budgets.request import check_budgets, continued, is_finished, per_budget
from edgevit.jobs.folder import working_in
from edgevit.jobs.runners import Job, Results, run_here
from edgevit.latency.meet import BudgetSearch, open_costs, refuse_elsewhere
from edgevit.latency.request import MeetRequest
from edgevit.latency.rounds import Round
from edgevit.network.folder import load
from edgevit.progress import Progress, Silent, WithoutRepeats
from edgevit.records.model_folder import ModelFolder
from edgevit.request import takes_options

_COSTS = "costs"  # the result that all budgets need: the cost table of their base


@takes_options(MeetRequest, "base", prepare=as_files, also=IN_MEMORY)
def meet(request: MeetRequest, progress: Progress | None = None) -> tuple[Derivation, ...]:
    """Derive a small model that takes at most `ms` milliseconds, or `mj` millijoules, on its target.

        meet("deit_base_patch16_224", checkpoint="base.safetensors", data="photos", ms=5, out="runs/t1",
             board="jetson@orin-nx")

    The costs of all sizes are measured on the target once (`edgevit.cost`). Each round allocates a plan by that table,
    realises it in closed form, exports and builds the model, measures it in turns with the base, and corrects the table
    by the measurement; there are at most five rounds. The best shape is then derived as requested, with training, and
    measured again: `record.met` has the result, and its `outcome` says whether the budget is kept. With several
    budgets, `out` gets a folder for each. Without a measured budget it derives.

    Raises:
        OptionError: an option is unknown or invalid.
        BudgetError: no plan is as small; the message has the minimum.
        EdgeVitError: any other error, in one line.
        Interrupted: Ctrl-C; the same call continues.
    """
    request = continued(request)
    check_budgets(request)
    progress = progress or Silent()
    if not request.is_measured:
        return (derive(request.derivation(), progress),)
    refuse_training(request)
    refuse_elsewhere(per_budget(request) if request.resume else [], progress)
    once = WithoutRepeats(progress)
    with shared_cache(request.cache) as cache:
        shared = replace(request, cache=cache)
        requests, costs = per_budget(shared), open_costs(shared, once)
        several, names = len(requests) > 1, [f"{single.quantity} {single.budgets[0]:.12g}" for single in requests]
        if several:
            _refuse_smallest([BudgetSearch(single, costs, once) for single in requests if not is_finished(single)])
        results: dict[str, Any] = {_COSTS: costs}
        jobs = [Job(names[i], single, _met, (_COSTS, *names[i - 1 : i])) for i, single in enumerate(requests)]
        with working_in(request.out, "the budgets that are not done") if several else nullcontext():
            for _ in run_here(jobs, results, once):
                pass
    return tuple(results[name][0] for name in names)


def _refuse_smallest(due: Sequence[BudgetSearch]) -> None:
    """Refuse the smallest of several budgets before the first search, if it is out of reach.

    Raises:
        OptionError, BudgetError: it is, or one of them is not below the cost of the base.
    """
    if due:
        min(due, key=lambda search: search.budget().limit).refuse_unreachable()


def _met(request: MeetRequest, results: Results, progress: Progress) -> tuple[Derivation, tuple[Round, ...]]:
    """Meet one budget; return its model, and all rounds so far, by which the next budget corrects the table too."""
    if is_finished(request):
        record = ModelFolder(request.out).derivation()
        assert record is not None
        return Derivation(request.out, load(request.out), record), ()
    earlier = next((results[name][1] for name in results if name != _COSTS), ())
    return BudgetSearch(request, results[_COSTS], progress).carried_out(earlier)
