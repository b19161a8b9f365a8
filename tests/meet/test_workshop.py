"""What plans are made into; the whole of it is in test_run.py."""

from __future__ import annotations

from pathlib import Path

from small_base import derive, write_checkpoint

from edgevit.folder.model import BlockDims
from edgevit.folder.model_folder import ModelFolder
from edgevit.meet.rounds import Shape
from edgevit.meet.workshop import REFINED, Workshop, shape_of


def test_the_shape_of_a_model_says_which_blocks_it_has(tmp_path: Path) -> None:
    derive(write_checkpoint(tmp_path), tmp_path / "t", method="nuwa", training={"steps": 0})
    shape = shape_of(tmp_path / "t")
    assert shape == Shape(tuple(ModelFolder(tmp_path / "t").spec().blocks), (0, 1))


def test_a_few_blocks_of_a_plan_are_measured_from_the_smallest_to_the_largest() -> None:
    asked: list[tuple[BlockDims, ...]] = []
    shop = Workshop.__new__(Workshop)
    shop.more = lambda sizes: asked.append(sizes)  # type: ignore[assignment,return-value,func-returns-value]
    blocks = tuple(BlockDims(2, 16, 16, 8 * n) for n in (5, 9, 1, 3, 3, 7, 2))
    shop.refine(Shape(blocks, tuple(range(7))))
    shop.refine(Shape(blocks[:1], (0,)))
    assert len(asked[0]) == REFINED and [d.ffn for d in asked[0]] == sorted(d.ffn for d in asked[0])
    assert (asked[0][0].ffn, asked[0][-1].ffn) == (8, 72) and asked[1] == blocks[:1]
