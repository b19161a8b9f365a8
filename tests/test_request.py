"""An option is declared once: command line, keywords and records are made from the field."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, fields
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import pytest
from places import ROOT, nodes_of
from recorded_progress import RecordedProgress

import edgevit
from edgevit.board.request import Conditions
from edgevit.engines.options import EngineOptions
from edgevit.errors import EdgeVitError, OptionError
from edgevit.exporting.request import Tolerances
from edgevit.latency.target import MeasurementTarget
from edgevit.request import (
    SHAPE,
    Nested,
    Option,
    assignments,
    options_of,
    plain_request,
    request_from,
    request_of,
    takes_options,
)
from edgevit.train.settings import Training


@dataclass(frozen=True)
class Inner:
    depth: Annotated[int, Option("Depth.", SHAPE)] = 3
    speed: Annotated[float | None, Option("Speed.", SHAPE, name="--pace")] = None
    hidden: int = 0


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: Annotated[str | Path, Option("Name.", None)]
    out: Annotated[Path, Option("Out.", SHAPE)]
    flag: Annotated[bool, Option("Flag.", SHAPE)] = False
    sizes: Annotated[tuple[int, ...], Option("Sizes.", SHAPE, read=lambda t, _: tuple(map(int, t.split(","))))] = (1,)
    more: Annotated[dict[str, Any], Option("More.", SHAPE, repeated=True, read=assignments("--more", "a=1"))] = field(
        default_factory=dict
    )
    inner: Annotated[Inner, Nested(help={"depth": "How deep."})] = field(default_factory=lambda: Inner(depth=5))
    loose: Annotated[dict[str, Any], Nested(Inner, only=("speed",))] = field(default_factory=dict)
    ours: int = 0


def test_options_are_the_fields_that_are_declared_those_of_nested_records_among_them() -> None:
    found = [(a.path, a.name, a.option.help, a.typed) for a in options_of(Outer)]
    assert found == [
        (("name",), "--name", "Name.", str),
        (("out",), "--out", "Out.", Path),
        (("flag",), "--flag", "Flag.", bool),
        (("sizes",), "--sizes", "Sizes.", str),
        (("more",), "--more", "More.", str),
        (("inner", "depth"), "--depth", "How deep.", int),
        (("inner", "speed"), "--pace", "Speed.", float),
        (("loose", "speed"), "--pace", "Speed.", float),
    ]
    assert [a.default for a in options_of(Outer) if a.field == "depth"] == [5], "that of the record it stands in"
    assert [a.field for a in options_of(Outer) if a.required] == ["name", "out"]


def test_what_is_typed_and_what_is_given_from_python_make_the_same_request() -> None:
    typed = {"name": "n", "out": Path("o"), "flag": True, "sizes": "4,8", "more": ["a=1", "b=x"], "depth": 7}
    given = {"name": "n", "out": "o", "flag": True, "sizes": (4, 8), "more": {"a": 1, "b": "x"}, "inner": Inner(7)}
    assert request_from(Outer, {**typed, "speed": None}) == request_of(Outer, given, "f")


def test_none_is_the_default_where_nothing_else_could_be_meant() -> None:
    assert request_of(Outer, {"name": "n", "out": "o", "more": None, "inner": None}, "f").inner.depth == 5


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": "n", "otu": "o"}, "f has no option 'otu'; did you mean 'out'?"),
        ({"name": "n", "out": "o", "ours": 1}, "f has no option 'ours'"),
        ({"name": "n"}, "f needs 'out', which was not given; give out=VALUE: Out."),
        ({"name": None, "out": "o"}, "f needs 'name', which was not given"),
    ],
)
def test_a_keyword_that_is_unknown_or_missing_is_named(given: Any, told: str) -> None:
    with pytest.raises(OptionError) as error:
        request_of(Outer, given, "f")
    assert told in str(error.value)


def test_a_whole_request_is_taken_as_it_is() -> None:
    opened, whole = takes_options(Outer, "name")(lambda request: request), Outer(name="n", out=Path("o"))
    assert opened(whole) is opened(name=whole) is whole
    with pytest.raises(OptionError, match="flag beside it"):
        opened(whole, flag=True)
    with pytest.raises(TypeError, match="takes name by place, and was given 2 values"):
        opened("n", "o")


def test_what_python_alone_need_not_give_is_not_required_there() -> None:
    def opened(request: Outer, progress: Any = None) -> Outer:
        return request

    call = takes_options(Outer, "name", usual={"out": lambda given: Path(given["name"])})(opened)
    progress = RecordedProgress()
    assert call("n", progress=progress) == call("n", out=None) == Outer(name="n", out=Path("n"))
    assert call("n", out="o", progress=progress).out == Path("o")
    assert progress.notes == ["out is n, as none is given"]
    out = signature(call).parameters["out"]
    assert out.default is None and out.annotation == Path | str | None


def test_a_request_is_written_as_json_has_it() -> None:
    told = plain_request(Outer(name="n", out=Path("o")))
    assert (told["out"], told["sizes"], told["inner"]) == ("o", [1], {"depth": 5, "speed": None, "hidden": 0})


FUNCTIONS = [name for name in edgevit.__all__ if name[0].islower()]


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=true", True), ("a=false", False), ("a=False", False), ("a=0", 0), ("a=falsehood", "falsehood")],
)
def test_true_and_false_are_read_in_small_letters_too(text: str, value: Any) -> None:
    assert assignments("--more", "a=1")([text], {}) == {"a": value}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_public_function_has_more_than_a_dozen_parameters(name: str) -> None:
    function = getattr(edgevit, name)
    code = getattr(function, "__wrapped__", function).__code__  # its signature lists the options of its request, too
    assert code.co_argcount + code.co_kwonlyargcount <= 12


def test_no_other_function_has_either() -> None:
    wide = []
    for file in (ROOT / "edgevit").rglob("*.py"):
        for node in nodes_of(file):
            if isinstance(node, ast.FunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                if len([one for one in given if one.arg not in ("self", "cls")]) > 12:
                    wide.append(f"{file.name}: {node.name}")
    assert wide == []


ASKED = {
    "base": edgevit.BaseRequest, "bench": edgevit.BenchRequest, "bench_in_turns": edgevit.BenchRequest,
    "compare": edgevit.CompareRequest, "cost": edgevit.CostRequest, "derive": edgevit.DeriveRequest,
    "derive_many": edgevit.DeriveManyRequest, "evaluate": edgevit.EvaluateRequest, "export": edgevit.ExportRequest,
    "fleet": edgevit.FleetRequest, "meet": edgevit.MeetRequest, "characterize": edgevit.CharacterizeRequest,
    "package": edgevit.PackageRequest, "report": edgevit.ReportRequest, "supernet": edgevit.SupernetRequest,
    "sweep": edgevit.SweepRequest,
}  # fmt: skip


def test_every_public_function_but_the_one_that_opens_a_folder_takes_a_request() -> None:
    assert {*ASKED, "load"} == set(FUNCTIONS)


def impossible(name: str, tmp_path: Path) -> dict[str, Any]:
    """Keywords that are refused before anything is begun."""
    known = {asked.field for asked in options_of(ASKED[name])}
    given = {a.field: tmp_path / "nowhere" for a in options_of(ASKED[name]) if a.required}
    given |= {"base": str(tmp_path / "nowhere")} if "base" in known else {}
    several = {field: (tmp_path / "nowhere",) for field in ("models", "paths") if field in known}
    return {**given, **several, **({"output": tmp_path / "none" / "x.json"} if "output" in known else {})}


@pytest.mark.parametrize("name", ASKED)
def test_keywords_and_a_whole_request_are_the_same_to_a_public_function(name: str, tmp_path: Path) -> None:
    function, given = getattr(edgevit, name), impossible(name, tmp_path)
    with pytest.raises(EdgeVitError) as by_keywords:
        function(**given)
    with pytest.raises(EdgeVitError) as whole:
        function(ASKED[name](**given))
    assert str(whole.value) == str(by_keywords.value) and type(whole.value) is type(by_keywords.value)
    with pytest.raises(OptionError, match=f"a whole {ASKED[name].__name__} was given, and .* beside it"):
        function(ASKED[name](**given), **{options_of(ASKED[name])[-1].field: 1})


@pytest.mark.parametrize("name", ASKED)
def test_a_misspelt_keyword_of_a_public_function_is_named_with_the_nearest(name: str) -> None:
    field = options_of(ASKED[name])[-1].field
    message = rf"^edgevit\.{name} has no option '{field}x'; did you mean '{field}'\?$"
    with pytest.raises(OptionError, match=message):
        getattr(edgevit, name)("nowhere", **{f"{field}x": 1})


# Fields that no option gives: what one request tells another, and settings that only a test has wanted to change.
UNASKED = {
    "DeriveRequest": {"at_least", "at_least_embed", "by_class", "job"}, "MeetRequest": {"among_others", "by_class"},
    "Tolerances": {"fp32_error", "fp32_agreement", "int8_error", "int8_agreement"},
    "EngineOptions": {"timing_cache", "most_probes"},
    "EvaluateRequest": {"validation_fraction"}, "BaseRequest": {"checked"},
}  # fmt: skip


@pytest.mark.parametrize(
    "kind", dict.fromkeys([*ASKED.values(), Training, Conditions, Tolerances, EngineOptions, MeasurementTarget])
)
def test_a_field_of_a_request_is_an_option_unless_it_is_known_not_to_be(kind: Any) -> None:
    options = {asked.path[0] for asked in options_of(kind)}
    assert {one.name for one in fields(kind)} - options == UNASKED.get(kind.__name__, set())


def test_a_record_inside_of_a_request_is_given_as_a_whole_or_option_by_option() -> None:
    given = {"name": "n", "out": "o"}
    assert request_of(Outer, {**given, "depth": 7, "flag": True}, "f").inner == Inner(depth=7)
    assert request_of(Outer, {**given, "depth": None, "flag": None}, "f").inner == Inner(depth=5)
    with pytest.raises(OptionError, match="f was given 'inner' as a whole, and depth of it; leave that out"):
        request_of(Outer, {**given, "inner": Inner(7), "depth": 7}, "f")
    with pytest.raises(OptionError, match=r"f takes 'inner' as Inner, and was given .*; or give the options of Inner"):
        request_of(Outer, {**given, "inner": {"depth": 7}}, "f")
    deep = request_of(edgevit.ExportRequest, {"model": "m", "drop": 0.5, "rebuild": True}, "f")
    assert (deep.engine.tolerances.drop, deep.engine.rebuild, deep.engine.batches) == (0.5, True, (1, 1, 8))


def test_every_field_of_every_request_has_a_default_that_its_class_takes() -> None:
    for name in [n for n in edgevit.__all__ if n.endswith("Request")]:
        kind = getattr(edgevit, name)
        needed = {a.field: Path("x") for a in options_of(kind) if a.required}
        assert {one.name for one in fields(kind)} >= set(plain_request(request_of(kind, needed, name)))
