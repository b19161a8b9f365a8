"""A slice follows the order of its units: the last to go goes in part, and no module widens again."""

import pytest

from edgevit.derivation.methods.skd.slices import _embeds, _wishes
from edgevit.records.model import BlockDims
from edgevit.records.supernet import Unit

DIMS = [BlockDims(2, 32, 32, 256)] * 2
ORDER = [
    Unit(1, "ffn", 128, 256, 100),
    Unit(0, "attention", 16, 32, 50),
    Unit(1, "ffn", 64, 128, 50),
]


@pytest.mark.parametrize(
    ("share", "ffn", "qk"), [(0.0, 256, 32), (0.25, 192, 32), (0.5, 128, 32), (0.625, 128, 24), (1.0, 64, 16)]
)
def test_units_go_in_order_and_the_last_one_in_part(share, ffn, qk):
    first, second = _wishes(ORDER, DIMS, share)
    assert (second["ffn"], first["qk"], first["vo"]) == (ffn, qk, qk)
    assert (first["ffn"], second["qk"]) == (256, 32)


def test_channels_go_at_their_place_in_the_order_and_no_further_than_can_be_counted():
    order = [ORDER[0], Unit(0, "embed", 48, 64, 90), ORDER[1], Unit(0, "embed", 32, 48, 80), ORDER[2]]
    assert _embeds(order, 64, 0, 16) == [(1, 64), (3, 48), (5, 32)]
    assert _embeds(order, 64, 40, 16) == [(1, 64), (5, 48)]
    assert _embeds(order, 64, 0, 32) == [(3, 64), (5, 32)]
    assert _wishes(order, DIMS, 1.0) == _wishes(ORDER, DIMS, 1.0)
