"""Tests mirror the package: edgevit/a/b.py is tested in tests/a/test_b.py, and a test file names its module.

And a public class or function has a name of its own in the package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from places import ROOT, TESTS, nodes_of, syntax_of

# What tests no single module, and why.
OF_MANY_MODULES = {
    "test_layout.py": "this",
    "test_project.py": "README, changelog and results, which are files of the project",
    "test_makefile.py": "the Makefile",
    "test_docs.py": "docs/, and the worked examples in it",
    "test_deploy.py": "deploy/, which is copied to a board and is not in the package",
    "test_imports.py": "what is imported by which modules",
    "test_words.py": "the names of identifiers",
    "test_schemas.py": "docs/schemas, which are made from the records",
    "benchmarks/test_readme.py": "figures of the README, which are those of the records",
    "test_files.py": "every file that edgevit reads, spoilt, with every command that reads it",
    "agent/test_board_parsers.py": "everything that reads a board, with a hostile board",
    "cli/test_bad_input.py": "every mistake that a person can make, over all commands",
    "cli/test_refusals.py": "which mistakes are refused before torch is imported, over all commands",
    "cli/test_help.py": "every option of every command",
    "cli/test_whole_board.py": "the commands of docs/boards.md in a row, on a board",
}
BY_PROTOCOL = {"Config", "Meter"}  # names of classes that every file of a folder has to define
# Names of functions that stand in several modules, and why: each is one idea there.
FUNCTIONS_BY_PROTOCOL = {
    "every command, and the agent's program": {"main"},
    "every method (edgevit/derivation/method.py)": {
        "derive", "default_steps", "search_space", "check_options"
    },
    "every source of images": {"class_names", "matches", "open_images", "open_pictures", "open_source"},
    "every runner of the agent": {"open_runner", "open_profiler"},
    "every meter of the agent": {"why_not"},
    "every family (`Family`, `Interchange`), and other code for a network": {
        "adopted", "answers", "blocks", "build", "check", "ends", "first_tokens", "fitted", "geometry",
        "guessed_arguments", "guessed_name", "keep_blocks", "keep_classes", "make_classifiers", "named", "of_one_size",
        "plain_loader", "resize", "shape_arguments", "stated_arguments", "timm_arguments", "with_embedding"
    },
    "what the agent does when asked, in its own program and as the function that does it": {
        "alternate", "measure", "profile"
    },
    "what the agent and the host both do: the agent imports nothing else of edgevit": {
        "bench", "build_plan", "cache_folder", "count_fused", "examine"
    },
    "what `edgevit cache` asks of either folder": {"clear", "entries"},
    "why one axis stays as it is": {"reason_against"},
    "the plan of what a method chose": {"plan_of"},
    "what to type after a command": {"next_command"},
    "a record of what something is: a method by its source, a network": {"describe"},
}  # fmt: skip


def modules() -> Iterator[tuple[str, Path]]:
    """Every module by its place, "derivation/methods/forge/method"; a package with code in it by that of its folder."""
    for file in sorted((ROOT / "edgevit").rglob("*.py")):
        place = file.relative_to(ROOT / "edgevit").with_suffix("")
        name = str(place.parent if place.name == "__init__" else place).replace("__", "")
        yield "edgevit" if name == "." else name, file


def has_code(file: Path) -> bool:
    """Whether there is anything to test: a function, or a class that has one."""
    return any(isinstance(node, ast.FunctionDef) and node.body for node in nodes_of(file))


def mirror(module: str) -> str:
    folder, _, name = module.rpartition("/")
    return f"{folder}/test_{name}.py" if folder else f"test_{name}.py"


def has_tests(file: Path) -> bool:
    return file.exists() and "\ndef test_" in file.read_text("utf-8")


def test_every_module_with_code_has_tests_in_a_file_of_its_name() -> None:
    without = {module for module, file in modules() if has_code(file) and not has_tests(TESTS / mirror(module))}
    assert without == set()


def test_every_test_file_is_of_a_module() -> None:
    """Or of one side of it: board/test_bench_in_turns.py stands beside board/test_bench.py."""
    scripts = (ROOT / "benchmarks").rglob("*.py")
    mirrors = {mirror(module).removesuffix(".py") for module, _ in modules()}
    mirrors |= {mirror(str(file.relative_to(ROOT).with_suffix(""))).removesuffix(".py") for file in scripts}
    stray = set()
    for file in sorted(TESTS.rglob("test_*.py")):
        name = str(file.relative_to(TESTS))
        parts = name.removesuffix(".py").split("_")
        of_a_module = any("_".join(parts[:n]) in mirrors for n in range(2, len(parts) + 1))
        if not of_a_module and name not in OF_MANY_MODULES:
            stray.add(name)
    assert stray == set()


def test_every_exception_exists() -> None:
    assert [name for name in OF_MANY_MODULES if not (TESTS / name).exists()] == []


def defined_twice(kind: type[ast.ClassDef | ast.FunctionDef]) -> dict[str, list[str]]:
    """The public names that several modules define on their top level, each with its files."""
    where: dict[str, list[str]] = {}
    for file in sorted((ROOT / "edgevit").rglob("*.py")):
        for node in syntax_of(file).body:
            if isinstance(node, kind) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    return {name: files for name, files in where.items() if len(files) > 1}


def test_no_public_class_name_stands_twice() -> None:
    """One word for each idea, so that a name can be searched for, and says what it is where it is imported.

    But for two names that a protocol asks for: every method has a `Config`, its options, which are found by that name
    in its source; and every file of agent/meters has a `Meter`, which is opened by that name. Those are one idea each.
    """
    assert {name: files for name, files in defined_twice(ast.ClassDef).items() if name not in BY_PROTOCOL} == {}


def test_no_public_function_name_stands_twice() -> None:
    """But for names that are one idea wherever they stand; one that stands once any more is listed no longer."""
    assert set(defined_twice(ast.FunctionDef)) == set().union(*FUNCTIONS_BY_PROTOCOL.values())
