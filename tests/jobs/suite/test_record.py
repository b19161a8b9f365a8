"""The record of a suite: what is written is read, and other files are refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from some_suite_record import RECORD

from edgevit.errors import RunsError
from edgevit.jobs.suite.record import read_suite_record, write_suite_record


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_suite_record(RECORD, tmp_path / "p.json")
    assert read_suite_record(tmp_path / "p.json") == RECORD and RECORD.of("tiny") is None


def test_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text('{"schema": 1, "measured": []}')
    with pytest.raises(RunsError, match=r"p\.json.*remove it to measure again"):
        read_suite_record(file)
    for content, message in (('{"schema": 99}', "is no record"), ("[1]", "holds|has a list"), ("", "is not JSON")):
        file.write_text(content)
        with pytest.raises(RunsError, match=rf"({message}).*; give a file that `edgevit characterize` wrote$"):
            read_suite_record(file)  # a model's model.json, for example, which is not to be removed
    with pytest.raises(RunsError, match="a run in the record of orin is damaged"):
        replace(RECORD, runs=({"label": 1},)).measurements()
