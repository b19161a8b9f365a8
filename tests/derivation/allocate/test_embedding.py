"""Widths of the embedding: which candidates there are, which are measured, and which one is first."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained

from edgevit.data.task import open_task
from edgevit.derivation.allocate.embedding import Slices, candidate_widths, climb, more_images
from edgevit.derivation.plan import EmbedPlan
from edgevit.derivation.realise import narrow_embedding
from edgevit.derivation.solve.embedding import encoder, flat_basis
from edgevit.errors import BudgetError
from edgevit.network.model import describe


@pytest.mark.parametrize(
    ("embed", "multiple", "expected"),
    [
        (192, 16, [192, 176, 160, 144, 128, 112, 96, 80, 64, 48, 32]),
        (768, 64, [768, 704, 640, 576, 512, 448, 384, 320, 256, 192, 128]),
        (64, 16, [64, 48, 32, 16]),
        (20, 16, [20, 16]),
        (16, 16, [16]),
    ],
)
def test_rungs_are_multiples_and_the_whole(embed: int, multiple: int, expected: list[int]) -> None:
    assert candidate_widths(embed, multiple) == expected


def climbed(
    shapes: dict[int, float | None], slices: dict[int, float], begin: float = inf, enough: float = 0.0
) -> tuple[list[int], list[int]]:
    """The widths of the candidates, best first, and those whose slice was measured."""
    measured = []

    def allocate(width: int) -> tuple[str, float]:
        predicted = shapes[width]
        if predicted is None:
            raise BudgetError(f"not at {width}")
        return f"shape {width}", predicted

    def slice_nats(width: int) -> float:
        measured.append(width)
        return slices.get(width, 0.0)

    candidates = climb(list(shapes), allocate, slice_nats, begin, enough)
    assert all(candidate.shape == f"shape {candidate.width}" for candidate in candidates)
    return [candidate.width for candidate in candidates], measured


def test_the_sum_of_both_losses_decides_and_the_climb_ends_where_no_rung_can_win() -> None:
    shapes = {64: 1.0, 48: 0.4, 32: 0.1, 16: 0.05, 8: 0.0}
    candidates, measured = climbed(shapes, {48: 0.01, 32: 0.02, 16: 0.5, 8: 9.0})
    assert candidates == [32, 48, 16, 64] and measured == [64, 48, 32, 16], "8 would lose more by its slice alone"


def test_from_a_good_beginning_few_slices_are_measured() -> None:
    shapes, slices = {64: 1.0, 48: 0.4, 32: 0.1, 16: 0.05, 8: 0.0}, {48: 0.01, 32: 0.02, 16: 0.5, 8: 9.0}
    assert climbed(shapes, slices, 30.0) == ([32, 16], [32, 16])
    assert climbed(shapes, slices, 10.0) == ([32, 16, 8], [8, 16, 32])
    assert climbed({**shapes, 16: None, 8: None}, slices, 10.0) == ([32], [32]), "what is refused below is passed over"
    with pytest.raises(BudgetError, match="not at 32"):
        climbed({64: None, 32: None}, {}, 64.0)


def test_a_rung_that_loses_next_to_nothing_ends_the_search() -> None:
    shapes, slices = {64: 0.4, 48: 0.03, 32: 0.02, 16: 0.0}, {48: 0.002, 32: 0.02, 16: 0.05}
    assert climbed(shapes, slices, 40.0) == ([48, 32, 16], [48, 32, 16])
    assert climbed(shapes, slices, 48.0, 0.04) == ([48], [48]), "32 may lose less, but not by what matters"
    assert climbed(shapes, slices, 64.0, 0.04) == ([48, 64], [64, 48])
    assert climbed(shapes, slices, 64.0, 0.01) == climbed(shapes, slices, 64.0)


def test_the_whole_embedding_wins_where_nothing_is_gained() -> None:
    assert climbed({64: 0.1, 48: 0.2, 32: 0.09}, {32: 0.3}) == ([64, 32], [64, 32])


def test_rungs_that_cannot_hold_the_budget_are_passed_over() -> None:
    assert climbed({64: None, 48: 0.2, 32: 0.1}, {48: 0.1, 32: 0.1}) == ([32, 48], [48, 32])
    with pytest.raises(BudgetError, match="not at 32"):
        climbed({64: None, 32: None}, {})


def test_costs_at_a_width_are_those_of_the_narrow_network(small_vit: Any) -> None:
    network = small_vit(qkv_bias=False)
    slim = network.with_embedding(encoder(flat_basis(64), 24))
    assert network.geometry_at(24) == slim.geometry
    assert network.geometry_at(64) == network.geometry
    network.make_classifiers(3)  # a change in place counts
    assert network.geometry_at(24) == network.with_embedding(encoder(flat_basis(64), 24)).geometry
    assert not any(p.is_meta for p in network.parameters()), "the network itself was changed"


def test_a_slice_is_of_the_largest_directions_or_few_refined_ones_read_through_the_decoders_of_its_norms(
    small_vit: Any, tmp_path: Path
) -> None:
    base = describe(small_vit(depth=2), "vit_tiny_patch16_224", {"depth": 2})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(base, task, 0.5, tmp_path)
    train = len(task.train)
    for asked, enough, advice in (
        (128, 200, "give --set forge.calibration_images=200"),
        (128, 5000, f"give --set forge.calibration_images={train}"),
        (train, 5000, f"add training images, of which there are {train}"),
    ):
        assert more_images(problem, "forge", asked, enough) == advice
    found = Slices(problem, 128, 64)
    assert found.plan(64) is None and found.nats(64) == 0.0
    for width in (8, 32):
        plan = found.plan(width)
        assert plan is not None and plan.decoders is not None and len(plan.decoders) == 5
        largest = (encoder(found.tokens.directions[0], width),)
        plain = EmbedPlan(width, largest, found.tokens.decoders(largest))
        lost = found.lost(narrow_embedding(problem.network, plain))
        assert found.nats(width) == pytest.approx(lost, rel=1e-4) if width == 32 else found.nats(width) < lost
        assert found.lost(narrow_embedding(problem.network, plan)) == pytest.approx(found.nats(width), rel=1e-4)
    unfitted = Slices(problem, 128, 64, fitted=False)
    plan = unfitted.plan(8)
    assert plan is not None and plan.decoders is None and plan.encode is not None
    assert torch.equal(plan.encode, encoder(found.tokens.directions[0], 8)) and unfitted.nats(8) > found.nats(8)
