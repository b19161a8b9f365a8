"""Shapes of models, and blocks that are measured for the table; whole searches are in test_meet.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from model_folders import derivation_of, some_spec, spec_text

from edgevit.latency.candidates import REFINED, CandidateBuilder, shape_in
from edgevit.latency.rounds import Shape
from edgevit.latency.table import GrowingTable
from edgevit.records.derivation import Facts
from edgevit.records.model import BlockDims
from edgevit.records.model_folder import ModelFolder


def test_the_shape_of_a_model_says_which_blocks_it_has(tmp_path: Path) -> None:
    def shape(embed: int, numbers: tuple[int, ...] | None) -> Shape:
        spec = some_spec()
        blocks = spec.blocks if numbers is None else spec.blocks[: len(numbers)]
        args = {**spec.timm_args, "embed_dim": embed, "depth": len(blocks)}
        spec = replace(spec, blocks=blocks, timm_args=args, base=replace(spec.base, embed=32))
        (tmp_path / "model.json").write_text(spec_text(spec, "0" * 64))
        ModelFolder(tmp_path).write_derivation(derivation_of(None, facts=Facts(kept_blocks=numbers)))
        return shape_in(tmp_path)

    blocks = some_spec().blocks
    assert shape(32, None) == Shape(blocks, (0, 1)) and shape(16, (1,)) == Shape(blocks[:1], (1,), 16)


def test_a_few_blocks_of_a_plan_are_measured_from_the_smallest_to_the_largest() -> None:
    asked: list[tuple[BlockDims, ...]] = []
    embeds: list[int | None] = []
    builder = CandidateBuilder.__new__(CandidateBuilder)

    class Noted(GrowingTable):
        def __init__(self) -> None:
            """Of no target."""

        def extend(self, sizes: tuple[BlockDims, ...], embed: int | None = None) -> None:
            asked.append(sizes)
            embeds.append(embed)

    builder.costs = Noted()
    blocks = tuple(BlockDims(2, 16, 16, 8 * n) for n in (5, 9, 1, 3, 3, 7, 2))
    builder.refine(Shape(blocks, tuple(range(7))))
    builder.refine(Shape(blocks[:1], (0,), 48))
    assert len(asked[0]) == REFINED and [d.ffn for d in asked[0]] == sorted(d.ffn for d in asked[0])
    assert (asked[0][0].ffn, asked[0][-1].ffn) == (8, 72) and asked[1] == blocks[:1]
    assert embeds == [None, 48]
