"""Random numbers of images leave those of the program as they were."""

from __future__ import annotations

import random

import torch

from edgevit.data.batches import make_loader, seeded


def drawn() -> tuple[float, float]:
    return random.random(), float(torch.rand(()))


def test_a_seed_holds_within_the_block_alone() -> None:
    random.seed(1)
    torch.manual_seed(1)
    expected = [drawn(), drawn()]
    random.seed(1)
    torch.manual_seed(1)
    before = drawn()
    with seeded(5):
        inside = drawn()
    with seeded(5):
        assert drawn() == inside
    assert [before, drawn()] == expected


def test_a_loader_reads_the_batches_that_it_is_given_and_draws_nothing() -> None:
    torch.manual_seed(3)
    expected = float(torch.rand(()))
    torch.manual_seed(3)
    items: torch.utils.data.TensorDataset = torch.utils.data.TensorDataset(torch.arange(6))
    assert [batch[0].tolist() for batch in make_loader(items, [[4, 1], [5]], 0)] == [[4, 1], [5]]
    assert [*make_loader(items, [[2, 3]], 0, len)] == [2] and float(torch.rand(())) == expected
