"""The file of a proof: what is written is read, and what is none is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from some_proof import PROOF

from edgevit.errors import RunsError
from edgevit.jobs.suite.record import Waiting, read_proof, write_proof


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_proof(PROOF, tmp_path / "p.json")
    assert read_proof(tmp_path / "p.json") == PROOF and PROOF.of("tiny") is None


def test_an_engine_that_waits_may_not_tell_what_is_fused(tmp_path: Path) -> None:
    waiting = Waiting("tiny", "/cache/tiny.engine", "0" * 64, None, 3.0)
    write_proof(replace(PROOF, waiting=(waiting,)), tmp_path / "p.json")
    assert read_proof(tmp_path / "p.json").waits("tiny") == waiting


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"schema": 1, "measured": []}')
    with pytest.raises(RunsError, match=r"p\.json lacks .*remove it to measure again"):
        read_proof(tmp_path / "p.json")
    for content, said in (('{"schema": 99}', "is no proof"), ("[1]", "holds|has a list"), ("", "is not JSON")):
        (tmp_path / "p.json").write_text(content)
        with pytest.raises(RunsError, match=rf"({said}).*; give a file that `edgevit prove` wrote$"):
            read_proof(tmp_path / "p.json")  # a model's model.json, of a schema of its own, and not to be removed
    with pytest.raises(RunsError, match="a run of the proof of orin is damaged"):
        replace(PROOF, runs=({"label": 1},)).measurements()
