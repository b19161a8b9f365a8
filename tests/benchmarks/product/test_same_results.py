"""The record of what every method makes is whole, and today's code still makes what it says."""

import json
from itertools import product
from pathlib import Path

import pytest

from benchmarks.product.same_results import ANYWHERE, BASES, HEADS, METHODS, RECORD, SHAPES, cases, differences, written
from edgevit.derivation.methods import method_names

KEPT = json.loads(RECORD.read_text())["cases"]


def test_the_record_has_every_method_shape_and_head_on_every_base() -> None:
    assert {method.partition(",")[0] for method in METHODS} == set(method_names())
    assert list(KEPT) == ["; ".join(case) for case in product(BASES, METHODS, SHAPES, HEADS)]
    assert json.loads(written({}, KEPT)) == {"made_with": {}, "cases": KEPT}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    folder = tmp_path_factory.mktemp("same")
    return dict(cases(Path(folder), ["class token"], ANYWHERE, ["fused"], ["subset"]))


@pytest.mark.parametrize("method", ANYWHERE)
def test_widths_and_costs_are_those_of_the_record_and_answers_but_for_rounding(
    method: str, made: dict[str, dict[str, object]]
) -> None:
    case = f"class token; {method}; fused; subset"
    assert not set(differences(made[case], KEPT[case])) - {"weights", "answers"}
    assert made[case]["answers"] == pytest.approx(KEPT[case]["answers"], abs=0.01)
