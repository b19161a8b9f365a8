from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from edgevit.errors import PlanError
from edgevit.records.documents import Reader
from edgevit.records.kinds import PLACE, More, Place, RecordKind, Versions, content_sha256, plain, seal


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


KIND = RecordKind("thing", Record, Reader(PlanError, hint="restore it"), schema=3)
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
    file = written(tmp_path, seal({**content, "later": "ignored"}))
    assert KIND.read(file, path=file).part == SOME.part


def test_a_change_by_hand_is_noticed_and_how_the_file_is_laid_out_is_none(tmp_path: Path) -> None:
    content = KIND.content(SOME)
    assert content["content_sha256"] == content_sha256(content)
    laid_out = written(tmp_path, dict(reversed(list(content.items()))))
    assert KIND.read(laid_out, path=laid_out).name == "a"
    unsealed = {name: value for name, value in content.items() if name != "content_sha256"}
    for changed in ({**content, "name": "b"}, {**content, "later": 1}, {**content, "content_sha256": None}, unsealed):
        file = written(tmp_path, changed)
        with pytest.raises(PlanError, match=r"was altered: the hash of its content is \w{12}, .*; restore it"):
            KIND.read(file, path=file)


def test_the_record_of_another_kind_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, seal({**KIND.content(SOME), "record": "sweep"}))
    with pytest.raises(PlanError, match=r"has a record of kind 'sweep', expected 'thing'; restore it"):
        KIND.read(file, path=file)


def test_every_kind_is_sealed_unless_it_says_otherwise() -> None:
    kind = RecordKind("part", Part, KIND.reader)
    assert list(kind.content(Part(3))) == ["schema", "record", "width", "content_sha256"]
    assert kind.checked(kind.content(Part(3)), "it") == Part(3)
    with pytest.raises(PlanError, match="it was altered: the hash of its content is"):
        kind.checked({**kind.content(Part(3)), "width": 4}, "it")
    unsealed = RecordKind("part", Part, KIND.reader, sealed=False)
    assert unsealed.content(Part(3)) == {"schema": 1, "width": 3}
    assert unsealed.checked({"schema": 1, "width": 4}, "it") == Part(4)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"schema": 9},
            "has schema 9, written by edgevit 0.1.0; edgevit 0.1.0 reads schema 3: write it again with this version, "
            "or use edgevit 0.1.0",
        ),
        (
            {"schema": 9, "versions": {"edgevit": "0.9 (ab12+)"}},
            "has schema 9, written by edgevit 0.9; edgevit 0.1.0 reads schema 3: write it again with this version, or "
            "use edgevit 0.9",
        ),
        (
            {"schema": "3", "versions": {"edgevit": "; rm -r"}},
            "has schema '3', written by an unknown version; edgevit 0.1.0 reads schema 3: write it again with this "
            "version",
        ),
        ({"schema": True}, "has schema True, written by"),
        ({"part": {"tall": True}}, "lacks part.width"),
        ({"parts": [{"width": "3"}]}, "has '3' as parts.0.width"),
        ({"versions": {}}, "is wrong in versions: it does not state which edgevit wrote the file"),
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
    assert set(schema["required"]) == {"schema", "record", "content_sha256", "name", "part", "versions"}
    assert set(KIND.content(SOME)) == set(schema["properties"])


def test_plain_values_are_those_of_json() -> None:
    assert plain({"a": (Part(1, {"b": Path("c")}), None)}) == {"a": [{"width": 1, "b": "c"}, None]}
