"""What derive and base are asked: every field is an option with help, a key of a jobs file, in request.json.

No field is named here: one that is added is held to the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from edgevit.cli.app import app
from edgevit.derivation.request import BaseRequest, DeriveRequest
from edgevit.errors import EdgeVitError
from edgevit.jobs.jobs_file import EXAMPLE, OWN_KEYS, BudgetEntry, JobsFile, MethodEntry, TaskEntry
from edgevit.records.unfinished import open_partial, partial_folder
from edgevit.request import options_of, plain_request
from edgevit.train.settings import Training

# Which derive-many itself gives, a search for a budget, and a sweep by probes.
NOT_OPTIONS = {"job", "at_least", "at_least_embed", "by_class"}
COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
ASKED = options_of(DeriveRequest)
NAMES = [pytest.param(one, id=one.field) for one in ASKED]


def test_every_field_is_an_option_or_known_to_be_none() -> None:
    declared = {one.path[0] for one in ASKED}
    assert {one.name for one in fields(DeriveRequest)} - declared == NOT_OPTIONS
    assert {one.path[1] for one in ASKED if one.path[0] == "training"} == {one.name for one in fields(Training)}


@pytest.mark.parametrize("asked", NAMES)
def test_it_is_an_option_of_the_command_with_its_help_and_default(asked: Any) -> None:
    parameter = next(p for p in COMMANDS["derive"].params if p.name == asked.field)
    assert parameter.help == asked.option.help and asked.option.help.partition("  [")[0].endswith(".")
    if asked.option.panel is not None:
        assert asked.name in parameter.opts and parameter.rich_help_panel == asked.option.panel
    assert parameter.required == asked.required
    if asked.option.read is None and not isinstance(asked.default, dict) and not asked.required:
        assert parameter.default == asked.default


@pytest.mark.parametrize("name", sorted({one.path[0] for one in ASKED} - set(OWN_KEYS)))
def test_it_is_a_key_of_a_file_of_jobs_and_the_example_has_it(name: str) -> None:
    kinds: Any = (JobsFile, TaskEntry, BudgetEntry, MethodEntry)
    assert any(name in kind.model_fields for kind in kinds)
    assert f"{name}:" in EXAMPLE.read_text()


def test_request_json_states_the_whole_request(tmp_path: Path) -> None:
    request = DeriveRequest(out=tmp_path / "m", base="vit")
    with open_partial(request.out, {}, False, request=request.plain()):
        pass
    record = json.loads((partial_folder(request.out) / "request.json").read_text())
    assert record["request"] == plain_request(request) and record["edgevit"]
    assert record["request"]["training"]["lr"] == 1e-4


REST: dict[str, Any] = {"base": "vit", "data": "digits", "rate": 0.5, "rest_rate": 0.5, "output": "boxes"}
HEAD: dict[str, Any] = {"base": "vit", "data": "digits", "head_blocks": 4}
REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (DeriveRequest, {"base": "vit", "rate": 0.5}, "--data is missing"),
    (DeriveRequest, {"base": "vit", "data": "digits"}, "a budget is one of"),
    (DeriveRequest, {"base": "vit", "data": "digits", "rate": 0.5, "preprocessing": {"std": [0.0]}}, "--std 0 is not"),
    (DeriveRequest, {"base": "vit", "data": "digits", "rate": 0.5, "head": "half"}, "no head 'half'"),
    (DeriveRequest, {"base": "vit", "data": "digits", "rate": 0.5, "head_blocks": 0}, "--head-blocks 0 is not in"),
    (DeriveRequest, {**REST, "rest_rate": 0, "head_blocks": 4}, "--head-blocks 4 is for classes"),
    (
        DeriveRequest,
        {**HEAD, "rate": 0.5, "remove_blocks": 1},
        "their tokens .* which --remove-blocks cannot",
    ),
    (DeriveRequest, {**HEAD, "rate": 0.5, "method": "heart"}, "for the head, which --method heart cannot"),
    (DeriveRequest, {**HEAD, "ms": 5.0}, "for the head, which --ms cannot"),
    (DeriveRequest, {**REST, "rest_rate": 1.0}, r"--rest-rate 1 is not in \[0, 1\)"),
    (DeriveRequest, {**REST, "output": "classes"}, "--rest-rate is for a head of your own .* --output is classes"),
    (DeriveRequest, {**REST, "output": "features:patches"}, "nothing is behind its backbone"),
    (DeriveRequest, {**REST, "budget_of": "whole"}, "--rest-rate and --budget-of whole both count"),
    (DeriveRequest, {**REST, "rate": None, "ms": 5.0}, "--rest-rate removes more than --ms measures"),
    (BaseRequest, {"name": "vit"}, "needs weights"),
]


@pytest.mark.parametrize(("kind", "given", "told"), REFUSED)
def test_what_cannot_be_is_refused_from_python_as_from_the_command_line(
    kind: Callable[..., Any], given: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(EdgeVitError, match=told):
        kind(out=tmp_path / "m", **given).check()
