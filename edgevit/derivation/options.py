"""Read the options of a method from its source, and turn `--set method.option=value` into its Config.

The source is read and not imported: a method imports torch, and listing or misspelling options should not wait for
that. An option is a field of the method's `Config`; the comments above and after the field explain it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from operator import index
from pathlib import Path
from typing import Any, TypeVar

from edgevit.derivation.methods import method_module, method_names
from edgevit.errors import OptionError, UnknownNameError
from edgevit.numbers import FINITE, WORD, check_number

C = TypeVar("C")
SUPERNET = "supernet"  # not a method, but its options are given like a method's
_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
_PLAIN: dict[str, type] = {"bool": bool, "int": int, "float": float, "str": str}


@dataclass(frozen=True)
class MethodOption:
    """One field of a Config."""

    name: str
    kind: type | tuple[str, ...]  # bool, int, float or str; or the allowed words
    default: str  # default value as Python writes it, words without quotes
    explanation: str

    def convert(self, owner: str, value: Any) -> Any:
        """Convert a value, or its text, to this option's type.

        Raises:
            OptionError, UnknownNameError: it cannot be converted.
        """
        name = f"{owner}.{self.name}"
        if isinstance(self.kind, tuple):
            if str(value) not in self.kind:
                raise UnknownNameError("value", str(value), self.kind, owner=name)
            return str(value)
        if self.kind is bool:
            lowered = str(value).lower()
            if lowered not in _TRUE | _FALSE:
                raise OptionError(f"{name}={value} is neither true nor false")
            return lowered in _TRUE
        try:
            number = (
                index(value) if self.kind is int and not isinstance(value, str) else self.kind(value)
            )  # not 5 of 5.5
        except (TypeError, ValueError, OverflowError):
            raise OptionError(f"{name}={value} is not of type {self.kind.__name__}") from None
        if self.kind is not str:
            check_number(name, number, WORD if self.kind is int else FINITE)
        return number


@dataclass(frozen=True)
class MethodDescription:
    """What the source of a method declares."""

    name: str
    summary: str  # the first line of the method's docstring
    options: tuple[MethodOption, ...]
    needs_images: bool  # False: it needs images only if it is asked to train
    needs_labels: bool  # False: it can cut a network whose outputs are not classes
    drops_tokens: bool  # whether it drops tokens, so that no head may read those of earlier blocks

    @property
    def slices(self) -> bool:
        """Whether the method cuts a super-network in place of a base."""
        return "supernet" in {option.name for option in self.options}


@lru_cache
def describe(name: str) -> MethodDescription:
    """Describe a method, or the making of a super-network.

    Raises:
        UnknownNameError: there is no such method.
    """
    if name == SUPERNET:
        module = f"edgevit.derivation.session.{name}"
    elif name in method_names():
        module = method_module(name)
    else:
        raise UnknownNameError("method", name, method_names())
    source = _Source.of(module)
    summary = (ast.get_docstring(source.tree) or "").partition("\n")[0]
    needs_images, needs_labels, drops_tokens = map(source.value, ("NEEDS_IMAGES", "NEEDS_LABELS", "DROPS_TOKENS"))
    return MethodDescription(
        name,
        summary,
        tuple(_options(source, "Config").values()),
        needs_images is None or ast.literal_eval(needs_images),
        needs_labels is None or ast.literal_eval(needs_labels),
        drops_tokens is not None,
    )


def read_options(owner: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options, by value or by text, to the arguments of the Config of a method, or of the super-network.

    Raises:
        UnknownNameError: no such method or option, or no such value of it.
        OptionError: a value of the wrong type.
    """
    fields = {option.name: option for option in describe(owner).options}
    for name in options:
        if name not in fields:
            raise UnknownNameError("option", name, fields, owner=owner)
    return {name: fields[name].convert(owner, value) for name, value in options.items()}


def make_config(owner: str, config: type[C], options: Mapping[str, Any]) -> C:
    """Build a method's Config from its defaults and these options, by value or by text.

    Raises:
        UnknownNameError, OptionError: as `read_options` and the Config itself say.
    """
    return config(**read_options(owner, options))


def parse_assignments(owner: str, assignments: Iterable[str]) -> dict[str, str]:
    """Turn `vulcan.rho=0.5` into {"rho": "0.5"}, for the method `owner`.

    Raises:
        OptionError: it is no assignment, or one to another method.
    """
    options: dict[str, str] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        method, dot, option = name.strip().partition(".")
        if not equals or not dot:
            raise OptionError(f"--set {text} is not of the form method.option=value; try --set {owner}.option=value")
        if method != owner:
            raise OptionError(f"--set {text} is an option of {method!r}, but the method is {owner!r}")
        options[option] = value.strip()
    return options


# -- the source --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """A module of edgevit as it is written."""

    lines: list[str]
    tree: ast.Module

    @classmethod
    def of(cls, module: str) -> _Source:
        spec = find_spec(module)  # imports the packages above it, which import nothing
        assert spec is not None and spec.origin is not None, module
        text = Path(spec.origin).read_text("utf-8")
        return cls(text.splitlines(), ast.parse(text))

    def value(self, name: str) -> ast.expr | None:
        """What a name of the module is set to; None if nothing is."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                return node.value
        return None

    def origin(self, name: str) -> _Source | None:
        """The module that a name is imported from; None if it is not imported from edgevit."""
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
                return _Source.of(node.module) if node.module and node.module.startswith("edgevit.") else None
        return None


def _options(source: _Source, name: str) -> dict[str, MethodOption]:
    """The fields of a class and of those it inherits from, in the order in which a dataclass has them."""
    definition = next((n for n in source.tree.body if isinstance(n, ast.ClassDef) and n.name == name), None)
    if definition is None:
        origin = source.origin(name)
        assert origin is not None, f"no class {name} to read options from"
        return _options(origin, name)
    inherited = (_options(source, base.id) for base in reversed(definition.bases) if isinstance(base, ast.Name))
    options = {n: option for fields in inherited for n, option in fields.items()}
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            assert node.value is not None, f"option {node.target.id} has no default"
            default = node.value.value if isinstance(node.value, ast.Constant) else ast.unparse(node.value)
            explanation = " ".join(_comments(source.lines, node))
            kind = _kind(source, node.annotation)
            options[node.target.id] = MethodOption(node.target.id, kind, str(default), explanation)
    return options


def _comments(lines: list[str], node: ast.AnnAssign) -> Iterator[str]:
    """The comments of a field: whole lines above it, and what follows it on its last line."""
    first = node.lineno - 1
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    assert node.end_lineno is not None
    behind = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
    for text in (*lines[first : node.lineno - 1], behind):
        if "#" in text:
            yield text.partition("#")[2].strip()


def _kind(source: _Source, annotation: ast.expr) -> type | tuple[str, ...]:
    """What an annotation allows: a plain type, Literal[...], or a name for that."""
    if isinstance(annotation, ast.Name):
        if annotation.id in _PLAIN:
            return _PLAIN[annotation.id]
        if (alias := source.value(annotation.id)) is not None:
            return _kind(source, alias)
        if (origin := source.origin(annotation.id)) is not None:
            return _kind(origin, annotation)
    is_literal = isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal"
    assert is_literal, f"an option is a bool, int, float, str or Literal, not {ast.unparse(annotation)}"
    assert isinstance(annotation, ast.Subscript)
    words = ast.literal_eval(annotation.slice)
    return words if isinstance(words, tuple) else (words,)
