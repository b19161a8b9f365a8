"""A request of several budgets: a request for each, and what is refused of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgevit.errors import OptionError
from edgevit.jobs.budgets.request import check_budgets, continued, per_budget
from edgevit.latency.request import MeetRequest, identity
from edgevit.records.unfinished import REQUEST_KIND, RequestRecord, partial_folder
from edgevit.train.settings import Training


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


def test_one_of_several_budgets_that_an_older_edgevit_began_is_continued(tmp_path: Path) -> None:
    """before.json is the identity of the second of two budgets, as edgevit wrote it when `latency` met them all."""
    before = json.loads(Path(__file__).with_name("before.json").read_text())
    both = asked(tmp_path, ms=(6, 4), training=Training(steps=0, device="cpu"))
    now = identity(per_budget(both)[1])
    # With options added since, and defaults that are null since.
    training = {**now["training"], **before["training"], "augment": None, "batch_size": None}
    before = {**now, **before, "training": training}
    file = partial_folder(tmp_path / "t" / "ms4") / "request.json"
    file.parent.mkdir(parents=True)
    file.write_text(REQUEST_KIND.text(RequestRecord("0.1.0", {}, before)))
    assert continued(both).resume and not continued(asked(tmp_path, ms=(6, 5), training=both.training)).resume
    assert not continued(asked(tmp_path, ms=4, training=both.training)).resume, "one alone has another folder"
