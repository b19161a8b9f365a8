"""plan.json is read as it was written, and what is wrong with it is a line."""

import pytest

from edgevit.errors import CheckpointError
from edgevit.records.model_folder import ModelFolder
from edgevit.records.plan import (
    PLAN_KIND,
    AttentionRecord,
    BlockRecord,
    FfnRecord,
    PlanRecord,
    StepRecord,
    from_ranges,
    in_ranges,
)

STEP = StepRecord("vulcan", (BlockRecord(1, AttentionRecord("0,2", 16, 8), FfnRecord(2, "0,7", {"7": "1-6"})),))


def test_a_file_of_steps_is_read_as_it_was_written(tmp_path):
    assert ModelFolder(tmp_path).plan() is None
    steps = PlanRecord((STEP, StepRecord("forge", (BlockRecord(0, None, FfnRecord(1, "0")),), 96)))
    (tmp_path / "plan.json").write_text(PLAN_KIND.text(steps))
    assert ModelFolder(tmp_path).plan() == steps


@pytest.mark.parametrize(
    ("was", "becomes"), [('"0,2"', '"0;2"'), ('"qk": 16', '"qk": 0'), ('"schema": 1', '"schema": 9'), ("{", "")]
)
def test_a_damaged_file_is_one_line(tmp_path, was, becomes):
    (tmp_path / "plan.json").write_text(PLAN_KIND.text(PlanRecord((STEP,))).replace(was, becomes, 1))
    with pytest.raises(CheckpointError) as error:
        ModelFolder(tmp_path).plan()
    assert "plan.json" in str(error.value) and "\n" not in str(error.value)


def test_ranges_keep_the_order_of_numbers():
    for numbers in ([3], [3, 4, 5, 9], [9, 8, 7], [5, 0, 1, 2]):
        assert from_ranges(in_ranges(numbers)) == numbers
    assert in_ranges([0, 1, 2, 7, 9, 10]) == "0-2,7,9-10"
