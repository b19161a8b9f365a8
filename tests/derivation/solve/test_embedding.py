"""Another basis for the tokens changes nothing at full width, and below it nothing that the tokens do not have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from family_examples import images, slimmed, sweep
from small_models import encoders
from torch import nn

from edgevit.derivation.solve.embedding import (
    channel_encoder,
    encoder,
    flat_basis,
    judged_decoder,
    nested_basis,
    principal,
    refined,
)
from edgevit.network.anatomy import BlockDims, decoder


def some_directions(width: int) -> torch.Tensor:
    torch.manual_seed(3)
    seen = torch.randn(4 * width, width, dtype=torch.float64)
    return principal(seen.mT @ seen)


def shaken(network: nn.Module) -> nn.Module:
    """The network in fp64, with norms and scales that are no ones: mistakes would not show."""
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in network.double().parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network


@pytest.mark.parametrize("width", [2, 7, 64])
def test_the_basis_is_orthonormal_and_has_no_mean(width: int) -> None:
    basis = flat_basis(width)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(width - 1, dtype=torch.float64))
    torch.testing.assert_close(basis.sum(0), torch.zeros(width - 1, dtype=torch.float64))
    assert float(basis.abs().max()) <= (2 / width) ** 0.5 + 1e-12, "a channel holds more of a direction than others"


@pytest.mark.parametrize("width", [2, 7, 64])
def test_the_nested_basis_has_its_first_contrasts_in_its_first_channels(width: int) -> None:
    basis = nested_basis(width)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(width - 1, dtype=torch.float64))
    for first in range(2, width + 1):
        of_first = basis[:, : first - 1]
        assert not of_first[first:].any()
        torch.testing.assert_close(of_first.sum(0), torch.zeros(first - 1, dtype=torch.float64))
        later = basis[:first, first - 1 :]
        assert torch.equal(later[:1].expand_as(later), later), "what later ones add is shared by all first channels"


def test_directions_are_those_of_the_most_variance() -> None:
    planted = flat_basis(16)[:, [3, 9, 1]]  # of three directions, each twice as large as the next
    moment = planted @ torch.diag(torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)) @ planted.mT
    directions = principal(moment + torch.ones_like(moment))  # what all channels share is no direction
    assert directions.shape == (16, 15)
    torch.testing.assert_close((directions[:, :3].mT @ planted).abs(), torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(directions.sum(0), torch.zeros(15, dtype=torch.float64))


def test_the_encoder_keeps_the_variance_of_what_it_holds() -> None:
    directions = some_directions(24)
    encode = encoder(directions, 8)
    tokens = torch.randn(5, 7, dtype=torch.float64) @ directions[:, :7].mT + torch.randn(5, 1)
    slim = tokens @ encode.mT
    torch.testing.assert_close(slim.mean(-1), torch.zeros(5, dtype=torch.float64))
    torch.testing.assert_close(slim.var(-1, correction=0), tokens.var(-1, correction=0))


@sweep
@pytest.mark.parametrize("dims", [None, BlockDims(2, 24, 8, 40)], ids=["whole", "cut"])
def test_at_full_width_the_function_is_the_same(
    small_vit: Any, family_name: str, name: str, args: dict[str, Any], dims: BlockDims | None
) -> None:
    network = shaken(small_vit(name, **args) if dims is None else slimmed(small_vit(name, **args), dims))
    geometry = network.geometry
    if geometry.fixed_embed is not None:
        return
    before = {key: value.clone() for key, value in network.state_dict().items()}
    rotated = network.with_embedding(encoders(network, geometry.embed, directions=some_directions))
    with torch.no_grad():
        logits, again = network(images().double()), rotated(images().double())
    assert logits.std() > 0.1
    torch.testing.assert_close(again, logits, rtol=1e-9, atol=1e-9)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items()), "the base was changed"


@sweep
def test_a_narrower_network_costs_what_its_geometry_says(
    small_vit: Any, family_name: str, name: str, args: dict[str, Any]
) -> None:
    network = small_vit(name, **args)
    if network.geometry.fixed_embed is not None:
        return
    whole = network.geometry
    (width,) = whole.widths([24])
    slim = network.with_embedding(encoders(network, width, directions=some_directions))
    geometry, dims = slim.geometry, list(slim.dims)
    assert geometry.embed == width and dims == list(network.dims)
    assert sum(p.numel() for p in slim.parameters()) == geometry.params(dims)
    of_patches = 24**2 * geometry.tokens if whole.normed_patches else 0  # a linear layer behind their norm
    assert geometry.macs(dims) == whole.with_embed(width).macs(dims) + of_patches
    assert geometry.of_base(whole.embed).macs(dims) == whole.macs(dims) and geometry == network.geometry_at(width)
    assert len(slim.token_norms) == len(network.token_norms)
    with torch.no_grad():
        assert torch.isfinite(slim(images())).all()


def test_a_network_of_few_directions_loses_nothing_when_it_is_narrowed(small_vit: Any) -> None:
    """Tokens that lie in 15 directions need 16 channels."""
    network = shaken(small_vit("vit_tiny_patch16_224"))
    held = encoder(some_directions(64), 16)
    project = held.mT @ held * (64 / 16)  # onto the 15 directions
    with torch.no_grad():
        network.module.pos_embed.copy_(network.module.pos_embed @ project)
        network.module.cls_token.copy_(network.module.cls_token @ project)
        patch = network.module.patch_embed.proj
        patch.weight.copy_(torch.tensordot(project, patch.weight, 1))
        patch.bias.copy_(project @ patch.bias)
        for block in network.module.blocks:
            for layer in (block.attn.proj, block.mlp.fc2):
                layer.weight.copy_(project @ layer.weight)
                layer.bias.copy_(project @ layer.bias)
    tokens: list[torch.Tensor] = []
    for norm in network.token_norms:
        norm.module.register_forward_hook(lambda _, given, __: tokens.append(given[0].flatten(0, -2)))
    with torch.no_grad():
        logits = network(images().double())
        seen = torch.cat([t - t.mean(-1, keepdim=True) for t in tokens])
        slim = network.with_embedding(encoder(principal(seen.mT @ seen), 16))
        torch.testing.assert_close(slim(images().double()), logits, rtol=1e-8, atol=1e-8)


def test_tokens_that_leave_go_on_leaving(small_vit: Any) -> None:
    network = shaken(small_vit("vit_tiny_patch16_224"))
    first, second = network.read()
    fewer = network.build([replace(first, tokens=9, merged=True), second])
    rotated = fewer.with_embedding(encoder(some_directions(64), 64))
    assert list(rotated.dims) == list(fewer.dims)
    with torch.no_grad():
        torch.testing.assert_close(rotated(images().double()), fewer(images().double()), rtol=1e-9, atol=1e-9)


def test_readers_of_kept_channels_keep_their_weights_and_a_norm_sees_only_those() -> None:
    channels, width = torch.tensor([0, 3, 5]), 7
    encode = channel_encoder(channels, width)
    reader = torch.randn(4, width, dtype=torch.float64)
    torch.testing.assert_close(reader @ decoder(encode).weight, reader[:, channels])
    x = torch.randn(5, width, dtype=torch.float64)
    normalised = torch.nn.functional.layer_norm(x @ encode.mT, (3,), eps=0.0)
    torch.testing.assert_close(normalised, torch.nn.functional.layer_norm(x[:, channels], (3,), eps=0.0))


def normalised_tokens(seed: int, width: int = 24) -> torch.Tensor:
    """Tokens [T, d] as a norm gives them, whose large and small directions go together."""
    torch.manual_seed(seed)
    mixed = torch.randn(4000, 8, dtype=torch.float64) ** 3 @ torch.randn(8, width, dtype=torch.float64)
    noisy = mixed + 0.3 * torch.randn(4000, width, dtype=torch.float64) + torch.linspace(-1, 2, width)
    return torch.nn.functional.layer_norm(noisy, (width,), eps=0.0)


def moment_of(tokens: torch.Tensor) -> torch.Tensor:
    affine = torch.cat([tokens, torch.ones_like(tokens[:, :1])], 1)
    return affine.mT @ affine / len(affine)


def test_a_decoder_is_nearly_the_least_squares_map_back_for_tokens_that_their_norm_rescales_alike() -> None:
    tokens = normalised_tokens(0)
    directions = principal(sum(moment_of(normalised_tokens(seed))[:-1, :-1] for seed in range(3)))
    encode = encoder(directions, 6)
    kept = tokens @ encode.mT
    kept = kept * (6 / kept.square().sum(1).mean()).sqrt()  # as a norm makes them, but token by token
    decode = judged_decoder(encode, [moment_of(tokens)])
    assert decode.bias is not None
    affine = torch.cat([kept, torch.ones_like(kept[:, :1])], 1)
    best = affine @ torch.linalg.lstsq(affine, tokens, driver="gelsd").solution
    restored = kept @ decode.weight.mT + decode.bias
    assert (tokens - restored).square().sum() < 1.001 * (tokens - best).square().sum()
    plain = kept @ decoder(encode).weight.mT
    assert (tokens - best).square().sum() < 0.9 * (tokens - plain).square().sum()
    unread = judged_decoder(encode, [torch.zeros(25, 25)])
    torch.testing.assert_close(unread.weight, decoder(encode).weight, rtol=1e-6, atol=1e-6)


def test_a_decoder_of_tokens_that_no_norm_rescales_changes_nothing_that_is_read_again() -> None:
    raw = 30 * normalised_tokens(0) + 100 * torch.linspace(-1, 3, 24)
    encode = encoder(principal(moment_of(raw)[:-1, :-1]), 6)
    decode = judged_decoder(encode, [moment_of(half) for half in raw.chunk(2)], rescaled=False)
    assert decode.bias is not None
    kept = raw @ encode.mT
    restored = kept @ decode.weight.mT + decode.bias
    torch.testing.assert_close(restored @ encode.mT, kept, rtol=1e-5, atol=1e-3)
    affine = torch.cat([kept, torch.ones_like(kept[:, :1])], 1)
    least = raw - affine @ torch.linalg.lstsq(affine, raw, driver="gelsd").solution
    assert (raw - restored).square().sum() < 1.02 * least.square().sum()


def test_refined_directions_tell_more_of_the_tokens_of_all_norms() -> None:
    moments, worth = [moment_of(normalised_tokens(seed)) for seed in range(3)], [1.0, 5.0, 0.2]
    directions = principal(sum(w * moment[:-1, :-1] for w, moment in zip(worth, moments, strict=True)))

    def untold(kept: torch.Tensor) -> float:
        lost = 0.0
        for weight, moment in zip(worth, moments, strict=True):
            c = moment[:-1, :-1] - torch.outer(moment[:-1, -1], moment[:-1, -1])
            cross = c @ kept
            lost += weight * float(c.trace() - (cross @ torch.linalg.solve(kept.mT @ cross, cross.mT)).trace())
        return lost

    found = refined(directions, 6, moments, worth)
    assert found.shape == (24, 5)
    torch.testing.assert_close(found.mT @ found, torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(found.sum(0), torch.zeros(5, dtype=torch.float64))
    assert untold(found) < 0.98 * untold(directions[:, :5])
    dead = [torch.zeros_like(moments[0]), moments[0]]
    with_dead = refined(directions, 6, [*moments, *dead], [*worth, 1.0, 0.0])
    torch.testing.assert_close(with_dead, found)
    torch.testing.assert_close(refined(directions, 6, dead, [1.0, 0.0]), directions[:, :5])
