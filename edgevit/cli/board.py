from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, VerboseFlag, duration

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.agent.messages import JobEntry
    from edgevit.board.connection import Board
    from edgevit.board.doctor import Check
    from edgevit.board.profiles import Profile
    from edgevit.board.request import BoardRequest

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@asks(request="edgevit.board.request:BoardRequest")
def main(request: BoardRequest, *, json: JsonFlag = False, verbose: VerboseFlag = False) -> None:
    """Examine a board: its hardware, its problems, and the commands that fix them.

    The exit code is 1 if there is a problem, which makes a command fail; a warning is advice.
    """
    from edgevit.board.connection import open_board
    from edgevit.board.profiles import load_profile

    console = Console(json=json, verbose=verbose)
    profile = load_profile(request.profile) if request.profile else None
    with open_board(request.host, ssh_config=request.ssh_config) as board:
        if request.cancel or request.cancel_all:
            ended = board.cancel(everybodys=request.cancel_all)
            console.result(ended)
            nothing = "nothing of yours was running" if ended["others"] else "nothing was running"
            console.show(f"cancelled on {board.host}: {', '.join(ended['cancelled']) or nothing}")
            for job in ended["others"]:
                by = job["owner"] or "somebody unknown, as its request cannot be read"
                console.show(f"left: {job['job']}, {job['method'] or 'a job'} by {by}; --cancel-all ends it, too")
        elif request.jobs:
            listed: list[JobEntry] = board.call("jobs")["jobs"]
            console.result({"jobs": listed})
            console.show(jobs_table(board.host, listed) if listed else f"no jobs on {board.host}")
            for job in listed:
                if job.get("message"):
                    console.warn(job["message"])
        else:
            _doctor(console, board, profile)


def _doctor(console: Console, board: Board, profile: Profile | None) -> None:
    from dataclasses import asdict

    from edgevit.board.doctor import diagnose
    from edgevit.board.facts import examine
    from edgevit.board.profiles import match

    with console.progress.stage(f"examine {board.host}"):
        facts = examine(board, console.progress)
    if profile:
        profile.check(facts)
    checks = diagnose(facts, profile or match(facts))
    console.result({"facts": asdict(facts), "checks": [asdict(check) for check in checks]})
    console.show(checks_table(board.host, checks))
    if any(check.state == "problem" for check in checks):
        raise typer.Exit(1)


def checks_table(host: str, checks: Sequence[Check]) -> Table:
    from rich.table import Table
    from rich.text import Text

    counts = [(state, sum(check.state == state for check in checks)) for state in ("problem", "warning")]
    summary = ", ".join(f"{count} {state}{'s' * (count > 1)}" for state, count in counts if count)
    table = Table(title=f"{host}: {summary or 'all is well'}", title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("seen, expected, and what to do")
    for check in checks:
        lines = (check.actual, check.expected and f"expected: {check.expected}", check.hint and f"try: {check.hint}")
        shown = "\n".join(line for line in lines if line)
        table.add_row(Text(check.state, style=_COLOURS[check.state]), check.name, shown)
    return table


def jobs_table(host: str, jobs: Sequence[JobEntry]) -> Table:
    from rich.table import Table

    table = Table(title=f"jobs on {host}", title_justify="left")
    for heading in ("job", "what", "state", "by", "started", "age"):
        table.add_column(heading, justify="right" if heading == "age" else "left")
    for job in jobs:
        table.add_row(*(str(job.get(key) or "") for key in ("job", "method", "state", "owner", "started")), _age(job))
    return table


def _age(job: JobEntry) -> str:
    age_s = job.get("age_s")
    return "" if age_s is None else duration(age_s)
