"""Slices need a super-network, and no training."""

import pytest

from edgevit.derive.methods.skd.method import Config, default_steps, slices
from edgevit.errors import CheckpointError


def test_slices_train_only_where_that_is_asked_for():
    assert default_steps(Config(), 0.9, 100_000, 64) == 0


def test_slices_are_cut_from_a_super_network_that_is_there(tmp_path):
    with pytest.raises(CheckpointError, match="is no super-network: no such folder"):
        slices(Config(supernet=str(tmp_path / "net")))
