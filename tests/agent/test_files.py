"""Files from the host: kept under the hash of their content, and never half."""

import hashlib

import pytest

from edgevit.agent.files import cache_folder, discard, keep, offer, sha256_of, size
from edgevit.agent.runners import RunnerError


def test_an_upload_gets_its_name_once_its_content_is_right(tmp_path):
    path, part, content = tmp_path / "new" / "model.onnx", tmp_path / "new" / "part", b"a model"
    sha256 = hashlib.sha256(content).hexdigest()
    told = offer(print, "/", str(path), str(part), sha256)
    assert told["present"] is False and told["free_bytes"] > 0 and path.parent.is_dir()
    part.write_bytes(content)
    assert keep(print, "/", str(path), str(part), sha256) == {"path": str(path)}
    assert sha256_of(str(path)) == sha256 and not part.exists()
    assert offer(print, "/", str(path), str(part), sha256)["present"] is True
    assert size(print, "/", str(path)) == {"bytes": 7} and size(print, "/", str(part)) == {"bytes": None}


def test_a_file_in_place_of_the_folder_of_files_is_named(tmp_path):
    (tmp_path / "files").write_text("")
    for folder in ("files", "files/deeper"):
        with pytest.raises(RunnerError, match=r"/files(/deeper)? is no folder, and files are kept there; remove it"):
            offer(print, "/", str(tmp_path / folder / "model.onnx"), str(tmp_path / "part"), "0")


def test_an_upload_that_arrived_altered_is_refused_and_removed(tmp_path):
    part = tmp_path / "part"
    part.write_bytes(b"altered")
    with pytest.raises(RunnerError, match=r"arrived altered: its sha256 is .*, not 000000000000\.\.\."):
        keep(print, "/", str(tmp_path / "model.onnx"), str(part), "0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_what_a_broken_upload_left_is_removed_before_the_next(tmp_path):
    (tmp_path / "part").write_bytes(b"half")
    offer(print, "/", str(tmp_path / "model.onnx"), str(tmp_path / "part"), "0" * 64)
    assert not (tmp_path / "part").exists()


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == f"{tmp_path}/edgevit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == f"{tmp_path}/.cache/edgevit"


def test_what_is_discarded_goes_and_nothing_outside_the_cache_does(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = tmp_path / "edgevit" / "files"
    files.mkdir(parents=True)
    mine, other = files / "a.engine", tmp_path / "b.engine"
    mine.write_text("")
    other.write_text("")
    discard(print, "/", [str(mine), str(files / "gone.engine"), str(other), str(files / ".." / ".." / "b.engine")])
    assert not mine.exists() and other.exists()
