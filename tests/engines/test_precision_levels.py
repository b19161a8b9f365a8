"""The order of precisions and the search for the blocks that need fp32, over engines that are right by a rule."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgevit.engines.precision_levels import (
    FIRST,
    PrecisionLevel,
    PrecisionSearch,
    first_level,
    node_patterns,
    search_precision,
    smallest_set,
)
from edgevit.errors import EngineError

NORMS = ("blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.10.norm1", "norm")
BLOCKS = tuple(f"blocks.{i}" for i in range(11))


@st.composite
def culprits(draw: st.DrawFn) -> tuple[int, frozenset[int]]:
    count = draw(st.integers(1, 32))
    return count, draw(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=4))


@given(culprits())
def test_the_search_finds_exactly_the_culprits_in_few_probes(case: tuple[int, frozenset[int]]) -> None:
    count, bad = case
    probes: list[tuple[int, ...]] = []

    def passes(chosen: tuple[int, ...]) -> bool:
        probes.append(chosen)
        return bad <= set(chosen)

    assert smallest_set(range(count), passes, 1000) == tuple(sorted(bad))
    assert len(probes) <= 1 + len(bad) * (1 + math.ceil(math.log2(count)))


@given(st.sets(st.frozensets(st.integers(0, 7), min_size=1, max_size=3), min_size=1, max_size=4))
def test_where_several_sets_would_do_the_one_found_has_nothing_to_spare(enough: set[frozenset[int]]) -> None:
    def passes(chosen: tuple[int, ...]) -> bool:
        return any(some <= set(chosen) for some in enough)

    found = smallest_set(range(8), passes, 1000)
    assert found is not None and passes(found)
    assert not any(passes(tuple(i for i in found if i != one)) for one in found)


@given(culprits(), st.integers(1, 8))
def test_a_search_that_runs_out_of_probes_ends_with_a_set_that_passes(
    case: tuple[int, frozenset[int]], most: int
) -> None:
    count, bad = case
    probes = 0

    def passes(chosen: tuple[int, ...]) -> bool:
        nonlocal probes
        probes += 1
        return bad <= set(chosen)

    found = smallest_set(range(count), passes, most)
    assert found is not None and bad <= set(found) and probes <= most


def test_a_search_where_not_even_all_pass_ends_at_once() -> None:
    probes = []
    assert smallest_set(range(12), lambda chosen: bool(probes.append(chosen)), 16) is None
    assert probes == [tuple(range(12))]
    assert smallest_set((), lambda chosen: True, 16) is None


@dataclass(frozen=True)
class Engine:
    level: PrecisionLevel
    failure: str | None


def climb(
    right: Callable[[PrecisionLevel], bool],
    *,
    fp16: bool = True,
    norms: bool = True,
    blocks: int = 4,
    least: PrecisionLevel = FIRST,
) -> tuple[PrecisionSearch[Engine], list[str]]:
    notes: list[str] = []
    built: list[PrecisionLevel] = []

    def attempt(level: PrecisionLevel) -> Engine:
        assert level not in built, "no engine is built twice"
        built.append(level)
        return Engine(level, None if right(level) else "loses 31% on 'heron'")

    search = search_precision(
        attempt, fp16=fp16, norms=norms, blocks=blocks, most_probes=16, note=notes.append, start=least
    )
    assert search.judged.level == search.level
    assert {search.level, *(level for level, _ in search.failed)} <= set(built)
    return search, notes


def test_fp16_that_is_right_is_all_that_is_built() -> None:
    search, notes = climb(lambda level: True)
    assert (search.level, search.failed, notes) == (PrecisionLevel("fp16"), (), [])


def test_norms_come_next_and_the_reason_is_said() -> None:
    search, notes = climb(lambda level: level.norms)
    assert search.level == PrecisionLevel("fp16", norms=True)
    assert notes == ["fp16 loses 31% on 'heron'; trying fp16 with LayerNorm in fp32"]
    assert [(str(level), engine.failure) for level, engine in search.failed] == [("fp16", "loses 31% on 'heron'")]


@pytest.mark.parametrize("culprits", [{0}, {3}, {1, 2}, {0, 1, 2, 3}])
def test_then_the_blocks_that_need_it(culprits: set[int]) -> None:
    search, notes = climb(lambda level: culprits <= set(level.blocks))
    assert search.level == PrecisionLevel("fp16", norms=True, blocks=tuple(sorted(culprits)))
    assert "trying single blocks in fp32" in notes[1]
    assert all(engine.failure for _, engine in search.failed)


@pytest.mark.parametrize(("minutes", "probes"), [(5, 12), (30, 4), (1, 16)])
def test_the_search_for_blocks_is_bounded_by_its_time_which_is_said_beforehand(
    minutes: int, probes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.0]
    monkeypatch.setattr("edgevit.engines.precision_levels.monotonic", lambda: seconds[0])

    def right(level: PrecisionLevel) -> bool:
        seconds[0] += 60 * minutes
        return {3, 7, 11, 19} <= set(level.blocks)

    search, notes = climb(right, blocks=24)
    assert f"trying single blocks in fp32, up to {probes} builds of about {minutes} min" in notes[1]
    assert len(notes) - 2 == probes and right(search.level)


def test_then_fp32_and_it_is_all_that_is_tried_of_a_model_without_fp16() -> None:
    search, notes = climb(lambda level: level.precision == "fp32")
    assert search.level == PrecisionLevel("fp32") and notes[-1].startswith(
        "not even fp16 with LayerNorm and blocks 0 to 3 in fp32"
    )
    assert climb(lambda level: True, fp16=False)[0].level == PrecisionLevel("fp32")


def test_rungs_that_are_known_to_overflow_are_left_out() -> None:
    least = first_level(("blocks.0.norm1", "norm", "blocks.1"), ("blocks.0", "blocks.1", "blocks.2"))
    assert least == PrecisionLevel("fp16", norms=True, blocks=(1,)) and first_level((), BLOCKS) == FIRST
    assert climb(lambda level: True, blocks=3, least=least)[0].level == least
    search, _ = climb(lambda level: 2 in level.blocks, blocks=3, least=least)
    assert search.level == PrecisionLevel("fp16", norms=True, blocks=(1, 2))
    assert all(1 in level.blocks for level, _ in search.failed)


def test_of_a_graph_without_blocks_norms_are_all_that_is_tried_before_fp32() -> None:
    search, notes = climb(lambda level: level.precision == "fp32", blocks=0)
    assert search.level == PrecisionLevel("fp32") and len(search.failed) == 2
    assert notes[-1] == "fp16 with LayerNorm in fp32 loses 31% on 'heron'; trying fp32"


def test_of_a_graph_without_norms_fp16_is_not_built_once_more_as_if_it_had_some() -> None:
    search, notes = climb(lambda level: level.precision == "fp32", norms=False, blocks=0)
    assert [str(level) for level, _ in search.failed] == ["fp16"] and search.level == PrecisionLevel("fp32")
    assert notes == ["fp16 loses 31% on 'heron'; trying fp32"]
    search, notes = climb(lambda level: 2 in level.blocks, norms=False)
    assert search.level == PrecisionLevel("fp16", blocks=(2,)) and "trying single blocks in fp32" in notes[0]


def test_an_engine_that_is_wrong_even_in_fp32_is_refused_with_the_class() -> None:
    with pytest.raises(EngineError, match=r"no engine is right: fp32 loses 31% on 'heron'"):
        climb(lambda level: False)


def test_a_rung_says_what_it_is() -> None:
    assert str(PrecisionLevel("fp16", norms=True, blocks=(1, 4))) == "fp16 with LayerNorm and blocks 1, 4 in fp32"
    assert str(PrecisionLevel("fp16", norms=True, blocks=(1,))) == "fp16 with LayerNorm and block 1 in fp32"
    assert str(PrecisionLevel("fp16", blocks=(0, 1, 2, 4, 5, 9))) == "fp16 with blocks 0 to 2, 4, 5, 9 in fp32"
    assert PrecisionLevel("fp16", norms=True, blocks=(1, 4)).label == "fp16.norms32.blocks32-1-4"
    assert [r.kind for r in (PrecisionLevel("fp16"), PrecisionLevel("fp16", norms=True), PrecisionLevel("fp32"))] == [
        "fp16",
        "mixed",
        "fp32",
    ]
    mixed = PrecisionLevel("int8", norms=True, blocks=(1,))
    assert (mixed.kind, str(mixed)) == ("int8", "int8 with LayerNorm and block 1 in fp32")


def test_a_block_brings_its_own_norms_and_no_other_block_s() -> None:
    assert PrecisionLevel("fp16", norms=True).modules(NORMS, BLOCKS) == NORMS
    kept = PrecisionLevel("fp16", norms=True, blocks=(1,)).modules(NORMS, BLOCKS)
    assert kept == ("blocks.0.norm1", "blocks.0.norm2", "blocks.10.norm1", "norm", "blocks.1")
    assert PrecisionLevel("fp32").modules(NORMS, BLOCKS) == ()


def test_patterns_match_the_nodes_of_their_module_only() -> None:
    (pattern,) = node_patterns(["blocks.1"])
    for name in ("blocks.1/Add", "blocks.1.norm1/LayerNormalization", "blocks.1.attn.qkv/MatMul_1"):
        assert re.search(pattern, name) and re.fullmatch(pattern, name)
    for name in ("blocks.10/Add", "blocks.0.attn/MatMul", "model/blocks.1/Add", "blocksx1/Add"):
        assert not re.search(pattern, name)
