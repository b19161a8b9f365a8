"""docs/schemas says what is written, and files of the tests fit it as far as their keys go."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from made_schemas import COST_TABLE_SCHEMA, FOLDER, KINDS, schemas
from model_folders import derivation_of, export_of, some_spec, spec_text
from places import ROOT, nodes_of
from small_base import write_cost_table
from some_runs import DENSE

from edgevit.agent.records import Run
from edgevit.derivation.allocate.cost_table import Origin
from edgevit.records.derivation import DERIVATION_KIND
from edgevit.records.export import EXPORT_KIND
from edgevit.records.kinds import Versions


def test_docs_schemas_is_made_from_the_records() -> None:
    written = {file.name: file.read_text() for file in FOLDER.glob("*.json")}
    assert written == schemas(), "run `python docs/made_schemas.py`"


# Files of the package that dump JSON or YAML, and what they dump. All else goes through `RecordKind.text`.
RECORDS = {  # what the schema of a record is of, in another form than `RecordKind.text` gives it
    "edgevit/records/kinds.py": "RecordKind itself",
    "edgevit/records/model_folder.py": "lines of history",
    "edgevit/train/history.py": "lines of history",
    "edgevit/agent/records.py": "a line of a run",
    "edgevit/board/layers.py": "a line of profiled layers",
    "edgevit/reporting/tables.py": "the report, without numbers that are none",
    "edgevit/latency/cost.py": "a cost table",
    "edgevit/latency/candidates.py": "a cost table",
}
NO_RECORDS = {  # what no later run of edgevit reads by a schema
    "edgevit/agent/__main__.py": "answers, to a pipe",
    "edgevit/agent/bench.py": "a request, to a pipe",
    "edgevit/agent/control.py": "how a board was, until it is so again: agents alone read it",
    "edgevit/agent/jobs.py": "a request and its answer, until it is collected: for the same program there",
    "edgevit/agent/libraries.py": "an answer, to a pipe",
    "edgevit/agent/meters/jtop.py": "an answer, to a pipe",
    "edgevit/agent/lock.py": "who holds the board, as long as that lives",
    "edgevit/board/client.py": "a request, to a pipe",
    "edgevit/board/connection.py": "what is hashed to name a job",
    "edgevit/cli/console.py": "the result of a command on standard output",
    "edgevit/latency/store.py": "what is hashed to name a folder",
    "edgevit/derivation/allocate/cost_table.py": "what is hashed to name a table",
    "edgevit/derivation/cache.py": "what is hashed to name an entry",
    "edgevit/jobs/jobs_file.py": "what is hashed to name a job",
    "edgevit/derivation/session/resolved.py": "a request, read again at once",
    "edgevit/derivation/session/supernet.py": "a request, read again at once",
    "edgevit/serving/triton.py": "strings of a configuration in protobuf's text format",
    "edgevit/exporting/source.py": "metadata of an ONNX file, whose record is export.json",
    "edgevit/network/from_module.py": "timm's config.json, beside weights",
    "edgevit/records/documents.py": "what pydantic is to check",
    "edgevit/records/engine.py": "what is hashed, and TensorRT's own list of an engine's layers",
    "edgevit/reporting/page.py": "what a page packs for its own script",
    "edgevit/request.py": "a request, read again at once",
}


@cache
def calls(file: Path) -> list[tuple[str, ast.Call]]:
    return [(ast.unparse(node.func), node) for node in nodes_of(file) if isinstance(node, ast.Call)]


def test_every_kind_of_file_has_its_schema() -> None:
    declared = {
        call.args[0].value
        for file in (ROOT / "edgevit").rglob("*.py")
        for name, call in calls(file)
        if name == "RecordKind" and isinstance(call.args[0], ast.Constant)
    }
    assert declared == {kind.name for kind in KINDS}, "the kinds of the package, and those of docs/made_schemas.py"
    assert len({kind.record for kind in KINDS}) == len(KINDS)


def test_nothing_else_is_written_as_json_or_yaml() -> None:
    files = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "edgevit").rglob("*.py")
        for name, _ in calls(file)
        if name.startswith(("json.dump", "yaml.dump", "yaml.safe_dump"))
    }
    assert files == RECORDS.keys() | NO_RECORDS.keys(), "write it by a RecordKind, or say here what it is"


@pytest.mark.parametrize("record", [Run, *(kind.record for kind in KINDS)], ids=lambda record: record.__name__)
def test_every_kind_of_file_says_which_edgevit_wrote_it(record: type) -> None:
    fields = get_type_hints(record, include_extras=True)
    versions = fields.get("versions")
    assert "edgevit" in fields or Versions in (versions, *get_args(versions)), "of Versions edgevit is required"


def test_a_cost_table_says_it_with_what_it_was_measured_on() -> None:
    """A table that a person wrote does not say it."""
    assert "edgevit" in Origin.model_fields


def test_a_cost_table_has_the_keys_that_its_schema_asks_for_and_no_others(tmp_path: Path) -> None:
    schema = json.loads((FOLDER / "cost_table.json").read_text())
    content = json.loads(write_cost_table(tmp_path, narrower=(32,)).read_text())
    assert set(schema["required"]) <= set(content) <= set(schema["properties"])
    assert content["schema"] == schema["properties"]["schema"]["const"] == COST_TABLE_SCHEMA
    row = schema["$defs"]["PartCost"]
    assert all(set(row["required"]) <= set(cost) <= set(row["properties"]) for cost in content["costs"])


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
