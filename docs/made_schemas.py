"""Write docs/schemas: the JSON Schema of every kind of file that edgevit writes, made from the records themselves.

    python docs/made_schemas.py

A new kind of file is one more name in KINDS; a test finds the kinds that are missing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from edgevit.agent.records import SCHEMA, Run
from edgevit.board.layers import LAYERS_KIND
from edgevit.derivation.allocate.cost_table import SCHEMA as COST_TABLE_SCHEMA
from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.jobs.fleet.states import JOB_KIND
from edgevit.jobs.suite.record import SUITE_KIND
from edgevit.jobs.sweep.record import SWEEP_KIND
from edgevit.latency.meet import SEARCH_KIND
from edgevit.latency.store import ENGINES_KIND, KEY_KIND
from edgevit.records.derivation import DERIVATION_KIND
from edgevit.records.engine import ENGINE_KIND
from edgevit.records.export import EXPORT_KIND
from edgevit.records.history import HISTORY_KIND
from edgevit.records.imported import IMPORTED_KIND
from edgevit.records.kinds import RecordKind
from edgevit.records.model import MODEL_KIND
from edgevit.records.plan import PLAN_KIND
from edgevit.records.state import BASELINES_KIND, DECIDED_KIND
from edgevit.records.supernet import SUPERNET_KIND
from edgevit.records.unfinished import REQUEST_KIND
from edgevit.reporting.record import REPORT_KIND
from edgevit.train.saved import SAVED_KIND

FOLDER = Path(__file__).parent / "schemas"
KINDS: tuple[RecordKind[Any], ...] = (
    MODEL_KIND, DERIVATION_KIND, PLAN_KIND, SUPERNET_KIND, EXPORT_KIND, ENGINE_KIND, SWEEP_KIND,
    LAYERS_KIND, SUITE_KIND, IMPORTED_KIND, HISTORY_KIND, REQUEST_KIND, BASELINES_KIND, DECIDED_KIND,
    SAVED_KIND, SEARCH_KIND, KEY_KIND, ENGINES_KIND, REPORT_KIND, JOB_KIND,
)  # fmt: skip


def run_schema() -> dict[str, Any]:
    """Return the schema of one line of a file of runs, which the agent writes without pydantic."""
    described = TypeAdapter(Run).json_schema()
    version = {"schema": {"const": SCHEMA, "type": "integer"}}
    return {
        **described,
        "properties": {**version, **described["properties"]},
        "required": ["schema", *described["required"]],
    }


def cost_table_schema() -> dict[str, Any]:
    """Return the schema of cost tables, in JSON or YAML."""
    described = CostTable.model_json_schema()
    version = {"schema": {"const": COST_TABLE_SCHEMA, "type": "integer"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **described,
        "properties": {**described["properties"], **version},
    }


def schemas() -> dict[str, str]:
    """Return the text of every file of docs/schemas by its name."""
    kinds = {kind.name: kind.json_schema() for kind in KINDS} | {"run": run_schema(), "cost_table": cost_table_schema()}
    return {f"{name}.json": json.dumps(schema, indent=1) + "\n" for name, schema in kinds.items()}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in schemas().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
