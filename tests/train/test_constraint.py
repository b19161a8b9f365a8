"""A constraint is asked once per step, however the step is shared, and outlives an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from small_base import press_ctrl_c_in_step
from teaching import CLASSES, Bench
from torch import Tensor, nn

from edgevit.errors import Interrupted


class SmallHead:
    """Pulls the classifier's weights to zero, and counts what it was asked."""

    def __init__(self, network: nn.Module, strength: float = 1.0) -> None:
        self.network, self.strength = network.with_columns(CLASSES), strength
        self.watching, self.asked, self.stepped = False, 0, 0

    @contextmanager
    def watch(self) -> Iterator[None]:
        self.watching = True
        yield
        self.watching = False

    def penalty(self) -> tuple[Tensor, dict[str, float]]:
        assert self.watching
        self.asked += 1
        size = self.network.module.get_parameter("head.weight").square().sum()
        return self.strength * size, {"size": float(size.detach())}

    def after_step(self) -> None:
        self.stepped += 1

    def pruned(self) -> nn.Module:
        return self.network

    def state(self) -> dict[str, Tensor]:
        return {"stepped": torch.tensor(self.stepped)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.stepped = int(state["stepped"])


@pytest.mark.parametrize("accum", [1, 4])
def test_the_penalty_counts_once_per_step(bench: Bench, accum: int) -> None:
    network = bench.spoilt()
    constraint = SmallHead(network)
    history = bench.train(network, 3, constraint=constraint, training={"grad_accum": accum, "lr": 1e-5})
    assert (constraint.asked, constraint.stepped, constraint.watching) == (3, 3, False)
    sizes = [line["size"] for line in history.lines if "size" in line]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == 3
    assert all(line["accuracy_pruned"] == line["accuracy_trained"] for line in history.lines)


def test_its_gradient_is_the_same_however_a_step_is_shared(bench: Bench) -> None:
    moved = []
    for accum in (1, 4):
        network, before = bench.spoilt(), bench.spoilt()
        bench.train(network, 1, constraint=SmallHead(network, 1e4), training={"grad_accum": accum})
        moved.append(network.module.get_parameter("head.weight") - before.module.get_parameter("head.weight"))
    torch.testing.assert_close(moved[0], moved[1], rtol=1e-4, atol=1e-7)


def test_it_is_gone_on_with_after_an_interruption(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    press_ctrl_c_in_step(1, monkeypatch)
    network = bench.spoilt()
    with pytest.raises(Interrupted):
        bench.train(network, 5, constraint=SmallHead(network), folder=tmp_path / "state")
    network = bench.spoilt()
    again = SmallHead(network)
    bench.train(network, 5, constraint=again, folder=tmp_path / "state")
    assert (again.asked, again.stepped) == (3, 5)
