"""What is written where, in which format, and over what not."""

from __future__ import annotations

import codecs
import json
import os
import re
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from small_models import write_headless
from some_report import write_everything
from some_runs import DENSE

from edgevit.engines.run import export
from edgevit.errors import GateError, OptionError, OutputError, UnknownNameError
from edgevit.records.kinds import seal
from edgevit.records.writing import file_sha256
from edgevit.reporting.run import FORMATS, MARKS, report


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "runs.jsonl").write_text(DENSE.to_json() + "\n")
    return tmp_path / "in"


@pytest.mark.parametrize("format", FORMATS)
def test_each_format_is_written_again_over_itself_and_over_nothing_else(
    format: str, runs: Path, tmp_path: Path
) -> None:
    file = tmp_path / f"out.{format}"
    for _ in range(2):
        made = report([runs], output=file)
    assert made.format == format and file.read_text("utf-8-sig") == made.text and MARKS[made.format] in made.text
    file.write_text("mine")
    with pytest.raises(OutputError, match="exists and is no report of this format, so it is not overwritten"):
        report([runs], output=file)
    assert file.read_text() == "mine"


def test_a_page_has_a_name_of_its_own_and_tables_are_only_returned(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert report([runs]).file == Path("report.html") and Path("report.html").is_file()
    told = report([runs], format="json")
    assert told.file is None and json.loads(told.text)["panels"][0]["models"][0]["title"] == "dense"


def test_a_spreadsheet_knows_a_csv_file_for_utf_8_and_a_program_reads_standard_output(
    runs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "t.csv"
    told = report([runs], output=file)
    assert file.read_bytes() == codecs.BOM_UTF8 + told.text.encode() and not told.text.startswith("\ufeff")
    assert report([runs], output=file).file == file, "it is known for a report all the same"
    report([runs], output=tmp_path / "t.md")
    assert not (tmp_path / "t.md").read_bytes().startswith(codecs.BOM_UTF8)


def test_what_cannot_be_written_or_understood_is_one_line(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a folder; give the name of a file"):
        report([runs], output=tmp_path, format="html")
    with pytest.raises(OutputError, match=r"no is no folder, so .*no/x.html cannot be written"):
        report([runs], output=tmp_path / "no" / "x.html")
    with pytest.raises(OptionError, match=r"runs.jsonl has a suffix that says no format"):
        report([runs], output=runs / "runs.jsonl")
    with pytest.raises(OutputError, match="is not overwritten"):
        report([runs], output=runs / "runs.jsonl", format="md")
    with pytest.raises(UnknownNameError, match="no format 'htlm'; did you mean 'html'"):
        report([runs], format="htlm")
    with pytest.raises(GateError, match="is about none of the runs"):
        report([runs], format="csv", gates=["p99@8<1ms"])
    with pytest.raises(GateError, match=r"gate energy<8mJ: energy was measured in none of the runs: it takes power"):
        report([runs], format="csv", gates=["p99<1s", "energy<8mJ"])
    with pytest.raises(GateError, match="no metric"):
        report([runs], format="csv", gates=["p98<1ms"])


ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 2**62, 10**400, "", "\x1b[31m</script>\ud800", [], {}, [[1]], float("nan"),
    float("inf"), 1e308,
)  # fmt: skip


def spoil(value: Any, random: Random) -> Any:
    """Put something odd in the place of one of the values inside, or remove it."""
    places = [(value, key) for key in (value if isinstance(value, dict) else range(len(value)))]
    for holder, key in places:
        inner = holder[key]
        if isinstance(inner, (dict, list)):
            places += [(inner, k) for k in (inner if isinstance(inner, dict) else range(min(len(inner), 3)))]
    holder, key = random.choice(places)
    if isinstance(holder, dict) and random.random() < 0.2:
        del holder[key]
    else:
        holder[key] = deepcopy(random.choice(ODD))
    return value


@pytest.mark.quick("0")
@pytest.mark.parametrize("seed", range(int(os.environ.get("EDGEVIT_MUTATIONS", "12"))))
def test_whatever_a_record_says_there_is_a_page_of_the_rest(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    write_everything(tmp_path)
    files = sorted(file for file in tmp_path.rglob("*.json*") if file.name not in ("other.jsonl",))
    file = files[seed % len(files)]
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    at = random.randrange(len(lines))
    with suppress(ValueError):  # some are broken already
        told = spoil(json.loads(lines[at]), random)
        if isinstance(told, dict) and told.get("record") == "model":
            told = seal(told)
        lines[at] = json.dumps(told)
    file.write_text("\n".join(lines))
    for format in ("html", "json"):
        made = report([tmp_path], output=tmp_path / f"out.{format}")
        assert len(made.evidence.skipped) >= 3 and made.panels
    data = re.findall(r'id="data">(.*?)</script>', (tmp_path / "out.html").read_text(), re.DOTALL)[0]
    for text in (data, (tmp_path / "out.json").read_text()):
        assert not re.search(r"[:\[ ,](NaN|-?Infinity)", re.sub(r'"(\\.|[^"\\])*"', '""', text))


@pytest.mark.slow
def test_a_network_without_a_classifier_is_shown_with_its_agreement_and_without_an_accuracy(tmp_path: Path) -> None:
    folder = write_headless(tmp_path / "headless")
    export(folder, data="digits", max_images=20)
    digest = file_sha256(folder / "export" / "model.fp32.onnx")
    (tmp_path / "runs.jsonl").write_text(replace(DENSE, model_sha256=digest).to_json() + "\n")
    page = report([tmp_path], output=tmp_path / "report.html").text
    assert "vit_tiny_patch16_224 without a classifier, nothing else removed: a base." in page and "100.00%" in page
    (panel,) = json.loads(report([tmp_path], format="json").text)["panels"]
    (model,) = panel["models"]
    assert (model["title"], model["top1"]) == ("headless", None) and model["p50_ms"] is not None
