"""Where things of the repository lie that tests read."""

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
BOARDS = TESTS / "boards"
STANDINS = TESTS / "standins"
OWN_LOCK = "/."  # as EDGEVIT_BOARD_ROOT: this machine with all its files, under a lock in the cache and not its own


@cache
def syntax_of(file: Path) -> ast.Module:
    """Parse a file of the project, once for all tests of how it is written."""
    return ast.parse(file.read_text("utf-8"))


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    """All nodes of a parsed file: to walk through it takes longer than to parse it."""
    return [*ast.walk(syntax_of(file))]
