"""What a node gets that does not see the folder of the command, and what comes home from it."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from edgevit.errors import JobsError, OutputError
from edgevit.jobs import parcels
from edgevit.jobs.parcels import Input


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def test_paths_in_the_folder_of_the_command_are_sent(home: Path) -> None:
    inside = [path for path in ("a", "a/../b", "./c", ".", "..", "../a", "/a", "a/../../b") if parcels.is_inside(path)]
    assert inside == ["a", "a/../b", "./c"]


def test_what_a_job_wrote_and_removed_is_written_and_removed_at_home(home: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    for file, text in {"out/m/model.json": "old", "out/jobs/a/job.json": "waits", "out/jobs/b/job.json": "b"}.items():
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(text)
    paths = ("out/m", "out/new", "out/jobs/first.board", "out/jobs/b", "out/jobs/a")
    outputs = parcels.outputs_at_home(paths)
    parcels.place_outputs(outputs, away)
    assert (away / "out/m/model.json").read_text() == "old"
    (away / "out/m/export").mkdir()
    (away / "out/m/export/a.onnx").write_bytes(b"onnx")
    (away / "out/new").mkdir()
    (away / "out/new/model.json").write_text("new")
    (away / "out/jobs/first.board").write_text("orin")
    (away / "out/jobs/a/job.json").write_text("done")
    (away / "out/jobs/b/job.json").unlink()
    (away / "elsewhere").write_text("no output")
    (home / "out/m/of_another_job").touch()
    parcels.bring_home(parcels.changes_of(outputs, away), outputs)
    written = {str(file.relative_to(home)): file.read_text() for file in home.rglob("*") if file.is_file()}
    assert written == {
        "out/m/model.json": "old",
        "out/m/of_another_job": "",
        "out/m/export/a.onnx": "onnx",
        "out/new/model.json": "new",
        "out/jobs/first.board": "orin",
        "out/jobs/a/job.json": "done",
    }


def test_an_input_is_unpacked_once_and_appears_in_the_folder_of_each_job(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (home / "photos/cat").mkdir(parents=True)
    (home / "photos/cat/0.png").write_bytes(b"a cat")
    content = parcels.packed_input("photos")
    assert content == parcels.packed_input("photos") and parcels.input_bytes("photos") == 5
    gets = []

    def get(reference: str) -> bytes:
        gets.append(reference)
        return content

    for job in ("a", "b"):
        given = Input("photos", 5, "0" * 64, "reference")
        of_photos = Input("photos/cat", 5, "1" * 64, "no")
        with ExitStack() as used:
            parcels.place_input(given, tmp_path / job, str(home), "node2", get, used)
            parcels.place_input(of_photos, tmp_path / job, str(home), "node2", lambda _: b"", used)
        assert (tmp_path / job / "photos/cat/0.png").read_bytes() == b"a cat"
    assert gets == ["reference"]


def test_inputs_beyond_a_limit_are_removed_the_least_recently_used_first_but_none_that_a_job_uses(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(parcels, "INPUTS_BYTES", 10)
    inputs = tmp_path / "cache/edgevit/sent/inputs"

    def place(name: str, used: ExitStack) -> None:
        (home / name).write_bytes(b"12345")
        given = Input(name, 5, name * 64, parcels.packed_input(name))
        parcels.place_input(given, tmp_path / "job", str(home), "node2", bytes, used)
        os.utime(inputs / (name * 64), (now := len(list(inputs.iterdir())), now))  # one after another

    def placed() -> str:
        return "".join(sorted(path.name[0] for path in inputs.iterdir() if path.is_dir()))

    with ExitStack() as running:
        place("a", running)
        for name in "bcd":
            with ExitStack() as used:
                place(name, used)
        assert placed() == "acd", "a job uses a, the oldest"
    with ExitStack() as used:
        place("e", used)
    assert placed() == "de"


def test_an_input_that_is_too_large_is_the_nodes_own_or_is_refused_with_its_path_and_the_node(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parcels, "LARGEST_BYTES", 3)
    (home / "photos").mkdir()
    for number in range(9):
        (home / f"photos/{number}.png").write_bytes(b"12")
    assert 3 < parcels.input_bytes("photos") < 18, "it is not counted to the end"
    given = Input("photos", 4)
    parcels.place_input(given, tmp_path / "job", str(home), "node2", None, ExitStack())
    assert len(list((tmp_path / "job/photos").iterdir())) == 9
    with pytest.raises(
        JobsError, match=r"node2 does not see /gone/photos, which has more than the .* GB that are sent"
    ):
        parcels.place_input(given, tmp_path / "job2", "/gone", "node2", None, ExitStack())


def test_files_that_cannot_be_written_are_an_error_with_the_path(home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (home / "a").write_text("a")
    outputs = parcels.outputs_at_home(["a"])
    with pytest.raises(OutputError, match=f"cannot write {tmp_path / 'file'}"):
        parcels.place_outputs(outputs, tmp_path / "file")
