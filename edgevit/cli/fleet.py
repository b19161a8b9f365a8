from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from edgevit.cli import arguments
from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.imports import importing
from edgevit.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from edgevit.jobs.fleet.costs import FleetCost
    from edgevit.jobs.fleet.plan import FleetJob
    from edgevit.jobs.fleet.request import FleetRequest
    from edgevit.jobs.fleet.states import JobProgress, JobState

_SHOWN = 20  # number of reasons to wait that are shown
EVERY_S = 1.0  # pause between two looks at a plan that another command works on
LOOKING = 0.1  # share of the time, at most, that is spent on them
QUIET_S = 30.0  # without any job that runs, after which no command works on the plan any more


@asks(request="edgevit.jobs.fleet.request:FleetRequest")
def main(
    request: FleetRequest,
    *,
    example: Annotated[bool, arguments.example_option("edgevit.jobs.fleet.plan", "plan")] = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> int:
    """Derive, export, build, check and measure all models of one plan.

    Begin with: edgevit fleet --example > plan.yaml. The same command continues an interrupted run.

    Exit code 0: all is done and all gates hold. 3: all is done, and a gate does not hold.
    """
    from dataclasses import asdict

    from edgevit.board.gates import FAILED
    from edgevit.jobs.fleet.costs import cost_of
    from edgevit.jobs.fleet.plan import read_plan
    from edgevit.jobs.fleet.states import states_of

    console = Console(json=json, quiet=quiet, verbose=verbose)
    plan = read_plan(request.plan)  # before torch is imported
    if request.status:
        jobs = plan.part(request.only)
        console.watch(_looks(jobs))
        states = states_of(jobs)
    else:
        with importing():
            from edgevit.jobs.fleet.run import fleet

        states = fleet(request, console.progress)
    cost = cost_of(plan.layout.out, states, plan.layout.prices)
    show_states(console, states, cost)
    console.show(arguments.page_line(request.plan))
    console.result(
        {"folder": str(Path(plan.layout.out)), "jobs": [asdict(state) for state in states], "cost": asdict(cost)}
    )
    if all(state.state == "done" for state in states):
        return 0 if all(state.passed for state in states) else FAILED
    return 1


def show_states(console: Console, states: list[JobState], cost: FleetCost) -> None:
    """Show how many jobs of each stage are in which state, what they took, and the reasons of those not done."""
    from rich.table import Table

    console.show(_counts(states))
    for head, rows in cost.tables() if cost.stages else ():
        used = Table(*head)
        for row in rows:
            used.add_row(*row)
        console.show(used)
    if cost.stages and (text := cost.text()):
        console.show(text)
    for line in _lines(states):
        console.show(line)


def _counts(states: Sequence[JobState]) -> Table:
    """How many jobs of each stage are in which state."""
    from rich.table import Table

    kinds: tuple[JobProgress, ...] = ("done", "running", "waiting", "failed")
    table = Table("stage", *kinds)
    for stage in dict.fromkeys(state.stage for state in states):
        of_stage = [state for state in states if state.stage == stage]
        counts = Counter(state.state for state in of_stage)
        table.add_row(stage, *(str(counts[kind]) for kind in kinds))
    return table


def _lines(states: Sequence[JobState]) -> Iterator[str]:
    """The jobs that run or failed, and what the others wait for."""
    for state in states:
        broken = [f"{gate}: {verdict}" for gate, verdict in state.gates.items() if verdict != "pass"]
        if state.state == "failed" or broken:
            yield f"{state.job} failed: {state.reason or '; '.join(broken)}"
        elif state.state == "running":
            yield f"{state.job} is running"
    waiting = Counter(state.reason for state in states if state.state == "waiting").most_common()
    for reason, count in waiting[:_SHOWN]:
        yield f"{count} {'job waits' if count == 1 else 'jobs wait'} {reason}"
    if len(waiting) > _SHOWN:
        yield f"{len(waiting) - _SHOWN} more reasons to wait; --json lists them"


def _looks(jobs: Sequence[FleetJob]) -> Iterator[RenderableType]:
    """The states of jobs again and again, until none is left that can be done, or no command does them."""
    from rich.console import Group
    from rich.text import Text

    from edgevit.jobs.fleet.states import states_of

    ran_at: float | None = None
    while True:
        began = time.monotonic()
        states = states_of(jobs)
        now = time.monotonic()
        kinds = {(state.state, state.waits_for_another) for state in states}
        is_running = ("running", False) in kinds
        ran_at = now if is_running else ran_at
        if not is_running and (("waiting", False) not in kinds or ran_at is None or now - ran_at > QUIET_S):
            return
        yield Group(_counts(states), *(Text(printable(line)) for line in _lines(states)))
        time.sleep(max(EVERY_S, (time.monotonic() - began) / LOOKING))
