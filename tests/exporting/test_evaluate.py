from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from dense_networks import write_frames
from foreign_names import hugging_face
from foreign_onnx import PREPARED, write_vit
from PIL import Image
from recorded_progress import RecordedProgress
from safetensors.torch import save_file
from small_base import fewer_digits
from small_models import ARGS, write_headless

import edgevit
from edgevit.cli.evaluate import agreement_line
from edgevit.data.task import open_task
from edgevit.engines.run import evaluate
from edgevit.errors import CheckpointError, DataError, ModelError, OptionError, UnknownNameError
from edgevit.exporting.session import OnnxModel
from edgevit.network.folder import load
from edgevit.records.export import ExportRecord

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


def test_weights_are_judged_by_the_labels_and_the_preprocessing_in_files_beside_them(
    base_folder: Path, tmp_path: Path
) -> None:
    """As transformers saves a model whose outputs are in another order than the alphabet."""
    order = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]  # the digit of each output
    state = load(base_folder).state_dict()
    state |= {name: state[name][order] for name in ("head.weight", "head.bias")}
    (tmp_path / "hub").mkdir()
    save_file(hugging_face(state, "vit."), tmp_path / "hub" / "model.safetensors")
    labels = {str(output): str(digit) for output, digit in enumerate(order)}
    config = {"num_attention_heads": ARGS["num_heads"], "id2label": labels}
    size = {"height": 32, "width": 32}
    processor = {"size": size, "resample": 2, "image_mean": [0.2] * 3, "image_std": [0.3] * 3}
    (tmp_path / "hub" / "config.json").write_text(json.dumps(config))
    (tmp_path / "hub" / "preprocessor_config.json").write_text(json.dumps(processor))
    preprocessing = {"mean": [0.2] * 3, "std": [0.3] * 3, "crop_pct": 1.0, "interpolation": "bilinear"}
    right = {"checkpoint": base_folder / "model.safetensors", "model_args": ARGS, "preprocessing": preprocessing}
    expected = evaluate("vit_tiny_patch16_224", "digits", **right)
    for model in (tmp_path / "hub", tmp_path / "hub" / "model.safetensors"):
        progress = RecordedProgress()
        assert evaluate(model, "digits", progress=progress).per_class == expected.per_class
        assert "0 is output 3, 1 is output 1, 2 is output 6" in progress.notes[-2]
        assert progress.notes[-2].endswith("as config.json beside the weights says")
        assert progress.notes[-1] == (
            "preprocessing: crop_pct 1, interpolation bilinear, mean 0.2, std 0.3, as preprocessor_config.json beside "
            "the weights says"
        )
    (tmp_path / "hub" / "processor_config.json").write_text(json.dumps({"image_processor": processor}))
    progress = RecordedProgress()
    evaluate(tmp_path / "hub", "digits", max_images=10, progress=progress)
    assert progress.notes[-1].endswith("mean 0.2, std 0.3, as processor_config.json beside the weights says")
    (tmp_path / "hub" / "processor_config.json").unlink()
    progress = RecordedProgress()
    named = {"base_classes": list(map(str, range(10))), "preprocessing": {"mean": [0.5] * 3}}
    evaluate(tmp_path / "hub", "digits", max_images=10, progress=progress, **named)
    said = " ".join(progress.notes)
    assert "preprocessor_config.json beside the weights says mean 0.2,0.2,0.2; --mean 0.5,0.5,0.5 is used" in said
    assert "as --base-classes says, and config.json beside the weights names them otherwise" in said
    labels["4"] = "five"
    (tmp_path / "hub" / "config.json").write_text(json.dumps({**config, "id2label": labels}))
    with pytest.raises(DataError, match=r"config\.json beside the weights names .* the data has other classes: '5'"):
        evaluate(tmp_path / "hub", "digits")
    (tmp_path / "hub" / "config.json").write_text(json.dumps({**config, "id2label": {"0": "a", "1": "b"}}))
    with pytest.raises(DataError, match=r"names 2 outputs .*, and the base has 10; move it away"):
        evaluate(tmp_path / "hub", "digits")


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
        CheckpointError, match=r"broken.safetensors: blocks.1.mlp.fc1.bias has 1 values of 256 that are"
    ):
        evaluate("vit_tiny_patch16_224", "digits", **given)
    state["blocks.1.mlp.fc1.bias"][3] = 0
    state["head.weight"][0] = 3e38  # a number, but sums of it are none
    save_file(state, tmp_path / "broken.safetensors")
    with pytest.raises(ModelError, match="vit_tiny_patch16_224: its logits of test images are not finite"):
        evaluate("vit_tiny_patch16_224", "digits", **given)


def test_files_of_an_imported_map_are_compared_with_the_file_and_it_with_targets(tmp_path: Path) -> None:
    frames = write_frames(tmp_path / "data" / "images", 10)
    file = write_vit(tmp_path / "m.onnx", depth=1, output="map")
    edgevit.export(file, preprocessing=PREPARED)
    half = tmp_path / "m" / "export" / "model.fp16.onnx"
    assert 0.99 < evaluate(half, frames).agreement < 1
    with pytest.raises(OptionError, match=r"gives maps: .* in masks/ .*; files and engines of \S*m/export are"):
        evaluate(tmp_path / "m", frames)
    outputs = OnnxModel(tmp_path / "m" / "model.onnx")
    (tmp_path / "data" / "masks").mkdir()
    for image in frames.iterdir():
        pixels = torch.from_numpy(np.asarray(Image.open(image)).copy()).permute(2, 0, 1) / 127.5 - 1
        np.save(tmp_path / "data" / "masks" / image.stem, 3 * outputs.predict(pixels[None])[0, 0])
    judged = evaluate(tmp_path / "m", tmp_path / "data").targets
    assert judged is not None and judged.score == pytest.approx(0.5, abs=1e-3), "1 - |3x - x| / (|3x| + |x|)"


def test_features_of_a_file_are_compared_with_those_of_its_model_folder(tmp_path: Path) -> None:
    folder = write_headless(tmp_path / "headless")
    edgevit.export(folder, accuracy=False)
    file = folder / "export" / "model.fp16.onnx"
    result = evaluate(file, "digits", max_images=20)
    assert (result.form, result.images, result.part, result.top1, result.top1_full) == ("onnx", 20, "test", None, None)
    assert result.agreement is not None and 0.9999 < result.agreement <= 1 and result.per_class == {}
    assert agreement_line(result) == (
        f"{file} (onnx) on 20 test images of digits: agrees to 100.00% with its model folder"
    )
    other = tmp_path / "other"
    torch.manual_seed(1)
    edgevit.base(timm.create_model("vit_tiny_patch16_224", **{**ARGS, "num_classes": 0}), out=other)
    (other / "export").mkdir()
    assert evaluate(Path(shutil.copy(file, other / "export")), "digits", max_images=20).agreement < 0.5
    with pytest.raises(CheckpointError, match="gives features, to be compared with those of its model folder"):
        evaluate(Path(shutil.copy(file, tmp_path)), "digits")
    with pytest.raises(OptionError, match="has no classifier, and gives features"):
        evaluate(folder, "digits")


def test_features_of_a_folder_are_compared_with_those_of_its_base_where_that_is_at_hand(
    tmp_path: Path, edgevit_main: Any
) -> None:
    named, model, beside = write_headless(tmp_path / "backbone"), tmp_path / "model", tmp_path / "base"
    options = {"calibration_images": 32, "sensitivity_images": 8, "measured_images": 10}
    training = edgevit.Training(steps=0, device="cpu")
    with fewer_digits():
        made = edgevit.derive(
            named, data="digits", output="features", rate=0.6, out=model, options=options, training=training
        )
        expected = made.record.similarity
        assert expected is not None and expected.same_neighbours is not None
        result = evaluate(model, device="cpu").similarity
        assert result is not None and result.images == expected.images
        assert result.cosine == pytest.approx(expected.cosine, abs=1e-4)
        assert result.same_neighbours == pytest.approx(expected.same_neighbours, abs=0.02)
        named.rename(beside)
        judged = json.loads(edgevit_main("evaluate", model, "--data", "digits", "--device", "cpu", "--json").out)
        assert judged["similarity"] == asdict(result), "of the same images, although these have classes"
        shutil.rmtree(beside)
        torch.manual_seed(1)
        edgevit.base(timm.create_model("vit_tiny_patch16_224", **{**ARGS, "num_classes": 0}), out=beside)
        with pytest.raises(
            OptionError, match=r"and with its base in .*base, where another model is, they are compared with"
        ):
            evaluate(model)
