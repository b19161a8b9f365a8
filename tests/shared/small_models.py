"""Small random models, and model folders of them, derived for three of the digits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import timm
import torch
from model_folders import derivation_of
from torch import Tensor

from edgevit.data.task import open_task
from edgevit.derivation.plan import Plan
from edgevit.derivation.realise import realise
from edgevit.derivation.solve.embedding import encoder, flat_basis, principal
from edgevit.network.families import family_like
from edgevit.network.folder import save
from edgevit.network.model import Model, derived_spec, describe
from edgevit.network.network import Network
from edgevit.records.model import TargetClass

ARGS = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 64, "num_heads": 2, "num_classes": 10}
SWIN_ARGS = {
    "img_size": 32, "patch_size": 4, "embed_dim": 64, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4,
    "num_classes": 10,
}  # fmt: skip
CLASSES = ("3", "5", "8")


def usual_args(name: str) -> dict[str, Any]:
    """timm's arguments of a small network of this name."""
    return SWIN_ARGS if name.startswith("swin") else ARGS


def random_base(**args: Any) -> Network:
    torch.manual_seed(0)
    network = Network(timm.create_model("vit_tiny_patch16_224", **{**ARGS, **args}).eval())
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.1)  # timm starts them at zero, where mistakes do not show
        for head in network.ends.classifiers:
            head.weight *= 50  # far enough apart that rounding does not change the top-1
    return network


def slimmed(network: Network, qk: int, vo: int) -> Network:
    """Cut heads down to the first `qk` and `vo` of their width: other functions, but real dimensions."""

    blocks = [replace(block, attention=block.attention.first(qk, vo)) for block in network.read()]
    return network.build(blocks).eval()


def write_derived(
    folder: Path, qk: int, vo: int, *, seed: int = 7, head: Literal["subset", "full"] = "subset", **args: Any
) -> Path:
    """Write a model folder for three of the digits, with heads of the given widths."""
    network = random_base(**args)
    base = describe(network, "vit_tiny_patch16_224", {**ARGS, **args})
    task = open_task("digits", CLASSES, preprocessing=base.preprocessing, base_outputs=10, seed=seed)
    slim = slimmed(network, qk, vo)
    if head == "subset":
        slim.keep_classes(task.base_columns)
    labels = task.classes
    model = Model(slim, derived_spec(base.spec, slim, head, labels))
    save(model, folder, derivation=derivation_of(task.record()))
    return folder


def with_fewer_tokens(network: Network, *counts: int, merged: bool = False) -> Network:
    """A copy whose blocks pass on so many tokens; 0: all."""
    blocks = zip(network.read(), counts, strict=True)
    return network.build([replace(b, tokens=n, merged=merged and n > 0) for b, n in blocks]).eval()


def encoders(
    network: Network,
    width: int,
    basis: Callable[[int], Tensor] = flat_basis,
    directions: Callable[[int], Tensor] = flat_basis,
) -> list[Tensor]:
    """Matrices by which an embedding gets this width."""
    geometry = network.geometry
    pairs = zip(geometry.bases, geometry.bases_at(width), strict=True)
    return [encoder(directions(old), new, basis, mean=len(geometry.bases) > 1) for old, new in pairs]


def some_directions(width: int) -> Tensor:
    """All directions of tokens of this width, in a random order: the same at each call."""
    generator = torch.Generator().manual_seed(3)
    seen = torch.randn(4 * width, width, dtype=torch.float64, generator=generator)
    return principal(seen.mT @ seen)


@torch.no_grad()
def lie_in_few_directions(swin: Network, width: int) -> None:
    """Have all tokens lie in those of `some_directions` that an embedding of this width keeps, and their mean."""
    geometry, model = swin.geometry, swin.module

    def onto(layer: Any, stage: int) -> None:
        whole = geometry.stages[stage].embed
        keep = width * whole // geometry.embed
        encode = encoder(some_directions(whole), keep, mean=True)
        matrix = encode.mT @ encode * (whole / keep)
        for parameter in layer.parameters(recurse=False):
            parameter.copy_(torch.tensordot(matrix.to(parameter), parameter, 1))

    onto(model.patch_embed.proj, 0)
    model.patch_embed.norm.weight.fill_(1.0)
    model.patch_embed.norm.bias.zero_()
    for number, stage in enumerate(model.layers):
        if number:
            onto(stage.downsample.reduction, number)
        for block in stage.blocks:
            onto(block.attn.proj, number)
            onto(block.mlp.fc2, number)
            if block.attn.filled is not None:  # what it adds to places without a token has no direction
                block.norm1.bias.zero_()


def with_embedding(network: Network, width: int) -> Network:
    """A copy with an embedding of this width: the function of the other at its own, another one below."""
    return network.with_embedding(encoders(network, width)).eval()


def write_narrower(folder: Path, width: int, **args: Any) -> Path:
    """Write a model folder with an embedding of this width."""
    network = random_base(**args)
    base, slim = describe(network, "vit_tiny_patch16_224", {**ARGS, **args}), with_embedding(network, width)
    labels = tuple(TargetClass(str(i), i) for i in range(10))
    save(Model(slim, derived_spec(base.spec, slim, "full", labels)), folder)
    return folder


def write_fewer_tokens(folder: Path, *counts: int, merged: bool = False, **args: Any) -> Path:
    """Write a model folder whose blocks pass on so many tokens."""
    network = random_base(**args)
    base = describe(network, "vit_tiny_patch16_224", {**ARGS, **args})
    slim = with_fewer_tokens(network, *counts, merged=merged)
    labels = tuple(TargetClass(str(i), i) for i in range(10))
    save(Model(slim, derived_spec(base.spec, slim, "full", labels)), folder)
    return folder


def write_swin(
    folder: Path, *, kept: Sequence[int] | None = None, embed: int | None = None, **args: Any
) -> tuple[Path, Network]:
    """Write a model folder of a Swin of these blocks, with fewer heads and unequal widths in the middle one.

    Its embedding has `embed` channels in the last stage.
    """
    torch.manual_seed(0)
    name, args = "swin_tiny_patch4_window7_224", {**SWIN_ARGS, **args}
    made = timm.create_model(name, **args).eval()
    network = Network(family_like(made).interchange.adopted(made))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        network.classifiers[0].weight *= 20  # far enough apart that rounding does not change the top-1
    base, slim = describe(network, name, args), copy.deepcopy(network)
    if kept is not None:
        slim.keep_blocks(kept)
    blocks = slim.read()
    a = blocks[len(blocks) // 2].attention
    assert a is not None
    cut = a.keep(range(1, a.heads)).first(24, 16)
    blocks[len(blocks) // 2] = replace(blocks[len(blocks) // 2], attention=cut)
    slim = slim.build(blocks).eval()
    slim = slim if embed is None else with_embedding(slim, embed)
    labels = tuple(TargetClass(str(i), i) for i in range(10))
    save(Model(slim, derived_spec(base.spec, slim, "full", labels)), folder)
    return folder, slim


def write_headless(folder: Path) -> Path:
    """Write a model folder without a classifier, whose outputs are features."""
    save(describe(random_base(num_classes=0), "vit_tiny_patch16_224", {**ARGS, "num_classes": 0}), folder)
    return folder


def write_halves(folder: Path, **args: Any) -> Path:
    """Write a model folder whose first block has no attention and whose last has no FFN."""
    network = random_base(**args)
    base, blocks = describe(network, "vit_tiny_patch16_224", {**ARGS, **args}), network.read()
    whole = Plan.narrowed([b.dims for b in blocks], [torch.arange(b.dims.ffn) for b in blocks])
    first, *others, last = whole.blocks
    slim = realise(network, Plan((replace(first, attention=None), *others, replace(last, ffn=None))))
    labels = tuple(TargetClass(str(i), i) for i in range(10))
    save(Model(slim, derived_spec(base.spec, slim, "full", labels)), folder)
    return folder
