from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from edgevit.errors import PlanError
from edgevit.records import documents
from edgevit.records.documents import Reader

READER = Reader(PlanError, hint="write it again")


@dataclass(frozen=True)
class Part:
    width: int
    share: float | None = None


@dataclass(frozen=True)
class Record:
    schema: int
    name: str
    parts: tuple[Part, ...] = ()


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    workers: int = 1
    tasks: list[dict[str, Any]] = []


def refusal(tmp_path: Path, content: str | bytes, kind: Any = Record, how: str = "json", **options: Any) -> str:
    file = tmp_path / f"file.{how}"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PlanError) as refused:
        getattr(READER, how)(file, kind, **options)
    message = str(refused.value)
    assert "\n" not in message
    assert str(file) in message
    return message


def test_a_record_is_read_with_its_tuples(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"schema": 1, "name": "b", "parts": [{"width": 3, "share": 1}], "later": "ignored"}')
    assert READER.json(file, Record) == Record(1, "b", (Part(3, 1.0),))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        (b"\xff\xfe\x00", "is not text in UTF-8 (byte 0)"),
        ("[1]", "has a list, expected an object"),
        ('{"schema": 1}', "lacks name"),
        ('{"schema": 1, "name": 3}', "has 3 as name, expected a valid string"),
        ('{"schema": 1, "name": "a", "parts": [{"width": "3"}]}', "has '3' as parts.0.width, expected a valid integer"),
        ('{"schema": 1, "name": "a", "parts": [{"width": 3, "share": NaN}]}', "has nan as parts.0.share"),
        ('{"schema": 1, "name": "a", "name": "b"}', "the key 'name' is there twice"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"schema": 1, "name": "a", "x": ' + "[" * 70 + "]" * 70 + "}", "is nested too deeply"),
        ('{"schema": 1, "name": "a", "parts": ' + "9" * 5000 + "}", "is not JSON"),
        ('{"schema": 1, "name": "a", "parts": [{"width": 3, "share": 1' + "0" * 400 + "}]}", "number of 401 digits"),
    ],
)  # fmt: skip
def test_a_fault_of_a_json_file_is_one_line(tmp_path: Path, content: str | bytes, told: str) -> None:
    assert told in refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("workers: [", "is not YAML"),
        ("\tworkers: 1", "is not YAML"),
        ("workers: 1\nworkers: 2", "the key 'workers' is there twice"),
        ("tasks: [{a: 2020-01-01}]", "has 2020-01-01 as tasks.0.a, a date: put it in quotes"),
        ("tasks: [{a: 2020-13-45}]", "is not YAML"),
        ("tasks: [{1: 2}]", "has the key 1 under tasks.0: put it in quotes"),
        ("tasks: [{a: .nan}]", "has nan as tasks.0.a"),
        ("worker: 2", "has the unknown key 'worker'; did you mean 'workers'?"),
        ("workers: two", "has 'two' as workers, expected a valid integer"),
        ("tasks: " + "[" * 600, "is nested too deeply"),
        ("a: &a [*a]", "is nested too deeply"),
        ("!!python/object/apply:os.system [true]", "is not YAML"),
        ("workers: !!binary aGk=", "a bytes: put it in quotes"),
    ],
)  # fmt: skip
def test_a_fault_of_a_yaml_file_is_one_line(tmp_path: Path, content: str, told: str) -> None:
    assert told in refusal(tmp_path, content, Strict, "yaml")


def test_names_of_digits_stay_as_they_are_written_in_yaml(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("[00012, -07, 0x1f, 12:30, 1e4b, 3e5f9a77]")
    assert READER.yaml(file, list[str]) == ["00012", "-07", "0x1f", "12:30", "1e4b", "3e5f9a77"]
    file.write_text("[0, 12, -3, 1_000, 1e-4, 2E+3, 0.5]")
    assert READER.yaml(file, list[float]) == [0, 12, -3, 1000, 1e-4, 2000, 0.5]


def test_few_lines_of_yaml_that_hold_more_values_than_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "VALUES", 10**5)
    lines = [f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]" for old, new in pairwise("abcdefghi")]
    content = "\n".join(["a: &a [1,1,1,1,1,1,1,1,1,1]", *lines])
    assert "holds more than 100000 values" in refusal(tmp_path, content, Strict, "yaml")


@pytest.mark.parametrize("wrong", ["NaN", "1e999", str(2**70), "[1, NaN]"])
def test_a_figure_that_is_none_is_found_among_many(tmp_path: Path, wrong: str) -> None:
    content = f'{{"many": [{"1.5, 2, " * 5000}{wrong}, 3]}}'
    told = refusal(tmp_path, content, Strict, "json")
    assert " as many.10000" in told and ("no finite number" in told or "digits" in told)


def test_a_missing_file_and_a_folder_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"there is no .*a\.json; check the path"):
        READER.json(tmp_path / "a.json", Record)
    with pytest.raises(PlanError, match=r"cannot read .*: Is a directory"):
        READER.json(tmp_path, Record)


def test_a_pipe_or_a_device_is_refused_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(
        PlanError, match=r"cannot read .*a\.json: it is a pipe, expected a regular file; check the path"
    ):
        READER.json(tmp_path / "a.json", Record)
    with pytest.raises(PlanError, match=r"cannot read /dev/zero: it is a device, expected a regular file"):
        READER.yaml(Path("/dev/zero"), Record)


def test_the_size_that_a_file_states_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LIMIT_BYTES", 10)
    assert Path("/proc/meminfo").stat().st_size == 0
    with pytest.raises(PlanError, match=r"/proc/meminfo has more than 0 MB"):
        READER.text(Path("/proc/meminfo"))


def test_lines_of_windows_end_as_all_others(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert READER.text(tmp_path / "a") == "one\ntwo\nthree\n"


def test_a_fault_of_a_line_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"width": 1}\n\n{"width": 2}\n{"width": ')
    with pytest.raises(PlanError, match=r"a\.jsonl, line 4 is not JSON"):
        READER.json_lines(file, Part)
    file.write_text('{"width": 1}\n\n{"width": 2}\n')
    assert READER.json_lines(file, Part) == [Part(1), Part(2)]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
@example({"\n": 2**63})
def test_any_value_is_a_record_or_one_fault(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    try:
        record = READER.parse(json.dumps(value), Record, "it")
    except PlanError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(record.name, str)


def test_lines_end_at_newlines_alone_and_a_file_may_be_larger_than_a_line_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = "a\u2028b\u0085c\x1cd"
    file = tmp_path / "odd.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + f'"{odd}"\r\n\n"{odd}"'.replace("\x1c", "\\u001c").encode())
    assert READER.json_lines(file, str) == [odd, odd]
    assert [where for where, _ in READER.lines(file)] == [f"{file}, line 1", f"{file}, line 3"]
    monkeypatch.setattr(documents, "LIMIT_BYTES", 20)
    file.write_bytes(b'"0123456789"\n' * 10)
    assert len(READER.json_lines(file, str)) == 10
    file.write_bytes(b'"1"\n"\xff"\n"' + b"0" * 30)
    with pytest.raises(PlanError, match=r"odd.jsonl, line 2 is not text in UTF-8 \(byte 1\); write it again"):
        READER.json_lines(file, str)
    with pytest.raises(PlanError, match=r"line 3 has more than 0 MB; write it again"):
        list(READER.lines(file))
