"""Opening bases: names, weights alone, model folders, and what timm refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from dense_networks import write_depth
from recorded_progress import RecordedProgress
from safetensors.torch import save_file
from small_base import ARGS, NAME, outputs
from small_models import write_halves, write_narrower

from edgevit.derivation.solve.embedding import encoder, flat_basis
from edgevit.errors import CheckpointError, EdgeVitError, OptionError, UnknownNameError
from edgevit.network.folder import load, save
from edgevit.network.from_module import path_of
from edgevit.network.model import Headless, Model, derived_spec
from edgevit.network.opening import network_without_weights, open_network
from edgevit.records.model import TargetClass

IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_a_model_folder_is_a_base_again(tmp_path: Path) -> None:
    write_halves(tmp_path / "m")
    base = open_network(tmp_path / "m", preprocessing={"mean": [0.1, 0.2, 0.3]})
    assert base.spec.base.embed == 64
    assert base.preprocessing["mean"] == [0.1, 0.2, 0.3]
    with pytest.raises(OptionError, match="brings its own weights"):
        open_network(tmp_path / "m", pretrained=True)


def test_a_model_with_another_embedding_is_a_base_of_that_width(tmp_path: Path) -> None:
    write_narrower(tmp_path / "m", 27)
    base = open_network(tmp_path / "m")
    assert base.spec.base.embed == 27
    slim = base.with_embedding(encoder(flat_basis(27), 9))
    labels = tuple(TargetClass(name, i) for i, name in enumerate(base.classes))
    again = Model(slim, derived_spec(base.spec, slim, "full", labels))
    save(again, tmp_path / "n")
    found = load(tmp_path / "n")
    assert (found.spec.base.embed, found.spec.timm_args["embed_dim"]) == (27, 9)
    assert torch.equal(outputs(found), outputs(again))


@pytest.mark.parametrize(
    "args",
    [{"img_size": "big"}, {"num_heads": 0}, {"num_heads": 7}, {"patch_size": 0}, {"embed_dim": -64}, {"depth": "x"},
     {"act_layer": "gulu"}, {"global_pool": "median"}, {"colour": 1}, {"img_size": (1, 2, 3)}, {"mlp_ratio": "a"},
     {"norm_layer": "foo"}, {"patch_size": 64}, {"num_classes": -3}, {"num_classes": "ten"}, {"pos_embed": "fourier"}],
    ids=str,
)  # fmt: skip
def test_arguments_that_timm_refuses_are_one_line(small_vit: Any, tmp_path: Path, args: Any) -> None:
    save_file(small_vit().state_dict(), tmp_path / "base.safetensors")
    with pytest.raises(EdgeVitError) as refusal:
        open_network(NAME, checkpoint=tmp_path / "base.safetensors", model_args={**ARGS, **args})
    assert "\n" not in str(refusal.value) and "--model-arg" in str(refusal.value)


@pytest.mark.parametrize("prefix", ["timm/", "hf-hub:timm/", "hf_hub:timm/"])
def test_names_as_the_hubs_write_them_are_timms(small_vit: Any, tmp_path: Path, prefix: str) -> None:
    save_file(small_vit().state_dict(), tmp_path / "base.safetensors")
    model = open_network(f"{prefix}{NAME}.augreg_in21k", checkpoint=tmp_path / "base.safetensors", model_args=ARGS)
    assert model.spec.timm_name == f"{NAME}.augreg_in21k"


def test_weights_alone_are_opened_by_their_shapes_and_their_folder(small_vit: Any, tmp_path: Path) -> None:
    """A folder as timm saves it, and a file whose heads have the usual width."""
    network = small_vit()
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": NAME, "model_args": ARGS}))
    for base in (tmp_path, tmp_path / "model.safetensors", f"local-dir:{tmp_path}"):
        model = open_network(base)
        assert model.spec.timm_name == NAME and torch.equal(outputs(model), outputs(network))
        assert model.spec.timm_args == {**ARGS, "num_classes": 10}
        blocks = network_without_weights(base).module.blocks.state_dict()
        assert {key: value.shape for key, value in blocks.items()} == {
            k: v.shape for k, v in network.module.blocks.state_dict().items()
        }
    (tmp_path / "config.json").unlink()
    distilled = small_vit("deit_tiny_distilled_patch16_224", num_heads=1)
    save_file(distilled.state_dict(), tmp_path / "model.safetensors")
    model = open_network(tmp_path / "model.safetensors")
    assert model.spec.timm_name == "deit_tiny_distilled_patch16_224" and torch.equal(outputs(model), outputs(distilled))
    with pytest.raises(CheckpointError, match="its shapes are of the kind of deit_tiny_distilled_patch16_224"):
        open_network(NAME, checkpoint=tmp_path, model_args=ARGS)
    save_file(small_vit(embed_dim=96).state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="96 channels are no multiple of 64; give --model-arg num_heads=N"):
        open_network(tmp_path / "model.safetensors")


def test_images_are_of_the_size_of_an_image_processor_and_one_without_an_equal_is_named(
    small_vit: Any, tmp_path: Path
) -> None:
    save_file(small_vit().state_dict(), tmp_path / "model.safetensors")
    args = {key: value for key, value in ARGS.items() if key != "img_size"}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": NAME, "model_args": args}))
    images = {"size": {"height": 48, "width": 48}, "do_resize": True, "image_mean": [0.1] * 3, "image_std": [0.5] * 3}
    for name, content in (("preprocessor_config", images), ("processor_config", {"image_processor": images})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        model = open_network(tmp_path)
        assert model.input_size == (3, 48, 48) and model.preprocessing["mean"] == [0.1] * 3
        content = json.loads(json.dumps(content).replace('"height"', '"longest_edge"'))
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        with pytest.raises(OptionError, match=rf"^{tmp_path}/{name}\.json prepares images .*; give --crop-pct$"):
            open_network(tmp_path)


@pytest.mark.parametrize(
    ("outputs", "bias", "names"),
    [(512, 0.0, []), (512, 0.1, []), (512, 0.0, [f"c{i}" for i in range(512)]), (24, 0.0, [])],
    ids=["projection", "with a bias", "named", "few"],
)
def test_outputs_that_clip_compares_with_texts_are_no_classes(
    tmp_path: Path, outputs: int, bias: float, names: list[str]
) -> None:
    """timm writes the bias of this map, which CLIP lacks, as zeros; a classifier has others, names or fewer outputs."""
    name = "vit_base_patch16_clip_224.openai"
    made = timm.create_model(name.partition(".")[0], **{**ARGS, "num_classes": outputs})
    made.head.bias.data.fill_(bias)
    save_file(made.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"label_names": names}))
    is_classifier = bool(bias or names or outputs < 512)
    progress: Any = RecordedProgress()
    arguments = {key: ARGS[key] for key in ("img_size", "num_heads")}
    opened = open_network(f"timm/{name}", checkpoint=tmp_path, model_args=arguments, progress=progress)
    assert isinstance(opened, Model if is_classifier else Headless)
    assert any("the 512 outputs of vit_base_patch16_clip_224" in n for n in progress.notes) == (not is_classifier)
    if isinstance(opened, Headless):
        with torch.no_grad():
            expected = made.eval().forward_head(made.forward_features(IMAGES), pre_logits=True)
            torch.testing.assert_close(opened.network(IMAGES), expected)


@pytest.mark.usefixtures("own_cache")
def test_a_module_that_normalises_images_itself_gets_them_so_only_if_someone_says_so(tmp_path: Path) -> None:
    base = f"{write_depth(tmp_path, wrong=True)}:Normalising"
    with pytest.raises(OptionError, match=r"by mean 0\.5,0\.4,0\.3 and std 0\.25,0\.2,0\.1, .* give --mean 0 --std 1"):
        open_network(base)
    plain: Any = open_network(base, preprocessing={"mean": [0.0] * 3, "std": [1.0] * 3})
    save(plain, tmp_path / "model")
    again: Any = open_network(path_of(open_network(tmp_path / "model"), "edgevit.derive"))
    assert again.preprocessing["mean"] == plain.preprocessing["mean"] == [0, 0, 0]
    assert isinstance(open_network(f"{write_depth(tmp_path, wrong=True)}:Depth"), Model)


def test_a_network_that_cannot_run_or_is_larger_than_memory_is_not_made() -> None:
    with pytest.raises(OptionError, match="cannot run with its arguments"):
        network_without_weights(NAME, {**ARGS, "norm_layer": "layernorm2d"})
    with pytest.raises(OptionError, match=r"takes \d+ GB, and this machine has \d+ GB; check --model-arg"):
        network_without_weights(NAME, {"embed_dim": 2**16, "num_heads": 1, "depth": 16})


def test_a_base_whose_weights_do_not_matter_is_the_same_every_time_and_has_a_classifier() -> None:
    one, other = (network_without_weights(NAME, {**ARGS, "num_classes": 0}) for _ in range(2))
    assert one.classifiers[0].out_features == 1000 and not one.training
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    with pytest.raises(UnknownNameError, match="no timm model or model folder 'vit_tinny"):
        network_without_weights("vit_tinny_patch16_224")
