"""The pages of the documentation that are made of the code itself, so that they cannot go stale.

`conf.py` writes them to docs/made/ whenever the site is built: options of commands and methods as the program knows
them, the fields of every file from its schema, boards from their profiles, and what README and the results say.
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
# Where what README and the results link to is on the site.
LINKS = {
    "benchmarks/product/RESULTS.md": "results.md",
    "../papers/README.md": "papers.md",
    "#on-a-jetson": "boards.md",
}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def section(text: str, title: str) -> str:
    """What stands under a heading of README, as a page with that title."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"README has no heading {title!r}"
    return linked(f"# {title}\n{found[1]}")


def linked(text: str) -> str:
    """The same with its links as they are on the site."""
    for target, there in LINKS.items():
        text = text.replace(f"]({target})", f"]({there})")
    return text


EXIT_CODES = {
    0: "all is well",
    1: "an error or a wrong option, which the last line of stderr says; or a job of `derive-many` failed, `board` "
    "found a problem, or a gate of `bench` could not be judged",
    FAILED: "`bench`: a gate failed",
    VOID: "`bench` and `compare`: a run is void, because clocks moved or the board held itself back",
    STOPPED: "stopped by Ctrl-C or SIGTERM; the last line of stderr says how to go on, where that is possible",
    CLOSED: "whoever read stdout, such as `head`, wants no more",
}


def commands_page() -> str:
    """Every command with every option, and what exit codes mean."""
    codes = table(("exit code", "meaning"), ((str(code), meaning) for code, meaning in EXIT_CODES.items()))
    lines = ["# Commands", "", "As `edgevit COMMAND --help` has them, from the same declarations.", "", codes]
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
    """An option or argument as it is typed."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    return " or ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _default(parameter: Any) -> str:
    """What counts where nothing is typed; empty: nothing, or what the meaning says."""
    value = parameter.default
    if value is None or value is False or value in ((), [], "") or not isinstance(value, (bool, int, float, str)):
        return ""
    return f"`{value}`"


def methods_page() -> str:
    """Every method: what it does, what its budget may be, and its options."""
    lines = [
        "# Methods",
        "",
        "`edgevit derive --method NAME`; options are given as `--set NAME.OPTION=VALUE`. The text is that of each "
        "method's own source.",
        "",
    ]
    for name in method_names():
        told = describe(name)
        lines += [f"## {name}", "", _prose(_docstring(method_module(name))), ""]
        quantities = ", ".join(told.quantities) or "MACs or parameters"
        lines += [f"Spends a budget in: {quantities}.", "", _options(name, told.options), ""]
    lines += [f"## {SUPERNET}", "", "No method: what `edgevit supernet` is asked.", ""]
    return "\n".join([*lines, _options(SUPERNET, describe(SUPERNET).options)])


def _options(owner: str, options: Iterable[MethodOption]) -> str:
    rows = [(f"`{owner}.{o.name}`", _kind(o), f"`{o.default}`", o.explanation) for o in options]
    return table(("option", "kind", "default", "meaning"), rows)


def _kind(option: MethodOption) -> str:
    return ", ".join(option.kind) if isinstance(option.kind, tuple) else option.kind.__name__


def _docstring(module: str) -> str:
    """Of a module, which is not imported."""
    file = ROOT / Path(*module.split("."))
    source = file.with_suffix(".py") if file.with_suffix(".py").exists() else file / "__init__.py"
    return ast.get_docstring(ast.parse(source.read_text())) or ""


def _prose(docstring: str) -> str:
    """A docstring as Markdown: what is indented is code or a formula."""
    return re.sub(r"^(?= {4}\S)", "", docstring, flags=re.MULTILINE)


def formats_page() -> str:
    """Every file that edgevit writes, field by field."""
    lines = [
        "# File formats",
        "",
        "Each file has the number of its schema. Older files are read; newer ones are refused, with the version that "
        "wrote them. The JSON Schemas are in `docs/schemas/`, made from the records themselves.",
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
    """The type of a field in words."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    for several in ("anyOf", "oneOf"):
        if several in field:
            return " or ".join(_shape(one) for one in field[several])
    if field.get("type") == "array":
        inner = field.get("items") or next(iter(field.get("prefixItems", ())), {})
        return f"list of {_shape(inner)}" if inner else "list"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"mapping to {_shape(field['additionalProperties'])}"
    return str(field.get("type", "anything"))


def profiles_page() -> str:
    """The boards whose profile is shipped."""
    rows = []
    for name in profile_names():
        profile = load_profile(name)
        modes = [mode.name for mode in next(reversed(profile.variants.values())).modes]
        peaks = " / ".join(f"{variant.fp16_tflops:g}" for variant in profile.variants.values())
        bandwidth = " / ".join(f"{variant.bandwidth_gb_per_s:g}" for variant in profile.variants.values())
        rows.append((f"`{name}`", profile.module, peaks, bandwidth, ", ".join(modes)))
    head = ("profile", "module", "FP16 TFLOPS, standard / super", "GB/s", "power modes")
    told = "What `edgevit profiles` lists. `edgevit profiles NAME` shows all of one, with its sources."
    return f"# Profiles\n\n{told}\n\n{table(head, rows)}"


def glossary_page() -> str:
    """The words, from the docstring of the package."""
    text = edgevit.__doc__ or ""
    rows, at = [], text.index("The words")
    for line in text[at:].splitlines()[1:]:
        if not line.strip():
            continue
        word, _, meaning = line.strip().partition("  ")
        rows.append((f"**{word}**", meaning.strip()))
    return f"# Words\n\nOne for each idea, everywhere.\n\n{table(('', ''), rows)}"


def method_example_page() -> str:
    """The method that the docstring of its folder has, which the tests run beside all others."""
    text = methods.__doc__ or ""
    head, _, rest = text.partition("A whole method")
    code = re.sub(
        r"^    ", "", rest.partition("\n")[2].rpartition("\ntests/derivation/")[0].strip("\n"), flags=re.MULTILINE
    )
    says = f"```text\n{head.strip()}\n```"
    return (
        "# A method\n\nA file in `edgevit/derivation/methods/`; its name is what `--method` takes.\n\n"
        f"{says}\n\nA whole one, to be copied. The sweep tests of `tests/derivation/` derive with it as with every "
        "other: the base is not changed, and the slim network equals the base with those units masked.\n\n"
        f"```python\n{code}\n```\n"
    )


RESULTS = ROOT / "benchmarks" / "product" / "RESULTS.md"
PAPERS = ROOT / "benchmarks" / "papers" / "README.md"


def pictures() -> list[str]:
    """The pictures of the papers' page, by their paths, which are the same on the site."""
    return re.findall(r"!\[.*?\]\((.+?)\)", PAPERS.read_text())


def decisions_page() -> str:
    files = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    listed = "\n".join(f"../decisions/{file.stem}" for file in files)
    return (
        "# Decisions\n\nWhy things are as they are; what no longer holds says by what it was replaced.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    )


def pages() -> dict[str, str]:
    """Every page by the name of its file."""
    readme = (ROOT / "README.md").read_text()
    made: dict[str, Callable[[], str]] = {
        "commands": commands_page,
        "methods": methods_page,
        "formats": formats_page,
        "profiles": profiles_page,
        "words": glossary_page,
        "method": method_example_page,
        "results": lambda: linked(RESULTS.read_text()),
        "papers": lambda: linked(PAPERS.read_text()),
        "decisions": decisions_page,
        "boards": lambda: section(readme, "On a Jetson"),
        "limits": lambda: section(readme, "Limits"),
        "beside": lambda: section(readme, "Beside other tools"),
    }
    return {f"{name}.md": page() for name, page in made.items()}


def write(folder: Path = FOLDER) -> None:
    """Write them all; a file that would be the same is left alone, for a builder that looks at times."""
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        if not (folder / name).exists() or (folder / name).read_text() != text:
            (folder / name).write_text(text)
    for picture in pictures():
        (folder / picture).parent.mkdir(exist_ok=True)
        shutil.copyfile(PAPERS.parent / picture, folder / picture)
