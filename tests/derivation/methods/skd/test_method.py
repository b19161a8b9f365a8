"""Slices need a super-network, and no training."""

from pathlib import Path

import pytest

from edgevit.derivation.methods.skd.method import METHOD, Config, check_base
from edgevit.derivation.request import DeriveRequest
from edgevit.errors import CheckpointError
from edgevit.network.model import describe


def test_slices_train_only_where_that_is_asked_for():
    assert METHOD.default_steps(Config(), 0.9, 100_000, 64) == 0


def test_slices_are_cut_from_a_super_network_that_is_there(small_vit, tmp_path):
    base = describe(small_vit(), "vit_tiny_patch16_224", {})
    with pytest.raises(CheckpointError, match="is not a super-network: no such folder"):
        check_base(base, Config(supernet=str(tmp_path / "net")), DeriveRequest(rate=0.5, out=Path("slice")))
