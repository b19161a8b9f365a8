"""Every option of every command is explained by a plain sentence, in a panel that says what it is about."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from edgevit.cli.app import app
from edgevit.derivation.methods import method_names

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
RIDDLES = (
    "have met", "both accuracies", "central share", "as measured", "slice lacks", "derive/methods/", "instead of its",
    "looked at", "print it", "third baseline: ", "at least.",
)  # fmt: skip
NO_SENTENCE = re.compile(r"^(of|for the|instead|such as|within|before|repeatable)\b", re.IGNORECASE)


def sentence(parameter: Any) -> str:
    """The help without the default that is written behind it by hand."""
    return re.sub(r"  \[default: .+\]$", "", parameter.help or "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_a_plain_sentence_in_a_named_panel(name: str) -> None:
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name != "option" or parameter.hidden:
            continue
        text, said = sentence(parameter), f"{parameter.opts[0]}: {parameter.help}"
        assert text.endswith(".") and len(text.split()) > 2, said
        assert text[0].isupper() and not NO_SENTENCE.match(text), said
        assert not [riddle for riddle in RIDDLES if riddle in text.lower()], said
        assert parameter.rich_help_panel not in (None, "Options"), said


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_argument_is_explained(name: str) -> None:
    command = COMMANDS[name]
    assert command.help and command.help.splitlines()[0].endswith(".")
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            assert sentence(parameter).endswith("."), parameter.name


def screen(edgevit_main: Any, *arguments: str) -> list[str]:
    """The options that a help shows, by their first names."""
    lines = edgevit_main(*arguments).out.splitlines()
    return [line.split()[0].strip(",") for line in lines if re.match(r"  -", line)]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_first_screen_has_at_most_20_options_and_types_are_words(edgevit_main: Any, name: str) -> None:
    shown = edgevit_main(name, "--help").out
    assert len(re.findall(r"^  -", shown, re.MULTILINE)) <= 20
    whole = edgevit_main(name, "--help-all").out
    assert "more options" not in whole and not re.search(r"<\w+>", shown + whole)
    every = {p.opts[0] for p in COMMANDS[name].params if p.param_type_name == "option" and not p.hidden}
    assert set(screen(edgevit_main, name, "--help-all")) >= every - {"--help-all"}
    assert (f"more options: edgevit {name} --help-all" in shown) == ("--help-all" in shown) == (len(every) > 20)


def test_the_first_screen_of_derive_goes_from_the_data_and_the_budget_to_the_output(edgevit_main: Any) -> None:
    shown = screen(edgevit_main, "derive", "--help")
    for option in ("--data", "--classes", "--rate", "--ms", "--out", "--checkpoint", "--method", "--board", "--resume"):
        assert option in shown, option
    assert shown.index("--data") < shown.index("--rate") < shown.index("--out")
    text = edgevit_main("derive", "--help").out
    assert "--rate NUMBER" in text and "--out FOLDER" in text and "--checkpoint FILE" in text


def test_the_first_screen_of_bench_begins_with_the_board_and_ends_with_the_judgement(edgevit_main: Any) -> None:
    first, *_, gate, compare, output = screen(edgevit_main, "bench", "--help")[:-3]
    assert (first, gate, compare, output) == ("--board", "--gate", "--compare", "--output")


def test_the_list_of_commands_begins_with_those_that_most_people_need(edgevit_main: Any) -> None:
    first, _, more = edgevit_main("--help").out.partition("More commands:")
    commands = re.findall(r"^  ([a-z-]+)  ", first.partition("Commands:")[2], re.MULTILINE)
    assert commands[:4] == ["derive", "sweep", "export", "bench"] and len(commands) <= 10
    assert "derive-many" in more and "prove" not in first + more


def test_derive_names_its_methods_and_how_to_see_their_options() -> None:
    helps = {parameter.opts[0]: parameter.help for parameter in COMMANDS["derive"].params if hasattr(parameter, "help")}
    assert all(name in helps["--method"] for name in method_names())
    assert "edgevit methods METHOD" in helps["--set"] and "edgevit methods supernet" in next(
        p.help for p in COMMANDS["supernet"].params if p.opts[0] == "--set"
    )


def test_the_list_that_decides_everything_stands_beside_the_data() -> None:
    order = [parameter.opts[0] for parameter in COMMANDS["derive"].params]
    data = order.index("--data")
    assert order[data : data + 3] == ["--data", "--classes", "--base-classes"]


def test_an_earlier_spelling_goes_on_working_unseen(edgevit_main: Any) -> None:
    assert "--rate" not in edgevit_main("supernet", "--help-all").out.replace("--smallest-rate", "")
    for spelling in ("--rate", "--smallest-rate"):
        error = edgevit_main("supernet", "vit", "--data", "digits", "--out", "o", spelling, "2").error
        assert "--rate 2 is not between 0 and 1" in error
