"""What a person sees, whatever stdout is, whatever the locale is, and whatever a name holds."""

from __future__ import annotations

import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
import typer
from rich.table import Table

from edgevit.cli import console
from edgevit.cli.app import app
from edgevit.cli.command import with_options
from edgevit.cli.console import CLOSED, Console, say, write
from edgevit.text import printable

PROGRAM = [sys.executable, "-m", "edgevit"]
POSIX = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NAMES = ["x[/b]", "[red]", ":smile:", "[link=file:///x]y", "ä●", "\\[b]", "100 %"]


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run edgevit in a shell, as a person's redirections do."""
    told = command.replace("edgevit", " ".join(PROGRAM))
    given = {**os.environ, "PYTHONUNBUFFERED": "", **environment}  # as a person has it: what is said waits in buffers
    return subprocess.run(["bash", "-c", told], capture_output=True, text=True, env=given, encoding="utf-8")


@pytest.mark.slow
def test_without_a_stdout_nothing_is_said_and_all_is_well() -> None:
    for command in ("edgevit profiles >&-", "edgevit profiles --json >&-", "edgevit profiles --json >&- 2>&-"):
        done = shell(command)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), command


@pytest.mark.slow
def test_a_full_stdout_is_one_line() -> None:
    for option in ("", "--json"):
        done = shell(f"edgevit profiles {option} >/dev/full")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert done.stderr.startswith("error: cannot write to standard output: No space left on device")


@pytest.mark.slow
def test_without_a_stderr_an_error_has_its_exit_code() -> None:
    for to in ("2>&-", "2>/dev/full"):
        assert shell(f"edgevit profiles nowhere.yaml {to}").returncode == 1


def test_a_reader_that_goes_away_is_no_error() -> None:
    done = shell("edgevit profiles agx-orin-64gb | head -1; echo ${PIPESTATUS[0]}")
    first, code = done.stdout.splitlines()
    assert first.startswith("agx-orin-64gb") and int(code) in (0, CLOSED) and done.stderr == ""


def test_a_pipe_that_is_closed_ends_the_command_as_a_shell_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        with pytest.raises(typer.Exit) as ended:
            Console().show("x")
    assert ended.value.exit_code == CLOSED


@pytest.mark.slow
@pytest.mark.parametrize("option", ["", "--json"])
def test_in_the_posix_locale_characters_that_it_lacks_are_numbers(tmp_path: Path, option: str) -> None:
    import yaml

    from edgevit.board.profiles import load_profile

    mine = {**load_profile("orin-nano-4gb").model_dump(mode="json"), "module": "größe ●"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    done = shell(f"edgevit profiles {tmp_path}/mine.yaml {option}", **POSIX)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xf6" in done.stdout or "\\u00f6" in done.stdout
    assert done.stdout.isascii() and (not option or json.loads(done.stdout)["module"] == "größe ●")
    wrong = shell(f"edgevit profiles {tmp_path}/größe.yaml", **POSIX)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1) and "error: there is no" in wrong.stderr


def shown(capsys: pytest.CaptureFixture[str], what: Any) -> str:
    Console().show(what)
    return capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert shown(capsys, f"wrote {name}: done") == f"wrote {name}: done\n"
    table = Table(name, title=name, caption=name)
    table.add_row(name)
    assert shown(capsys, table).count(name) == 4
    say(f"error: {name}")
    assert capsys.readouterr().err == f"error: {name}\n"


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\rb", "a\x00b", "a\x9bb", "a\tb", "a\u202eb"])
def test_what_moves_the_cursor_is_shown_and_not_done(capsys: pytest.CaptureFixture[str], name: str) -> None:
    say(name)
    write(name)
    out, err = capsys.readouterr()
    assert err == f"{printable(name)}\n" and printable(name) != name
    assert not set(out) & set("\x1b\r\x00\x9b\u202e")
    table = Table("name")
    table.add_row(name)
    told = shown(capsys, table)
    assert not set(told) & set("\x1b\r\x00\x9b\u202e")


def test_progress_on_a_terminal_shows_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    paper = Terminal()
    monkeypatch.setattr(sys, "stderr", paper)
    monkeypatch.setattr(console, "QUICK_S", -1.0)
    progress = Console().progress
    progress.warn("x[/b] [red] :smile:")
    assert "warning: x[/b] [red] :smile:" in paper.getvalue()
    with progress.stage("load [/bold] [v2]\x1b]0;title\x07", total=9, unit="[i]") as stage:
        stage.update(3, **{"[/x]\x1b[2J": 1.0})
        stage.bars.refresh()
    drawn = paper.getvalue()
    assert "load [/bold] [v2]\\x1b]0;title\\x07" in drawn and "[/x]\\x1b[2J 1" in drawn and "[i]" in drawn
    assert not {"\x1b]0;", "\x1b[2J"} & set(re.findall("\x1b.{3}", drawn))


def test_bars_show_the_time_left_of_work_whose_units_take_minutes() -> None:
    with console._Bars().stage("fleet", total=10, unit="job") as stage:
        for ended in (1, 2, 3):
            stage.bars.get_time = lambda ended=ended: 100.0 * ended
            stage.update(ended)
        assert stage.bars.tasks[0].time_remaining == 700


def number_options() -> list[tuple[str, str, bool]]:
    """Command, option and whether it takes whole numbers, of every option of every command that is a number."""
    root = typer.main.get_command(app)
    found = [("derive", "--rate", False)]  # read as text, as several rates are another command's
    context = root.make_context("edgevit", [], resilient_parsing=True)
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        spelt = {parameter.name: parameter.opts[0] for parameter in command.params}
        for option, hint in with_options(command.main_function).__annotations__.items():
            kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
            kinds = {int, float} & {kind, *get_args(kind)}
            if kinds:
                found.append((name, spelt[option], kinds == {int}))
    return found


REQUIRED = {
    "derive": ["vit", "--out", "OUT", "--data", "digits"],
    "supernet": ["vit", "--out", "OUT", "--data", "digits"],
    "export": ["nowhere"],
    "bench": ["nowhere"],
    "cost": ["vit"],
    "evaluate": ["nowhere"],
    "base": ["vit", "--out", "OUT"],
    "derive-many": ["nowhere"],
    "fleet": ["nowhere"],
    "show": ["nowhere"],
    "report": ["nowhere"],
    "sweep": ["vit", "--out", "OUT", "--data", "digits", "--rates", "0.5"],
}


@pytest.mark.quick("derive-*", "export-*", "bench-*", "evaluate-*", "cost-*", "prove-*", "report-*", "derive-many-*")
@pytest.mark.parametrize(("command", "option", "whole"), number_options(), ids=lambda v: str(v))
def test_numbers_that_cannot_be_are_refused_in_one_line(
    edgevit_main: Any, tmp_path: Path, command: str, option: str, whole: bool
) -> None:
    given = [str(tmp_path / "out") if a == "OUT" else a for a in REQUIRED.get(command, [])]
    for value in (str(-(2**70)), "9" * 400) if whole else (str(math.nan), str(math.inf), "-inf", "1e999"):
        error = edgevit_main(command, *given, f"{option}={value}").error
        assert option in error and len(error) < 300, error
    assert list(tmp_path.iterdir()) == []


def test_the_sweep_of_numbers_sees_the_options_there_are() -> None:
    seen = {(command, option) for command, option, _ in number_options()}
    assert {("derive", "--rate"), ("derive", "--seed"), ("export", "--fp16-tolerance"), ("bench", "--samples")} <= seen


def test_a_table_that_is_too_wide_has_its_rows_as_columns_and_no_cell_cut_short(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(*(f"figure{i}" for i in range(12)), title="wide")
    table.add_row(*map(str, range(100, 112)))
    monkeypatch.setenv("COLUMNS", "130")
    assert "│ 100     │ 101 " in shown(capsys, table)
    monkeypatch.setenv("COLUMNS", "60")
    told = shown(capsys, table)
    assert "wide" in told and "│ figure11 │ 111 │" in told and "…" not in told
    table = Table("name", "meaning")
    table.add_row("a" * 70, "words " * 30)
    assert shown(capsys, table).count("a") == 72 and max(map(len, shown(capsys, table).splitlines())) <= 60
