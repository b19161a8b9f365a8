"""How images are prepared: options, then metadata, then the files beside the model; nothing is guessed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from edgevit.errors import CheckpointError, OptionError
from edgevit.exporting.imported.stated import stated_preprocessing
from edgevit.records.release import read_release

GIVEN: dict[str, Any] = {
    "input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 0.9, "interpolation": "bicubic",
}  # fmt: skip
VIT = {
    "do_resize": True, "size": {"height": 224, "width": 224}, "resample": 2, "do_rescale": True,
    "rescale_factor": 0.00392156862745098, "do_normalize": True, "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5], "image_processor_type": "ViTImageProcessor",
}  # fmt: skip


def stated(folder: Path, given: dict[str, Any] | None = None, metadata: Any = None, **beside: Any) -> Any:
    for name, content in beside.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return stated_preprocessing(folder / "model.onnx", metadata or {}, given or {}, read_release(folder))


def test_options_are_enough_and_the_crop_is_at_the_centre(tmp_path: Path) -> None:
    said, origin = stated(tmp_path, GIVEN)
    assert said == {**GIVEN, "crop_mode": "center"}
    assert set(origin.values()) == {"given", "by default"}


def test_how_files_are_read_is_said_by_options_and_by_edgevit_s_metadata(tmp_path: Path) -> None:
    reading = {"exif": "apply", "value_range": 4095.0}
    assert stated(tmp_path, {**GIVEN, **reading})[0] == {**GIVEN, "crop_mode": "center", **reading}
    said, origin = stated(tmp_path, GIVEN, {"preprocessing": json.dumps(reading)})
    assert said["exif"] == "apply" and origin["exif"] == "by the metadata of model.onnx"
    assert "exif" not in stated(tmp_path, {**GIVEN, "exif": "ignore"})[0]


def test_options_may_be_tuples_as_timm_has_them(tmp_path: Path) -> None:
    tuples = {part: tuple(value) if isinstance(value, list) else value for part, value in GIVEN.items()}
    assert stated(tmp_path, tuples)[0] == {**GIVEN, "crop_mode": "center"}


def test_what_nobody_says_is_named_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as error:
        stated(tmp_path, {"mean": [0.5] * 3, "input_size": [3, 32, 32]})
    told = str(error.value)
    assert "interpolation, std, crop_pct, crop_mode missing" in told and "--std 0.5 --crop-pct 0.9" in told


def test_timm_s_configuration_is_read_and_options_go_before_it(tmp_path: Path) -> None:
    cfg = {**GIVEN, "crop_mode": "center", "first_conv": "patch_embed.proj", "num_classes": 1000}
    said, origin = stated(tmp_path, {"crop_pct": 1.0}, config={"architecture": "vit", "pretrained_cfg": cfg})
    assert said == {**GIVEN, "crop_pct": 1.0, "crop_mode": "center"}
    assert origin["crop_pct"] == "given" and origin["mean"] == "by config.json"


def test_a_vit_of_transformers_resizes_both_sides_and_crops_nothing(tmp_path: Path) -> None:
    said, _ = stated(tmp_path, preprocessor_config=VIT)
    assert said == {**GIVEN, "interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "squash"}


def test_a_deit_of_transformers_resizes_to_more_and_crops_the_middle(tmp_path: Path) -> None:
    deit = {**VIT, "size": {"height": 256, "width": 256}, "crop_size": {"height": 224, "width": 224}, "resample": 3}
    said, _ = stated(tmp_path, preprocessor_config={**deit, "do_center_crop": True})
    assert (said["crop_pct"], said["crop_mode"], said["interpolation"]) == (224 / 256, "squash", "bicubic")


def test_rounding_costs_no_pixel_of_what_transformers_resizes_to(tmp_path: Path) -> None:
    small = {**VIT, "size": {"height": 400, "width": 400}, "crop_size": 224, "do_center_crop": True}
    said, _ = stated(tmp_path, preprocessor_config=small)
    assert math.floor(224 / said["crop_pct"]) == 400


def test_a_shortest_edge_keeps_proportions(tmp_path: Path) -> None:
    clip = {**VIT, "size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True}
    said, _ = stated(tmp_path, preprocessor_config=clip)
    assert (said["input_size"], said["crop_mode"]) == ([3, 224, 224], "center")


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"rescale_factor": 1 / 127.5}, "mean, std"),
        ({"size": {"longest_edge": 224}}, "input_size"),
        ({"size": 224, "image_processor_type": "ConvNextImageProcessor"}, "input_size"),
        ({"resample": 9}, "interpolation"),
        ({"do_resize": False}, "input_size"),
        ({"size": {"height": 256, "width": 320}, "crop_size": 224, "do_center_crop": True}, "crop_pct"),
    ],
)
def test_what_timm_does_not_do_is_not_taken_for_something_else(
    tmp_path: Path, change: dict[str, Any], missing: str
) -> None:
    with pytest.raises(OptionError, match=missing):
        stated(tmp_path, preprocessor_config={**VIT, **change})


def test_the_crop_mode_of_detectors_is_not_of_files_of_others(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"preprocessing of model\.onnx.*crop_mode"):
        stated(tmp_path, GIVEN, {"preprocessing": json.dumps({"crop_mode": "corner"})})


def test_edgevit_s_own_metadata_is_enough(tmp_path: Path) -> None:
    own = {**GIVEN, "crop_mode": "squash"}
    assert stated(tmp_path, metadata={"preprocessing": json.dumps(own)})[0] == own


def test_a_file_beside_the_model_that_is_damaged_or_says_nonsense_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        stated(tmp_path, GIVEN, config="{")
    with pytest.raises(CheckpointError, match=r"the preprocessing of model\.onnx"):
        stated(tmp_path, {**GIVEN, "std": [0.0, 1.0, 1.0]}, config={})
