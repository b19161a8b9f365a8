"""README, changelog and results agree with the program and the records."""

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


COMMANDS = [line[2:] for block in README.split("```")[1::2] for line in block.splitlines() if line[:2] == "$ "]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_in_the_readme_is_one_the_program_knows(line):
    from typer.main import get_command

    from edgevit.cli.app import app

    name, *arguments = shlex.split(line.partition("#")[0])[1:]
    with get_command(app).commands[name].make_context(name, arguments) as context:
        assert context.info_name == name and not context.args


def test_the_readme_is_short_and_says_what_edgevit_is_and_where_it_was_not_tested_before_how_it_is_installed():
    assert len(README.encode()) <= 9000
    commands = ("edgevit derive ", "edgevit export ", "edgevit bench ")
    headings = ("Install", "Three commands", "Compared with other tools", "Limits", "Read on")
    order = ("edgevit turns", "(docs/report.png)", "have not been tested on a Jetson")
    places = [README.index(part) for part in (*order, *(f"\n## {title}\n" for title in headings))]
    assert places == sorted(places)
    assert all(command in README for command in commands)


def test_links_in_the_readme_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_table_in_the_tutorial_is_that_of_the_recorded_demo():
    from benchmarks.product.demo import cells

    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    record = json.loads((ROOT / "benchmarks" / "records" / "demo.json").read_text())
    for row in record["rows"]:
        assert "| " + " | ".join(cells(row)) + " |" in tutorial, row["title"]
    assert f"took {record['processor_seconds']} s of processor time" in " ".join(tutorial.split())


def test_nothing_waits_in_a_stub():
    for file in (ROOT / "edgevit").rglob("*.py"):
        assert not re.search(r"\b(TODO|FIXME|NotImplementedError)\b", file.read_text()), file
