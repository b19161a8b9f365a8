"""A classifier with fewer rows says of these classes what it said before, and features are those of the network."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import ARGS
from torch.utils.flop_counter import FlopCounterMode

from edgevit.derivation.solve.embedding import encoder, flat_basis
from edgevit.errors import UnsupportedModelError
from edgevit.network.classifier import (
    pooled_place,
    read_tokens,
    tokens_of,
    with_classes,
    with_features,
    with_last_blocks,
)
from edgevit.network.folder import load, save
from edgevit.network.model import Model, derived_spec, describe
from edgevit.network.output import Logits
from edgevit.records.model import TargetClass


def test_dropping_classes_keeps_their_logits_and_the_model_itself(small_vit):
    model = small_vit("deit_tiny_distilled_patch16_224")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(with_classes(model, [5, 2])(images), model(images)[:, [5, 2]])
    assert model.module.head.out_features == 10


@pytest.mark.parametrize("registers", [0, 3])
def test_features_of_tokens_are_those_after_the_last_norm_and_no_registers(small_vit: Any, registers: int) -> None:
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        tokens = small_vit(reg_tokens=registers).forward_features(images)
        patches = with_features(small_vit(reg_tokens=registers), "patches")
        both = with_features(small_vit(reg_tokens=registers), "class,patches")
        torch.testing.assert_close(patches(images), tokens[:, 1 + registers :])
        torch.testing.assert_close(both(images), torch.cat([tokens[:, :1], tokens[:, 1 + registers :]], 1))
        narrow = both.with_embedding(torch.eye(64, dtype=torch.float64)[1:])
        assert narrow(images).shape == both(images).shape
    for block in both.block_modules:
        block.attn.fused_attn = False  # which older releases of torch do not count
    with FlopCounterMode(display=False) as counter:
        both(images)
    norms = sum(placed.stage.embed * placed.tokens * 2 for placed in both.geometry.placed(both.dims)) + 64
    assert both.geometry.macs(both.dims) == int(counter.get_total_flops()) // 2 + norms
    assert all("all patches are put out" in block.attention.site.frozen["tokens"] for block in both.blocks)


@pytest.mark.parametrize(
    ("tokens", "depths"), [(None, (2,)), ("class", ()), ("class", (1, 2)), ("class", (2,)), ("patches", (2,))]
)
def test_features_after_earlier_blocks_are_of_a_network_that_ends_there(
    small_vit: Any, tokens: Any, depths: tuple[int, ...]
) -> None:
    whole, images = small_vit(depth=4, reg_tokens=2), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        after = whole.module.forward_intermediates(
            images, [0, 1, 3], norm=True, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
        )
        of_block = {depth: (prefix[:, 0], patches) for depth, (patches, prefix) in zip((1, 2, 4), after, strict=True)}
        network = with_features(whole, tokens, depths)
        outputs = network(images)
    expected = [of_block[depth][tokens == "patches"] for depth in depths or (4,)]
    torch.testing.assert_close(outputs, torch.stack(expected, 1) if tokens and depths else expected[0])
    assert len(network.dims) == (depths or (4,))[-1]


def test_features_after_blocks_that_there_are_not_are_one_line(small_vit: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"after blocks 1,9: \S+ has 2; try 2 for the last"):
        with_features(small_vit(), "patches", (1, 9))
    swin = small_vit("swin_tiny_patch4_window7_224")
    with pytest.raises(UnsupportedModelError, match="are in stages, and the last of them pools; try --output features"):
        with_features(swin, None, (1,))


@pytest.mark.parametrize("registers", [0, 3])
def test_a_head_reads_the_class_token_and_the_mean_of_the_patches_in_another_basis_too(
    small_vit: Any, registers: int
) -> None:
    network, images = small_vit(reg_tokens=registers), torch.randn(2, 3, 32, 32)
    read_tokens(network, "class,mean")
    network.make_classifiers(5)
    with torch.no_grad():
        tokens = network.forward_features(images)
        both = torch.cat([tokens[:, 0], tokens[:, 1 + registers :].mean(1)], 1)
        torch.testing.assert_close(network(images), network.classifiers[0](both))
        narrow = network.with_embedding(encoder(flat_basis(64), 64))
        torch.testing.assert_close(narrow(images), network(images), rtol=1e-4, atol=1e-4)
        subset = with_classes(network, [3, 1])
        torch.testing.assert_close(subset(images), network(images)[:, [3, 1]])
    for each in (network, network.with_embedding(encoder(flat_basis(64), 48)), subset):
        assert each.geometry.params(each.dims) == sum(p.numel() for p in each.parameters())
    assert tokens_of(narrow) == tokens_of(network.build(network.read())) == "class,mean"
    assert not network.blocks[0].attention.site.frozen and network.ends.reads_mean


def test_a_head_of_several_blocks_is_exact_in_another_basis_and_runs_in_a_narrower_one(
    small_vit: Any, tmp_path: Path
) -> None:
    base, images = small_vit(depth=4, reg_tokens=2), torch.randn(2, 3, 32, 32)
    network: Any = with_last_blocks(base, 3, 5)
    with torch.no_grad():
        network.module.head.bias.normal_()
        after = base.module.forward_intermediates(
            images, [1, 2, 3], norm=True, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
        )
        vectors = [vector for patches, prefix in after for vector in (prefix[:, 0], patches.mean(1))]
        (head,) = network.classifiers
        logits = torch.cat(vectors, 1) @ head.weight.T + head.bias
        torch.testing.assert_close(network(images), logits)
        torch.testing.assert_close(network.build(network.read())(images), logits)
        torch.testing.assert_close(
            network.with_embedding(encoder(flat_basis(64), 64))(images), logits, rtol=0, atol=1e-5
        )
        subset = with_classes(network, [3, 1])
        torch.testing.assert_close(subset(images), logits[:, [3, 1]])
        narrow = network.with_embedding(encoder(flat_basis(64), 48))
        assert narrow(images).shape == (2, 5) and narrow.output == Logits((0, 1, 2, 3, 4))
    for each in (network, subset, narrow):
        assert each.geometry.params(each.dims) == sum(p.numel() for p in each.parameters())
    assert network.geometry_at(48).macs(network.dims) == narrow.geometry.macs(network.dims)
    for block in network.block_modules:
        block.attn.fused_attn = False  # which older releases of torch do not count
    with FlopCounterMode(display=False) as counter:
        network(images[:1])
    norms = sum(placed.stage.embed * placed.tokens * 2 for placed in network.geometry.placed(network.dims)) + 64
    assert network.geometry.macs(network.dims) == int(counter.get_total_flops()) // 2 + norms
    whole = describe(network, "vit_tiny_patch16_224", {**ARGS, "depth": 4, "reg_tokens": 2})
    assert (whole.spec.depths, whole.spec.tokens, whole.spec.output_kind) == ((2, 3, 4), "class,mean", "logits")
    classes = tuple(TargetClass(str(i), i) for i in range(5))
    for name, written in (("whole", network), ("narrow", narrow), ("subset", subset)):
        chosen = classes if name != "subset" else (classes[3], classes[1])
        model = Model(written, derived_spec(whole.spec, written, "subset", chosen))
        save(model, tmp_path / name)
        torch.testing.assert_close(load(tmp_path / name)(images), written(images))
    strange = replace(whole.spec, depths=(1, 3, 4))
    assert strange.fault() == "has a head of blocks 1, 3, 4, expected the last ones"


def test_a_head_of_several_blocks_keeps_them(small_vit: Any) -> None:
    network = with_last_blocks(small_vit(depth=3), 2, 5)
    with pytest.raises(UnsupportedModelError, match="cannot remove its blocks: its head reads several blocks; fit one"):
        network.keep_blocks([0, 1])
    network.make_classifiers(7)
    assert network.classifiers[0].weight.shape == (7, 2 * 2 * 64) and network.output == Logits(tuple(range(7)))
    assert {"block", "tokens"} <= network.geometry.frozen(1).keys()
    assert pooled_place(network) is None


@pytest.mark.parametrize(
    ("name", "args", "tokens", "message"),
    [
        (None, {"class_token": False, "global_pool": "avg", "fc_norm": False}, "class,patches", "no class token; try"),
        (None, {"global_pool": "avg"}, "patches", "does not read tokens one by one"),
        ("deit_tiny_distilled_patch16_224", {}, "patches", "does not read tokens one by one"),
        ("swin_tiny_patch4_window7_224", {}, "patches", "has no tokens of a class and of patches"),
    ],
)
def test_networks_without_such_tokens_are_refused(
    small_vit: Any, name: Any, args: Any, tokens: Any, message: str
) -> None:
    network = small_vit(*([] if name is None else [name]), **args)
    with pytest.raises(UnsupportedModelError, match=message):
        with_features(network, tokens)
