from __future__ import annotations

import pytest

from edgevit.errors import CheckpointError
from edgevit.records.history import HISTORY_KIND, HistoryLine


def test_figures_stand_beside_the_step() -> None:
    line = HistoryLine("train", 5, "0.1.0", {"lr": 0.1})
    said = {"schema": 1, "stage": "train", "step": 5, "edgevit": "0.1.0", "lr": 0.1}
    assert HISTORY_KIND.content(line) == said and HISTORY_KIND.checked(said, "here") == line


def test_a_line_of_no_step_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"here lacks step; copy the folder again"):
        HISTORY_KIND.checked({"schema": 1, "stage": "train", "edgevit": "0.1.0"}, "here")
