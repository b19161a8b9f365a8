"""Arguments with which timm creates a base like a network; test_families_protocol.py compares all of `Interchange`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgevit.derivation.solve.embedding import encoder, flat_basis
from edgevit.network.families.vit.interchange import timm_arguments
from edgevit.network.network import Network


@pytest.mark.parametrize(
    ("kept", "embed", "expected"),
    [
        ([0, 1], 64, {}),
        ([1], 64, {"depth": 1}),
        ([0, 1], 27, {"embed_dim": 27, "num_heads": 1}),
        ([0], 27, {"depth": 1, "embed_dim": 27, "num_heads": 1}),
    ],
)
def test_only_what_differs_from_the_base_is_an_argument(
    small_vit: Callable[..., Network], kept: list[int], embed: int, expected: dict[str, Any]
) -> None:
    network = small_vit()
    if embed < 64:
        network = network.with_embedding(encoder(flat_basis(64), embed))
    network.keep_blocks(kept)
    assert timm_arguments(network.module, 2, 64) == expected
