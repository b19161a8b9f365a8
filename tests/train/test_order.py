"""Every step sees the same images, however they are shared."""

from __future__ import annotations

import pytest

from edgevit.train.order import sample_order, unlabelled_share
from edgevit.train.settings import Training


def flat(order):
    return [pair for batch in order for pair in batch]


@pytest.mark.parametrize(("world", "accum"), [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_every_step_sees_the_same_images_however_it_is_shared(world, accum):
    whole = Training(batch_size=12)
    shared = Training(batch_size=12, grad_accum=accum)
    for step in range(4):
        expected = flat(sample_order(17, whole, step, step + 1))
        seen = [p for rank in range(world) for p in flat(sample_order(17, shared, step, step + 1, rank, world))]
        assert sorted(seen) == sorted(expected)


def test_images_are_seen_equally_often_and_never_augmented_alike():
    pairs = flat(sample_order(10, Training(batch_size=8), 0, 10))
    counts = [sum(position == i for position, _ in pairs) for i in range(10)]
    assert counts == [8] * 10
    assert len({seed for _, seed in pairs}) == 80


def test_unlabelled_images_take_their_share_and_at_most_half() -> None:
    assert unlabelled_share(100, 0, 16) == 0
    assert unlabelled_share(300, 100, 16) == 4
    assert unlabelled_share(100, 10_000, 16) == 8
    assert unlabelled_share(10_000, 1, 16) == 1


@pytest.mark.parametrize(("world", "accum"), [(1, 1), (2, 1), (2, 3)])
def test_every_step_has_the_same_unlabelled_images_however_it_is_shared(world: int, accum: int) -> None:
    def flat(training: Training, first: int, rank: int = 0, world: int = 1) -> list[tuple[int, int]]:
        order = sample_order(17, training, first, first + 1, rank, world, unlabelled=9)
        return [pair for batch in order for pair in batch]

    counts = [0] * 26
    for step in range(26):
        whole = flat(Training(batch_size=12), step)
        shared = [p for r in range(world) for p in flat(Training(batch_size=12, grad_accum=accum), step, r, world)]
        assert sorted(shared) == sorted(whole)
        assert sum(position >= 17 for position, _ in whole) == unlabelled_share(17, 9, 12) == 4
        for position, _ in whole:
            counts[position] += 1
    assert max(counts[:17]) - min(counts[:17]) <= 1 and max(counts[17:]) - min(counts[17:]) <= 1
