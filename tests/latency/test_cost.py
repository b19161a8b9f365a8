"""From a name to a file that derivations read."""

import json

import pytest
import some_tables
from some_costs import ARGS
from some_tables import rows

from edgevit.derivation.allocate.cost_table import CostTable, load_cost_table
from edgevit.errors import OutputError
from edgevit.latency.cost import cost, write_table
from edgevit.latency.cost_request import CostRequest

pytestmark = pytest.mark.usefixtures("examined_once")


def test_a_name_becomes_a_table_in_a_file_and_what_is_known_is_not_measured_again(fill, tmp_path):
    fill(folder=None)  # the user's cache folder
    file = tmp_path / "t.yaml"
    asked = CostRequest(base="vit_tiny_patch16_224", model_args=ARGS, output=file, threads=1, points=1)
    file.write_text("")
    table = cost(asked)
    assert load_cost_table(file) == table
    assert table.base.depth == 4 and table.in_quantity("mj").base > 0
    file.write_text(file.read_text().replace("costs", "cost"))
    assert cost(asked) == table == load_cost_table(file), "a damaged table is replaced"


def test_a_table_is_written_as_json_too_and_a_full_disk_is_one_line(tmp_path):
    table = CostTable.model_validate(some_tables.table(rows(0.5, {(2, 32): 1.0}, {256: 1.0})))
    write_table(table, tmp_path / "t.json")
    assert (
        load_cost_table(tmp_path / "t.json") == table and json.loads((tmp_path / "t.json").read_text())["schema"] == 1
    )
    with pytest.raises(OutputError, match=r"cannot write .*no/t.yaml"):
        write_table(table, tmp_path / "no" / "t.yaml")


@pytest.mark.parametrize("name", ["t.yaml", "t.json"])
def test_a_file_of_something_else_is_not_replaced(tmp_path, name):
    file = tmp_path / name
    asked = CostRequest(base="resnet18", output=file)  # refused before the base is looked at
    for foreign in ("rate: 0.5\nclasses: [cat, dog]\n", '{"rate": 0.5}', "[1, 2]", "cat\ndog: : x\n"):
        file.write_text(foreign)
        with pytest.raises(OutputError, match=rf"{name} exists and is no cost table, .*; choose another --output"):
            cost(asked)
        assert file.read_text() == foreign
