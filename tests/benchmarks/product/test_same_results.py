"""The record of what every method makes is whole, and today's code still makes what it says."""

import json
from itertools import product
from pathlib import Path

import pytest

from benchmarks.product.same_results import ANYWHERE, BASES, HEADS, METHODS, RECORD, SHAPES, cases, differences, written
from edgevit.derivation.methods import method_names

KEPT = json.loads(RECORD.read_text())["cases"]


def test_the_record_has_every_method_shape_and_head_on_every_base() -> None:
    assert {method.partition(",")[0] for method in METHODS} == set(method_names()) - {"snapvit"}, (
        "it is younger than the record"
    )
    assert list(KEPT) == ["; ".join(case) for case in product(BASES, METHODS, SHAPES, HEADS)]
    assert json.loads(written({}, KEPT)) == {"made_with": {}, "cases": KEPT}


@pytest.mark.quick("vulcan", "heart")
@pytest.mark.parametrize("method", ANYWHERE)
def test_widths_and_costs_are_those_of_the_record_and_answers_but_for_rounding(method: str, tmp_path: Path) -> None:
    ((case, made),) = cases(tmp_path, ["class token"], [method], ["fused"], ["subset"])
    assert not set(differences(made, KEPT[case])) - {"weights", "answers"}
    assert made["answers"] == pytest.approx(KEPT[case]["answers"], abs=0.01)
