"""What is written where, in which format, and over what not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from some_runs import DENSE

from edgevit.errors import GateError, OptionError, OutputError, UnknownNameError
from edgevit.report.run import FORMATS, MARKS, report


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
    assert made.format == format and file.read_text() == made.text and MARKS[made.format] in made.text
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
    with pytest.raises(GateError, match="no metric"):
        report([runs], format="csv", gates=["p98<1ms"])
