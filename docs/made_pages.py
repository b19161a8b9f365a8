"""Generate the documentation pages whose content is in the code, so that they cannot become outdated.

`conf.py` writes them to docs/made/ whenever the site is built: options of commands and methods, fields of files from
their schemas, boards from their profiles, words from the package's docstring, and parts of README and the results.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import edgevit
from edgevit.board.gates import FAILED, VOID
from edgevit.board.profiles import load_profile, profile_names
from edgevit.cli.app import COMMANDS, STOPPED
from edgevit.cli.command import Command
from edgevit.cli.console import CLOSED
from edgevit.derivation import methods
from edgevit.derivation.methods import method_module, method_names
from edgevit.derivation.options import SUPERNET, MethodOption, describe

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "made"
RESULTS = ROOT / "benchmarks" / "product" / "RESULTS.md"
PAPERS = ROOT / "benchmarks" / "papers" / "README.md"
# Link targets of README and the results, and their places on the site.
LINKS = {
    "benchmarks/product/RESULTS.md": "results.md",
    "../papers/README.md": "papers.md",
    "docs/": "../",
}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Format a table in Markdown."""
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def section(text: str, title: str) -> str:
    """Return the section of README under a heading, as a page with that title."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"README has no heading {title!r}"
    return linked(f"# {title}\n{match[1]}")


def linked(text: str) -> str:
    """Replace link targets of the repository by those of the site."""
    for target, page in LINKS.items():
        text = text.replace(f"]({target}", f"]({page}")
    return text


EXIT_CODES = {
    0: "success",
    1: "an error or a wrong option (see the last line of stderr); a job of `derive-many` or `fleet` failed or waits; "
    "`board` found a problem; a gate of `bench` could not be judged",
    FAILED: "`bench` and `fleet`: a gate failed; `derive`: the model exceeds its measured budget",
    VOID: "`bench` and `compare`: a run is void, because clocks changed or the board throttled",
    STOPPED: "stopped by Ctrl-C or SIGTERM; the last line of stderr says how to continue, where that is possible",
    CLOSED: "the reader of stdout, such as `head`, closed it",
}


def commands_page() -> str:
    """List every command with every option, and the exit codes."""
    codes = table(("exit code", "meaning"), ((str(code), meaning) for code, meaning in EXIT_CODES.items()))
    lines = ["# Commands", "", "From the same declarations as `edgevit COMMAND --help`.", "", codes]
    for module in COMMANDS:
        command = Command(module.__name__.rpartition(".")[2].replace("_", "-"), module.main)
        lines += [f"## edgevit {command.name}", "", str(command.help), ""]
        groups: dict[str, list[tuple[str, str, str]]] = {}
        for parameter in command.params:
            if getattr(parameter, "hidden", False):
                continue
            panel = getattr(parameter, "rich_help_panel", None) or "Options"
            meaning = str(getattr(parameter, "help", "") or "")
            groups.setdefault(panel, []).append((_spelt(parameter), meaning, _default(parameter)))
        for panel, rows in groups.items():
            lines += [f"**{panel}**", "", table(("", "meaning", "default"), rows)]
    return "\n".join(lines)


def _spelt(parameter: Any) -> str:
    """Return an option or argument as it is typed."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    return " or ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _default(parameter: Any) -> str:
    """Return the default; empty if there is none or the meaning says it."""
    value = parameter.default
    if value is None or value is False or value in ((), [], "") or not isinstance(value, (bool, int, float, str)):
        return ""
    return f"`{value}`"


def methods_page() -> str:
    """List every method: what it does, its budgets, and its options."""
    lines = [
        "# Methods",
        "",
        "`edgevit derive --method NAME`; options: `--set NAME.OPTION=VALUE`. The text comes from the docstrings.",
        "",
    ]
    for name in method_names():
        description = describe(name)
        lines += [f"## {name}", "", _prose(_docstring(method_module(name))), ""]
        lines += [_options(name, description.options), ""]
    lines += [f"## {SUPERNET}", "", "Options of `edgevit supernet`, which is not a method.", ""]
    return "\n".join([*lines, _options(SUPERNET, describe(SUPERNET).options)])


def _options(owner: str, options: Iterable[MethodOption]) -> str:
    rows = [(f"`{owner}.{o.name}`", _kind(o), f"`{o.default}`", o.explanation) for o in options]
    return table(("option", "kind", "default", "meaning"), rows)


def _kind(option: MethodOption) -> str:
    return ", ".join(option.kind) if isinstance(option.kind, tuple) else option.kind.__name__


def _docstring(module: str) -> str:
    """Return the docstring of a module without importing it."""
    file = ROOT / Path(*module.split("."))
    source = file.with_suffix(".py") if file.with_suffix(".py").exists() else file / "__init__.py"
    return ast.get_docstring(ast.parse(source.read_text())) or ""


def _prose(docstring: str) -> str:
    """Convert a docstring to Markdown: indented lines are code or formulas."""
    return re.sub(r"^(?= {4}\S)", "", docstring, flags=re.MULTILINE)


def formats_page() -> str:
    """List every file that edgevit writes, field by field."""
    lines = [
        "# File formats",
        "",
        "Each file has the number of its schema. A file of another schema is refused, with the version that wrote it. "
        "The JSON Schemas in `docs/schemas/` are generated from the records.",
        "",
    ]
    for file in sorted((ROOT / "docs" / "schemas").glob("*.json")):
        schema = json.loads(file.read_text())
        lines += [f"## {file.stem}", "", str(schema.get("description", "")), "", _fields(schema)]
        for name, inner in sorted(schema.get("$defs", {}).items()):
            if inner.get("properties"):
                lines += [f"### {name} in {file.stem}", "", str(inner.get("description", "")), "", _fields(inner)]
    return "\n".join(lines)


def _fields(schema: Mapping[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        (f"`{name}`", _shape(field), "" if name in required else "may be left out")
        for name, field in schema.get("properties", {}).items()
    ]
    return table(("field", "type", ""), rows)


def _shape(field: Mapping[str, Any]) -> str:
    """Describe the type of a field."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    for several in ("anyOf", "oneOf"):
        if several in field:
            return " or ".join(_shape(alternative) for alternative in field[several])
    if field.get("type") == "array":
        inner = field.get("items") or next(iter(field.get("prefixItems", ())), {})
        return f"list of {_shape(inner)}" if inner else "list"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"mapping to {_shape(field['additionalProperties'])}"
    return str(field.get("type", "anything"))


def profiles_page() -> str:
    """List the boards whose profile is shipped."""
    rows = []
    for name in profile_names():
        profile = load_profile(name)
        modes = [mode.name for mode in next(reversed(profile.variants.values())).modes]
        peaks = " / ".join(f"{variant.fp16_tflops:g}" for variant in profile.variants.values())
        bandwidth = " / ".join(f"{variant.bandwidth_gb_per_s:g}" for variant in profile.variants.values())
        rows.append((f"`{name}`", profile.module, peaks, bandwidth, ", ".join(modes)))
    head = ("profile", "module", "FP16 TFLOPS, standard / super", "GB/s", "power modes")
    introduction = "`edgevit profiles NAME` shows a whole profile, with its sources."
    return f"# Profiles\n\n{introduction}\n\n{table(head, rows)}"


def glossary_page() -> str:
    """List the words, from the docstring of the package."""
    text = edgevit.__doc__ or ""
    rows: list[tuple[str, str]] = []
    for line in text[text.index("Words") :].splitlines()[1:]:
        if not line.strip():
            continue
        word, _, meaning = line.strip().partition("  ")
        rows.append((f"**{word}**", meaning.strip()))
    return f"# Words\n\n{table(('', ''), rows)}"


def method_example_page() -> str:
    """Show the example method in the docstring of the methods' package, which the tests run like all others."""
    text = methods.__doc__ or ""
    head, _, example = text.partition("A whole method")
    code = re.sub(
        r"^    ", "", example.partition("\n")[2].rpartition("\ntests/derivation/")[0].strip("\n"), flags=re.MULTILINE
    )
    protocol = f"```text\n{head.strip()}\n```"
    return (
        "# A method\n\nA file in `edgevit/derivation/methods/`; its name is the value of `--method`. A method for "
        "comparison is a file in `edgevit/baselines/`, by the same protocol.\n\n"
        f"{protocol}\n\nA complete method to copy. The tests run it like every other: the base is unchanged, and the "
        "slim network equals the base with the removed units masked.\n\n"
        f"```python\n{code}\n```\n"
    )


def pictures() -> list[str]:
    """Return the pictures of the papers' page by their paths, which are the same on the site."""
    return re.findall(r"!\[.*?\]\((.+?)\)", PAPERS.read_text())


def decisions_page() -> str:
    files = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    listed = "\n".join(f"../decisions/{file.stem}" for file in files)
    return f"# Decisions\n\nWhy things are as they are.\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"


def pages() -> dict[str, str]:
    """Return every page by the name of its file."""
    readme = (ROOT / "README.md").read_text()
    makers: dict[str, Callable[[], str]] = {
        "commands": commands_page,
        "methods": methods_page,
        "formats": formats_page,
        "profiles": profiles_page,
        "words": glossary_page,
        "method": method_example_page,
        "results": lambda: linked(RESULTS.read_text()),
        "papers": lambda: linked(PAPERS.read_text()),
        "decisions": decisions_page,
        "limits": lambda: section(readme, "Limits"),
        "comparison": lambda: section(readme, "Compared with other tools"),
    }
    return {f"{name}.md": make() for name, make in makers.items()}


def write(folder: Path = FOLDER) -> None:
    """Write all pages; leave a file alone that would not change, because Sphinx compares modification times."""
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        if not (folder / name).exists() or (folder / name).read_text() != text:
            (folder / name).write_text(text)
    for picture in pictures():
        (folder / picture).parent.mkdir(exist_ok=True)
        shutil.copyfile(PAPERS.parent / picture, folder / picture)
