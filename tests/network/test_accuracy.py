"""Accuracy against the plainest loop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgevit.network.accuracy import Accuracy, count_answers, count_correct, from_counts, measure_accuracy
from edgevit.network.output import Logits


@settings(max_examples=80)
@given(st.data())
def test_counts_equal_a_plain_loop(data: st.DataObject) -> None:
    outputs = data.draw(st.integers(2, 6))
    columns = data.draw(st.lists(st.integers(0, outputs - 1), min_size=1, max_size=outputs, unique=True))
    n = data.draw(st.integers(0, 12))
    labels = data.draw(st.lists(st.integers(0, len(columns) - 1), min_size=n, max_size=n))
    values = data.draw(st.lists(st.integers(-3, 3), min_size=n * outputs, max_size=n * outputs))
    logits = torch.tensor(values, dtype=torch.float32).reshape(n, outputs)
    expected = [[0] * len(columns) for _ in range(3)]
    for row, label in zip(logits.tolist(), labels, strict=True):
        among = [row[c] for c in columns]
        expected[0][label] += 1
        expected[1][label] += among.index(max(among)) == label
        expected[2][label] += row.index(max(row)) == columns[label]
    counts = count_correct(Logits(tuple(columns)), logits, torch.tensor(labels, dtype=torch.int64))
    assert counts.tolist() == expected


def test_batches_add_up_and_every_image_is_counted_once() -> None:
    logits = torch.eye(4)[[0, 1, 2, 3, 0]]
    labels = torch.tensor([0, 1, 1, 0, 0])  # positions in columns
    output, names = Logits((0, 2)), ["zero", "two"]
    batches = [(logits[:2], labels[:2]), (logits[2:], labels[2:])]
    seen = measure_accuracy(lambda images: images, batches, output, names)
    # rows 1 and 3 are zero in both columns: the first wins
    assert seen == Accuracy(("zero", "two"), total=(3, 2), restricted=(3, 1), full=(2, 1))
    assert (seen.images, seen.top1, seen.top1_full) == (5, 0.8, 0.6)
    assert seen.per_class() == {"zero": 1.0, "two": 0.5} and seen.worst() == ("two", 0.5)
    assert seen.record().top1 == pytest.approx(0.8)


def test_a_class_without_images_has_no_accuracy() -> None:
    seen = from_counts(["a", "b"], torch.tensor([[2, 0], [1, 0], [0, 0]]))
    assert seen.per_class() == {"a": 0.5, "b": None} and seen.worst() == ("a", 0.5)


def test_what_is_taken_for_what_is_counted_among_the_targets() -> None:
    logits = torch.tensor([[9.0, 1.0, 5.0], [9.0, 5.0, 1.0], [9.0, 1.0, 5.0], [9.0, 2.0, 3.0]])  # column 0: no target
    answers = count_answers(Logits((1, 2)), logits, torch.tensor([0, 0, 1, 0]))
    assert answers.tolist() == [[1, 2], [0, 1]]
    seen = from_counts(["a", "b"], torch.tensor([[3, 1], [1, 1], [0, 0]]), answers)
    record = seen.record()
    assert (record.images_per_class, record.confused) == ({"a": 3, "b": 1}, {"a": {"b": 2}})
    assert from_counts(["a", "b"], torch.tensor([[3, 1], [1, 1], [0, 0]])).record().confused is None
