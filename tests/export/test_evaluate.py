from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_models import ARGS

import edgevit
from edgevit.data.task import open_task
from edgevit.engines.run import evaluate
from edgevit.errors import CheckpointError, DataError, ModelError, OptionError, UnknownNameError
from edgevit.folder.export import ExportRecord
from edgevit.models.checkpoint import load

Derive = Callable[..., Path]
Exported = tuple[Path, ExportRecord]


def test_a_model_folder_and_its_onnx_files_agree_on_digits(exported: Exported) -> None:
    folder, report = exported
    own = evaluate(folder)
    assert own.images == report.accuracy.images and own.part == "test" and own.form == "torch"
    assert own.top1 == report.accuracy.torch
    for precision in ("fp32", "fp16"):
        file = evaluate(folder / "export" / f"model.{precision}.onnx", "digits")
        assert file.form == "onnx" and file.images == own.images
        assert file.top1 == report.accuracy.files[precision].top1
        assert abs(file.top1 - own.top1) <= 1 / own.images
        assert file.images_per_class == own.images_per_class


def test_the_figures_are_those_counted_by_hand(exported: Exported) -> None:
    folder, _ = exported
    result = evaluate(folder, "digits")
    model = load(folder)
    task = open_task("digits", ["3", "5", "8"], preprocessing=model.preprocessing, base_outputs=10, seed=7)
    images, labels = next(task.test.batches(1000))
    logits = model(images).detach()
    columns = torch.tensor([3, 5, 8])
    assert result.top1 == pytest.approx(float((logits[:, columns].argmax(1) == labels).float().mean()))
    assert result.top1_full == pytest.approx(float((logits.argmax(1) == columns[labels]).float().mean()))
    assert result.outputs == 10 and list(result.per_class) == ["3", "5", "8"]


def test_the_split_is_that_of_the_derivation_unless_a_seed_is_given(make_derived: Derive) -> None:
    folder = make_derived(16, 16, seed=7)
    model = load(folder)
    given = {"preprocessing": model.preprocessing, "base_outputs": 10}
    tests = [set(open_task("digits", ["3", "5"], seed=seed, **given).test.references) for seed in (7, 42)]
    assert tests[0] != tests[1]
    assert evaluate(folder, "digits") == evaluate(folder, "digits", seed=7)


def test_names_for_the_outputs_of_a_model_that_names_them_are_refused(make_derived: Derive) -> None:
    with pytest.raises(OptionError, match="names its classes itself; leave --base-classes out"):
        evaluate(make_derived(16, 16), "digits", base_classes=["3", "5"])


def test_a_base_is_judged_on_the_classes_asked_for(base_folder: Path) -> None:
    whole = evaluate(base_folder, "digits")
    assert whole.outputs == 10 and len(whole.per_class) == 10 and whole.top1 == whole.top1_full
    some = evaluate(base_folder, "digits", classes="3,5,8", part="validation")
    assert list(some.per_class) == ["3", "5", "8"] and some.part == "validation"
    assert some.top1 >= some.top1_full


def test_a_timm_name_with_a_checkpoint_is_the_same_base(base_folder: Path) -> None:
    named = evaluate("vit_tiny_patch16_224", "digits", checkpoint=base_folder / "model.safetensors", model_args=ARGS)
    assert named.per_class == evaluate(base_folder, "digits").per_class


def test_data_with_folders_for_the_target_classes_only_is_enough(make_derived: Derive, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for name in ("8", "3", "5"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(6):
            pixels = generator.integers(0, 255, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{i}.png")
    result = evaluate(make_derived(16, 16, head="full"), tmp_path / "images")
    assert list(result.per_class) == ["3", "5", "8"] and result.outputs == 10
    few = evaluate(make_derived(16, 16, name="other"), tmp_path / "images", max_images=2)
    assert few.images == 2


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"data": None}, DataError, "--data"),
        ({"classes": "3,11"}, DataError, "no class is named 11, and where names are numbers"),
        ({"part": "train"}, UnknownNameError, "part of the data"),
        ({"device": "npu"}, UnknownNameError, "no device 'npu'"),
        ({"batch_size": 0}, OptionError, "--batch-size"),
        ({"pretrained": True}, OptionError, "brings its own weights"),
    ],
)
def test_bad_input_is_one_line(base_folder: Path, options: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match) as raised:
        evaluate(base_folder, **{"data": "digits", **options})
    assert "\n" not in str(raised.value)


def test_what_is_no_exported_file_is_refused(tmp_path: Path, exported: Exported) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="ONNX Runtime cannot run"):
        evaluate(tmp_path / "bad.onnx", "digits")
    with pytest.raises(CheckpointError, match=r"there is no .*none.onnx; check the path"):
        evaluate(tmp_path / "none.onnx", "digits")
    file = exported[0] / "export" / "model.fp32.onnx"
    with pytest.raises(OptionError, match="leave out pretrained"):
        evaluate(file, "digits", pretrained=True)
    with pytest.raises(DataError, match="--data"):
        evaluate(file)
    assert edgevit.evaluate is evaluate


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_and_logits_that_are_no_numbers_are_refused(digits_checkpoint: Path, tmp_path: Path, value) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(digits_checkpoint)
    state["blocks.1.mlp.fc1.bias"][3] = value
    save_file(state, tmp_path / "broken.safetensors")
    given = {"checkpoint": tmp_path / "broken.safetensors", "model_args": ARGS}
    with pytest.raises(
        CheckpointError, match=r"broken.safetensors: blocks.1.mlp.fc1.bias holds 1 values of 256 that are"
    ):
        evaluate("vit_tiny_patch16_224", "digits", **given)
    state["blocks.1.mlp.fc1.bias"][3] = 0
    state["head.weight"][0] = 3e38  # a number, but sums of it are none
    save_file(state, tmp_path / "broken.safetensors")
    with pytest.raises(ModelError, match="vit_tiny_patch16_224: its logits of test images are not finite numbers"):
        evaluate("vit_tiny_patch16_224", "digits", **given)
