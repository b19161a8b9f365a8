"""A moving average of weights: its value by hand, for the weights and back, and in a training that is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_base import press_ctrl_c_in_step
from teaching import Bench, divergence

from edgevit.errors import Interrupted
from edgevit.train.average import Average


def test_the_average_is_what_its_formula_says() -> None:
    network = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(network.weight, 1.0)
    average, expected = Average(network, 0.5), 1.0
    for step, value in enumerate((2.0, 4.0, -1.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0), start=1):
        torch.nn.init.constant_(network.weight, value)
        average.update()
        decay = min(0.5, step / (step + 9))
        expected = decay * expected + (1 - decay) * value
    with average.in_place():
        assert network.weight.item() == pytest.approx(expected)
    assert network.weight.item() == 3.0
    again = Average(network, 0.5)
    again.load_state(average.state())
    again.take()
    assert network.weight.item() == pytest.approx(expected) and again.steps == 11


def test_the_average_is_what_a_training_leaves_also_where_it_is_interrupted(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(average: float, folder: Path | None = None) -> dict[str, torch.Tensor]:
        network = bench.spoilt()
        bench.train(network, 6, distillation=bench.teacher(), training={"average": average}, folder=folder)
        return network.state_dict()

    last, whole = trained(0.0), trained(0.9)
    assert any(not torch.equal(last[name], tensor) for name, tensor in whole.items())
    press_ctrl_c_in_step(3, monkeypatch)
    with pytest.raises(Interrupted):
        trained(0.9, tmp_path / "state")
    for name, tensor in trained(0.9, tmp_path / "state").items():
        assert torch.equal(tensor, whole[name]), name


def test_what_is_judged_and_kept_is_the_average(bench: Bench) -> None:
    network = bench.spoilt()
    history = bench.train(network, 6, distillation=bench.teacher(), keep="best", training={"average": 0.9})
    least = min(line["loss_validation"] for line in history.lines if "loss_validation" in line)
    images = torch.cat([batch for batch, _ in bench.task.validation.batches(64)])
    assert divergence(bench.base, network, images) == pytest.approx(least, rel=1e-3)
