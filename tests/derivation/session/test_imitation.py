"""A smaller backbone: features like the base's, from images that have no labels."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from recorded_progress import RecordedProgress
from safetensors.torch import load_file, save_file
from small_base import ARGS, NAME, assert_same_weights, press_ctrl_c_in_step

import edgevit
from edgevit.data.task import UNLABELLED, open_task, open_unlabelled_task
from edgevit.derivation.session.imitation import check_enough_images, unlabelled_model, with_units
from edgevit.errors import DataError, Interrupted, OptionError, UnsupportedModelError
from edgevit.network.model import describe
from edgevit.progress import Silent
from edgevit.records.model import TargetClass
from edgevit.train.settings import Training

PREPROCESSING: dict[str, Any] = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"}
DIGITS = 200


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as files in folders of any depth, whose names say nothing."""
    folder = tmp_path_factory.mktemp("photos")
    task = open_task("digits", None, preprocessing={"input_size": [3, 32, 32], **PREPROCESSING}, base_outputs=10)
    for i in range(DIGITS):
        place = folder / f"day{i % 3}"
        place.mkdir(exist_ok=True)
        task.train.picture(i * len(task.train) // DIGITS).save(place / f"{i}.png")
    return folder


def derive(checkpoint: Path, photos: Path, out: Path, **options: Any) -> Any:
    given: dict[str, Any] = {
        "checkpoint": checkpoint, "model_args": {**ARGS, "num_classes": 10}, "preprocessing": PREPROCESSING,
        "data": photos, "output": "features", "rate": 0.5, "out": out, "training": Training(device="cpu", steps=0),
        "options": {"calibration_images": 64, "sensitivity_images": 32, "measured_images": 20},
    }  # fmt: skip
    return edgevit.derive(NAME, **{**given, **options})


@pytest.fixture(scope="module")
def derived(digits_checkpoint: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return derive(digits_checkpoint, photos, tmp_path_factory.mktemp("features") / "model")


def _by_plain_timm(folder: Path, batch: torch.Tensor) -> torch.Tensor:
    """What the code in a folder's README puts out, which has timm and torch alone."""
    plain = edgevit.load(folder).plain_loader()
    assert plain is not None
    spec, state = json.loads((folder / "model.json").read_text()), load_file(folder / "model.safetensors")
    names: dict[str, Any] = {"timm": timm, "torch": torch, "spec": spec, "state": state}
    exec(plain, names)
    with torch.inference_mode():
        outputs: torch.Tensor = names["model"].eval()(batch)
    return outputs


def _features_of_base(checkpoint: Path) -> Any:
    base = timm.create_model(NAME, **ARGS, num_classes=10)
    base.load_state_dict(load_file(checkpoint))
    base.reset_classifier(0)
    return base.eval()


def test_the_features_are_like_the_bases_and_plain_timm_computes_them(
    derived: Any, digits_checkpoint: Path, photos: Path
) -> None:
    spec, record = derived.model.spec, derived.record
    assert spec.output_kind == "features" and spec.outputs == ARGS["embed_dim"] and not spec.classes
    assert spec.macs <= 0.51 * spec.base.macs
    loaded, base = edgevit.load(derived.folder), _features_of_base(digits_checkpoint)
    held_out = [Image.open(file) for file in sorted(photos.rglob("*.png"))[:40]]
    batch = torch.stack([loaded.transform(image.convert("RGB")) for image in held_out])
    with torch.inference_mode():
        features, wanted = loaded(batch), base(batch)
    cosines = torch.nn.functional.cosine_similarity(features, wanted)
    assert cosines.mean() > 0.9
    assert record.similarity is not None and abs(record.similarity.cosine - float(cosines.mean())) < 0.05
    assert record.similarity.images == record.data.images.test > 0 and record.similarity.same_neighbours > 0.4
    torch.testing.assert_close(_by_plain_timm(derived.folder, batch), features, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "options", "least"),
    [
        ("nuwa", {"purification": "none"}, 0.99), ("corp", {}, 0.99), ("wanda", {}, 0.7), ("magnitude", {}, 0.7),
        ("random", {}, 0.4), ("dcvit", {}, 0.0),
    ],
)  # fmt: skip
def test_methods_whose_cut_reads_no_labels_cut_features_too(
    digits_checkpoint: Path, photos: Path, tmp_path: Path, method: str, options: dict[str, Any], least: float
) -> None:
    if method in ("nuwa", "corp", "dcvit", "wanda"):
        options = {**options, "calibration_images": 64}
    made = derive(digits_checkpoint, photos, tmp_path / "model", method=method, options=options)
    assert made.model.spec.macs <= 0.51 * made.model.spec.base.macs and not made.model.spec.classes
    assert made.record.similarity is not None
    assert made.record.similarity.cosine > least


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vulcan", "magnitude"])
def test_such_a_method_is_trained_on_the_features_of_the_base(
    digits_checkpoint: Path, photos: Path, tmp_path: Path, method: str
) -> None:
    cut, trained = (
        derive(digits_checkpoint, photos, tmp_path / f"{steps}", method=method, options={},
               training=Training(device="cpu", steps=steps, batch_size=32, lr=1e-3))
        for steps in (0, 60)
    )  # fmt: skip
    assert trained.record.similarity.cosine > cut.record.similarity.cosine + 0.03


def test_nuwa_keeps_its_closed_form_of_features_where_training_leads_away(
    digits_checkpoint: Path, photos: Path, tmp_path: Path
) -> None:
    training = Training(device="cpu", steps=3, batch_size=32, lr=1e-2)
    options = {"purification": "none", "calibration_images": 64}
    made = derive(digits_checkpoint, photos, tmp_path / "model", method="nuwa", options=options, training=training)
    assert made.record.facts.kept_step == 0 and made.record.similarity.cosine > 0.99


def test_pooled_features_of_a_siglip_are_like_the_bases_and_plain_timm_computes_them(
    photos: Path, tmp_path: Path
) -> None:
    name, args = "vit_base_patch16_siglip_224", {**ARGS, "num_heads": 4, "num_classes": 0}
    torch.manual_seed(0)
    base = timm.create_model(name, **args).eval()
    for part, parameter in base.named_parameters():
        if "attn_pool" in part:
            parameter.data.normal_(0, 0.2)  # so that tokens are weighted unevenly
    save_file(base.state_dict(), tmp_path / "siglip.safetensors")
    opened = {"checkpoint": tmp_path / "siglip.safetensors", "model_args": args, "preprocessing": PREPROCESSING}
    made = edgevit.derive(
        name, **opened, data=photos, output="features", rate=0.3, out=tmp_path / "model",
        training=Training(device="cpu", steps=0), options={"cut_embedding": False},
    )  # fmt: skip
    loaded = edgevit.load(made.folder)
    batch = torch.stack([loaded.transform(Image.open(f).convert("RGB")) for f in sorted(photos.rglob("*.png"))[:40]])
    with torch.inference_mode():
        features, expected = loaded(batch), base(batch)
        errors = (features - expected).square().mean() / expected.var(0).mean()
    assert errors < 0.3 and made.model.spec.macs <= 0.71 * made.model.spec.base.macs
    torch.testing.assert_close(_by_plain_timm(made.folder, batch), features, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_few_images_are_varied_and_distilled_in_small_steps_where_nothing_is_asked(
    derived: Any, digits_checkpoint: Path, photos: Path, tmp_path: Path
) -> None:
    made = derive(digits_checkpoint, photos, tmp_path / "model", training=Training(device="cpu"))
    training = made.record.training
    assert (training.more["batch_size"], training.steps, training.more["augment"]) == (32, 160, "views")
    assert made.record.facts.kept_step > 0 and made.record.similarity.cosine > derived.record.similarity.cosine


def test_the_record_has_the_images_and_no_accuracy(derived: Any) -> None:
    record = json.loads((derived.folder / "derivation.json").read_text())
    assert record["data"]["classes"] == [] and sum(record["data"]["images"].values()) == DIGITS
    assert record["similarity"]["images"] == record["data"]["images"]["test"]
    assert all(accuracy is None for accuracy in record["accuracy"].values())
    assert "cosine" in (derived.folder / "README.md").read_text()


@pytest.fixture(scope="module")
def of_tokens(digits_checkpoint: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("tokens") / "model"
    return derive(digits_checkpoint, photos, out, output="features:class,patches")


def test_features_of_tokens_are_like_the_bases_and_plain_timm_computes_them(
    of_tokens: Any, digits_checkpoint: Path, photos: Path
) -> None:
    spec, record = of_tokens.model.spec, of_tokens.record
    assert (spec.output, spec.tokens, record.similarity.images) == (
        "features",
        "class,patches",
        record.data.images.test,
    )
    assert spec.macs <= 0.51 * spec.base.macs and not any(block.tokens for block in spec.blocks)
    loaded, base = edgevit.load(of_tokens.folder), _features_of_base(digits_checkpoint)
    held_out = [Image.open(file) for file in sorted(photos.rglob("*.png"))[:40]]
    batch = torch.stack([loaded.transform(image.convert("RGB")) for image in held_out])
    with torch.inference_mode():
        features, wanted = loaded(batch), base.forward_features(batch)
    assert features.shape == wanted.shape == (40, 17, 64)
    cosines = torch.nn.functional.cosine_similarity(features, wanted, dim=-1).mean(0)
    assert cosines[0] > 0.85 and cosines[1:].mean() > 0.85
    assert abs(record.similarity.cosine - float(cosines.mean())) < 0.05
    torch.testing.assert_close(_by_plain_timm(of_tokens.folder, batch), features, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def at_depths(digits_checkpoint: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("depths") / "model"
    return derive(digits_checkpoint, photos, out, output="features:class,patches@1,2", rate=0.8)


@pytest.mark.slow
def test_features_after_several_blocks_are_like_the_bases(
    at_depths: Any, digits_checkpoint: Path, photos: Path, tmp_path: Path
) -> None:
    spec, record = at_depths.model.spec, at_depths.record
    assert (spec.output, spec.tokens, spec.depths) == ("features", "class,patches", (1, 2))
    assert spec.macs <= 0.21 * spec.base.macs and len(spec.blocks) == 2, "a head may read after any block"
    assert spec.narrowed is not None and spec.narrowed[0] < 64, "it is given back where they are read"
    assert spec.output_text == "features of class and patches after blocks 1, 2"
    loaded, base = edgevit.load(at_depths.folder), _features_of_base(digits_checkpoint)
    batch = torch.stack([loaded.transform(Image.open(f).convert("RGB")) for f in sorted(photos.rglob("*.png"))[:40]])
    with torch.inference_mode():
        after = base.forward_intermediates(batch, [0, 1], norm=True, return_prefix_tokens=True, output_fmt="NLC")[1]
        wanted = torch.stack([torch.cat([prefix, patches], 1) for patches, prefix in after], 1)
        cosines = torch.nn.functional.cosine_similarity(loaded(batch), wanted, dim=-1)
    assert cosines.shape == (40, 2, 1 + 16) and cosines.mean((0, 2)).min() > 0.8
    assert record.similarity.cosine > 0.8
    exported = edgevit.export(at_depths.folder, data=photos)
    assert exported.parity["fp32"].error < 1e-4 and exported.accuracy.files["fp16"].agreement > 0.99
    assert edgevit.evaluate(at_depths.folder / "export" / "model.fp32.onnx", photos).agreement > 0.9999
    again: dict[str, Any] = {"data": photos, "training": Training(device="cpu", steps=0), "rate": 0.3}
    smaller = edgevit.derive(at_depths.folder, out=tmp_path / "smaller", output="features:class,patches@1,2", **again)
    assert smaller.model.spec.depths == (1, 2) and smaller.record.similarity.cosine > 0.8
    with pytest.raises(OptionError, match="the output of this base is features:class,patches@1,2; try --output"):
        edgevit.derive(at_depths.folder, out=tmp_path / "m", output="features", **again)


@pytest.mark.parametrize("output", ["features@1", "features:class@1"])
def test_a_base_of_earlier_features_ends_after_their_block(
    digits_checkpoint: Path, photos: Path, tmp_path: Path, output: str
) -> None:
    progress = RecordedProgress()
    made = derive(digits_checkpoint, photos, tmp_path / "model", output=output, progress=progress)
    spec, whole = made.model.spec, edgevit.base(
        NAME, out=tmp_path / "base", checkpoint=digits_checkpoint, model_args={**ARGS, "num_classes": 10},
        preprocessing=PREPROCESSING,
    )  # fmt: skip
    assert len(spec.blocks) == len(spec.base.blocks) == 1 and spec.macs <= 0.51 * spec.base.macs
    assert spec.base.macs < 0.6 * whole.spec.macs
    assert any(note.startswith("the base ends after block 1 of 2, as no later features") for note in progress.notes)
    batch = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        loaded = edgevit.load(made.folder)(batch)
        torch.testing.assert_close(loaded, made.model(batch))
        after = _features_of_base(digits_checkpoint).forward_intermediates(
            batch, [0], norm=True, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
        )
    wanted = after[0][1][:, 0] if output == "features@1" else after[0][1]
    assert torch.nn.functional.cosine_similarity(loaded, wanted, dim=-1).mean() > 0.8
    assert edgevit.evaluate(made.folder, photos, max_images=20).similarity.cosine > 0.8, "the base beside it ends, too"


def test_the_class_token_counts_as_much_as_all_patches(small_vit: Any, tmp_path: Path) -> None:
    from problems import untrained

    base = unlabelled_model(describe(small_vit(), NAME, {}), "features:class,patches", Silent())
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(describe(small_vit(), NAME, {}), task, 0.5, tmp_path)
    output: Any = with_units(base, task, problem.passes, problem.cache, {}).output
    batch, _ = next(task.train.batches(len(task.train.subset(100))))
    with torch.inference_mode():
        features = base(batch)
    off = [features.clone(), features.clone()]  # by one deviation in the class token alone, and in all patches
    for part, changed in zip((slice(1), slice(1, None)), off, strict=True):
        changed[:, part] += features[:, part].flatten(0, 1).std(0)
    losses = [float(output.divergence(features, changed).mean()) for changed in off]
    assert losses == pytest.approx([0.25, 0.25], rel=0.1)


@pytest.mark.slow
def test_files_of_tokens_are_like_the_folder(of_tokens: Any, photos: Path, tmp_path: Path) -> None:
    exported = edgevit.export(of_tokens.folder, fp16=False)
    assert [(t.name, *t.shape) for t in exported.outputs] == [
        ("class_token", "batch", 64), ("patch_tokens", "batch", 16, 64)
    ]  # fmt: skip
    assert "`class_token`, `patch_tokens`: a class token" in (of_tokens.folder / "README.md").read_text()
    assert exported.parity["fp32"].error < 1e-5 and exported.accuracy.files["fp32"].agreement > 0.9999
    training = Training(device="cpu", steps=20, batch_size=32, lr=1e-3, evaluations=2)
    smaller = edgevit.derive(
        of_tokens.folder, data=photos, output="features:class,patches", rate=0.4, out=tmp_path / "m", training=training,
        options={"calibration_images": 64, "sensitivity_images": 32, "measured_images": 20},
    )  # fmt: skip
    assert smaller.model.spec.tokens == "class,patches" and smaller.record.similarity.cosine > 0.7


@pytest.mark.slow
def test_files_are_checked_on_images_without_labels(derived: Any, photos: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in sorted(photos.rglob("*.png"))[:40]:
        (flat / file.name).write_bytes(file.read_bytes())
    model = tmp_path / "model"
    shutil.copytree(derived.folder, model)
    exported = edgevit.export(model, data=flat, fp16=False)
    assert exported.accuracy.images > 0 and exported.accuracy.files["fp32"].agreement > 0.9999
    with pytest.raises(DataError, match="holds no class folders"):
        edgevit.evaluate(model, flat, probe="knn")


def test_a_report_shows_how_like_the_bases_the_features_are(derived: Any, tmp_path: Path) -> None:
    edgevit.report([derived.folder], output=tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "## Smaller backbones" in page and f"| {derived.record.similarity.cosine:.4f} |" in page
    assert "--probe knn,linear" in page and "| base |" in page and "restricted" not in page


@pytest.mark.slow
def test_distillation_brings_the_features_nearer(digits_checkpoint: Path, photos: Path, tmp_path: Path) -> None:
    training = Training(device="cpu", steps=40, batch_size=32, lr=1e-3, evaluations=4)
    made = derive(digits_checkpoint, photos, tmp_path / "model", rate=0.8, training=training)
    lines = [json.loads(line) for line in (tmp_path / "model" / "history.jsonl").read_text().splitlines()]
    losses = [line["loss_validation"] for line in lines if "loss_validation" in line]
    assert made.record.facts.kept_step > 0 and min(losses) < 0.95 * losses[0]
    assert all("accuracy_trained" not in line for line in lines)


@pytest.mark.slow
def test_an_interrupted_derivation_ends_in_the_same_weights(
    digits_checkpoint: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(device="cpu", steps=6, batch_size=16, evaluations=2)
    whole = derive(digits_checkpoint, photos, tmp_path / "whole", training=training)
    press_ctrl_c_in_step(3, monkeypatch)
    with pytest.raises(Interrupted):
        derive(digits_checkpoint, photos, tmp_path / "resumed", training=training)
    resumed = derive(digits_checkpoint, photos, tmp_path / "resumed", training=training, resume=True)
    weights = [load_file(made.folder / "model.safetensors") for made in (whole, resumed)]
    assert_same_weights(*weights)


@pytest.mark.slow
def test_a_derived_backbone_is_the_base_of_a_smaller_one(derived: Any, photos: Path, tmp_path: Path) -> None:
    smaller = edgevit.derive(
        derived.folder, data=photos, output="features", rate=0.4, out=tmp_path / "smaller",
        training=Training(device="cpu", steps=0),
        options={"calibration_images": 64, "sensitivity_images": 32, "measured_images": 20},
    )  # fmt: skip
    assert smaller.model.spec.macs < 0.61 * derived.model.spec.macs
    assert smaller.record.similarity is not None and smaller.record.similarity.cosine > 0.8


def test_features_are_no_classes(derived: Any, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"puts out features: derive from it with --output features"):
        edgevit.derive(derived.folder, data=photos, rate=0.4, out=tmp_path / "classes")
    with pytest.raises(UnsupportedModelError, match="puts out features: call it on images"):
        edgevit.load(derived.folder).predict([next(photos.rglob("*.png"))])
    spec = replace(derived.model.spec, classes=(TargetClass("a", 0),))
    assert spec.fault() == "has the output 'features' and 1 classes"


def test_a_folder_of_some_features_is_no_base_of_others(of_tokens: Any, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"the output of this base is features:class,patches; try --output features:c"
    ):
        edgevit.derive(of_tokens.folder, data=photos, output="features", rate=0.4, out=tmp_path / "m")


def test_parts_that_the_data_has_are_kept_and_classes_are_not(
    digits_checkpoint: Path, photos: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for i, file in enumerate(sorted(photos.rglob("*.png"))):
        place = data / ("val" if i % 4 == 0 else "train") / "any"
        place.mkdir(parents=True, exist_ok=True)
        (place / file.name).write_bytes(file.read_bytes())
    made = derive(digits_checkpoint, data, tmp_path / "model")
    assert made.record.data.images.test == len(list((data / "val").rglob("*.png")))
    labels = {label for part in ("train", "validation", "test") for label in _reopened(made).part(part).labels}
    assert labels == {UNLABELLED}


def _reopened(made: Any) -> Any:
    from edgevit.data.task import reopen

    return reopen(made.record.data, made.model.preprocessing)


def test_the_unit_of_each_channel_is_its_deviation(small_vit: Any, tmp_path: Path) -> None:
    from problems import untrained

    base = unlabelled_model(describe(small_vit(), NAME, {}), "features", Silent())
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(describe(small_vit(), NAME, {}), task, 0.5, tmp_path)
    network = with_units(base, task, problem.passes, problem.cache, {})
    batch, _ = next(task.train.batches(len(task.train.subset(1000))))
    with torch.inference_mode():
        deviation = base(batch).double().std(0)
    scale: Any = network.output.scale  # type: ignore[attr-defined]
    torch.testing.assert_close(scale.double(), deviation, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("output", ["features", "features:patches"])
def test_few_images_are_refused_or_warned_of_by_the_number_that_would_do(small_vit: Any, output: str) -> None:
    base = unlabelled_model(describe(small_vit(), NAME, {}), output, Silent())  # 17 tokens of 64 values
    whole = open_task("digits", None, preprocessing=base.preprocessing, base_outputs=10)

    def seen(images: int) -> list[str]:
        progress = RecordedProgress()
        check_enough_images(base, replace(whole, train=whole.train.subset(images)), progress)
        return progress.warnings

    with pytest.raises(DataError, match=r"^9 training images cannot show what the base's features are like, 10 or"):
        seen(9)
    (warning,) = seen(10)
    assert warning.startswith("10 training images do not determine the moments that a model is solved from, 128 would")
    assert len(seen(127)) == 1 and not seen(128)


def test_features_of_an_image_need_as_many_images_and_unlabelled_ones_count(small_vit: Any, photos: Path) -> None:
    wide = small_vit(img_size=64, embed_dim=96)  # 65 tokens, of which one of each image is read
    for output, enough in (("features", 96), ("features:patches", 64)):
        base = unlabelled_model(describe(wide, NAME, {}), output, Silent())
        progress = RecordedProgress()
        task = open_unlabelled_task(photos / "day0", preprocessing=base.preprocessing, outputs=1)
        check_enough_images(base, task, progress)
        assert [f" {enough} would" in warning for warning in progress.warnings] == [True]
        more = open_unlabelled_task(
            photos / "day0", preprocessing=base.preprocessing, outputs=1, unlabelled=photos / "day1"
        )
        check_enough_images(base, more, progress)
        assert len(task.train) < enough <= len(more.calibration(200)) and len(progress.warnings) == 1


def test_one_picture_is_counted_and_is_no_class(digits_checkpoint: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    shutil.copy(next(photos.rglob("*.png")), tmp_path / "one")
    with pytest.raises(DataError, match=r"^\S*one has 1 training image; it needs 3 or more to train on: add some"):
        derive(digits_checkpoint, tmp_path / "one", tmp_path / "model")


def test_a_base_that_puts_out_nothing_but_zeros_is_one_line(
    digits_checkpoint: Path, photos: Path, tmp_path: Path
) -> None:
    state = load_file(digits_checkpoint)
    state["norm.weight"].zero_()
    save_file(state, tmp_path / "flat.safetensors")
    with pytest.raises(DataError, match="the same for all images"):
        derive(tmp_path / "flat.safetensors", photos, tmp_path / "model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": "3,7"}, "--classes is for classes"),
        ({"method": "taylor"}, "taylor reads labels of classes; try forge, nuwa, vulcan, corp,"),
        ({"method": "nuwa"}, "images of an output of features have none; try --set nuwa.purification=none"),
        ({"derive_from": "better"}, "--derive-from is for classes"),
        ({"head": "full"}, "--head full is for classes"),
        ({"reject": 0.1}, "--reject is for classes"),
        ({"training": Training(teacher="none")}, "--teacher none is for classes"),
        ({"data": "nowhere"}, "nowhere does not exist"),
        (
            {"output": "features:patches@2,1"},
            "expected the numbers of blocks in ascending order, from 1; try features:patches@",
        ),
        ({"output": "features@0"}, "expected the numbers of blocks in ascending order, from 1; try features@9"),
        ({"output": "features@1,2"}, "are those after one block; try features:class@1,2 or features:patches@1,2"),
        ({"output": "features:patches@1,9"}, ".* has 2; try 2 for the last"),
    ],
)
def test_what_is_for_classes_is_refused(
    digits_checkpoint: Path, photos: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    if "method" in options:
        options = {**options, "options": {}}
    with pytest.raises((OptionError, DataError, UnsupportedModelError), match=message):
        derive(digits_checkpoint, photos, tmp_path / "model", **options)
    assert not (tmp_path / "model").exists()
