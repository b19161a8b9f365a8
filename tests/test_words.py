"""Identifiers are nouns and verbs that say what they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from places import ROOT, nodes_of

BANNED = frozenset(
    """asked beside comes feel feels felt found given goes going gone here hold holds how kept kin known left lies made
    meant mend mine one other ours own rest said same saying says seen stands stays stood such taken telling theirs
    there told wanted what where who whose why whys""".split()  # noqa: SIM905
)
MOST = 0.003  # share of the identifiers


def identifiers(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Functions, classes, parameters, variables and fields, each with its line."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name.lower(), node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield (node.id if isinstance(node, ast.Name) else node.attr), node.lineno


def test_no_identifier_is_a_riddle() -> None:
    names, riddles = 0, []
    for file in sorted(Path(ROOT, "edgevit").rglob("*.py")):
        for name, line in identifiers(nodes_of(file)):
            names += 1
            if name.strip("_") in BANNED:
                riddles.append(f"{file.relative_to(ROOT)}:{line} {name}")
    assert names > 10_000
    assert len(riddles) <= MOST * names, "\n".join(riddles)
