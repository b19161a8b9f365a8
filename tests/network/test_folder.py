"""Model folders: round trips, and everything that may be wrong with a file."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import derivation_of, rewrite_spec
from small_base import ARGS, NAME, images, outputs
from torch import nn

from edgevit.derivation.session.card import model_card
from edgevit.derivation.solve.embedding import encoder, flat_basis
from edgevit.errors import CheckpointError, EdgeVitError, OutputError
from edgevit.network.anatomy import Block, BlockDims
from edgevit.network.folder import load, save
from edgevit.network.model import Model, derived_spec, describe
from edgevit.network.opening import open_network
from edgevit.records.derivation import Accuracies, AccuracyRecord
from edgevit.records.model import TargetClass

KINDS: list[tuple[str, dict[str, Any]]] = [
    (NAME, {}),
    ("deit_tiny_distilled_patch16_224", {}),
    (NAME, {"init_values": 0.1, "global_pool": "avg"}),
    (NAME, {"reg_tokens": 4, "no_embed_class": True}),
    (NAME, {"qkv_bias": False}),
    (NAME, {"proj_bias": False}),
    (NAME, {"proj_bias": False, "qkv_bias": False}),
]
kinds = pytest.mark.parametrize(("name", "args"), KINDS, ids=str)


def derived(
    network: nn.Module,
    name: str,
    args: Any,
    qk: int,
    vo: int,
    *,
    head: str = "subset",
    embed: int | None = None,
    half: bool = False,
) -> Model:
    """A model of three classes with other dimensions in its two blocks, without a key bias, as factors are.

    `half`: the attention of the first block and the FFN of the second are gone.
    """
    base = describe(network, name, {**ARGS, **args, "num_classes": 10})
    blocks = []
    for i, b in enumerate(network.read()):
        q, v, e = qk + 8 * i, vo + 8 * i, 40 + 8 * i
        attention = replace(b.attention.first(q, v), bk=None, bv=None)
        blocks.append(Block(attention, b.ffn.keep(slice(e))))
    if half:
        blocks = [replace(blocks[0], attention=None), replace(blocks[1], ffn=None)]
    slim = network.build(blocks).eval()
    if embed is not None:
        slim = slim.with_embedding(encoder(flat_basis(64), embed))
    if head == "subset":
        slim.keep_classes([7, 0, 3])
    labels = (TargetClass("seven", 7), TargetClass("zero", 0), TargetClass("three", 3))
    return Model(slim, derived_spec(base.spec, slim, head, labels))


@pytest.mark.quick("*-vit_tiny_patch16_224-{}", "narrow-*", "equal-deit*", "unequal-*'proj_bias': False, 'qkv_bias*")
@kinds
@pytest.mark.parametrize("form", ["base", "equal", "unequal", "full head", "narrow"])
def test_a_saved_model_is_the_same_model(small_vit: Any, tmp_path: Path, name: str, args: Any, form: str) -> None:
    network = small_vit(name, **args)
    if form == "base":
        model = describe(network, name, {**ARGS, **args})
    else:
        head = "full" if form == "full head" else "subset"
        embed = 27 if form == "narrow" else None
        model = derived(network, name, args, 16, 8 if form == "unequal" else 16, head=head, embed=embed)
    save(model, tmp_path / "m", card="hello\n")
    again = load(tmp_path / "m")
    assert again.spec == model.spec and not again.training
    assert torch.equal(outputs(again), outputs(model))
    assert sorted(f.name for f in (tmp_path / "m").iterdir()) == ["README.md", "model.json", "model.safetensors"]
    assert [f.name for f in tmp_path.iterdir()] == ["m"]
    assert sum(p.numel() for p in again.parameters()) == again.spec.params
    if form != "base":
        assert again.spec.blocks[1] == BlockDims(2, 24, 16 if form == "unequal" else 24, 48)
        assert again.classes == ["seven", "zero", "three"]
        assert again.spec.class_columns == ([7, 0, 3] if form == "full head" else [0, 1, 2])
        assert again.spec.base.embed == 64
        assert again.spec.timm_args["embed_dim"] == (27 if form == "narrow" else 64)


PLAIN_TIMM = """
import builtins, os, sys, PIL.Image
def no_edgevit(name, *rest, real=builtins.__import__, **more):
    assert name.partition(".")[0] != "edgevit", "edgevit is imported"
    return real(name, *rest, **more)
builtins.__import__ = no_edgevit
import torch
for folder in sys.argv[1:]:
    os.chdir(folder)
    readme = open("README.md").read()
    parts = [part.partition("```")[0] for part in readme.split("```python\\n")[1:]]
    (code,) = [part for part in parts if "import json, timm" in part]
    PIL.Image.new("RGB", (40, 50)).save("photo.jpg")
    scope = {}
    exec(code, scope)
    assert not scope["model"].training
    with torch.inference_mode():
        torch.save(scope["model"](torch.load("images.pt")), "logits.pt")
assert not any(name.partition(".")[0] == "edgevit" for name in sys.modules)
"""


@pytest.mark.slow
def test_the_code_in_the_readme_loads_a_model_in_plain_timm_without_edgevit(small_vit: Any, tmp_path: Path) -> None:
    expected = {}
    for i, (name, args) in enumerate([*KINDS, (NAME, {})]):
        last = i == len(KINDS)  # of which one block has no attention, and the other no FFN
        model = derived(small_vit(name, **args), name, args, 16, 16, embed=27 if i % 2 else None, half=last)
        entry = AccuracyRecord(0.5, 3)
        loader = model.plain_loader()
        card = model_card("m", model.spec, derivation_of(None, accuracy=Accuracies(entry, entry, None, entry)), loader)
        folder = tmp_path / str(i)
        save(model, folder, card=card)
        torch.save(images(), folder / "images.pt")
        expected[folder] = outputs(model)
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_TIMM, *map(str, expected)], text=True, capture_output=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for folder, value in expected.items():
        assert torch.equal(torch.load(folder / "logits.pt"), value), folder


def test_the_readme_of_unequal_widths_names_edgevit_instead(small_vit: Any) -> None:
    model = derived(small_vit(), NAME, {}, 16, 8)
    accuracy = Accuracies(None, None, None, AccuracyRecord(0, 1))
    card = model_card("m", model.spec, derivation_of(None, accuracy=accuracy), None)
    assert "import edgevit" in card and "Plain timm cannot express it" in card and "timm.create_model" not in card


@pytest.fixture
def folder(small_vit: Any, tmp_path: Path) -> Path:
    save(derived(small_vit(), NAME, {}, 16, 16), tmp_path / "m")
    return tmp_path / "m"


def change(folder: Path, **fields: Any) -> None:
    rewrite_spec(folder, lambda spec: spec.update(fields))


def change_base(folder: Path, **fields: Any) -> None:
    rewrite_spec(folder, lambda spec: spec["base"].update(fields))


def edit(folder: Path, now: str, then: str) -> None:
    """Edit model.json by hand, without its seal."""
    text = (folder / "model.json").read_text()
    assert now in text
    (folder / "model.json").write_text(text.replace(now, then))


def drop(folder: Path, field: str) -> None:
    rewrite_spec(folder, lambda spec: spec.pop(field))


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


SMALL_IMAGES = {"input_size": [3, 8, 8], "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3,
                "crop_pct": 0.9, "crop_mode": "center"}  # fmt: skip
BROKEN: list[tuple[str, Callable[[Path], Any], str]] = [
    ("no weights", lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
    ("no spec", lambda f: (f / "model.json").unlink(), "model.json is missing"),
    ("altered", lambda f: flip_a_bit(f / "model.safetensors"), "was altered: its hash is"),
    ("truncated", lambda f: os.truncate(f / "model.safetensors", 1000), "was altered"),
    (
        "next schema",
        lambda f: change(f, schema=6),
        "has schema 6, written by edgevit 0.1.0; edgevit 0.1.0 reads schema 1: write it again with this version",
    ),
    ("no schema", lambda f: drop(f, "schema"), "has no schema"),
    ("half a spec", lambda f: os.truncate(f / "model.json", 100), "is not JSON"),
    ("binary spec", lambda f: (f / "model.json").write_bytes(b"\xff\xfe\x00"), "is not text in UTF-8"),
    ("a list", lambda f: (f / "model.json").write_text("[1]"), "has a list, expected an object"),
    ("no hash", lambda f: drop(f, "weights_sha256"), "lacks weights_sha256"),
    ("no blocks", lambda f: drop(f, "blocks"), "lacks blocks"),
    ("blocks of text", lambda f: change(f, blocks="many"), "has 'many' as blocks, expected a valid array"),
    ("too few blocks", lambda f: change(f, blocks=[]), "blocks, tuple should have at least 1 item"),
    ("other heads", lambda f: edit(f, '"heads": 2,', '"heads": 1,'), "was altered: the hash of its content is"),
    ("false MACs", lambda f: change(f, macs=1000), "it states 1000 MACs, and the model has"),
    ("false parameters", lambda f: change(f, params=1000), "it states 1000 parameters, and the model has"),
    ("false MACs of the base", lambda f: change_base(f, macs=9**9), "it states 387420489 MACs of the base"),
    ("other images", lambda f: change(f, preprocessing=SMALL_IMAGES), "[3, 8, 8] input size, and the model has [3, 32"),
    ("no such images", lambda f: change(f, preprocessing={}), "preprocessing, lacks input_size"),
    ("a class twice", lambda f: change(f, classes=[{"name": "3", "base_index": 3}] * 3), "has a class twice"),
    ("no such row", lambda f: change_base(f, outputs=5), "has a class beyond the 5 outputs of its base"),
    ("no family", lambda f: change(f, family="vot"), "describes 2 blocks of family vot"),
    ("no such model", lambda f: change(f, timm_name="vit_tinny"), "no timm model"),
    ("odd arguments", lambda f: change(f, timm_args={"num_heads": 7, "num_classes": 3}), "num_heads=7"),
    ("other classes", lambda f: change(f, timm_args={**ARGS, "num_classes": 5}), "has 3 classes and 5 outputs"),
    (
        "deeper",
        lambda f: change(f, timm_args={**ARGS, "depth": 3, "num_classes": 3}),
        "timm_args.depth and 2 blocks",
    ),
]


@pytest.mark.parametrize(("spoil", "said"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_a_broken_model_folder_is_one_line(folder: Path, spoil: Callable[[Path], Any], said: str) -> None:
    spoil(folder)
    with pytest.raises(EdgeVitError) as refusal:
        load(folder)
    assert said in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_folder_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere does not exist; check the path"):
        load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="no model folder at"):
        open_network(str(tmp_path / "nowhere"))


def test_an_existing_folder_is_not_touched(small_vit: Any, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match="exists and is not overwritten"):
        save(derived(small_vit(), NAME, {}, 16, 16), tmp_path / "m")
    assert [f.name for f in tmp_path.rglob("*")] == ["m", "mine.txt"]
    assert (tmp_path / "m" / "mine.txt").read_text() == "mine"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_one_line_and_leaves_nothing(small_vit: Any, small_disk: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*No space left on device.*; free some space") as refusal:
        save(derived(small_vit(), NAME, {}, 16, 16), small_disk / "m")
    assert "\n" not in str(refusal.value)
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("limit", [0, 100_000, 300_000], ids=["at once", "in the weights", "in a later file"])
def test_a_file_that_may_not_grow_is_one_line_and_leaves_nothing(small_vit: Any, tmp_path: Path, limit: int) -> None:
    model = derived(small_vit(), NAME, {}, 16, 16)
    assert 100_000 < 4 * model.spec.params < 300_000
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(OutputError, match="cannot write") as refusal:
            save(model, tmp_path / "m", card="x" * 400_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_is_one_line(small_vit: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file is not a folder, so .* cannot be created"):
        save(derived(small_vit(), NAME, {}, 16, 16), tmp_path / "file" / "m")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"num_heads": -1}, "timm_args.num_heads=-1 is not possible"),
        ({"norm_layer": "layernorm2d"}, "cannot run with its arguments"),
        ({"checkpoint_path": "evil.pth"}, "timm_args.checkpoint_path is no argument that edgevit passes to timm"),
    ],
)
def test_arguments_in_a_sealed_folder_are_those_of_a_network_that_runs(
    small_vit: Any, tmp_path: Path, args: Any, said: str
) -> None:
    save(describe(small_vit(), NAME, ARGS), tmp_path / "m")
    rewrite_spec(tmp_path / "m", lambda spec: spec["timm_args"].update(args))
    with pytest.raises(CheckpointError) as refusal:
        load(tmp_path / "m")
    assert said in str(refusal.value) and "\n" not in str(refusal.value)
