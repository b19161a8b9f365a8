"""A network with a head of the user's: the network in it is cut, and the folder keeps the file that makes it."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_networks import write_depth
from typer.testing import CliRunner

import edgevit
from edgevit.cli.app import app
from edgevit.derivation.solve.embedding import encoder, flat_basis
from edgevit.errors import CheckpointError, EdgeVitError, UnsupportedModelError
from edgevit.network.copies import bare_copy
from edgevit.network.folder import save
from edgevit.network.from_module import path_of
from edgevit.network.model import Model, derived_spec
from edgevit.network.network import Network
from edgevit.network.opening import open_network
from edgevit.records.model_folder import ModelFolder

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_depth(tmp_path_factory.mktemp("mine"))


@pytest.fixture(scope="module")
def network(file: Path) -> Model:
    opened = open_network(f"{file}:build")
    assert isinstance(opened, Model)
    return opened


IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_its_weights_have_their_own_names_and_its_output_is_the_modules(network: Model, file: Path) -> None:
    names: dict[str, Any] = {}
    exec(file.read_text(), names)
    module = names["build"]().eval()
    assert network.state_dict().keys() == module.state_dict().keys()
    with torch.inference_mode():
        torch.testing.assert_close(network(IMAGES), module(IMAGES))


def test_costs_are_of_network_and_head(network: Model) -> None:
    spec, of_head = network.spec, 16 * 16 * 128 + 16 * 16 * 8 * 16 + 64 * 8 * 9
    assert network.geometry.head_macs == of_head
    assert spec.params == sum(p.numel() for p in network.parameters())
    assert network.geometry.params(network.dims) == spec.params
    without_head = replace(network.geometry, head_macs=0)
    assert spec.macs - without_head.macs(network.dims) == of_head


def test_its_steps_give_the_outputs_of_the_whole(network: Model) -> None:
    with torch.inference_mode():
        tokens = [network.first_tokens(IMAGES)]
        for layer in network.block_modules:
            tokens.append(layer(tokens[-1]))
        torch.testing.assert_close(network.outputs_after(tokens[1:], IMAGES), network(IMAGES))
        other = network.outputs_after([2 * tokens[1], *tokens[2:]], IMAGES)  # the head reads block 0, too
        torch.testing.assert_close(network(IMAGES), bare_copy(network)(IMAGES))
    assert not torch.allclose(other, network(IMAGES))


def test_its_batch_norms_keep_their_statistics_in_training(network: Model) -> None:
    before = network.module.norm.running_mean.clone()  # type: ignore[union-attr, operator]
    network.train()(IMAGES)
    assert torch.equal(network.module.norm.running_mean, before) and network.training  # type: ignore[union-attr, arg-type]
    network.eval()


def test_a_cut_network_is_written_and_read_again(network: Model, tmp_path: Path) -> None:
    blocks = [replace(b, ffn=b.ffn and b.ffn.keep(slice(40))) for b in network.read()]
    slim = network.build(blocks).eval()
    spec = replace(network.spec, blocks=slim.dims, macs=slim.geometry.macs(slim.dims))
    spec = replace(spec, params=sum(p.numel() for p in slim.parameters()), output="foreground")
    save(Model(slim, spec), tmp_path / "slim")
    loaded = edgevit.load(tmp_path / "slim")
    assert loaded.output.kind == "foreground" and loaded.dims == slim.dims
    with torch.inference_mode():
        torch.testing.assert_close(loaded(IMAGES), slim(IMAGES))


def test_a_narrower_embedding_is_given_back_where_the_head_reads_it(network: Model, tmp_path: Path) -> None:
    assert network.family.read == (0, 2)  # type: ignore[union-attr]
    flat = bare_copy(network)
    with torch.no_grad():  # tokens without a mean, which a rotation would lose
        inside: Any = flat.module.backbone
        writers = [layer.output for pair in flat.layers for layer in pair if layer is not None]
        for weights in (inside.patch_embed.proj.weight, *(w for layer in writers for w in (layer.weight, layer.bias))):
            weights -= weights.mean(0)
        for vectors in (inside.patch_embed.proj.bias, inside.cls_token, inside.pos_embed):
            vectors -= vectors.mean(-1, keepdim=True)
        rotated = Network(flat).with_embedding(encoder(flat_basis(64), 64))
        torch.testing.assert_close(rotated(IMAGES), flat(IMAGES), rtol=1e-4, atol=1e-4)
    slim = network.with_embedding(encoder(flat_basis(64), 16)).eval()
    geometry = slim.geometry
    assert geometry == network.geometry_at(16) and geometry.fixed_embed is not None
    assert geometry.params(slim.dims) == sum(p.numel() for p in slim.parameters())
    assert geometry.stages[0].restores == 3 and geometry.stages[0].whole == 64
    assert geometry.of_base(64).macs(slim.dims) == network.spec.macs
    spec = replace(derived_spec(network.spec, slim, "full", ()), output="values")
    save(Model(slim, spec), tmp_path / "slim")
    loaded = edgevit.load(tmp_path / "slim")
    assert loaded.spec.narrowed == (16, 64)
    with torch.inference_mode():
        torch.testing.assert_close(loaded(IMAGES), slim(IMAGES))
    base: Any = open_network(tmp_path / "slim")  # which is as narrow as what is derived from it
    save(Model(base, replace(derived_spec(base.spec, base, "full", ()), output="values")), tmp_path / "again")
    with torch.inference_mode():
        torch.testing.assert_close(edgevit.load(tmp_path / "again")(IMAGES), slim(IMAGES))


@pytest.mark.parametrize("function", ["First", "Positions", "Width", "Bent"])
def test_the_embedding_stays_where_the_head_reads_more_than_blocks_put_out(function: str, tmp_path: Path) -> None:
    opened = open_network(f"{write_depth(tmp_path, wrong=True)}:{function}")
    assert "may read more" in str(opened.geometry.fixed_embed)  # type: ignore[union-attr]


def test_how_the_network_itself_pools_does_not_matter_behind_a_head(tmp_path: Path) -> None:
    opened: Any = open_network(f"{write_depth(tmp_path, wrong=True)}:Pooled")
    slim = opened.build([replace(b, ffn=b.ffn.keep(slice(40))) for b in opened.read()]).eval()
    save(Model(slim, replace(derived_spec(opened.spec, slim, "full", ()), output="values")), tmp_path / "slim")
    with torch.inference_mode():
        torch.testing.assert_close(edgevit.load(tmp_path / "slim")(IMAGES), slim(IMAGES))
    assert opened.geometry.fixed_embed is None


def test_a_block_is_read_that_is_only_compared_with_a_limit(tmp_path: Path) -> None:
    opened = open_network(f"{write_depth(tmp_path, wrong=True)}:Limit")
    assert opened.family.read == (0, 2)  # type: ignore[union-attr]


def test_a_head_puts_out_the_same_in_training(tmp_path: Path) -> None:
    opened: Any = open_network(f"{write_depth(tmp_path, wrong=True)}:Auxiliary")
    expected = opened.eval()(IMAGES)
    torch.testing.assert_close(opened.train()(IMAGES), expected)
    assert opened.module.backbone.blocks.training


def test_a_folder_from_elsewhere_runs_no_code_unasked(
    network: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(network, tmp_path / "model")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other machine"))
    with pytest.raises(CheckpointError, match=r"has not been run on this machine; read .*run_code=True"):
        edgevit.load(tmp_path / "model")
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "model")])
    assert shown.exit_code == 0 and "backbone of what build in builder.py makes: a map of values" in shown.stdout
    assert not (tmp_path / "other machine" / "edgevit" / "builders").exists()
    edgevit.load(tmp_path / "model", run_code=True)
    edgevit.load(tmp_path / "model")  # it has been run now
    builder = ModelFolder(tmp_path / "model").builder_file
    builder.write_text(builder.read_text() + "\n")
    with pytest.raises(CheckpointError, match=r"builder\.py"):
        edgevit.load(tmp_path / "model", run_code=True)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("Constant", "does not depend on what the blocks of its backbone return"),
        ("Hooked", "a copy of this Hooked has another output"),
        ("Bound", "a copy of this Bound has another output"),
        ("Inner", r"this Inner raises IndexError \(.*\) where the blocks of its backbone return tokens"),
        ("Named", r"has backbone\.norm\.weight by a second name, second\.weight"),
        ("Flipped", "gives its backbone 4 images of 2"),
        ("Shallow", "does not depend on blocks after the first 2 of the 3 of its backbone; make backbone with these 2"),
        ("Early", "runs 1 blocks of its backbone, expected each of the 3 once"),
        ("Resized", "gives its backbone 65 tokens, and by its img_size it has 17"),
        ("Frozen", r"runs its backbone without gradients, .*; call backbone outside of torch\.no_grad"),
        ("Two", "must contain one network of .*, and has first.backbone, second.backbone"),
        ("Without", r"must contain one network of .* \(timm's .*, and has none"),
        ("Tokens", r"or return one map \[images, channels, height, width\]"),
        ("Failing", "raised ValueError: no such size"),
        ("Detached", r"has no gradient by what block 1 of its backbone returns, .*; leave detach, argmax"),
        ("Chosen", "has no gradient by what block 0 of its backbone returns"),
        ("Batch", "gives an image another output alone than beside a second one"),
        ("Mixed", r"runs its backbone under torch\.autocast: .*; leave torch\.autocast out"),
        ("Pair", r"raises TypeError \(.*'others'\) for images \[2, 3, 32, 32\], and is to take these alone"),
        ("TwoHeads", r"a dict of depth, normals; .* return one map .* \(of several maps, beside each other as its"),
        ("Squeezed", r"a tensor \[2, 32, 32\], and not .* return one map .* \(of one channel, outputs\[:, None\]\)"),
    ],
)
def test_a_module_that_cannot_be_cut_is_one_line(tmp_path: Path, function: str, reason: str) -> None:
    file = write_depth(tmp_path, wrong=True)
    with pytest.raises(EdgeVitError, match=reason) as caught:
        open_network(f"{file}:{function}")
    assert "\n" not in str(caught.value)


def test_a_backbone_that_was_frozen_while_its_head_was_trained_is_trained_here(tmp_path: Path) -> None:
    file = write_depth(tmp_path)
    file.write_text(f"{file.read_text()}\n\ndef frozen():\n    return build().requires_grad_(False)\n")
    opened: Any = open_network(f"{file}:frozen")
    assert {name.partition(".")[0] for name, p in opened.module.named_parameters() if p.requires_grad} == {"backbone"}
    assert all(p.requires_grad for p in opened.module.backbone.parameters())


def test_a_file_that_needs_another_is_refused(tmp_path: Path) -> None:
    file = write_depth(tmp_path)
    (tmp_path / "lengths.py").write_text("SIZE = 32\n")
    file.write_text(f"from lengths import SIZE\n{file.read_text()}")
    with pytest.raises(EdgeVitError, match="imports lengths beside it, and a model folder keeps one file"):
        open_network(f"{file}:build")


def test_a_module_whose_class_needs_no_arguments_is_a_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_depth(tmp_path, wrong=True).rename(tmp_path / "of_a_class.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    of_a_class = import_module("of_a_class")
    module = of_a_class.Depth().eval()
    opened = edgevit.load(path_of(module, "edgevit.derive"))
    assert opened.spec.builder is not None and opened.spec.builder.function == "Depth"
    assert path_of(opened, "edgevit.derive") == path_of(module, "edgevit.derive")
    with torch.inference_mode():
        torch.testing.assert_close(opened(IMAGES), module(IMAGES))
    with pytest.raises(EdgeVitError, match=r"Sized cannot be made again from its file alone .*FUNCTION"):
        path_of(of_a_class.Sized(3), "edgevit.derive")
    sys.modules.pop("of_a_class")


def test_a_head_reads_the_map_of_a_swin_as_timm_returns_it(tmp_path: Path) -> None:
    file = tmp_path / "swin_map.py"
    file.write_text("""
import timm
import torch
from torch import nn


class SwinMap(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = timm.create_model(
            "swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=16, depths=(1, 1), num_heads=(2, 2)
        )
        self.last = nn.Conv2d(32, 1, 1)

    def forward(self, images):
        features = self.backbone.forward_features(images)
        return self.last((features - features.mean(1, keepdim=True)).permute(0, 3, 1, 2))
""")
    names: dict[str, Any] = {}
    exec(file.read_text(), names)
    torch.manual_seed(0)
    module = names["SwinMap"]().eval()
    opened: Any = open_network(f"{file}:SwinMap")
    with torch.inference_mode():
        torch.testing.assert_close(opened(IMAGES), module(IMAGES))


def test_a_module_of_another_precision_is_refused(file: Path) -> None:
    halved = file.with_name("halved.py")
    halved.write_text(f"{file.read_text()}\n\ndef halved():\n    return build().half()\n")
    with pytest.raises(UnsupportedModelError, match=r"is float16, expected float32: .* call float\(\) on the module"):
        open_network(f"{halved}:halved")
