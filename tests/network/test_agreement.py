"""Folders of others whose config.json says something else than their weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from family_examples import SWIN
from foreign_names import hugging_face, hugging_face_swin
from safetensors.torch import save_file
from small_base import ARGS, NAME, outputs
from small_models import SWIN_ARGS
from timm.models import save_for_hf

from edgevit.errors import CheckpointError
from edgevit.network.model import Headless
from edgevit.network.opening import open_network

TIMM = {
    "architecture": NAME, "num_classes": 10, "global_pool": "token", "model_args": {**ARGS, "num_classes": 10},
    "pretrained_cfg": {"input_size": [3, 32, 32], "num_classes": 10},
}  # fmt: skip
WITHOUT_ARGS = {**TIMM, "model_args": {"num_heads": 2}}
VIT = {
    "model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256,
    "image_size": 32, "patch_size": 8, "num_channels": 3, "qkv_bias": True, "layer_norm_eps": 1e-6,
}  # fmt: skip
DINOV2 = {**VIT, "model_type": "dinov2", "mlp_ratio": 4}
del DINOV2["intermediate_size"]
SWIN_CONFIG = {
    "model_type": "swin", "embed_dim": 64, "hidden_size": 128, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4,
    "patch_size": 4, "image_size": 32, "mlp_ratio": 4.0, "num_channels": 3, "layer_norm_eps": 1e-5,
}  # fmt: skip
AS_THEY_ARE = "correct the one that is wrong, or give"


def write(folder: Path, state: Any, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({key: value.contiguous() for key, value in state.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError, match=rf"^{folder}/config\.json contradicts the weights: ") as refusal:
        open_network(folder)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({**TIMM, "num_classes": 7}, f"num_classes is 7, in the weights 10; {AS_THEY_ARE} --model-arg num_classes=10"),
        ({**TIMM, "model_args": {**ARGS, "depth": 6}}, "model_args.depth is 6, in the weights 2;"),
        ({**TIMM, "model_args": {**ARGS, "img_size": 64}}, "model_args.img_size is 64, in the weights 32;"),
        (
            {**TIMM, "model_args": {}, "pretrained_cfg": {"input_size": [3, 64, 64]}},
            r"pretrained_cfg.input_size is [3, 64, 64], in the weights 32; ",
        ),
        (
            {**WITHOUT_ARGS, "architecture": "vit_base_patch16_224"},
            "architecture is vit_base_patch16_224, and they have patch_size 8, embed_dim 64, depth 2; "
            f"{AS_THEY_ARE} --model-arg patch_size=8 --model-arg embed_dim=64 --model-arg depth=2 for",
        ),
        ({**WITHOUT_ARGS, "architecture": SWIN}, f"architecture is {SWIN}, and they are not of the family swin; "),
    ],
)  # fmt: skip
def test_a_folder_of_timm_that_contradicts_its_weights_is_refused(
    small_vit: Any, tmp_path: Path, config: dict[str, Any], told: str
) -> None:
    assert told in refused(write(tmp_path / "m", small_vit().state_dict(), config))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"hidden_size": 128}, f"hidden_size is 128, in the weights 64; {AS_THEY_ARE} --model-arg embed_dim=64 for"),
        ({"intermediate_size": 512}, f"intermediate_size is 512, in the weights 256; {AS_THEY_ARE} --model-arg mlp_r"),
        ({"patch_size": 16, "image_size": 64}, "image_size is 64, in the weights 32; patch_size is 16, in the weig"),
        ({"qkv_bias": False}, "qkv_bias is False, in the weights True"),
        ({"model_type": "resnet"}, "model_type is resnet, and they are of the family vit, of which edgevit reads vit,"),
        ({"model_type": "swin"}, "model_type is swin, and they are of the family vit, of which edgevit reads vit,"),
        ({"model_type": "dinov2"}, "model_type is dinov2, and they have no LayerScale; correct the file"),
    ],
    ids=lambda changed: next(iter(changed), None) if isinstance(changed, dict) else "",
)
def test_a_folder_of_transformers_that_contradicts_its_weights_is_refused(
    small_vit: Any, tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    state = hugging_face(small_vit().state_dict(), "vit.")
    assert told in refused(write(tmp_path / "m", state, {**VIT, **changed}))


def test_weights_of_dinov2_are_of_no_plain_vit(small_vit: Any, tmp_path: Path) -> None:
    state = hugging_face(small_vit(init_values=0.1).state_dict(), "dinov2.")
    told = refused(write(tmp_path / "m", state, {**DINOV2, "model_type": "vit"}))
    assert "model_type is vit, and they have a LayerScale; correct the file" in told


def test_a_network_that_timm_does_not_have_is_not_guessed(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit()
    folder = write(tmp_path / "m", network.state_dict(), {**TIMM, "architecture": "vit_of_next_year"})
    with pytest.raises(
        CheckpointError, match=r"config\.json says architecture vit_of_next_year, which timm .* does not"
    ):
        open_network(folder)
    assert torch.equal(outputs(open_network(NAME, checkpoint=folder, model_args={"num_heads": 2})), outputs(network))


def test_an_argument_of_the_wrong_kind_is_said_to_be_in_config_json(small_vit: Any, tmp_path: Path) -> None:
    config = {**TIMM, "model_args": {**ARGS, "norm_eps": "abc"}}
    folder = write(tmp_path / "m", small_vit().state_dict(), config)
    with pytest.raises(CheckpointError, match=rf"^{folder}/config\.json: norm_eps=abc is not possible; give a number"):
        open_network(folder)


def test_a_network_whose_last_block_is_missing_is_opened_only_where_an_option_says_so(
    small_vit: Any, tmp_path: Path
) -> None:
    network = small_vit()
    folder = write(tmp_path / "m", hugging_face(network.state_dict(), "vit."), {**VIT, "num_hidden_layers": 3})
    assert f"num_hidden_layers is 3, in the weights 2; {AS_THEY_ARE} --model-arg depth=2 for" in refused(folder)
    assert torch.equal(outputs(open_network(folder, model_args={"depth": 2})), outputs(network))
    write(folder, network.state_dict(), {**TIMM, "model_args": {"num_heads": 2, **ARGS, "depth": 12}})
    assert f"model_args.depth is 12, in the weights 2; {AS_THEY_ARE} --model-arg depth=2 for" in refused(folder)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"depths": [2, 2]}, "depths is [2, 2], in the weights [1, 1]; "),
        ({"window_size": 7}, "window_size is 7, in the weights 4; "),
        ({"mlp_ratio": 3}, "mlp_ratio is 3, in the weights 4; "),
        ({"embed_dim": 96}, "embed_dim is 96, in the weights 64; "),
    ],
)
def test_a_swin_that_contradicts_its_weights_is_refused(
    small_vit: Any, tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    state = hugging_face_swin(small_vit(SWIN).state_dict())
    assert told in refused(write(tmp_path / "m", state, {**SWIN_CONFIG, **changed}))


def test_folders_that_fit_are_opened_as_they_are(small_vit: Any, tmp_path: Path) -> None:
    distilled, dinov2, swin = "deit_tiny_distilled_patch16_224", {"init_values": 0.1}, small_vit(SWIN)
    oblong = {**ARGS, "img_size": (32, 48)}  # as many positions as of 5 x 5 patches alone
    for number, (network, state, config) in enumerate(
        (
            (timms := small_vit(), timms.state_dict(), TIMM),
            (
                timms,
                {"timm_model." + k: v for k, v in timms.state_dict().items()},
                {**TIMM, "model_type": "timm_wrapper"},
            ),
            (timms, hugging_face(timms.state_dict(), "vit."), VIT),
            (timms, timms.state_dict(), {"encoder": {"model_type": "vit"}, "model_type": "two", "hidden_size": 9}),
            (deit := small_vit(distilled), hugging_face(deit.state_dict(), "deit."), {**VIT, "model_type": "deit"}),
            (dino := small_vit(**dinov2), hugging_face(dino.state_dict(), "dinov2."), DINOV2),
            (wide := small_vit(**oblong), hugging_face(wide.state_dict(), "vit."), {**VIT, "image_size": [32, 48]}),
            (swin, hugging_face_swin(swin.state_dict()), SWIN_CONFIG),
        )
    ):
        # What is not stated is assumed by the width of heads.
        args = {"num_heads": 2} if "encoder" in config else {}
        model = open_network(write(tmp_path / str(number), state, config), model_args=args)
        given = torch.randn(2, *model.input_size)
        with torch.inference_mode():
            assert model.input_size == network.input_size and torch.equal(model(given), network(given)), number
    assert SWIN_ARGS["img_size"] == 32, "which config.json alone says of a Swin"
    bare = small_vit(num_classes=0)
    headless = open_network(write(tmp_path / "bare", bare.state_dict(), {**TIMM, "num_classes": 0, "model_args": ARGS}))
    assert isinstance(headless, Headless)
    larger = open_network(tmp_path / "2", model_args={"img_size": 48})
    assert larger.input_size == (3, 48, 48), "position embeddings are resampled where that is asked for"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "vit_tiny_patch16_224"])
def test_a_folder_as_timm_writes_it_is_opened(name: str, tmp_path: Path) -> None:
    network = timm.create_model(name)
    save_for_hf(network, tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["num_features"] == network.num_features
    torch.testing.assert_close(
        outputs(open_network(tmp_path / "m"), 224), outputs(network.eval(), 224), rtol=1e-4, atol=1e-4
    )


def test_a_name_that_is_typed_takes_precedence_over_that_of_the_folder(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit()
    folder = write(tmp_path / "m", network.state_dict(), {**WITHOUT_ARGS, "architecture": "vit_base_patch16_224"})
    sizes = {key: ARGS[key] for key in ("patch_size", "embed_dim", "depth", "num_heads")}
    assert torch.equal(outputs(open_network(NAME, checkpoint=folder, model_args=sizes)), outputs(network))


@pytest.mark.parametrize("config", [{**TIMM, "model_args": {}}, VIT], ids=["timm", "transformers"])
def test_a_name_of_other_sizes_than_those_of_the_folder_is_refused(
    small_vit: Any, tmp_path: Path, config: dict[str, Any]
) -> None:
    """The folder has the sizes of ViT-tiny, and images and classes of its own."""
    network = small_vit("vit_tiny_patch16_224", patch_size=16, embed_dim=192, depth=12, num_heads=3)
    state = network.state_dict() if "architecture" in config else hugging_face(network.state_dict(), "vit.")
    sizes = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
    config = config if "architecture" in config else {**config, **sizes, "patch_size": 16}
    folder = write(tmp_path / "m", state, config)
    expected = outputs(open_network(folder))
    for name in ("vit_tiny_patch16_224", "deit_tiny_patch16_224"):
        assert torch.equal(outputs(open_network(name, checkpoint=folder)), expected), "of the same sizes"
    with pytest.raises(CheckpointError) as refusal:
        open_network("vit_small_patch8_224", checkpoint=folder)
    assert str(refusal.value).startswith(
        f"vit_small_patch8_224 is not the network in {folder}: patch_size is 8, there 16; embed_dim is 384, there 192; "
    )
    heads = "num_heads is 6, there 3; " if "architecture" not in config else ""
    assert f"{heads}give {folder}/model.safetensors alone as BASE, or --model-arg patch_size=16 " in str(refusal.value)
    typed = {"patch_size": 16, "embed_dim": 192, "num_heads": 3}
    assert torch.equal(outputs(open_network("vit_small_patch8_224", checkpoint=folder, model_args=typed)), expected)
    with pytest.raises(CheckpointError, match=r"its weights are not of the family swin; give .* alone as BASE"):
        open_network(SWIN, checkpoint=folder)


def test_a_norm_that_adds_less_to_variances_is_that_of_config_json(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit()
    state = hugging_face(network.state_dict(), "vit.")
    usual = open_network(write(tmp_path / "m", state, VIT))
    assert "norm_eps" not in usual.spec.timm_args, "it is timm's own"
    model = open_network(write(tmp_path / "m", state, {**VIT, "layer_norm_eps": 0.01}))
    for norm in network.modules():
        if isinstance(norm, torch.nn.LayerNorm):
            norm.eps = 0.01
    assert model.spec.timm_args["norm_eps"] == 0.01 and torch.equal(outputs(model), outputs(network))


def test_an_argument_in_config_json_that_timm_refuses_is_said_to_be_there(small_vit: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", hugging_face(small_vit().state_dict(), "vit."), {**VIT, "num_attention_heads": 5})
    with pytest.raises(CheckpointError, match=rf"num_heads=5: .*; check --model-arg and {folder}/config\.json$"):
        open_network(folder)
