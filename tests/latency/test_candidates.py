"""What plans are made into; the whole of it is in test_run.py."""

from __future__ import annotations

from pathlib import Path

from small_base import derive, write_checkpoint

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.latency.candidates import REFINED, CandidateBuilder, shape_in
from edgevit.latency.growing_table import GrowingTable
from edgevit.latency.rounds import Shape
from edgevit.records.model import BlockDims
from edgevit.records.model_folder import ModelFolder


def test_the_shape_of_a_model_says_which_blocks_it_has(tmp_path: Path) -> None:
    derive(write_checkpoint(tmp_path), tmp_path / "t", method="nuwa", training={"steps": 0})
    shape = shape_in(tmp_path / "t")
    assert shape == Shape(tuple(ModelFolder(tmp_path / "t").spec().blocks), (0, 1))
    options = {"embed_width": 32, "calibration_images": 16, "sensitivity_images": 8}
    derive(tmp_path / "base.safetensors", tmp_path / "n", method="forge", training={"steps": 0}, options=options)
    assert shape_in(tmp_path / "n").embed == 32


def test_a_few_blocks_of_a_plan_are_measured_from_the_smallest_to_the_largest() -> None:
    asked: list[tuple[BlockDims, ...]] = []
    embeds: list[int | None] = []
    builder = CandidateBuilder.__new__(CandidateBuilder)

    class Noted(GrowingTable):
        def __init__(self) -> None:
            """Of no target."""

        def measured(self, sizes: tuple[BlockDims, ...], embed: int | None = None) -> CostTable:
            asked.append(sizes)
            embeds.append(embed)
            return CostTable.model_construct()

    builder.costs = Noted()
    blocks = tuple(BlockDims(2, 16, 16, 8 * n) for n in (5, 9, 1, 3, 3, 7, 2))
    builder.refine(Shape(blocks, tuple(range(7))))
    builder.refine(Shape(blocks[:1], (0,), 48))
    assert len(asked[0]) == REFINED and [d.ffn for d in asked[0]] == sorted(d.ffn for d in asked[0])
    assert (asked[0][0].ffn, asked[0][-1].ffn) == (8, 72) and asked[1] == blocks[:1]
    assert embeds == [None, 48]
