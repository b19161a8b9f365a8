"""A request of several budgets: a request for each, and what is refused of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgevit.errors import OptionError
from edgevit.jobs.budgets.request import check_budgets, per_budget
from edgevit.latency.request import MeetRequest


def asked(tmp_path: Path, **more: Any) -> MeetRequest:
    given = {"base": "vit_tiny_patch16_224", "pretrained": True, "data": "digits", "out": tmp_path / "t"}
    return MeetRequest(**{**given, **more})


def test_several_budgets_have_a_folder_each(tmp_path: Path) -> None:
    each = per_budget(asked(tmp_path, fps=(30, 60.5)))
    assert [(one.budgets, one.out.name) for one in each] == [((30,), "fps30"), ((60.5,), "fps60.5")]
    assert per_budget(asked(tmp_path, ms=5)) == [asked(tmp_path, ms=5)]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ms": (5, 5)}, "--ms has a number twice"),
        ({"ms": (5, -1)}, "--ms -1"),
        ({"ms": (5, 6), "cost_table": "t.yaml"}, "--ms has 2 numbers"),
        ({"ms": (5, 6), "method": "skd"}, "--method skd slices a super-network"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=told):
        check_budgets(asked(tmp_path, **given))
