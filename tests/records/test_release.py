"""What the files beside weights say, and which file of a folder is the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgevit.errors import CheckpointError
from edgevit.records.release import is_release, read_release, release_sha256, shards_of, weights_of

IMAGE_PROCESSOR = {
    "do_resize": True, "size": {"height": 32, "width": 32}, "resample": 2, "image_mean": [0.1, 0.2, 0.3],
    "image_std": [0.5, 0.5, 0.5], "image_processor_type": "ViTImageProcessor",
}  # fmt: skip


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_transformers_names_outputs_heads_and_preprocessing(tmp_path: Path) -> None:
    config = {"num_attention_heads": 4, "hidden_act": "gelu_new", "id2label": {"1": "ant", "0": "bee"}}
    release = read_release(write(tmp_path, config=config, preprocessor_config=IMAGE_PROCESSOR))
    assert release.labels == ("bee", "ant") and release.architecture is None
    assert release.arguments == {"num_heads": 4, "act_layer": "gelu_tanh"}
    assert release.preprocessing == {
        "input_size": [3, 32, 32], "crop_pct": 1.0, "crop_mode": "squash", "interpolation": "bilinear",
        "mean": [0.1, 0.2, 0.3], "std": [0.5] * 3,
    }  # fmt: skip
    assert set(release.origin.values()) == {"preprocessor_config.json"} and release.unequalled == ()


def test_an_image_processor_within_the_processor_of_texts_and_images_is_read_as_one_alone(tmp_path: Path) -> None:
    """As transformers 5.24 writes a CLIPProcessor; where both files are there, it reads this one."""
    alone = read_release(write(tmp_path, preprocessor_config=IMAGE_PROCESSOR))
    processor = {"image_processor": IMAGE_PROCESSOR, "processor_class": "CLIPProcessor"}
    other = {**IMAGE_PROCESSOR, "image_mean": [0.5] * 3}
    both = read_release(write(tmp_path, preprocessor_config=other, processor_config=processor))
    (tmp_path / "preprocessor_config.json").unlink()
    release = read_release(tmp_path)
    assert release.preprocessing == alone.preprocessing == both.preprocessing and release.unequalled == ()
    assert {*release.origin.values()} == {release.processor} == {"processor_config.json"}
    of_version_4 = {"processor_class": "CLIPProcessor"}
    release = read_release(write(tmp_path, preprocessor_config=other, processor_config=of_version_4))
    assert release.preprocessing["mean"] == [0.5] * 3


def test_sizes_are_those_of_one_network_under_timms_names(tmp_path: Path) -> None:
    config = {"model_type": "dinov2", "hidden_size": 64, "image_size": [32, 48], "mlp_ratio": 4, "layer_norm_eps": 1e-6}
    release = read_release(write(tmp_path, config=config))
    sizes = {"hidden_size": ("embed_dim", 64), "image_size": ("img_size", [32, 48]), "mlp_ratio": ("mlp_ratio", 4)}
    assert (release.model_type, release.sizes, release.trained_size) == ("dinov2", sizes, (32, 48))
    assert release.arguments == {"norm_eps": 1e-6}
    assert "mlp_ratio" not in read_release(write(tmp_path, config={**config, "use_swiglu_ffn": True})).sizes
    two = read_release(write(tmp_path, config={**config, "backbone_config": {"model_type": "swin"}}))
    assert (two.model_type, two.sizes, two.arguments) == (None, {}, {})
    swin = read_release(write(tmp_path, config={"model_type": "swin", "depths": [2, 2], "hidden_size": 768}))
    assert swin.sizes == {"depths": ("depths", [2, 2])} and swin.trained_size is None


def test_the_image_tower_of_a_clip_or_siglip_is_described_by_its_part_of_the_file(tmp_path: Path) -> None:
    inner = {"model_type": "clip_vision_model", "hidden_size": 64, "image_size": 32, "num_attention_heads": 4}
    config = {"model_type": "clip", "text_config": {"model_type": "clip_text_model"}, "vision_config": inner}
    release = read_release(write(tmp_path, config=config))
    assert (release.model_type, release.trained_size) == ("clip_vision_model", (32, 32))
    assert release.arguments == {"num_heads": 4, "act_layer": "quick_gelu", "norm_eps": 1e-5}
    bare = {"model_type": "siglip", "vision_config": {"model_type": "siglip_vision_model"}}
    siglip = {"num_heads": 12, "act_layer": "gelu_tanh", "norm_eps": 1e-6}
    assert read_release(write(tmp_path, config=bare)).arguments == siglip
    assert read_release(write(tmp_path, config=bare["vision_config"])).arguments == siglip


def test_the_network_of_timm_has_the_image_size_of_its_arguments_if_they_say_one(tmp_path: Path) -> None:
    config = {"architecture": "vit", "num_classes": 3, "pretrained_cfg": {"input_size": [3, 64, 32]}}
    release = read_release(write(tmp_path, config=config))
    assert release.sizes["num_classes"] == ("num_classes", 3) and release.trained_size == (64, 32)
    release = read_release(write(tmp_path, config={**config, "model_args": {"img_size": 48}}))
    assert release.trained_size == (48, 48) and "pretrained_cfg.input_size" not in release.sizes


@pytest.mark.parametrize("inside", [False, True], ids=["root", "pretrained_cfg"])
def test_timm_names_network_arguments_outputs_and_preprocessing(tmp_path: Path, inside: bool) -> None:
    cfg: dict[str, Any] = {"mean": [0.1] * 3, "crop_pct": 0.9, "test_crop_pct": 0.95, "std": None}
    config = {
        "architecture": "vit_small_patch16_224",
        "global_pool": "avg",
        "model_args": {"img_size": 32},
        "pretrained_cfg": cfg,
    }
    (cfg if inside else config)["label_names"] = ["bee", "ant"]
    release = read_release(write(tmp_path, config=config))
    assert (release.labels, release.architecture) == (("bee", "ant"), "vit_small_patch16_224")
    assert release.arguments == {"img_size": 32, "global_pool": "avg"}
    assert release.preprocessing == {"mean": [0.1] * 3, "crop_pct": 0.95}
    assert release.origin == dict.fromkeys(["mean", "crop_pct"], "config.json")


def test_what_says_nothing_of_images_is_nothing(tmp_path: Path) -> None:
    other = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 16000}
    release = read_release(write(tmp_path, config={"id2label": {"0": "LABEL_0"}, "lr": 1}, preprocessor_config=other))
    assert (release.labels, release.preprocessing, release.unequalled) == ((), {}, ())


def test_a_size_of_clip_is_that_of_the_shorter_side(tmp_path: Path) -> None:
    older = {
        "crop_size": 28, "do_center_crop": True, "do_normalize": True, "do_resize": True, "resample": 3, "size": 32,
        "feature_extractor_type": "CLIPFeatureExtractor", "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    release = read_release(write(tmp_path, preprocessor_config=older))
    assert (release.preprocessing["crop_mode"], release.preprocessing["crop_pct"]) == ("center", 0.875)
    assert release.preprocessing["input_size"] == [3, 28, 28] and release.unequalled == ()


def test_preprocessing_that_timm_has_not_is_named(tmp_path: Path) -> None:
    beyond = {**IMAGE_PROCESSOR, "rescale_factor": 1 / 127.5, "size": {"longest_edge": 32}}
    assert read_release(write(tmp_path, preprocessor_config=beyond)).unequalled == ("mean", "std", "crop_pct")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("{", "is not JSON"),
        ({"id2label": {"0": "a", "2": "b"}}, "does not name the outputs 0 to 1"),
        ({"id2label": {"0": "a", "1": 3}}, "names of outputs that are not text"),
        ({"num_attention_heads": 2, "hidden_act": "selu"}, "has 'selu' as hidden_act, expected one of gelu"),
        ({"depths": [2, 2], "layer_norm_eps": 1e-6}, "has 1e-06 as layer_norm_eps, expected 1e-05"),
        ({"model_type": "vit", "layer_norm_eps": "abc"}, "has 'abc' as layer_norm_eps, expected a number from 0 to 1"),
        ({"depths": [2, 2], "hidden_act": "relu"}, "has 'relu' as hidden_act, expected 'gelu'"),
        ({"pretrained_cfg": {"std": [0, 1, 1]}}, "its preprocessing has 0 as std.0"),
        ({"pretrained_cfg": {"crop_pct": "big"}}, "its preprocessing has 'big' as crop_pct"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, config: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json") as refusal:
        read_release(write(tmp_path, config=config))
    assert text in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_weights_of_a_folder_are_found_or_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors; give the file"):
        weights_of(tmp_path)
    for name in ("b.pth", "a.safetensors"):
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=r"has several: a\.safetensors, b\.pth; give the file"):
        weights_of(tmp_path)
    (tmp_path / "a-1-of-2.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"these are shards: copy the \.index\.json that lists them"):
        weights_of(tmp_path)
    (tmp_path / "model.safetensors.index.json").touch()
    assert weights_of(tmp_path).name == "model.safetensors.index.json" and is_release(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert weights_of(tmp_path).name == "model.safetensors" and weights_of(tmp_path / "b.pth").name == "b.pth"
    (tmp_path / "model.json").touch()
    assert not is_release(tmp_path)
    with pytest.raises(CheckpointError, match="is a model folder; give it as the base"):
        weights_of(tmp_path)


@pytest.mark.parametrize(
    ("content", "text"),
    [({}, "has no weight_map"), ({"weight_map": {"a": "../b.bin"}}, r"lists '\.\./b\.bin', which is not the name")],
)
def test_an_index_that_lists_nothing_or_files_elsewhere_is_refused(tmp_path: Path, content: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        shards_of(write(tmp_path, index=content) / "index.json")


def test_the_hash_is_that_of_a_lone_file_and_else_of_all_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.pth").write_bytes(b"")
    alone = release_sha256(tmp_path / "a.pth")
    assert alone == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" == release_sha256(tmp_path)
    labelled = release_sha256(write(tmp_path, config={"id2label": {"0": "a"}}))
    renamed = release_sha256(write(tmp_path, config={"id2label": {"0": "b"}}))
    processor = {"image_processor": IMAGE_PROCESSOR}
    assert len({alone, labelled, renamed, release_sha256(write(tmp_path, processor_config=processor))}) == 4
