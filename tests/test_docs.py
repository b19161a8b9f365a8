"""The documentation: its examples run, its commands exist, its links resolve, its generated pages are complete."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captured import read_power
from family_examples import images, slimmed
from places import ROOT
from small_models import write_derived

import edgevit
from edgevit.agent import meters, power, runners
from edgevit.agent.measure import MeasurementRequest, measure
from edgevit.board.profiles import load_profile, profile_names
from edgevit.data.sources import open_source
from edgevit.derivation.methods import method_names
from edgevit.derivation.options import describe
from edgevit.derivation.solve.embedding import encoder
from edgevit.network import families
from edgevit.network.anatomy import BlockDims
from edgevit.network.families import load_family
from edgevit.network.network import Network

DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
PAGES = [*DOCS.glob("*.md"), *(DOCS / "extending").glob("*.md")]
COMMANDS = [
    line for page in PAGES
    for language, block in re.findall(r"^```(\S*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    for line in block.splitlines() if not language and line.startswith("edgevit ")
]  # fmt: skip


@pytest.fixture
def with_examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the files of docs/examples be runners, meters and families, as they are where a person copies them to."""
    for package in (runners, meters, families):
        folder = EXAMPLES / package.__name__.rpartition(".")[2]
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    yield
    for package in (runners, meters, families):
        for file in EXAMPLES.glob("*/*.py"):
            sys.modules.pop(f"{package.__name__}.{file.stem}", None)
            vars(package).pop(file.stem, None)


def test_the_runner_of_the_documentation_is_measured_as_any_other(with_examples: None, tmp_path: Path) -> None:
    file = tmp_path / "weights.npy"
    np.save(file, np.ones((12, 3), np.float32))
    request = MeasurementRequest(
        model=str(file), model_sha256="0" * 64, label="matrix", precision="fp32", runner="matrix",
        samples=5, duration_s=0.0, warmup=1, warmup_seconds=0.0, batch=2,
    )  # fmt: skip
    run = measure(request, lambda stage, done, **figures: None)
    assert (run.runner, run.provider, run.batch) == ("matrix", "cpu", 2) and len(run.latencies_ns) >= 5
    assert run.environment["numpy"] == np.__version__
    np.save(file, np.ones(3))
    with pytest.raises(runners.RunnerError, match="an array of 1 axes, expected 2"):
        measure(request, lambda stage, done, **figures: None)


def test_the_meter_of_the_documentation_reads_power(
    with_examples: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power, "METERS", ("battery",))
    assert power.power_meter(str(tmp_path), None, ()) is None
    folder = tmp_path / "sys/class/power_supply/BAT0"
    folder.mkdir(parents=True)
    (folder / "power_now").write_text("7250000\n")
    meter = power.power_meter(str(tmp_path), None, [("0", "BAT0")])
    assert meter is not None
    power_record = read_power(meter)
    assert power_record["meter"] == "battery" and power_record["total"] == ["BAT0"]
    assert set(power_record["rails"]["BAT0"]) == {7250.0}


@torch.no_grad()
def test_the_family_of_the_documentation_cuts_its_network(
    with_examples: None, small_vit: Callable[..., Network]
) -> None:
    inner = small_vit()
    family = load_family("from_pixels")
    network = Network(family.FromPixels(inner.module))  # type: ignore[attr-defined]
    assert network.family is family
    for of, protocol in ((family, families.Family), (family.interchange, families.Interchange)):
        assert not [name for name in vars(protocol) if name[0] != "_" and not hasattr(of, name)]
    pixels = 127.5 * (images() + 1)
    dims = BlockDims(2, 24, 8, 40)
    expected = slimmed(inner, dims)(images())
    torch.testing.assert_close(slimmed(network, dims)(pixels), expected, rtol=1e-4, atol=1e-5)
    tokens = network.first_tokens(pixels)
    for layer in network.block_modules:
        tokens = layer(tokens)
    torch.testing.assert_close(network.answers(tokens), inner(images()), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(network.forward_features(pixels), inner.forward_features(images()), rtol=1e-4, atol=1e-5)
    fitted = family.interchange.fitted(
        family.interchange.named(inner.state_dict()), network.module, "it", resample=False
    )
    assert fitted.state.keys() == inner.state_dict().keys() and fitted.notes == ()
    encode = encoder(torch.eye(64, dtype=torch.float64), 32)
    expected = inner.with_embedding(encode)(images())
    torch.testing.assert_close(network.with_embedding(encode)(pixels), expected, rtol=1e-4, atol=1e-4)


def test_a_profile_begins_with_the_json_of_another(edgevit_main: Any, tmp_path: Path) -> None:
    shipped = json.loads(edgevit_main("profiles", "orin-nx-16gb", "--json").out)
    (tmp_path / "my-carrier.json").write_text(json.dumps({**shipped, "name": "my-carrier", "budgets": ["p99<8ms"]}))
    profile = load_profile(str(tmp_path / "my-carrier.json"))
    assert profile.name == "my-carrier" and profile.rails == load_profile("orin-nx-16gb").rails


def test_the_tutorial_finds_the_images_of_a_rare_class_by_another_threshold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_derived(tmp_path / "runs/t1", 16, 16)  # of three digits, and untrained
    digits = open_source("digits")
    for name in ("3", "8"):
        (tmp_path / "more" / name).mkdir(parents=True)
        for reference in digits.references("test", name)[:4]:
            digits.read(reference).save(tmp_path / "more" / name / f"{reference}.png")
    (block,) = re.findall(r"^```python\n(.*?)^```$", (DOCS / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(block.replace('"defective"', '"3"'), {})
    missed, *counts = capsys.readouterr().out.splitlines()
    files = sorted((tmp_path / "more/3").iterdir())
    seen = edgevit.load(tmp_path / "runs/t1").predict(files)
    assert missed.count(".png") == sum(p.name != "3" for p in seen)
    found = [sum(p.probabilities["3"] >= threshold for p in seen) for threshold in (0.5, 0.3, 0.2)]
    assert [int(line.split()[2]) for line in counts] == found


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_in_the_documentation_is_one_the_program_knows(line: str) -> None:
    from typer.main import get_command

    from edgevit.cli.app import app

    name, *arguments = shlex.split(line.partition(" > ")[0])[1:]
    commands: Any = get_command(app)
    with commands.commands[name].make_context(name, arguments) as context:
        assert context.info_name == name and not context.args


def test_links_in_the_documentation_exist() -> None:
    from made_pages import pages

    generated = pages()
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            file = page.parent / target
            assert file.exists() or (file.parent == DOCS / "made" and file.name in generated), f"{page.name}: {target}"
    listed = re.findall(r"^made/(\w+)$", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert {f"{name}.md" for name in listed} == set(generated), "every made page is in the index"


def test_modules_that_the_architecture_and_decisions_name_exist() -> None:
    modules = {
        f"/{path.relative_to(ROOT)}"
        for package in ("edgevit", "tests", "docs")
        for path in ROOT.glob(f"{package}/**/*.py")
    }
    for page in (DOCS / "architecture.md", *(DOCS / "decisions").glob("*.md")):
        for name in re.findall(r"`((?:\w+/)*\w+\.py)`", page.read_text()):
            missing = not any(module.endswith(f"/{name}") for module in modules)
            assert name.endswith("/NAME.py") or not missing, f"{page.name}: {name}"


def test_decisions_have_the_numbers_of_their_files() -> None:
    titles = {file.name[:3]: file.read_text().splitlines()[0] for file in (ROOT / "docs/decisions").glob("*.md")}
    assert titles and not {title for number, title in titles.items() if not title.startswith(f"# {number}: ")}


@pytest.mark.parametrize("file", sorted((DOCS / "decisions").glob("*.md")), ids=lambda file: file.stem)
def test_a_decision_is_short_and_has_a_reason(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert len(lines) <= 12 and max(map(len, lines)) <= 130
    assert [line[4:].partition(".**")[0] for line in lines if line[:4] == "- **"] == ["Decision", "Reason", "Rejected"]


def test_the_made_pages_have_every_option_field_and_board() -> None:
    from made_pages import pages

    generated = pages()
    for name in method_names():
        assert f"## {name}\n" in generated["methods.md"]
        assert all(f"`{name}.{option.name}`" in generated["methods.md"] for option in describe(name).options)
    for option in ("`--checkpoint`", "`--ms`", "`--gate`", "`--config`"):
        assert option in generated["commands.md"]
    assert all(f"\n| {code} | " in generated["commands.md"] for code in (0, 1, 3, 4, 130, 141)), "exit codes"
    schemas = [json.loads(file.read_text()) for file in (DOCS / "schemas").glob("*.json")]
    assert all(f"`{field}`" in generated["formats.md"] for schema in schemas for field in schema["properties"])
    assert all(f"`{name}`" in generated["profiles.md"] for name in profile_names())
    assert "**plan**" in generated["words.md"] and "have not been tested on a Jetson" in generated["limits.md"]


def test_every_picture_of_the_papers_page_is_on_the_site(tmp_path: Path) -> None:
    from made_pages import pictures, write

    write(tmp_path)
    shown = re.findall(r"!\[.*?\]\((.+?)\)", (tmp_path / "papers.md").read_text())
    assert shown == pictures() and len(shown) > 1 and all((tmp_path / picture).is_file() for picture in shown)
