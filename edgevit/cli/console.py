"""Output of commands: results on stdout, everything else on stderr; bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from edgevit.errors import OutputError
from edgevit.progress import Progress, Silent, Stage
from edgevit.text import printable

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.console import RenderableType
    from rich.progress import Progress as Bars
    from rich.progress import TaskID
    from rich.table import Table

_OUTPUT = {"rich_help_panel": "Output"}
JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on stdout, and the rest on stderr.", **_OUTPUT)
]
QuietFlag = Annotated[bool, typer.Option("--quiet", "-q", help="Print results, warnings and errors only.", **_OUTPUT)]
VerboseFlag = Annotated[bool, typer.Option("--verbose", "-v", help="Print what the library logs, too.", **_OUTPUT)]

QUICK_S = 2.0  # work that ends sooner shows no progress
CLOSED = 141  # what a shell expects of a program whose reader went away
_PIPE_COLUMNS = 200
NARROW = 100  # columns, below which some tables have fewer and higher rows
_PLAIN_EVERY_S = 10.0  # shortest time between two plain lines of a stage


def _print(text: str, to: TextIO | None) -> None:
    """Print a text and a line break; a character that cannot be encoded is printed as its number.

    Raises:
        OutputError: stdout cannot be written to, as when a disk is full. What stderr does not take is lost silently.
    """
    if to is None:
        return  # closed before the program started, by >&-
    encoding = to.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=to, flush=True)
    except OSError as error:
        # The rest of the buffer goes to /dev/null, or the flush at exit would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), to.fileno())
        if to is sys.stdout:
            if isinstance(error, BrokenPipeError):
                raise typer.Exit(CLOSED) from error  # the reader has closed the pipe
            raise OutputError(f"cannot write to standard output: {error.strerror}; nothing else is lost") from error


def say(text: str) -> None:
    """Print one line on stderr."""
    _print(printable(text), sys.stderr)


def write(text: str) -> None:
    """Print a text on stdout, such as the content of a file."""
    _print(printable(text, keep="\n\t"), sys.stdout)


def console_width() -> int:
    """The width for tables: that of the terminal, or COLUMNS, or a fixed one for pipes."""
    return shutil.get_terminal_size((_PIPE_COLUMNS, 24)).columns


def _fitting(table: Table, console: RichConsole) -> Table:
    """Transpose a table that is too wide. No cell is truncated."""
    from rich.measure import Measurement
    from rich.table import Table

    def is_too_wide(table: Table) -> bool:
        return Measurement.get(console, console.options.update(max_width=1000), table).minimum > console.width

    if is_too_wide(table):
        first, *others = table.columns
        turned = Table(title=table.title, title_justify=table.title_justify)
        for heading in (first.header, *first.cells):
            turned.add_column(heading)
        for column in others:
            turned.add_row(column.header, *column.cells)
        for column in turned.columns[1:]:
            column.justify = "right"
        table = table if is_too_wide(turned) else turned
    for column in table.columns:
        column.overflow = "fold"
    return table


def _drawn(renderable: RenderableType, to: TextIO) -> str:
    """Render a table or a text with rich, without markup and emoji."""
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    class Plain(RichConsole):
        def render_str(self, text: str, **options: Any) -> Text:  # what every str in a table or title goes through
            return super().render_str(printable(text, keep="\n\t"), **options)

    encoding = to.encoding or "utf-8"
    paper = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace", newline="")
    console = Plain(
        file=paper, width=console_width(), force_terminal=to.isatty(), markup=False, emoji=False, highlight=False
    )
    if isinstance(renderable, Table):
        renderable = _fitting(renderable, console)
    # A text stays on one line, so that a command in it can be copied; the terminal wraps it.
    console.print(renderable, soft_wrap=isinstance(renderable, str))
    paper.flush()
    drawn = paper.buffer.getvalue().decode(encoding)
    return str(drawn).removesuffix("\n")


def number(value: float) -> str:
    """Format a number with three or four significant digits, with an exponent only if needed."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.2e}" if abs(value) < 1e-3 or abs(value) >= 1e6 else f"{value:.4g}"


# Labels of figures next to a bar, where their names in history.jsonl are not clear.
_WORDS = {
    "loss_task": "loss on labels",
    "loss_teacher": "loss against teacher",
    "loss_tokens": "error of tokens",
    "loss_collapse": "distance to anchors",
    "loss_rank": "tails of attention",
    "accuracy_trained": "accuracy",
    "loss_validation": "validation loss",
    "accuracy_pruned": "accuracy once cut",
    "accuracy_anchor": "accuracy with masks",
    "kept_step": "best at step",
}


def _figures_text(figures: dict[str, float | None]) -> str:
    """Format figures: `accuracy_*` in per cent, others as they are; missing ones are left out."""
    parts = []
    for name, value in figures.items():
        if value is not None:
            shown = f"{100 * value:.1f}%" if name.startswith("accuracy") else number(value)
            parts.append(f"{_WORDS.get(name, name.replace('_', ' '))} {shown}")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    minutes, seconds_text = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_text:02}" if hours else f"{minutes}:{seconds_text:02}"


class _PlainStage:
    def __init__(self, name: str, total: int | None, unit: str) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.started = time.monotonic()
        self.next_line = self.started + QUICK_S
        self.figures: dict[str, float | None] = {}
        self.spoke = False

    def update(self, done: int, **figures: float | None) -> None:
        self.figures.update(figures)
        now = time.monotonic()
        if now < self.next_line:
            return
        self.next_line = now + _PLAIN_EVERY_S
        self.spoke = True
        remaining = ""
        if self.total and done:
            remaining = f"  {duration((now - self.started) * (self.total - done) / done)} left"
        of = f"/{self.total}" if self.total else ""
        say(f"{self.name}: {done}{of} {self.unit}  {_figures_text(self.figures)}{remaining}")


def _warn(text: str) -> None:
    say(f"warning: {text}")


class _Quiet(Silent):
    """Shows warnings only."""

    def warn(self, text: str) -> None:
        _warn(text)


class _Plain:
    """Plain lines on stderr, for logs and pipes."""

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Stage]:
        stage = _PlainStage(name, total, unit)
        yield stage
        seconds = time.monotonic() - stage.started
        if stage.spoke or seconds > QUICK_S:
            say(f"{name}: done in {duration(seconds)}  {_figures_text(stage.figures)}")

    def note(self, text: str) -> None:
        say(text)

    def warn(self, text: str) -> None:
        _warn(text)


class _BarStage:
    def __init__(self, bars: Bars, task: TaskID) -> None:
        self.bars, self.task = bars, task
        self.started = time.monotonic()
        self.figures: dict[str, float | None] = {}

    def update(self, done: int, **figures: float | None) -> None:
        self.figures.update(figures)
        visible = time.monotonic() - self.started > QUICK_S
        shown = printable(_figures_text(self.figures))
        self.bars.update(self.task, completed=done, figures=shown, visible=visible)


class _Bars:
    """Rich progress bars on a terminal; a stage shorter than `QUICK_S` shows none."""

    def __init__(self) -> None:
        from rich.console import Console as RichConsole

        self.console = RichConsole(stderr=True)

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Stage]:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn(printable(unit), markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
        )
        # By default rich forgets updates after 30 s, and jobs and epochs take longer.
        with Bars(*columns, console=self.console, transient=True, speed_estimate_period=math.inf) as bars:
            task = bars.add_task(printable(name), total=total, figures="", visible=False)
            stage = _BarStage(bars, task)
            yield stage
        seconds = time.monotonic() - stage.started
        if seconds > QUICK_S:
            self.note(f"{name}: done in {duration(seconds)}  {_figures_text(stage.figures)}")

    def note(self, text: str) -> None:
        self.console.print(printable(text), markup=False, emoji=False, highlight=False)

    def warn(self, text: str) -> None:
        self.note(f"warning: {text}")


class Console:
    """The output of one command: `result` and `show` go to stdout, `progress` and `warn` to stderr."""

    def __init__(self, *, json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        self.json = json
        self.progress: Progress = (
            _Quiet() if quiet else (_Bars() if sys.stderr is not None and sys.stderr.isatty() else _Plain())
        )
        logging.basicConfig(
            stream=sys.stderr, format="%(name)s: %(message)s", level=logging.INFO if verbose else logging.WARNING
        )

    def show(self, renderable: RenderableType) -> None:
        """Print a table or a text on stdout; nothing with --json."""
        if not self.json and sys.stdout is not None:
            _print(_drawn(renderable, sys.stdout), sys.stdout)

    def watch(self, looks: Iterator[RenderableType]) -> None:
        """Show each of some looks in place of the one before, until they end; nothing where stdout is no terminal."""
        if self.json or sys.stdout is None or not sys.stdout.isatty():
            return
        from rich.console import Console as RichConsole
        from rich.live import Live

        with Live(console=RichConsole(file=sys.stdout), auto_refresh=False, transient=True) as live:
            for look in looks:
                live.update(look, refresh=True)

    def result(self, obj: object) -> None:
        """Print the result as JSON; only with --json."""
        if self.json:
            _print(json.dumps(obj, indent=2, sort_keys=True), sys.stdout)

    def warn(self, text: str) -> None:
        _warn(text)
