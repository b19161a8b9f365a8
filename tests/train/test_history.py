"""The lines of a history outlive an interruption, and say what came of a training."""

from __future__ import annotations

import pytest
from teaching import Bench

from edgevit.progress import Silent
from edgevit.train.history import History


def test_history_is_gone_on_with_after_an_interruption(tmp_path):
    first = History(tmp_path / "history.jsonl")
    for stage, step in (("purify", 0), ("train", 0), ("train", 5)):
        first.add(stage=stage, step=step)
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"stage": "train", "st')  # a full disk
    again = History(tmp_path / "history.jsonl")
    assert again.lines == first.lines
    again.rewind("train", -1)
    assert [(line["stage"], line["step"]) for line in again.lines] == [("purify", 0)]
    again.add(stage="train", step=0)
    assert History(tmp_path / "history.jsonl").lines == again.lines


@pytest.mark.parametrize(("lr", "said"), [(0.3, "distillation did not help"), (1e-3, "kept the weights of step")])
def test_whether_training_helped_is_said_in_one_line(bench: Bench, lr: float, said: str) -> None:
    told: list[str] = []

    class Told(Silent):
        def note(self, text: str) -> None:
            told.append(text)

    history = bench.train(
        bench.spoilt(), 6, keep="best", distillation=bench.teacher(), training={"lr": lr}, progress=Told()
    )
    outcome = history.outcome("train")
    assert outcome is not None and said in told[-1] and "\n" not in told[-1]
    assert f"{100 * outcome.accuracy_validation_before:.1f} %" in told[-1]
    assert (outcome.kept_step == 0) == ("closed-form weights are kept; try a lower --lr" in told[-1])
    looked = [line for line in history.lines if "loss_validation" in line]
    assert outcome.loss_validation_before == looked[0]["loss_validation"]
    assert outcome.loss_validation_trained == min(line["loss_validation"] for line in looked[1:])
