"""`--config FILE` gives a command its options: typed as they are typed, and the command line wins."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import ROOT
from typer.main import get_command

from edgevit.cli.app import app
from edgevit.cli.command import Command
from edgevit.request import request_from

COMMANDS: dict[str, Command] = get_command(app).commands  # type: ignore[attr-defined]


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(content: Any) -> Path:
        file = tmp_path / "c.yaml"
        file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return file

    return write


def built(command: str, *arguments: object) -> Any:
    """The request that a command line makes."""
    from edgevit.derivation.request import BaseRequest, DeriveRequest
    from edgevit.engines.request import EvaluateRequest
    from edgevit.jobs.sweep.request import SweepRequest

    kinds = {"derive": DeriveRequest, "sweep": SweepRequest, "base": BaseRequest, "evaluate": EvaluateRequest}
    kind: Any = kinds[command]
    with COMMANDS[command].make_context(command, [str(a) for a in arguments]) as context:
        return request_from(kind, context.params)


TYPED = [
    "vit_tiny_patch16_224", "--checkpoint", "w.pt", "--data", "photos", "--classes", "robin,jay", "--rate", "0.6",
    "--model-arg", "img_size=32", "--model-arg", "global_pool=avg", "--set", "forge.calibration_images=8", "--set",
    "forge.drop_blocks=False", "--mean", "0.5", "--std", "0.4,0.5,0.6", "--lr", "2e-4", "--steps", "7",
    "--no-lr-by-loss", "--no-early-stop", "--skip-bad-images", "--no-cache", "--out", "runs/t1",
]  # fmt: skip
WRITTEN = {
    "base": "vit_tiny_patch16_224", "checkpoint": "w.pt", "data": "photos", "classes": ["robin", "jay"], "rate": 0.6,
    "model-arg": {"img_size": 32, "global_pool": "avg"},
    "set": {"forge.calibration_images": 8, "forge.drop_blocks": False},
    "mean": 0.5, "std": [0.4, 0.5, 0.6], "lr": 2e-4, "steps": 7, "lr-by-loss": False, "early_stop": False,
    "skip-bad-images": True, "cache": False, "out": "runs/t1",
}  # fmt: skip


def test_a_file_makes_the_request_that_the_command_line_makes(write: Any) -> None:
    assert built("derive", "--config", write(WRITTEN)) == built("derive", *TYPED)


def test_names_may_have_dashes_or_underscores_or_be_those_of_python(write: Any) -> None:
    changed = {key.replace("-", "_"): value for key, value in WRITTEN.items()}
    changed["model_args"], changed["options"] = changed.pop("model_arg"), changed.pop("set")
    assert built("derive", "--config", write(changed)) == built("derive", *TYPED)


@pytest.mark.parametrize(
    ("command", "own", "more"), [("base", "name", {"out": "o"}), ("evaluate", "model", {"data": "digits"})]
)
def test_what_other_commands_call_base_may_be_called_so(
    write: Any, edgevit_main: Any, command: str, own: str, more: dict[str, str]
) -> None:
    file = write({"base": "vit", "checkpoint": "w.pt", **more})
    typed = [text for name, value in more.items() for text in (f"--{name}", value)]
    assert built(command, "--config", file) == built(command, "vit", "--checkpoint", "w.pt", *typed)
    assert getattr(built(command, "vitt", "--config", file), own) == "vitt", "the command line wins"
    twice = write({"base": "vit", own: "vit", **more})
    assert "by another name; leave one out" in edgevit_main(command, "--config", twice).error


def test_the_command_line_wins(write: Any) -> None:
    asked = built("derive", "other", "--config", write(WRITTEN), "--lr", "1", "--early-stop", "--set", "forge.align=no")
    assert (asked.base, asked.training.lr, asked.training.early_stop) == ("other", 1.0, True)
    assert asked.options == {"align": "no"} and asked.training.steps == 7


def test_null_is_the_default(write: Any) -> None:
    assert built("derive", "--out", "o", "--config", write({"lr": None, "steps": None})).training.lr == 1e-4


def test_lists_of_numbers_and_names_with_commas(write: Any) -> None:
    asked = built(
        "sweep", "--config", write({"base": "v", "data": "d", "out": "o", "rates": [0.9, 0.5], "classes": ["a, b", 3]})
    )
    assert asked.rates == (0.5, 0.9) and asked.classes == '"a, b",3'


def test_the_file_in_the_tutorial_is_read(write: Any) -> None:
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    block = next(part for part in tutorial.split("```") if part.startswith("yaml\n# derive.yaml"))
    asked = built("derive", "--config", write(block.removeprefix("yaml\n")), "--rate", "0.8", "--out", "runs/t8")
    assert (asked.rate, asked.classes, asked.training.lr) == (0.8, "n01440764,n01443537", 2e-4)
    assert asked.options == {"cut_tokens": "never"}


REFUSED = [
    ("derive", {"lrr": 1}, "c.yaml has the unknown key 'lrr'; did you mean 'lr'?"),
    ("derive", {"skip-bad-image": True}, "did you mean 'skip-bad-images'?"),
    ("derive", {"training": {"lr": 1}}, "c.yaml has the unknown key 'training'"),
    ("derive", {"lr": "fast"}, "c.yaml has lr 'fast': "),
    ("derive", {"lr": [1, 2]}, "c.yaml has lr [1, 2]: "),
    ("derive", {"steps": 1.5}, "c.yaml has steps 1.5: "),
    ("derive", {"steps": True}, "c.yaml has steps True, expected a text or a number: put it in quotes"),
    ("derive", {"overwrite": "maybe"}, "c.yaml has overwrite 'maybe', expected true or false"),
    ("derive", {"shape": {"a": 1}}, "c.yaml has shape as a mapping, expected one value"),
    ("derive", {"model-arg": {"a": 1}, "model_args": {"a": 1}}, "and the same by another name; leave one out"),
    ("derive", {"config": "other.yaml"}, "has the unknown key 'config'"),
    ("derive", "lr: 1\nlr: 2", "the key 'lr' is there twice"),
    ("derive", "- lr", "has a list, expected"),
    ("derive", "lr: [", "c.yaml is not YAML"),
    ("derive", {"shape": "fuse", "rate": 0.5, "base": "v", "data": "digits", "out": "o"}, "no shape policy 'fuse'"),
    ("bench", {"batchs": 1}, "did you mean 'batch'?"),
    ("bench", {"batch": ["one"]}, "c.yaml has batch ['one']: "),
    ("show", {"jsn": True}, "did you mean 'json'?"),
    ("compare", {"before": "nowhere.jsonl"}, "nowhere.jsonl"),
    ("export", {"model": "nowhere", "opset": 3}, "opset 3"),
    ("derive-many", {"jobs": "nowhere.yaml"}, "nowhere.yaml"),
]  # fmt: skip


GIVEN = {"base": "v", "data": "d", "rate": 0.9, "out": "o"}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"set": {"nuwa.ridge": 1}}, "an option of 'nuwa', but the method is 'forge'"),
        ({"set": {"forge.allign": 1}}, "forge has no option 'allign'; did you mean 'align'"),
        ({"classes": [{"a": 1}]}, "expected a text or a number: put it in quotes"),
    ],
)
def test_a_wrong_option_in_a_file_is_refused_in_one_line(
    edgevit_main: Any, write: Any, more: dict[str, Any], told: str
) -> None:
    assert told in edgevit_main("derive", "--config", write({**GIVEN, "data": "digits", **more})).error


@pytest.mark.parametrize(("command", "content", "told"), REFUSED, ids=[f"{c} {d}" for c, d, _ in REFUSED])
def test_a_file_that_cannot_be_is_one_line(
    edgevit_main: Any, write: Any, command: str, content: Any, told: str
) -> None:
    assert told in edgevit_main(command, "--config", write(content)).error


def test_a_file_that_is_not_there_is_one_line(edgevit_main: Any) -> None:
    assert "there is no nowhere.yaml" in edgevit_main("derive", "--config", "nowhere.yaml").error


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_a_file_with_any_of_its_options(name: str, write: Any) -> None:
    parameters = {p.name: p for p in COMMANDS[name].params}
    assert parameters["config"].opts == ["--config"]
    switches = [p for p in parameters.values() if getattr(p, "is_flag", False)]
    flags = {p.opts[0].lstrip("-"): True for p in switches if p.name not in ("example", "help_all")}
    needed = {p.name: ["x"] if p.nargs == -1 else "x" for p in parameters.values() if p.required}
    with COMMANDS[name].make_context(name, ["--config", str(write({**needed, **flags}))]) as context:
        taken = {p.opts[0].lstrip("-"): context.params[p.name] for p in parameters.values() if p.name in context.params}
    assert all(taken[flag] is True for flag in flags)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_an_unknown_key_with_the_nearest_that_it_knows(
    name: str, edgevit_main: Any, write: Any
) -> None:
    for parameter in COMMANDS[name].params[::8]:
        known = parameter.opts[0].lstrip("-")
        if known not in ("help", "help-all", "config"):
            error = edgevit_main(name, "--config", write({f"{known}q": "x"})).error
            assert re.search(rf"has the unknown key '{known}q'; did you mean '{known}'\?", error.replace("_", "-"))


def file_and_typed(parameter: Any) -> tuple[Any, list[str]]:
    """What a file has of an option, and what is typed."""
    if getattr(parameter, "is_flag", False):
        on = not parameter.secondary_opts
        return not on, [parameter.opts[0] if on else parameter.secondary_opts[0]]
    return 1, ["2"] if parameter.param_type_name == "argument" else [parameter.opts[0], "2"]


@pytest.mark.parametrize("name", COMMANDS)
def test_of_every_option_of_every_command_the_command_line_wins(name: str, write: Any) -> None:
    parameters = [p for p in COMMANDS[name].params if p.name not in ("config", "help", "help_all", "example")]
    held = {p.opts[0].lstrip("-"): file_and_typed(p) for p in parameters}
    file = ["--config", str(write({one: told for one, (told, _) in held.items()}))]
    typed = [text for _, texts in held.values() for text in texts]

    def taken(*arguments: str) -> dict[str, Any]:
        with COMMANDS[name].make_context(name, list(arguments)) as context:
            return {p.name: context.params[p.name] for p in parameters}

    assert taken(*file, *typed) == taken(*typed)
    assert not [one for one, value in taken(*file).items() if value == taken(*typed)[one]], "the file says otherwise"


def test_a_command_that_is_named_next_has_what_the_file_says(write: Any, edgevit_main: Any) -> None:
    from edgevit.cli.arguments import repeated

    group = get_command(app)
    with group.make_context("edgevit", ["derive"]) as above:
        line = ["--config", str(write(WRITTEN)), "--rate", "0.7"]
        with COMMANDS["derive"].make_context("derive", line, parent=above) as context:
            told = repeated(context, "sweep", rates="0.5")
    assert told.startswith("edgevit sweep vit_tiny_patch16_224 --checkpoint w.pt --model-arg global_pool=avg")
    assert "--config" not in told and "--no-cache" in told and "--rates 0.5" in told and "--rate " not in told


def test_json_is_the_same_from_a_file(edgevit_main: Any, write: Any) -> None:
    assert json.loads(edgevit_main("methods", "forge", "--config", write({"json": True})).out)["name"] == "forge"
