"""The cache gives back what was put in, and never anything else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_base import derive, write_checkpoint

from edgevit.derivation import cache as cache_module
from edgevit.derivation.cache import Cache, clear, entries


class Noting:
    """A progress that remembers the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    warn = note


class Maker:
    """Counts how often it was needed."""

    def __init__(self, value: float = 1.0) -> None:
        self.calls, self.value = 0, value

    def __call__(self) -> dict[str, torch.Tensor]:
        self.calls += 1
        return {"a": torch.full((3,), self.value), "b": torch.arange(2)}


@pytest.fixture
def opened(tmp_path: Any) -> Any:
    return Cache(tmp_path / "cache", Noting())


def test_an_entry_is_made_once_and_told_of_when_reused(opened: Any) -> None:
    make = Maker()
    first, _ = (opened.tensors("masks", {"base": "x"}, make) for _ in range(2))
    assert make.calls == 1 and opened.reused == [], "it made that itself"
    opened.computed.clear()  # another derivation
    second = opened.tensors("masks", {"base": "x"}, make)
    assert make.calls == 1 and opened.reused == ["masks"]
    assert all(torch.equal(first[name], second[name]) for name in ("a", "b"))
    assert opened.progress.notes == ["reusing masks from the cache"]


def test_another_key_or_word_is_another_entry(opened: Any) -> None:
    make = Maker()
    for what, key in (("masks", {"base": "x"}), ("masks", {"base": "y"}), ("spectra", {"base": "x"})):
        opened.tensors(what, key, make)
    assert make.calls == 3 and sorted(e.kind for e in entries(opened.folder)) == ["masks", "masks", "spectra"]


def _truncate(file: Any) -> None:
    file.write_bytes(file.read_bytes()[:-8])


def _flip(file: Any) -> None:
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_truncate, "it cannot be read"),
        (_flip, "its content does not match its hash"),
    ],
)
def test_an_entry_that_is_damaged_is_said_so_and_made_again(opened: Any, spoil: Any, told: str) -> None:
    make = Maker()
    good = opened.tensors("masks", {}, make)
    spoil(entries(opened.folder)[0].file)
    again = opened.tensors("masks", {}, make)
    assert make.calls == 2 and torch.equal(good["a"], again["a"])
    assert told in opened.progress.notes[0] and "working it out again" in opened.progress.notes[0]
    opened.tensors("masks", {}, make)
    assert make.calls == 2, "the new entry is whole"


def test_entries_that_changed_places_are_said_so_and_made_again(opened: Any) -> None:
    makers = {"x": Maker(1.0), "y": Maker(2.0)}
    good = [opened.tensors("masks", {"base": base}, make)["a"] for base, make in makers.items()]
    a, b = (entry.file for entry in entries(opened.folder))
    content = a.read_bytes()
    b.replace(a)
    b.write_bytes(content)
    for (base, make), before in zip(makers.items(), good, strict=True):
        assert torch.equal(opened.tensors("masks", {"base": base}, make)["a"], before) and make.calls == 2
    assert [note.partition(";")[0] for note in opened.progress.notes] == [
        "cached masks not used: it is the entry of another key, under this one's name"
    ] * 2


def test_an_entry_of_another_version_is_said_so_and_made_again(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker()
    with monkeypatch.context() as older:
        older.setattr(cache_module, "MADE_BY", "edgevit 0.0.1 with torch 1.0, schema 1")
        opened.tensors("masks", {}, make)
    opened.tensors("masks", {}, make)
    assert make.calls == 2 and len(entries(opened.folder)) == 1
    assert "not used: it was made by edgevit 0.0.1 with torch 1.0, schema 1, and this is" in opened.progress.notes[0]


def test_an_entry_says_which_commit_made_it_and_is_good_for_every_other(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Maker()
    with monkeypatch.context() as older:
        older.setattr(cache_module, "written_by", lambda: "0.1.0 (1301f27)")
        opened.tensors("masks", {}, make)
    (entry,) = entries(opened.folder)
    assert cache_module._metadata(entry.file)["edgevit"] == "0.1.0 (1301f27)"
    opened.tensors("masks", {}, make)
    assert make.calls == 1
    told = {name: value for name, value in cache_module._metadata(entry.file).items() if name != "edgevit"}
    save_file(Maker()(), entry.file, told)  # as one made it that did not say
    opened.tensors("masks", {}, make)
    assert make.calls == 1


def test_an_entry_of_another_processor_is_used_and_said_to_be_of_it(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Maker()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(cache_module, "processor", lambda: "AMD EPYC 7B13")
        opened.tensors("masks", {}, make)
    opened.computed.clear()  # as another derivation has it
    for _ in range(2):
        opened.tensors("masks", {}, make)
    assert make.calls == 1 and opened.reused == ["masks (worked out on AMD EPYC 7B13)"]
    (note,) = opened.progress.notes
    assert note.startswith("reusing masks (worked out on AMD EPYC 7B13) from the cache: results may differ")


def test_an_entry_that_goes_while_it_is_read_is_still_used(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has just made room."""
    make, read = Maker(), cache_module._read
    opened.tensors("masks", {}, make)

    def read_and_lose(file: Path, key_sha256: str) -> dict[str, torch.Tensor]:
        found = read(file, key_sha256)
        file.unlink()
        return found

    monkeypatch.setattr(cache_module, "_read", read_and_lose)
    assert torch.equal(opened.tensors("masks", {}, make)["a"], torch.ones(3)) and make.calls == 1


def test_the_least_recently_used_go_first(opened: Any) -> None:
    opened.tensors("one", {}, Maker())
    size = entries(opened.folder)[0].bytes
    opened.limit_bytes = 2 * size
    opened.tensors("two", {}, Maker())
    for file, age in ((e.file, 100 if e.kind == "one" else 50) for e in entries(opened.folder)):
        os.utime(file, (0, 1e9 - age))
    opened.tensors("one", {}, Maker())  # used just now
    opened.tensors("three", {}, Maker())
    assert {e.kind for e in entries(opened.folder)} == {"one", "three"}


def test_streams_have_half_of_the_room_and_leave_the_other_to_what_takes_longer(opened: Any) -> None:
    opened.tensors("curves", {}, Maker())
    opened.limit_bytes = 4 * entries(opened.folder)[0].bytes
    for layer in range(6):
        opened.tensors(cache_module.STREAMS, {"layer": layer}, Maker())
    assert sorted(e.kind for e in entries(opened.folder)) == ["curves", "streams", "streams"]
    assert sum(e.bytes for e in entries(opened.folder) if e.kind == "streams") <= opened.streams_bytes


def test_what_is_reused_in_parts_is_told_once(opened: Any) -> None:
    for _ in range(2):
        for layer in range(3):
            opened.tensors(cache_module.STREAMS, {"layer": layer}, Maker())
        opened.computed.clear()  # another derivation
    assert opened.reused == ["streams"] and opened.progress.notes == ["reusing streams from the cache"]


def test_a_folder_that_cannot_be_written_costs_the_entry_and_nothing_else(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("in the way")
    blocked = Cache(tmp_path / "file" / "cache", Noting())
    for layer in range(3):
        assert float(blocked.tensors("masks", {"layer": layer}, Maker())["a"][0]) == 1.0
    (told,) = blocked.progress.notes
    assert told.startswith(f"not cached: cannot write {blocked.folder}: ")


@pytest.mark.parametrize("planted", ["lock", "entry", "pipe"])
def test_a_link_or_pipe_in_a_shared_folder_leads_nowhere(opened: Any, tmp_path: Path, planted: str) -> None:
    """Names of entries can be seen after the first run, by whoever else may write there."""
    victim, make = tmp_path / "victim", Maker()
    victim.write_text("precious")
    os.utime(victim, (1, 1))
    opened.tensors("masks", {}, make)
    entry = entries(opened.folder)[0].file
    entry.unlink()
    lock = entry.with_suffix(".lock")
    lock.unlink()
    if planted == "pipe":
        os.mkfifo(lock)
    else:
        (lock if planted == "lock" else entry).symlink_to(victim)
    assert torch.equal(opened.tensors("masks", {}, make)["a"], torch.ones(3))
    assert victim.read_text() == "precious" and victim.stat().st_mtime == 1
    assert make.calls == 2 and _is_whole(entry)


def test_a_pipe_in_place_of_another_entry_waits_for_nobody(opened: Any) -> None:
    opened.folder.mkdir()
    os.mkfifo(opened.folder / "masks-0.safetensors")
    opened.tensors("masks", {}, Maker())
    assert len(entries(opened.folder)) == len(clear(opened.folder)) == 2 and not list(opened.folder.iterdir())


def _is_whole(entry: Path) -> bool:
    return not entry.is_symlink() and cache_module._metadata(entry)["made_by"] == cache_module.MADE_BY


def test_nothing_is_left_beside_an_entry_but_its_lock(opened: Any) -> None:
    opened.tensors("masks", {}, Maker())
    assert sorted(file.suffix for file in opened.folder.iterdir()) == [".lock", ".safetensors"]
    (opened.folder / ".killed.tmp").mkdir()  # while it wrote an entry
    clear(opened.folder)
    assert list(opened.folder.iterdir()) == []


def test_an_entry_says_whose_it_is_and_one_of_an_older_edgevit_is_still_shown(
    tmp_path: Path, edgevit_main: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Cache(tmp_path / "cache", Noting(), base="vit, base.safetensors", task="photos\udcff: jay, [red]robin")
    monkeypatch.setattr(cache_module, "derivations_folder", lambda: made.folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))  # without what cost tables were made of elsewhere
    made.tensors("spectra", {}, Maker())
    save_file({"counts": torch.ones(1)}, tmp_path / "cache" / "baselines-0a.safetensors", {"made_by": "edgevit 0.0"})
    (tmp_path / "cache" / "curves-1b.safetensors").write_text("damaged")
    shown = json.loads(edgevit_main("cache", "--json").out)["entries"]
    told = {entry["what"]: (entry["base"], entry["task"]) for entry in shown}
    assert told == {
        "spectra": ("vit, base.safetensors", r"photos\udcff: jay, [red]robin"),
        "baselines": ("", ""),
        "curves": ("", ""),
    }


def test_without_a_folder_everything_is_worked_out() -> None:
    make, none = Maker(), Cache(None)
    none.tensors("masks", {}, make), none.tensors("masks", {}, make)
    assert make.calls == 2 and none.reused == []


def test_a_second_derivation_reuses_what_does_not_depend_on_the_rate_and_is_the_same_as_a_fresh_one(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    checkpoint = write_checkpoint(tmp_path)
    asked = {"method": "nuwa", "training": {"steps": 0}, "options": {"purification_steps": 4}}
    derive(checkpoint, tmp_path / "first", rate=0.5, **asked)
    second = derive(checkpoint, tmp_path / "second", rate=0.6, **asked)
    fresh = derive(checkpoint, tmp_path / "fresh", rate=0.6, cache=False, **asked)
    assert {"masks", "statistics", "spectra", "removal-order"} <= set(second.record.facts.reused)
    assert fresh.record.facts.reused == ()
    for name, value in fresh.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    folder = cache_module.derivations_folder()
    assert folder == tmp_path / "home" / "edgevit" / "derivation"
    assert {(e.base, e.task) for e in entries(folder)} == {
        ("vit_tiny_patch16_224, base.safetensors", "digits: 3, 7, 9")
    }
    assert len(clear(folder)) >= 4 and entries(folder) == []


def test_the_command_shows_and_clears(
    opened: Any, edgevit_main: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cache_module, "derivations_folder", lambda: opened.folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert "holding 0 entries" in edgevit_main("cache").out
    opened.tensors("spectra", {}, Maker())
    shown = edgevit_main("cache")
    assert "holding 1 entries" in shown.out and shown.err == ""
    assert "removed 1 entries" in edgevit_main("cache", "--clear").out
    assert entries(opened.folder) == []
