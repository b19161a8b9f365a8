from __future__ import annotations

import ast

import pytest
from places import ROOT, nodes_of

from edgevit.errors import UnknownNameError
from edgevit.exporting.request import Tolerances
from edgevit.records.precisions import FP16, FP32, INT8, PRECISIONS, precision_of, usual_precision

# Where a type needs the names themselves.
LITERALS = {
    "edgevit/records/precisions.py", "edgevit/jobs/fleet/plan.py", "edgevit/jobs/suite/plan.py",
    "edgevit/train/settings.py",
}  # fmt: skip


def test_a_precision_is_found_by_its_name() -> None:
    assert [precision_of(name) for name in PRECISIONS] == [FP32, FP16, INT8]
    assert (usual_precision(on_cpu=True), usual_precision(on_cpu=False)) == ("fp32", "fp16")
    with pytest.raises(UnknownNameError, match="no precision 'fp61'; did you mean 'fp16'"):
        precision_of("fp61")


@pytest.mark.parametrize("name", PRECISIONS)
def test_tolerances_are_those_of_the_table(name: str) -> None:
    tolerances = Tolerances()
    assert (tolerances.error(name), tolerances.agreement(name)) == (PRECISIONS[name].error, PRECISIONS[name].agreement)


def test_code_names_a_precision_by_its_row() -> None:
    named = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "edgevit").rglob("*.py")
        if ROOT / "edgevit" / "agent" not in file.parents
        if any(f'"{name}"' in file.read_text("utf-8") for name in PRECISIONS)
        for node in nodes_of(file)
        if isinstance(node, ast.Constant) and node.value in PRECISIONS
    }
    assert named <= LITERALS
