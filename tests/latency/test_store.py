"""What was measured is kept by all that it depends on, and survives a crash in the middle of a line."""

import shutil
from dataclasses import replace
from queue import Queue
from threading import Thread

import pytest
from some_runs import DENSE, SLIM

from edgevit.errors import OutputError, RunsError
from edgevit.latency.store import ENGINES, KEY_KIND, RUNS, Store, StoreKey, clear, costs_folder, entries
from edgevit.progress import Silent
from edgevit.version import written_by


def test_runs_are_read_back_in_order_and_other_keys_have_others(tmp_path):
    store = Store.of({"embed": 64, "batch": 1}, tmp_path)
    assert store.runs() == []
    store.add([DENSE])
    store.add([SLIM, DENSE])
    assert Store.of({"batch": 1, "embed": 64}, tmp_path).runs() == [DENSE, SLIM, DENSE]
    other = Store.of({"batch": 8, "embed": 64}, tmp_path)
    assert other.runs() == []
    told = KEY_KIND.read(store.folder / "key.json")
    assert told == StoreKey(written_by(), embed=64, more={"batch": 1})
    shutil.rmtree(other.folder)
    store.folder.rename(other.folder)
    assert Store.of({"batch": 8, "embed": 64}, tmp_path).runs() == [], "folders that changed places"


def test_a_line_that_a_crash_cut_off_costs_that_run_alone(tmp_path):
    store = Store.of({}, tmp_path)
    store.add([DENSE, SLIM])
    whole = (store.folder / RUNS).read_text()
    (store.folder / RUNS).write_text(whole[:-100])
    assert store.runs() == [DENSE]
    again = replace(SLIM, label="again")
    store.add([again])
    assert store.runs() == [DENSE, again]


def test_engines_are_remembered_by_label(tmp_path):
    store = Store.of({}, tmp_path)
    assert store.engines() == {}
    store.keep_engines({"2 of 3x16+0": ("/files/a.engine", "a" * 64)})
    assert Store.of({}, tmp_path).engines() == {"2 of 3x16+0": ("/files/a.engine", "a" * 64)}


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write .*file"):
        Store.of({}, tmp_path / "file")


def test_costs_lie_beside_what_derivations_share(cache_home):
    assert costs_folder() == cache_home / "edgevit" / "costs"


def test_the_cache_command_sees_an_entry_for_each_key_and_removes_them(tmp_path):
    assert entries(tmp_path / "none") == []
    key = {"family": "vit", "embed": 64, "origin": {"processor": "a CPU", "precision": "fp32"}}
    for batch in (1, 2):
        store = Store.of({**key, "batch": batch}, tmp_path)
        store.add([DENSE])
    found = entries(tmp_path)
    assert [(e.kind, e.base, e.task) for e in found] == [("costs", "vit 64", "a CPU, fp32")] * 2
    assert all(e.bytes > 1000 for e in found)
    assert clear(tmp_path) == found and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("[]", "expected"),
        ('{"schema": 1, "engines": {"a": 3}, "edgevit": "1"}', "engines.a"),
        ('{"schema": 2}', "schema 2"),
    ],
)
def test_a_damaged_list_of_engines_is_one_line(tmp_path, text, told):
    store = Store.of({}, tmp_path)
    (store.folder / ENGINES).write_text(text)
    with pytest.raises(RunsError, match=told):
        store.engines()


def test_a_second_process_that_measures_the_same_is_told_that_it_waits(tmp_path):
    store, told = Store.of({}, tmp_path), Queue()

    class Told(Silent):
        def note(self, text):
            told.put(text)

    def second():
        with store.alone(Told()):
            told.put("its turn")

    waiter = Thread(target=second)
    with store.alone():
        waiter.start()
        assert "waiting for another edgevit" in told.get(timeout=10) and told.empty()
    assert told.get(timeout=10) == "its turn"
    waiter.join()
