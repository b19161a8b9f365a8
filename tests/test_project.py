"""The project's own files say what is so."""

import json
import re
import shlex

import pytest
from places import ROOT

import edgevit

README = (ROOT / "README.md").read_text()


def test_the_changelog_begins_with_this_version():
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == edgevit.__version__
    assert f'version = "{edgevit.__version__}"' in (ROOT / "pyproject.toml").read_text()


COMMANDS = [line for block in README.split("```")[1::2] for line in block.splitlines() if line.startswith("edgevit ")]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_in_the_readme_is_one_the_program_knows(line):
    from typer.main import get_command

    from edgevit.cli.app import app

    name, *arguments = shlex.split(line.partition("#")[0])[1:]
    with get_command(app).commands[name].make_context(name, arguments) as context:
        assert context.info_name == name and not context.args


def test_the_readme_says_what_edgevit_is_for_before_how_it_is_installed():
    commands = ("edgevit derive ", "edgevit export runs/small --trt", "edgevit bench runs/small")
    headings = ("Beside other tools", "Install", "First commands", "What it does", "On a Jetson", "Limits")
    order = ("edgevit turns", "(docs/report.png)", *commands, *(f"\n## {title}\n" for title in headings))
    places = [README.index(part) for part in order]
    assert places == sorted(places)


def test_links_in_the_readme_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_table_in_the_readme_is_that_of_the_recorded_demo():
    from benchmarks.product.demo import cells

    record = json.loads((ROOT / "benchmarks" / "records" / "demo.json").read_text())
    for row in record["rows"]:
        assert "| " + " | ".join(cells(row)) + " |" in README, row["title"]
    assert f"in {record['processor_seconds']} s of processor time" in README


def test_nothing_waits_in_a_stub():
    for file in (ROOT / "edgevit").rglob("*.py"):
        assert not re.search(r"\b(TODO|FIXME|NotImplementedError)\b", file.read_text()), file
