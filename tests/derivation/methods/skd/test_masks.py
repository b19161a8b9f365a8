"""Masks: a network that is masked computes what its slice does."""

import pytest
import torch

from edgevit.derivation.methods.skd.masks import masked
from edgevit.derivation.methods.skd.piad import cut
from edgevit.derivation.methods.skd.wpac import concentrate_embedding
from edgevit.network.anatomy import BlockDims

CPU, COLUMNS = torch.device("cpu"), list(range(10))


def dims_of(network):
    return list(network.dims)


@pytest.mark.parametrize(
    "kept",
    [
        [BlockDims(2, 16, 16, 8), BlockDims(2, 32, 32, 256)],
        [BlockDims(2, 8, 24, 40), BlockDims(2, 24, 8, 200)],
        [BlockDims(2, 1, 5, 3), BlockDims(2, 7, 1, 1)],
    ],
    ids=["fused", "paper", "free"],
)
@pytest.mark.parametrize("args", [{}, {"qkv_bias": False}], ids=str)
def test_a_masked_network_passess_what_its_slice_does(small_vit, args, kept):
    network, x = small_vit(**args), torch.randn(4, 3, 32, 32)
    slim = cut(network, kept)
    assert dims_of(slim) == kept and dims_of(network)[0] == BlockDims(2, 32, 32, 256)
    with torch.no_grad():
        with masked(network, kept, CPU):
            seen = network(x)
        torch.testing.assert_close(slim(x), seen, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(network(x), seen, atol=1e-3), "the masks are gone again"


PRE_NORM = [{}, {"qkv_bias": False}, {"init_values": 0.3}, {"class_token": False, "global_pool": "avg"}]


@pytest.mark.parametrize("args", PRE_NORM, ids=str)
def test_a_network_masked_to_its_first_channels_passes_what_its_slice_does(small_vit, images, passes, args):
    base, x = small_vit(**args), torch.randn(4, 3, 32, 32)
    network, encode = concentrate_embedding(base.with_columns(COLUMNS), images, passes, 0)
    kept = [BlockDims(2, 16, 16, 40), BlockDims(2, 32, 24, 256)]
    with torch.no_grad():
        torch.testing.assert_close(network(x), base(x), rtol=1e-5, atol=2e-5)
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)  # trained since: norms are no ones any more
        for embed, dims in ((48, dims_of(network)), (32, kept), (2, kept)):
            slim = cut(network, dims, embed)
            assert (slim.geometry.embed, dims_of(slim)) == (embed, dims)
            with masked(network, dims, CPU, embed):
                seen = network(x)
            torch.testing.assert_close(slim(x), seen, rtol=1e-5, atol=1e-5)
            assert not torch.allclose(network(x), seen, atol=1e-3)
    assert cut(network, kept, 64).geometry.embed == 64 and encode.shape == (64, 64)
