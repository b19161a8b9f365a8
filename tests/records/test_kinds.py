from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from seals import unsealed

from edgevit.errors import PlanError
from edgevit.records.documents import Reader
from edgevit.records.kinds import (
    _UNSEALED_NOTED,
    PLACE,
    More,
    Place,
    RecordKind,
    Seal,
    Versions,
    content_sha256,
    plain,
)


@dataclass(frozen=True)
class Part:
    """A part."""

    width: int
    more: More = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Record:
    path: Place = field(metadata=PLACE)
    name: str
    part: Part | None
    parts: tuple[Part, ...] = ()
    versions: Versions


KIND = RecordKind("thing", Record, Reader(PlanError, mend="write it again"), (1, 2, 3), Seal(3, "sha256"))
SOME = Record(path=Path("x.json"), name="a", part=Part(3, {"more": 1, "tall": True}), versions={"edgevit": "0.1.0"})


def written(tmp_path: Path, content: object) -> Path:
    (tmp_path / "x.json").write_text(json.dumps(content))
    return tmp_path / "x.json"


def test_a_record_reads_back_as_it_was_written_wherever_it_lies(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(KIND.text(SOME))
    assert KIND.read(file, path=file) == replace(SOME, path=file)


def test_what_a_file_says_besides_stays_where_it_was_and_its_place_is_not_written(tmp_path: Path) -> None:
    content = KIND.content(SOME)
    assert content["part"] == {"width": 3, "more": 1, "tall": True} and "path" not in content
    assert content["schema"] == 3
    file = written(tmp_path, {**unsealed(KIND, content, 1), "later": "ignored"})
    assert KIND.read(file, path=file).part == SOME.part


def test_a_change_by_hand_is_noticed_and_how_the_file_is_laid_out_is_none(tmp_path: Path) -> None:
    content = KIND.content(SOME)
    assert content["sha256"] == content_sha256(content, "sha256")
    laid_out = written(tmp_path, dict(reversed(list(content.items()))))
    assert KIND.read(laid_out, path=laid_out).name == "a"
    pretends = {**content, "schema": 2}  # to be older than the seal that it has
    for changed in ({**content, "name": "b"}, {**content, "later": 1}, {**content, "sha256": None}, pretends):
        file = written(tmp_path, changed)
        with pytest.raises(PlanError, match=r"was altered: the hash of what it says is \w{12}, .*; write it again"):
            KIND.read(file, path=file)


def test_a_file_of_before_the_seal_is_read_with_a_note_and_one_that_only_says_so_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _UNSEALED_NOTED.clear()
    content = KIND.content(SOME)
    older = written(tmp_path, {**unsealed(KIND, content, 2), "name": "b"})
    for _ in range(2):
        assert KIND.read(older, path=older).name == "b"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"{older} is not sealed, written by edgevit 0.1.0: nothing shows whether it was altered"
    ], "once for all files of a kind"
    del content["sha256"]
    pretends = written(tmp_path, {**content, "schema": 2})
    with pytest.raises(PlanError, match=r"was altered: it says schema 2 and no sha256, and has 'record', which came"):
        KIND.read(pretends, path=pretends)
    another = written(tmp_path, KIND.sealed({**content, "record": "sweep"}))
    with pytest.raises(PlanError, match=r"is the record of another kind, 'sweep', expected 'thing'; write it again"):
        KIND.read(another, path=another)


def test_every_kind_has_a_seal_unless_it_says_otherwise() -> None:
    kind = RecordKind("part", Part, KIND.reader, schemas=(1,))
    assert list(kind.content(Part(3))) == ["schema", "record", "width", "content_sha256"]
    assert kind.checked(kind.content(Part(3)), "it") == Part(3)
    with pytest.raises(PlanError, match="it was altered: the hash of what it says is"):
        kind.checked({**kind.content(Part(3)), "width": 4}, "it")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"schema": 9},
            "has schema 9; this edgevit 0.1.0 reads up to 3 (written by edgevit 0.1.0): install a newer edgevit",
        ),
        ({"schema": 0}, "has schema 0, this edgevit reads 1 and 2 and 3; write it again"),
        ({"part": {"tall": True}}, "lacks part.width"),
        ({"parts": [{"width": "3"}]}, "has '3' as parts.0.width"),
        ({"versions": {}}, "is wrong in versions: it does not say which edgevit wrote the file"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, change: dict[str, object], told: str) -> None:
    file = written(tmp_path, {**KIND.content(SOME), **change})
    with pytest.raises(PlanError) as refused:
        KIND.read(file, path=file)
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_the_schema_says_what_is_written() -> None:
    schema = KIND.json_schema()
    assert schema["properties"]["schema"] == {"const": 3, "type": "integer"}
    assert "path" not in schema["properties"] and "more" not in schema["$defs"]["Part"]["properties"]
    assert set(schema["required"]) == {"schema", "record", "sha256", "name", "part", "versions"}
    assert set(KIND.content(SOME)) == set(schema["properties"])


def test_plain_values_are_those_of_json() -> None:
    assert plain({"a": (Part(1, {"b": Path("c")}), None)}) == {"a": [{"width": 1, "b": "c"}, None]}
