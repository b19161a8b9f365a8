"""Runs of stacks, kept where `edgevit cost` keeps them, whose times and energy a formula gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from some_runs import ON_A_BOARD, watts

from edgevit.board.bench import Setting, look
from edgevit.board.connection import open_board
from edgevit.derivation.allocate.cost_table import Origin
from edgevit.derivation.allocate.policy import POLICIES
from edgevit.latency.stacks import Stack
from edgevit.latency.store import Store
from edgevit.latency.table import _key, grids_of
from edgevit.latency.target import MeasurementTarget
from edgevit.network.anatomy import BlockDims
from edgevit.progress import Silent

TARGET = MeasurementTarget(threads=1)
FUSED = POLICIES["fused"]
SIZES = (BlockDims(2, 24, 24, 100), BlockDims(2, 32, 32, 0))


ARGS = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 4, "num_heads": 2}  # of the base, a tiny ViT


def here() -> Origin:
    """What a table of this machine says of it."""
    return TARGET.origin(_looked())


@cache
def runtime() -> str | None:
    """The ONNX Runtime of this machine."""
    return TARGET.runtime(_looked())


def _looked() -> Setting:
    with open_board(None) as board:
        return look(board, None, TARGET.conditions(), Silent())


def made_up(stack: Stack, per_width: float = 0.01) -> float:
    """Milliseconds of a stack, whose blocks in stage 1 take twice as many as in stage 0; mJ are 1200 times that."""
    share = (stack.embed or ARGS["embed_dim"]) / ARGS["embed_dim"]
    given, before = 1.0, 0.0
    if stack.cut is not None:  # 0.1 for ranking 17 tokens
        given, before = stack.cut.tokens / 17, 0.6 + 0.01 * stack.cut.heads * stack.cut.width
    blocks = 0.0
    for row in stack.rows:
        attention = 0.5 + per_width * row.heads * row.width * share * given if row.heads else 0
        ffn = 0.2 + per_width * row.neurons * share * given if row.neurons else 0
        blocks += (1 + row.stage) * row.count * (attention + ffn - (0.05 if attention and ffn else 0))
    return 1 + share + before + blocks


def fill(
    network: Any, origin: Origin, folder: Path | None, noise: float = 0.001, energy: bool = True,
    sizes: Sequence[BlockDims] = SIZES, tokens: bool = False, per_width: float = 0.01,
) -> None:  # fmt: skip
    """Keep five sessions of all that a table with these sizes is made of."""
    random, stacks = np.random.default_rng(0), list[Stack]()
    for grid in (grids := grids_of(network, FUSED, narrower=True, tokens=tokens)):
        stacks += [*grid.coarse(), *grid.at(sizes)]
        stacks += [stack for embed in grid.narrower for stack in grid.at_width(embed)]
        stacks += [stack for count in grid.fewer for stack in grid.behind_cuts(count)]
    runs = []
    for session in range(5):
        for stack in dict.fromkeys([Stack.joined([grid.anchor for grid in grids]), *stacks]):
            ms = made_up(stack, per_width) * np.exp(noise * random.standard_normal())
            power = watts(*(ms,) * 61) if energy else None  # 12 s for ten inferences
            latencies = (round(ms * 1e6),) * 10
            runs.append(
                replace(ON_A_BOARD, label=stack.label, session=str(session), latencies_ns=latencies, power=power)
            )
    Store.of(_key(network, origin, None if origin.board else runtime()), folder).add(runs)
