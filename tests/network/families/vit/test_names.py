"""Weights of others: the names of Hugging Face and of DINOv2, and other numbers of patches."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from foreign_names import hugging_face, hugging_face_tower, torchvision
from safetensors.torch import save_file
from small_base import ARGS, NAME, outputs
from torch import Tensor, nn
from torch.nn import functional as F

from edgevit.errors import CheckpointError
from edgevit.network.families.vit.names import fitted, named
from edgevit.network.model import Headless, Model
from edgevit.network.opening import open_network
from edgevit.network.weights import fill_network

LAYER_SCALE = {"init_values": 0.1}
REGISTERS = {**LAYER_SCALE, "reg_tokens": 4, "no_embed_class": True}


class Notes:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def opened(state: dict[str, Tensor], folder: Path, name: str = NAME, **args: Any) -> tuple[Model | Headless, list[str]]:
    save_file({key: value.contiguous() for key, value in state.items()}, folder / "given.safetensors")
    progress: Any = Notes()
    found = open_network(name, checkpoint=folder / "given.safetensors", model_args={**ARGS, **args}, progress=progress)
    return found, progress.notes


@pytest.mark.parametrize("modules", [False, True], ids=["files", "modules"])
@pytest.mark.parametrize(
    ("prefix", "name", "args"),
    [
        ("vit.", NAME, {}),
        ("vit.", NAME, {"qkv_bias": False}),
        ("deit.", NAME, {}),
        ("deit.", "deit_tiny_distilled_patch16_224", {}),
        ("dinov2.", NAME, LAYER_SCALE),
    ],
    ids=str,
)
def test_a_classifier_of_hugging_face_answers_as_timms_does(
    small_vit: Any, tmp_path: Path, prefix: str, name: str, args: Any, modules: bool
) -> None:
    network = small_vit(name, num_classes=7, **args)
    given = hugging_face(network.state_dict(), prefix, modules=modules)
    assert not given.keys() & network.state_dict().keys(), "no name is timm's"
    model, notes = opened(given, tmp_path, name, **args)
    assert torch.equal(outputs(model.module), outputs(network))
    assert isinstance(model, Model) and model.spec.outputs == 7
    assert notes == ["the weights have Hugging Face's names, and are read as timm's"]


@pytest.mark.parametrize("prefix", ["", "vision_model.", "vision_tower.vision_model."])
@pytest.mark.parametrize(
    ("kind", "name", "act"),
    [("siglip", "vit_base_patch16_siglip_224", "gelu_tanh"), ("clip", "vit_base_patch16_clip_224", "quick_gelu")],
)
def test_the_image_tower_of_a_folder_of_hugging_face_puts_out_what_timms_does(
    tmp_path: Path, kind: str, name: str, act: str, prefix: str
) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, **{**ARGS, "num_classes": 0}, act_layer=act).eval()
    for each, parameter in model.named_parameters():
        if parameter.ndim == 1 or each == "attn_pool.latent":
            nn.init.normal_(parameter, 0.5, 0.3)
    given = hugging_face_tower(model.state_dict(), prefix)
    given |= {"text_model.encoder.layers.0.layer_norm1.bias": torch.ones(3), "logit_scale": torch.ones(1)}
    given |= {"visual_projection.weight": torch.ones(8, 64)} if kind == "clip" else {}
    save_file({key: value.contiguous() for key, value in given.items()}, tmp_path / "model.safetensors")
    tower = {"model_type": f"{kind}_vision_model", "num_attention_heads": ARGS["num_heads"]}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "vision_config": tower}))
    progress: Any = Notes()
    found = open_network(tmp_path, progress=progress)
    assert isinstance(found, Headless) and found.timm_name == name
    assert torch.equal(outputs(found.network), outputs(model))
    assert any("text_model.encoder" in note for note in progress.notes)
    assert any("is left out: features are those before it" in note for note in progress.notes) == (kind == "clip")


def tower(kind: str, folder: Path, config: Any, **more: Tensor) -> nn.Module:
    """Write a small image tower of Hugging Face's, and other weights beside it; return timm's without a classifier."""
    torch.manual_seed(0)
    arguments: Any = {"global_pool": "avg", "fc_norm": False} if kind == "siglip" else {}
    model = timm.create_model(f"vit_base_patch16_{kind}_224", **{**ARGS, "num_classes": 0}, **arguments).eval()
    for _, parameter in model.named_parameters():
        nn.init.normal_(parameter, 0.1, 0.3)
    given = {**hugging_face_tower(model.state_dict(), "vision_model."), **more}
    save_file({key: value.contiguous() for key, value in given.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return model


def test_a_tower_whose_activation_no_file_states_is_refused(tmp_path: Path) -> None:
    inner = {"model_type": "metaclip_2_vision_model", "hidden_act": "quick_gelu", "num_attention_heads": 4}
    tower("clip", tmp_path, {"model_type": "metaclip_2", "vision_config": inner})
    with pytest.raises(CheckpointError, match=r"whose activation and heads no shape tells, and config\.json beside it"):
        open_network(tmp_path)
    name = "vit_base_patch16_clip_quickgelu_224"
    named_by_user = open_network(name, checkpoint=tmp_path, model_args={"num_heads": 4})
    assert isinstance(named_by_user, Headless) and named_by_user.timm_name == name


def test_the_classifier_of_a_siglip_reads_the_mean_of_the_patches(tmp_path: Path) -> None:
    inner = {"model_type": "siglip_vision_model", "num_attention_heads": ARGS["num_heads"], "hidden_act": "gelu"}
    weight, bias = torch.randn(3, 64), torch.randn(3)
    unused = {"vision_model.head.probe": torch.ones(1, 1, 64), "vision_model.head.layernorm.bias": torch.ones(64)}
    names = {"id2label": {"0": "a", "1": "b", "2": "c"}}
    config = {"model_type": "siglip", **names, "vision_config": inner}
    model = tower("siglip", tmp_path, config, **{"classifier.weight": weight, "classifier.bias": bias}, **unused)
    found = open_network(tmp_path)
    assert isinstance(found, Model) and found.release.labels == ("a", "b", "c")
    for block in model.blocks:  # type: ignore[union-attr]  # as config.json says: not SigLIP's usual one
        block.mlp.act = nn.GELU()
    torch.testing.assert_close(outputs(found), outputs(model) @ weight.T + bias)


def test_the_classifier_of_a_clip_has_no_place_in_timms(tmp_path: Path) -> None:
    inner = {"model_type": "clip_vision_model", "num_attention_heads": ARGS["num_heads"], "hidden_act": "gelu"}
    more = {"classifier.weight": torch.ones(3, 64), "classifier.bias": torch.ones(3)}
    model, progress = tower("clip", tmp_path, {"model_type": "clip", "vision_config": inner}, **more), Notes()
    found = open_network(tmp_path, progress=progress)  # type: ignore[arg-type]
    assert isinstance(found, Headless) and torch.equal(outputs(found.network), outputs(model))
    assert any("reads patches before the last norm" in note for note in progress.notes)


@pytest.mark.parametrize("prefix", ["", "dinov2."])  # of the weights of Dinov2Model, and of a model that has one
def test_a_model_of_hugging_face_without_a_classifier_is_headless(small_vit: Any, tmp_path: Path, prefix: str) -> None:
    network = small_vit(num_classes=0, **LAYER_SCALE)
    state = {**network.state_dict(), "mask_token": torch.zeros(1, 64)}
    given = {prefix + key.removeprefix("dinov2."): value for key, value in hugging_face(state, "dinov2.").items()}
    found, notes = opened(given, tmp_path, **LAYER_SCALE)
    assert isinstance(found, Headless) and torch.equal(outputs(found.network), outputs(network))
    assert notes[1] == f"left out of the weights, as {NAME} does not use them: mask_token"


def test_the_pooler_and_the_decoder_of_hugging_face_are_named(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit(num_classes=0)
    given = hugging_face(network.state_dict(), "")
    given |= {"pooler.dense.weight": torch.ones(64, 64), "pooler.dense.bias": torch.ones(64)}
    given |= {f"decoder.{i}.weight": torch.ones(3) for i in range(3)}
    found, notes = opened(given, tmp_path)
    assert torch.equal(outputs(getattr(found, "network", None)), outputs(network))
    assert (
        notes[1].endswith("pooler.dense.weight, pooler.dense.bias, decoder.0.weight and 2 more")
        or "decoder" in notes[1]
    )


def test_the_classifier_of_hugging_faces_dinov2_has_no_place_in_timms(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit(num_classes=0, **LAYER_SCALE)
    given = hugging_face(network.state_dict(), "dinov2.")
    given |= {"classifier.weight": torch.ones(5, 128), "classifier.bias": torch.ones(5)}
    found, notes = opened(given, tmp_path, **LAYER_SCALE)
    assert isinstance(found, Headless) and "the mean of the patches" in notes[1]


def dinov2(small_vit: Any) -> tuple[dict[str, Tensor], nn.Module]:
    """Weights with registers as DINOv2's release has them, and what timm makes of them: positions of patches alone."""
    network = small_vit(num_classes=0, **REGISTERS)
    state = network.state_dict()
    released = {k: v for k, v in state.items() if k not in ("cls_token", "reg_token", "pos_embed")}
    first = torch.randn(1, 1, 64)
    released["cls_token"], released["register_tokens"] = torch.randn(1, 1, 64), state["reg_token"]
    released["pos_embed"] = torch.cat([first, state["pos_embed"]], 1)
    network.load_state_dict({**state, "cls_token": released["cls_token"] + first})
    return released, network


@pytest.mark.parametrize("form", ["release", "release without a mask token", "chunks", "training", "hugging face"])
def test_dinov2_with_registers_is_read_however_it_is_written(small_vit: Any, tmp_path: Path, form: str) -> None:
    released, network = dinov2(small_vit)
    if form != "release without a mask token":
        released["mask_token"] = torch.zeros(1, 64)
    if form == "chunks":
        released = {re.sub(r"^blocks\.(\d)", r"blocks.0.\1", name): value for name, value in released.items()}
    if form == "training":
        released = {f"backbone.{name}": value for name, value in released.items()}
        released["dino_head.last_layer.weight"] = torch.ones(3, 3)
    if form == "hugging face":
        released = hugging_face(released, "dinov2_with_registers.")
    found, notes = opened(released, tmp_path, **REGISTERS)
    assert isinstance(found, Headless) and torch.equal(outputs(found.network), outputs(network))
    assert ("mask_token" in " ".join(notes)) == (form != "release without a mask token")
    assert ("dino_head.last_layer.weight" in " ".join(notes)) == (form == "training")


def test_a_network_is_found_beside_what_its_training_weighed_the_loss_with(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit(num_classes=7)
    given = {f"model.{name}": value for name, value in network.state_dict().items()}
    model, notes = opened({**given, "criterion.weight": torch.ones(7)}, tmp_path)
    assert torch.equal(outputs(model), outputs(network))
    assert notes == [f"left out of the weights, as {NAME} does not use them: criterion.weight"]
    twice = {name.replace("model.", "ema."): value.clone() for name, value in given.items()}
    with pytest.raises(CheckpointError, match="it lacks blocks"):
        opened({**given, **twice}, tmp_path)


def test_a_class_token_without_channels_is_one_line(small_vit: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cls_token is \[\], expected \[1, 1, 64\]"):
        opened({**small_vit().state_dict(), "cls_token": torch.tensor(1.0)}, tmp_path)


@pytest.mark.parametrize("names", ["w12", "weights_in", "gate_proj"])
def test_gated_ffns_of_dinov2_are_timms(names: str) -> None:
    args = {**ARGS, "num_classes": 0, "mlp_ratio": 4}
    network = timm.create_model("vit_giant_patch14_dinov2", **args).eval()
    state = {}
    for name, value in network.state_dict().items():
        short = name.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3")
        state[short] = value
    if names != "w12":
        state = hugging_face(state, "")
        renamed = {}
        for name, value in state.items():
            short = name.replace("mlp.w12", "mlp.weights_in").replace("mlp.w3", "mlp.weights_out")
            if names == "gate_proj" and "weights_in" in short:
                gate, up = value.chunk(2)
                renamed[short.replace("weights_in", "gate_proj")], renamed[short.replace("weights_in", "up_proj")] = (
                    gate,
                    up,
                )
            else:
                renamed[short.replace("weights_out", "down_proj") if names == "gate_proj" else short] = value
        state = renamed
    again = timm.create_model("vit_giant_patch14_dinov2", **args).eval()
    fill_network(again, fitted(named(state), again, "dinov2", resample=False).state, Path("given"), "dinov2")
    assert torch.equal(outputs(again), outputs(network))


def test_position_embeddings_are_resampled_where_a_size_of_images_is_asked_for(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit()
    model, notes = opened(network.state_dict(), tmp_path, img_size=48)
    assert notes == ["position embeddings are resampled from 4 x 4 patches to 6 x 6, for img_size, as timm does"]
    held, own = network.module.pos_embed, model.module.pos_embed
    assert torch.equal(own[:, :1], held[:, :1]), "the class token's is no patch's"
    flat = {**network.state_dict(), "pos_embed": torch.ones_like(held)}
    model, _ = opened(flat, tmp_path, img_size=48)
    torch.testing.assert_close(model.module.pos_embed, torch.ones(1, 37, 64))


def test_positions_of_registers_are_resampled_as_timm_does(small_vit: Any, tmp_path: Path) -> None:
    released, network = dinov2(small_vit)
    found, notes = opened(released, tmp_path, **REGISTERS | {"img_size": 64})
    network.module.set_input_size(64)
    assert isinstance(found, Headless) and "4 x 4 patches to 8 x 8" in notes[-1]
    torch.testing.assert_close(outputs(found.network, 64), outputs(network, 64))


def test_without_a_size_of_images_the_one_of_the_weights_is_taken(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit()
    save_file(network.state_dict(), tmp_path / "base.safetensors")
    args = {name: value for name, value in ARGS.items() if name != "img_size"}
    progress: Any = Notes()
    model = open_network(NAME, checkpoint=tmp_path / "base.safetensors", model_args=args, progress=progress)
    assert model.spec.timm_args == {**ARGS, "num_classes": 10} and torch.equal(outputs(model), outputs(network))
    assert progress.notes == [f"{NAME} by the shapes of base.safetensors: img_size=32; --model-arg gives others"]


def test_positions_are_resampled_as_those_do_it_who_named_them(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit(init_values=0.1)
    held = network.module.pos_embed.detach()
    grid = held[:, 1:].reshape(1, 4, 4, 64).permute(0, 3, 1, 2)
    bicubic: Any = {"mode": "bicubic", "align_corners": False}
    released = {**network.state_dict(), "mask_token": torch.zeros(1, 64)}
    for given, whose, expected in (
        (network.state_dict(), "timm", F.interpolate(grid, (6, 6), antialias=True, **bicubic)),
        (hugging_face(network.state_dict(), "dinov2."), "transformers", F.interpolate(grid, (6, 6), **bicubic)),
        (released, "DINOv2", F.interpolate(grid, scale_factor=(6.1 / 4, 6.1 / 4), **bicubic)),
    ):
        model, notes = opened(given, tmp_path, img_size=48, init_values=0.1)
        assert f"to 6 x 6, for img_size, as {whose} does" in " ".join(notes)
        own = model.module.pos_embed[:, 1:]
        assert torch.equal(own, expected.permute(0, 2, 3, 1).flatten(1, 2))
    usual = F.interpolate(grid, (6, 6), mode="bicubic", align_corners=True)
    model, _ = opened(torchvision(small_vit().state_dict() | {"pos_embed": held}), tmp_path, img_size=48)
    assert torch.equal(model.module.pos_embed[:, 1:], usual.permute(0, 2, 3, 1).flatten(1, 2))


def test_as_many_positions_in_other_rows_are_not_taken_for_those_of_the_network(small_vit: Any, tmp_path: Path) -> None:
    state = small_vit().state_dict()
    with pytest.raises(CheckpointError, match=r"may be 4 x 4 patches or the 2 x 8 of .*config\.json") as refusal:
        opened(state, tmp_path, img_size=(16, 64))
    line = str(refusal.value)
    (tmp_path / "config.json").write_text(line[line.index("{") :])
    model, notes = opened(state, tmp_path, img_size=(16, 64))
    assert notes == [] and torch.equal(model.module.pos_embed, state["pos_embed"])
    (tmp_path / "config.json").write_text('{"model_args": {"img_size": 32}}')
    model, notes = opened(state, tmp_path, img_size=(16, 64))
    assert "resampled from 4 x 4 patches to 2 x 8" in notes[-1]
    grid = state["pos_embed"][:, 1:].reshape(1, 4, 4, 64).permute(0, 3, 1, 2)
    expected = F.interpolate(grid, (2, 8), mode="bicubic", align_corners=False, antialias=True)
    assert torch.equal(model.module.pos_embed[:, 1:], expected.permute(0, 2, 3, 1).flatten(1, 2))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda s: s.pop("vit.encoder.layer.1.attention.attention.key.weight"), "lacks blocks.1.attn.qkv.weight"),
        (lambda s: s.pop("vit.layernorm.bias"), "lacks norm.bias"),
        (lambda s: s.update({"vit.encoder.layer.2.output.dense.bias": torch.ones(64)}), "has unknown blocks.2.mlp"),
        (lambda s: s.update({"vit.embeddings.distillation_token": torch.ones(1, 1, 64)}), "has unknown dist_token"),
    ],
)  # fmt: skip
def test_what_a_network_needs_or_could_have_is_not_left_out(
    small_vit: Any, tmp_path: Path, spoil: Any, said: str
) -> None:
    state = hugging_face(small_vit().state_dict(), "vit.")
    spoil(state)
    with pytest.raises(CheckpointError, match="does not fit") as refusal:
        opened(state, tmp_path)
    assert said in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_classifier_can_be_left_out(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit()
    found, notes = opened(network.state_dict(), tmp_path, num_classes=0)
    assert isinstance(found, Headless) and notes[0].endswith("head.bias, head.weight")
    weight, bias = network.module.head.weight.detach(), network.module.head.bias.detach()
    assert torch.equal(outputs(found.with_head(weight, bias)), outputs(network))


def test_both_heads_of_a_distilled_deit_are_put_in_alike(small_vit: Any, tmp_path: Path) -> None:
    name = "deit_tiny_distilled_patch16_224"
    found, _ = opened(small_vit(name).state_dict(), tmp_path, name, num_classes=0)
    assert isinstance(found, Headless)
    features, weight, bias = outputs(found.network), torch.randn(3, 64), torch.randn(3)
    model = found.with_head(weight, bias)
    torch.testing.assert_close(outputs(model), features @ weight.T + bias)
    assert model.spec.timm_args["num_classes"] == model.spec.outputs == 3
