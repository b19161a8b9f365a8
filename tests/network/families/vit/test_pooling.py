"""ViTs that pool by attention, as SigLIP does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from small_models import ARGS, with_embedding
from torch import nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import decoder
from edgevit.network.classifier import with_features
from edgevit.network.families.vit.pooling import macs, params, reason_against
from edgevit.network.folder import load, save
from edgevit.network.layers import counted_macs
from edgevit.network.model import Model, derived_spec, describe
from edgevit.network.network import Network
from edgevit.records.model import TargetClass

IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SIGLIP = "vit_base_patch16_siglip_224"


def siglip(**arguments: Any) -> Any:
    """A small SigLIP whose biases, norms and query are no zeros or ones."""
    torch.manual_seed(0)
    model = timm.create_model(SIGLIP, **{**ARGS, "num_classes": 5, **arguments})
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 or name == "attn_pool.latent":
            nn.init.normal_(parameter, 0.5, 0.3)
    return model.eval()


def test_macs_and_parameters_are_those_that_torch_counts() -> None:
    model = siglip()
    tokens = torch.zeros(1, model.patch_embed.num_patches, model.embed_dim)
    assert macs(model) == counted_macs(model.attn_pool, lambda: model.attn_pool(tokens))
    assert params(model) == sum(p.numel() for name, p in model.named_parameters() if name.startswith("attn_pool."))
    network = Network(model)
    assert network.geometry.params(network.dims) == sum(p.numel() for p in model.parameters())
    assert macs(timm.create_model("vit_tiny_patch16_224", **ARGS)) == 0


def test_it_reads_tokens_of_the_whole_width_whatever_their_basis() -> None:
    network = Network(siglip())
    turn = torch.linalg.qr(torch.randn(2, network.geometry.embed, network.geometry.embed, dtype=torch.float64))[0][0]
    with torch.no_grad():
        expected = network.module(IMAGES)
        turned = network.with_embedding(turn)
        torch.testing.assert_close(turned.module(IMAGES), expected, rtol=1e-3, atol=1e-4)
        narrow = network.with_embedding(turn[:16], [decoder(turn[:16])] * (2 * len(network.dims) + 1))
    assert narrow.ends.read == (narrow.block_modules[-1],) and narrow.module.attn_pool.kv.in_features > 16
    for each in (turned, narrow):
        tokens = each.first_tokens(IMAGES)
        after = []
        for block in each.blocks:
            tokens = block.run(block.enter(tokens))
            after.append(tokens)
        torch.testing.assert_close(each.outputs_after(after, IMAGES), each.module(IMAGES))
        assert each.geometry.params(each.dims) == sum(p.numel() for p in each.module.parameters())


def narrow(**arguments: Any) -> Network:
    network = Network(siglip(**arguments))
    turn = torch.linalg.qr(torch.randn(64, 64, dtype=torch.float64))[0]
    return network.with_embedding(turn[:16], [decoder(turn[:16])] * (2 * len(network.dims) + 1))


def test_a_narrow_one_without_its_last_block_still_restores_its_tokens(tmp_path: Path) -> None:
    network, base = narrow(), describe(Network(siglip()), SIGLIP, {**ARGS, "num_classes": 5})
    block = network.module.blocks[0]
    network.keep_blocks((0,))
    with torch.no_grad():
        tokens = block.restore(block.add_sites(network.first_tokens(IMAGES)))
        torch.testing.assert_close(network(IMAGES), network.answers(tokens))
    labels = tuple(TargetClass(str(i), i) for i in range(5))
    save(made := Model(network, derived_spec(base.spec, network, "full", labels)), tmp_path / "m")
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "m")(IMAGES), made(IMAGES))


def test_a_narrow_one_gets_a_head_of_the_whole_width() -> None:
    network = narrow()
    module = network.module
    with torch.no_grad():
        pooled = module.forward_head(module.forward_features(IMAGES), pre_logits=True)
        torch.testing.assert_close(with_features(network)(IMAGES), pooled)
        network.make_classifiers(3)
        assert network(IMAGES).shape == (2, 3)
    assert network.geometry.params(network.dims) == sum(p.numel() for p in module.parameters())
    with pytest.raises(UnsupportedModelError, match="was narrowed before, and its tokens are restored for its pooling"):
        with_features(network, "patches")


def test_a_narrow_one_with_fewer_heads_is_read_from_its_folder(tmp_path: Path) -> None:
    """timm gives the pooling as many heads as the blocks, and its heads are still those of the base."""
    network = Network(siglip(num_heads=4))
    base = describe(network, SIGLIP, {**ARGS, "num_classes": 5, "num_heads": 4})
    fewer = network.build([replace(block, attention=block.attention.keep(range(2))) for block in network.read()])
    slim = with_embedding(fewer.eval(), 24)
    labels = tuple(TargetClass(str(i), i) for i in range(5))
    save(made := Model(slim, derived_spec(base.spec, slim, "full", labels)), tmp_path / "m")
    again = load(tmp_path / "m")
    assert (again.module.attn_pool.num_heads, again.dims[0].heads, again.geometry.embed) == (4, 2, 24)
    with torch.no_grad():
        assert torch.equal(again(IMAGES), made(IMAGES))


def test_tokens_themselves_are_put_out_without_it(tmp_path: Path) -> None:
    model = siglip(num_classes=0)
    with torch.no_grad():
        expected = model.forward_features(IMAGES)
    network = with_features(Network(model), "patches")
    with torch.no_grad():
        torch.testing.assert_close(network(IMAGES), expected)
    assert not any(name.startswith("attn_pool.") for name, _ in network.named_parameters())
    assert network.ends.read == () and network.geometry.head_macs == 0


def test_another_pooling_is_refused() -> None:
    model = siglip()
    model.fc_norm = nn.LayerNorm(model.embed_dim)
    assert "a norm is between" in str(reason_against(model))
    model.attn_pool = nn.Linear(3, 3)
    with pytest.raises(UnsupportedModelError, match="its head pools by Linear, which edgevit cannot read yet"):
        Network(model)
