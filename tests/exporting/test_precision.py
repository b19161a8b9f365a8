"""What fp16 would lose, and which modules stay in fp32 where it would lose too much."""

from __future__ import annotations

import pytest
import torch

from edgevit.errors import ExportError
from edgevit.exporting.precision import check_weights, modules_in_fp32


def test_a_block_in_fp32_brings_its_own_norms_and_not_those_of_its_neighbours() -> None:
    blocks = tuple(f"blocks.{i}" for i in range(11))
    norms = (*(f"{name}.norm1" for name in blocks), "norm")
    kept = modules_in_fp32(norms, blocks, all_norms=True, chosen={1})
    assert kept == (*(name for name in norms if name != "blocks.1.norm1"), "blocks.1")
    assert modules_in_fp32(norms, blocks, all_norms=False, chosen={10, 0}) == ("blocks.0", "blocks.10")


def test_weights_that_fade_or_vanish_in_fp16_are_counted_and_larger_ones_refused() -> None:
    named = [("a", torch.tensor([-3.0, 1e-5])), ("b", torch.tensor([0.0, 1e-9]))]
    assert check_weights(named) == (3, 0.5, 0.25)
    with pytest.raises(ExportError, match=r"c overflows fp16: 6\.552e\+04 seen, 65504 is the largest"):
        check_weights([("c", torch.tensor([65520.0]))])
