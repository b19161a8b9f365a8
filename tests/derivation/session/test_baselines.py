"""The baselines of a derivation are measured once, on the held-out images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_base import derive as derive_small


@pytest.mark.slow
def test_the_finetuned_base_is_baseline_and_teacher_and_trained_once(digits_checkpoint: Path, tmp_path: Path) -> None:
    given: Any = {"method": "nuwa", "options": {"purification": "none"}, "cache": False}
    taught: Any = {"steps": 4, "evaluations": 2, "teacher": "finetuned", "teacher_weight": 1.0}
    alone = derive_small(digits_checkpoint, tmp_path / "a", training=taught, **given)
    judged = derive_small(digits_checkpoint, tmp_path / "b", training=taught, finetune_base=True, **given)
    other_teacher = {**taught, "teacher": "restricted"}
    restricted = derive_small(digits_checkpoint, tmp_path / "c", training=other_teacher, finetune_base=True, **given)
    for name, tensor in judged.model.state_dict().items():
        torch.testing.assert_close(tensor, alone.model.state_dict()[name], rtol=0, atol=0, msg=name)
    for made in (alone, judged):
        lines = [json.loads(line) for line in (made.folder / "history.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if line["stage"] == "finetune base"] == [1, 2, 3, 4]
    assert judged.record.accuracy.base_finetuned == restricted.record.accuracy.base_finetuned
    chosen_on, other = judged.record.validation, restricted.record.validation
    assert chosen_on is not None and other is not None and chosen_on.images == judged.record.data.images.validation
    assert 0 < chosen_on.base_restricted == other.base_restricted
    pairs = zip(judged.model.parameters(), restricted.model.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)
