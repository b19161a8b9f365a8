from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgevit.errors import OutputError
from edgevit.records.writing import (
    is_leftover,
    new_folder,
    refuse_existing,
    refuse_in_use,
    remove_leftovers,
    replaced_folder,
)


@pytest.fixture(scope="module")
def dead() -> int:
    """The number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def made(path: Path, *files: str, age_s: float = 0.0) -> Path:
    path.mkdir(parents=True)
    for file in files:
        (path / file).write_text(file)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_a_leftover_is_of_this_name_and_of_a_dead_process_or_an_old_one_of_a_new_process(
    tmp_path: Path, dead: int
) -> None:
    assert is_leftover(made(tmp_path / f".export.{dead}.tmp"), "export")
    assert not is_leftover(made(tmp_path / f".other.{dead}.tmp"), "export")
    assert not is_leftover(made(tmp_path / ".export.tmp"), "export"), "of nobody that is known"
    young, old = (tmp_path / f".export.{os.getpid()}.{end}" for end in ("tmp", "old"))
    assert not is_leftover(made(young), "export"), "its process may be about to lock it"
    assert is_leftover(made(old, age_s=100), "export"), "of an earlier process of the same number"
    with pytest.raises(OutputError, match=rf"process {os.getpid()}, is writing {young}; wait until it has ended"):
        refuse_in_use(young)
    refuse_in_use(old)


def test_the_next_command_that_writes_there_removes_what_a_killed_one_left(tmp_path: Path, dead: int) -> None:
    temporary = made(tmp_path / f".m.{dead}.tmp", "model.json")
    file = tmp_path / f".m.{dead}"
    file.write_text("half")
    (tmp_path / ".m.json").write_text("somebody's")
    with new_folder(tmp_path / "m") as new:
        assert not temporary.exists() and not file.exists()
        os.utime(new, (1, 1))
        assert not is_leftover(new, "m"), "it is locked"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".m.json", "m"]


def test_what_a_killed_command_had_moved_away_comes_back(tmp_path: Path, dead: int) -> None:
    earlier = made(tmp_path / f".m.{dead}.old", "model.json")
    made(tmp_path / f".m.{dead}.tmp", "half")
    remove_leftovers(tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["m"] and (tmp_path / "m/model.json").is_file()
    made(earlier / "engines", "x.engine")
    with replaced_folder(tmp_path / "m", lambda: None, keep="engines") as new:
        assert (tmp_path / "m/engines/x.engine").is_file() and new.is_dir()
    assert [p.name for p in (tmp_path / "m").iterdir()] == ["engines"] and not earlier.exists()


def test_a_model_folder_with_a_leftover_may_be_overwritten_and_one_in_use_may_not(tmp_path: Path, dead: int) -> None:
    made(tmp_path / "m", "model.json")
    made(tmp_path / "m" / f".export.{dead}.tmp", "model.fp32.onnx")
    refuse_existing(tmp_path / "m", overwrite=True)
    made(tmp_path / "m" / f".export.{os.getpid()}.tmp")
    with pytest.raises(OutputError, match="another edgevit, process"):
        refuse_existing(tmp_path / "m", overwrite=True)
