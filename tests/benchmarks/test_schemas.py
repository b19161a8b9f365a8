"""docs/schemas says what is written, and files of the tests fit it as far as their keys go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from model_folders import derivation_of, export_of, some_spec, spec_text
from schemas import COST_TABLE_SCHEMA, FOLDER, KINDS, schemas
from small_base import write_cost_table
from some_runs import DENSE

from edgevit.agent.records import Run
from edgevit.folder.derivation import DERIVATION_KIND
from edgevit.folder.export import EXPORT_KIND
from edgevit.folder.records import Versions


def test_docs_schemas_is_made_from_the_records() -> None:
    written = {file.name: file.read_text() for file in FOLDER.glob("*.json")}
    assert written == schemas(), "run `python benchmarks/schemas.py`"


@pytest.mark.parametrize("record", [Run, *(kind.record for kind in KINDS)], ids=lambda record: record.__name__)
def test_every_kind_of_file_says_which_edgevit_wrote_it(record: type) -> None:
    fields = get_type_hints(record, include_extras=True)
    versions = fields.get("versions")
    assert "edgevit" in fields or Versions in (versions, *get_args(versions)), "of Versions edgevit is required"


def test_a_cost_table_has_the_keys_that_its_schema_asks_for_and_no_others(tmp_path: Path) -> None:
    schema = json.loads((FOLDER / "cost_table.json").read_text())
    content = json.loads(write_cost_table(tmp_path, narrower=(32,)).read_text())
    assert set(schema["required"]) <= set(content) <= set(schema["properties"])
    assert content["schema"] == schema["properties"]["schema"]["const"] == COST_TABLE_SCHEMA
    for name, listed in (("NarrowerCosts", content["narrower"]), ("TokenCosts", content["fewer_tokens"])):
        known = schema["$defs"][name]
        assert all(set(known["required"]) <= set(one) <= set(known["properties"]) for one in listed)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("model", spec_text(some_spec(), "a" * 64)),
        ("derivation", DERIVATION_KIND.text(derivation_of(None))),
        ("export", EXPORT_KIND.text(export_of({}))),
        ("run", DENSE.to_json()),
    ],
)
def test_a_file_has_the_keys_that_its_schema_asks_for_and_no_others(name: str, text: str) -> None:
    schema, content = json.loads((FOLDER / f"{name}.json").read_text()), json.loads(text)
    assert set(schema["required"]) <= set(content) <= set(schema["properties"])
    assert content["schema"] == schema["properties"]["schema"]["const"]
