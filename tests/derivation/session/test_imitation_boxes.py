"""Derive a detector: its pyramid is to be the base's, and what it finds is judged where there are annotations."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from detectors import annotate_by, made, write_detectors
from letterboxed import content_of, letterboxed
from recorded_progress import RecordedProgress
from typer.testing import CliRunner

import edgevit
from benchmarks import scenes
from edgevit.cli.app import app
from edgevit.data.sources.coco import CocoImages
from edgevit.data.task import Split
from edgevit.derivation.session.imitation import level_units
from edgevit.errors import DataError, EdgeVitError, OptionError, UnsupportedModelError
from edgevit.jobs.sweep.record import read_sweep
from edgevit.network.network import Network
from edgevit.network.opening import open_network
from edgevit.network.output import Levels
from edgevit.records.model_folder import ModelFolder
from edgevit.train.detections import find_objects
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training

pytestmark = pytest.mark.usefixtures("own_cache")

OPTIONS = {"calibration_images": 24, "sensitivity_images": 12, "measured_images": 6}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    text = write_detectors(folder).read_text().replace("kind(backbone, 4,", "kind(backbone, 7,")  # of six shapes
    (folder / "my_detector.py").write_text(text.replace("CLASSES = 4", "CLASSES = 7"))
    return folder / "my_detector.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "coco"
    scenes.render(folder, train=30, val=8, size=48)
    return folder


def derive(base: Any, data: Path, out: Path, **options: Any) -> Any:
    given: dict[str, Any] = {
        "data": data, "output": "boxes", "rate": 0.4, "out": out, "options": OPTIONS,
        "training": Training(device="cpu", steps=0),
    }  # fmt: skip
    return edgevit.derive(base, **{**given, **options})


@pytest.fixture(scope="module")
def derived(file: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return derive(f"{file}:build", data, tmp_path_factory.mktemp("boxes") / "model")


def test_the_pyramid_is_like_the_bases_and_both_are_judged(derived: Any, file: Path, data: Path) -> None:
    spec, record = derived.model.spec, derived.record.boxes
    assert spec.macs <= 0.61 * spec.base.macs and len(spec.blocks) == 2 and spec.output == "boxes"
    assert record.images == derived.record.data.images.test == 8
    assert record.base.objects == record.derived.objects > 8 and {*record.base.boxes.per_class} == {*scenes.CLASSES}
    base, loaded = open_network(f"{file}:build"), edgevit.load(derived.folder)
    images = torch.rand(4, 3, 64, 64)
    with torch.inference_mode():
        wanted, pyramid = base(images), loaded(images)  # type: ignore[operator]
    assert 0.3 * wanted.var() > (wanted - pyramid).square().mean() > 0 and 1e-4 < record.error < 0.3
    assert {*derived.record.assumptions.preprocessing_from.values()} == {"detector"}
    whole = spec.macs + spec.rest.macs
    assert spec.rest.proposals == 20 and f"{spec.macs / whole:.0%} of the detector's" in spec.rest_text
    assert "at 20 proposals" in (derived.folder / "README.md").read_text()
    assert derived.record.map is None and "module.detector" in (derived.folder / "README.md").read_text()


@pytest.mark.parametrize("method", ["corp", "wanda"])
def test_methods_that_read_no_labels_cut_detectors_too(file: Path, data: Path, tmp_path: Path, method: str) -> None:
    options = {"calibration_images": 24}
    made = derive(f"{file}:build", data, tmp_path / "model", method=method, options=options, rate=0.1)
    assert made.model.spec.macs <= 0.91 * made.model.spec.base.macs and made.record.boxes.error < 1


def test_a_budget_may_be_of_the_whole_detector(derived: Any, file: Path, data: Path, tmp_path: Path) -> None:
    rest, base = derived.model.spec.rest.macs, derived.model.spec.base.macs
    whole = rest + base * 6 // 10
    made = derive(f"{file}:build", data, tmp_path / "model", rate=None, macs=whole, budget_of="whole")
    spec, budget = made.model.spec, made.record.budget
    assert 0.58 * base < spec.macs <= whole - rest == budget.limit and budget.base == base
    assert budget.option == f"macs {whole} of the whole"
    with pytest.raises(OptionError, match=r"of the whole leaves .* MACs, and what reads the pyramid has"):
        derive(f"{file}:build", data, tmp_path / "none", rate=0.99, budget_of="whole")
    with pytest.raises(OptionError, match="--budget-of whole is for --rate and --macs"):
        derive(f"{file}:build", data, tmp_path / "none", rate=None, params="1M", budget_of="whole")


def test_evaluate_agrees_with_the_record_by_class(derived: Any, data: Path) -> None:
    judged = edgevit.evaluate(derived.folder, data)
    assert judged.detections == derived.record.boxes.derived and judged.images == 8
    some = edgevit.evaluate(derived.folder, data, classes=["disc", "star"]).detections
    assert some.boxes.per_class == {name: judged.detections.boxes.per_class[name] for name in ("disc", "star")}
    shown = CliRunner().invoke(app, ["evaluate", str(derived.folder), "--data", str(data)])
    assert shown.exit_code == 0 and "AP of boxes" in shown.stdout and "triangle" in shown.stdout


def test_a_report_has_the_average_precision_of_boxes(derived: Any, tmp_path: Path) -> None:
    edgevit.report([derived.folder], output=tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "AP of boxes" in page and f"| {derived.record.boxes.derived.boxes.ap:.1%} |" in page
    assert "top-1" not in page and "--classes" not in page


def test_the_levels_of_a_pyramid_count_alike(file: Path, data: Path) -> None:
    model: Any = open_network(f"{file}:build")
    passes = open_passes(Training(device="cpu"))
    from edgevit.data.task import open_unlabelled_task

    images = open_unlabelled_task(data, preprocessing=model.preprocessing, outputs=1).test
    unit = level_units(model, images, passes).float()
    with torch.inference_mode():
        batch = next(images.batches(8))[0]
        levels, whole = [level.flatten(1) for level in model.module.levels(batch).values()], model(batch)
    sizes, start, output = [level.shape[1] for level in levels], 0, Levels(unit)
    assert sizes == [1024, 256, 64]
    for level, size in zip(levels, sizes, strict=True):
        moved = whole.clone()
        moved[:, start : start + size] += level.std()  # each value by the deviation of its level
        start += size
        torch.testing.assert_close(2 * output.divergence(whole, moved).mean(), torch.tensor(1 / 3), rtol=0.02, atol=0)


def test_padding_counts_in_no_level(tmp_path: Path) -> None:
    network, images = letterboxed("any_size", tmp_path)
    wanted, output = network(next(images.batches(len(images)))[0]).detach(), network.output
    content = [content_of(images, (side, side)) for side in (8, 4, 2)]
    real = torch.cat([of_level.repeat(1, 16) for of_level in content], 1)
    assert not wanted[~real].any() and bool(wanted[real].all()) and real.float().mean() < 0.9
    start = 0
    for of_level in content:
        values = slice(start, start := start + 16 * of_level.shape[1])
        moved = wanted.clone()
        moved[:, values] += real[:, values] * wanted[:, values][real[:, values]].std()
        torch.testing.assert_close(2 * output.divergence(wanted, moved).mean(), torch.tensor(1 / 3), rtol=0.02, atol=0)
        moved[:, values] = torch.where(real[:, values], wanted[:, values], 1.0)
    everywhere = Network(network.module, network.family, Levels(output.scale))
    torch.testing.assert_close(everywhere(next(images.batches(len(images)))[0])[real], wanted[real])
    assert everywhere(next(images.batches(len(images)))[0])[~real].any() and everywhere.areas is None


@pytest.mark.slow
def test_files_have_a_named_output_for_each_level_and_are_judged(derived: Any, data: Path) -> None:
    report = edgevit.export(derived.folder, data=data)
    assert [(t.name, *t.shape) for t in report.outputs] == [
        ("level_0", "batch", 16, 8, 8), ("level_1", "batch", 16, 4, 4), ("level_2", "batch", 16, 2, 2)
    ]  # fmt: skip
    assert report.parity["fp32"].error < 1e-5 and report.accuracy.files["fp16"].agreement > 0.99
    of_file = edgevit.evaluate(derived.folder / "export" / "model.fp32.onnx", data).detections
    of_torch = derived.record.boxes.derived
    assert of_file.boxes.ap == pytest.approx(of_torch.boxes.ap, abs=0.01) and of_file.objects == of_torch.objects


@pytest.mark.slow
def test_int8_is_judged_by_all_levels(derived: Any, data: Path) -> None:
    report = edgevit.export(derived.folder, data=data, precision="int8", fp16=False)
    quantised, parity = report.quantisation, report.parity["int8"]
    assert quantised is not None and quantised.share > 0.5 and quantised.steps[-1].failure is None
    assert quantised.steps[-1].top1 is None and 0.9 < quantised.steps[-1].agreement < 1 and parity.error > 1e-4
    of_file = edgevit.evaluate(derived.folder / "export" / "model.int8.onnx", data).detections
    assert of_file is not None and of_file.objects == derived.record.boxes.derived.objects


@pytest.mark.slow
@pytest.mark.parametrize("function", ["masks", "getter", "listed"])
def test_masks_of_a_swin_are_judged_too(file: Path, data: Path, tmp_path: Path, function: str) -> None:
    record = derive(f"{file}:{function}", data, tmp_path / "model").record.boxes
    assert record.derived.masks is not None and 0 < record.error < 0.5
    report = edgevit.export(tmp_path / "model", data=data, fp16=False)
    assert len(report.outputs) == 3 and report.parity["fp32"].error < 1e-5


@pytest.mark.slow
def test_distillation_brings_the_pyramid_nearer(file: Path, data: Path, tmp_path: Path) -> None:
    training = Training(device="cpu", steps=40, batch_size=16, lr=1e-3, evaluations=4)
    closed = derive(f"{file}:build", data, tmp_path / "closed", rate=0.45).record
    trained = derive(f"{file}:build", data, tmp_path / "trained", rate=0.45, training=training).record
    assert trained.facts.kept_step > 0 and trained.boxes.error < 0.9 * closed.boxes.error


def test_a_detector_that_is_not_torchvisions_is_cut_and_judged(tmp_path: Path) -> None:
    name, data, notes = f"{write_detectors(tmp_path)}:Detr", tmp_path / "coco", RecordedProgress()
    base: Any = open_network(name, preprocessing={"mean": (0.4,) * 3})
    scenes.render(data, train=24, val=8, size=48)
    annotate_by(base.module.detector, data)
    made = derive(name, data, tmp_path / "model", rate=0.3, mean=(0.4,) * 3, progress=notes)
    spec, record = made.model.spec, made.record.boxes
    assert spec.macs <= 0.71 * spec.base.macs and 0 < record.error < 0.2 and spec.rest is None
    assert record.base.objects == 96 and record.base.boxes.ap > 0.99 > record.derived.boxes.ap > 0.2
    assert edgevit.evaluate(made.folder, data).detections == record.derived
    assert any("the levels of this Detr are what its body gives; pictures are squashed" in note for note in notes.notes)
    alone = Training(**TRAINED, teacher="none")
    for options, message in (
        ({"training": alone}, "needs a detector's own losses, and this Detr,"),
        ({"rest_rate": 0.5}, "--rest-rate 0.5: the parts of this detector are not torchvision's"),
    ):
        with pytest.raises(EdgeVitError, match=message) as caught:
            derive(name, data, tmp_path / "none", **options)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["Detr", "LearningDetr", "Tupled"])
def test_such_a_detector_is_written_as_files(tmp_path: Path, function: str) -> None:
    name = f"{write_detectors(tmp_path)}:{function}"
    base: Any = open_network(name)
    scenes.render(tmp_path / "coco", train=12, val=6, size=48)
    annotate_by(base.module.detector, tmp_path / "coco")
    derived = derive(name, tmp_path / "coco", tmp_path / "model", rate=0.3).record.boxes.derived
    report = edgevit.export(tmp_path / "model", data=tmp_path / "coco", whole=True, fp16=False)
    levels = base.module.levels(torch.rand(1, 3, 64, 64))
    assert [(t.name, *t.shape) for t in report.outputs] == [(n, "batch", *x.shape[1:]) for n, x in levels.items()]
    assert report.parity["fp32"].error < 1e-5
    assert report.whole is not None and report.whole.same == report.whole.boxes > 6
    assert report.whole.onnx == pytest.approx(derived.boxes.ap, abs=0.01) and derived.boxes.ap > 0.1
    of_file = edgevit.evaluate(tmp_path / "model" / "export" / "model.fp32.onnx", tmp_path / "coco").detections
    assert of_file is not None and of_file.boxes.ap == pytest.approx(derived.boxes.ap, abs=0.01)


@pytest.mark.slow
def test_such_a_detector_learns_from_losses_of_its_own(file: Path, data: Path, tmp_path: Path) -> None:
    training = Training(**{**TRAINED, "teacher": "none", "augment": "flip"})
    derive(f"{file}:LearningDetr", data, tmp_path / "model", training=training)
    last = {line.stage: line.more for line in ModelFolder(tmp_path / "model").history()}["distil"]
    assert last["loss_task"] > 0 and 0 <= last["accuracy_trained"] <= 1


def test_images_without_annotations_are_enough(file: Path, data: Path, tmp_path: Path) -> None:
    record = derive(f"{file}:build", data / "images", tmp_path / "model").record.boxes
    assert record.error > 0 and record.base is None and record.derived is None
    with pytest.raises(OptionError, match=r"images has no instances\.json; leave it out"):
        derive(f"{file}:build", data / "images", tmp_path / "other", classes="disc")
    with pytest.raises(OptionError, match=r"gives boxes: give --data with annotated images in COCO's format"):
        edgevit.evaluate(tmp_path / "model", data / "images")


def test_some_classes_choose_training_images_and_are_judged_alone(file: Path, data: Path, tmp_path: Path) -> None:
    source = CocoImages(data)
    shown = [{o.category for o in source.objects(r)} for r in source.references("train", data.name)]
    count = sum(bool(of_image & {2, 5}) for of_image in shown)
    record = derive(f"{file}:build", data, tmp_path / "model", classes="disc,star").record
    assert 0 < record.data.images.train + record.data.images.validation == count < 30
    assert record.data.images.test == 8 and {*record.boxes.derived.boxes.per_class} == {"disc", "star"}
    assert edgevit.evaluate(tmp_path / "model").detections == record.boxes.derived


TRAINED: dict[str, Any] = {"device": "cpu", "steps": 4, "batch_size": 8, "lr": 1e-3, "evaluations": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "options", "training"),
    [
        ("build", {"options": OPTIONS}, {"teacher": "none"}),
        ("masks", {"options": OPTIONS}, {"teacher_weight": 0.5, "augment": "flip"}),
        ("retina", {"options": OPTIONS}, {"teacher": "finetuned"}),
        ("fast", {"options": OPTIONS}, {"teacher": "none"}),
        ("listed", {"method": "vulcan", "rate": 0.3, "shape": "free", "options": {"calibration_images": 24}}, {}),
        (
            "build",
            {
                "method": "nuwa",
                "rate": 0.2,
                "shape": "free",
                "options": {"calibration_images": 24, "purification_steps": 4},
            },
            {"steps": 0},
        ),
        ("build", {"method": "magnitude", "rate": 0.2, "options": {}}, {}),
    ],
)
def test_a_detector_learns_from_its_own_losses(
    file: Path, data: Path, tmp_path: Path, function: str, options: dict[str, Any], training: dict[str, Any]
) -> None:
    text = file.read_text().replace("RetinaNet(backbone, 4,", "RetinaNet(backbone, 7,")
    (tmp_path / "my_detector.py").write_text(text)
    base, asked = f"{tmp_path / 'my_detector.py'}:{function}", Training(**{**TRAINED, **training})
    given = {"training": asked, "finetune_base": True, "base_steps": 3, "cache": tmp_path / "cache", **options}
    record = derive(base, data, tmp_path / "model", **given).record
    tuned, boxes = record.boxes.base_finetuned, record.boxes
    assert tuned.objects == boxes.base.objects == boxes.derived.objects and "the fine-tuned base's" in boxes.format()
    source, history = CocoImages(data), ModelFolder(tmp_path / "model").history()
    references = tuple(source.references("test", data.name))
    images = Split(source, references, (-1,) * len(references), {})
    assert boxes.base == find_objects(open_network(base), images, source.categories).record(), "it is not trained"
    stages = {line.stage: line.more for line in history}
    assert stages["finetune base"]["loss_task"] > 0
    if asked.steps and asked.teacher != "finetuned":
        last = stages["train" if "method" in options else "distil"]
        assert last["loss_task"] > 0 and 0 <= last["accuracy_trained"] <= 1


@pytest.mark.slow
def test_a_detector_of_several_sizes_is_judged_in_the_pixels_of_the_images(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = tmp_path / "wide"
    scenes.render(wide, train=16, val=6, size=48, least=0.4)
    training = Training(**{**TRAINED, "steps": 2, "teacher": "none"})
    command = ["derive", f"{file}:any_size", "--data", str(wide), "--output", "boxes", "--rate", "0.3", "--steps", "0"]
    shown = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "closed"), "--device", "cpu"])
    assert shown.exit_code == 0, shown.output
    assert "its network of 64 x 64: each is scaled to fit into it and padded" in " ".join(shown.output.split())
    record = derive(f"{file}:any_size", wide, tmp_path / "model", rate=0.3, training=training).record
    assert record.boxes.derived.objects == record.boxes.base.objects > 6
    assert edgevit.evaluate(tmp_path / "model", wide).detections == record.boxes.derived


@pytest.mark.slow
@pytest.mark.parametrize("start", ["finetuned", "better"])
def test_the_fine_tuned_base_is_cut(file: Path, data: Path, tmp_path: Path, start: str) -> None:
    record = derive(
        f"{file}:build", data, tmp_path / "model", training=Training(**{**TRAINED, "steps": 0}), derive_from=start,
        base_steps=3, cache=tmp_path / "cache", options=OPTIONS,
    ).record  # fmt: skip
    begun, boxes = record.start, record.boxes
    assert begun.steps == 3 and 0 <= begun.loss_validation_finetuned <= 1 and boxes.base_finetuned is not None
    assert begun.network == "finetuned" or (start, begun.network) == ("better", "base")
    assert 0 < boxes.error < 0.5


ALONE = r"the weights are of detector\.backbone\.body\.model alone; the rest begins as getter makes it"


@pytest.fixture(scope="module")
def of_backbone(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of the Swin of the detectors alone."""
    names: dict[str, Any] = {}
    exec(file.read_text(), names)
    weights = tmp_path_factory.mktemp("weights") / "swin.pth"
    torch.save(names["swin"](num_classes=5).state_dict(), weights)
    return weights


def test_a_rest_without_weights_that_nothing_trains_is_refused(
    file: Path, data: Path, of_backbone: Path, tmp_path: Path
) -> None:
    training = Training(**{**TRAINED, "teacher": "restricted"})
    with pytest.raises(OptionError, match=f"{ALONE}, and nothing trains it; give the weights of all, or --derive-from"):
        derive(f"{file}:getter", data, tmp_path / "model", checkpoint=of_backbone, training=training)


@pytest.mark.parametrize("training", [{"teacher": "restricted"}, {"teacher": "none"}], ids=["imitates", "learns"])
def test_one_without_losses_is_told_at_once_that_all_of_it_needs_weights(
    file: Path, data: Path, tmp_path: Path, training: dict[str, Any]
) -> None:
    torch.save(made(file, "Detr").body.state_dict(), tmp_path / "body.pth")
    asked = {"checkpoint": tmp_path / "body.pth", "training": Training(**{**TRAINED, **training})}
    message = (
        r"weights are of .*body alone; .*, so it is to be trained: .* needs a detector's own losses, and this Detr, "
    )
    with pytest.raises(UnsupportedModelError, match=rf"{message}.*; give it such, or give the weights of all$"):
        derive(f"{file}:Detr", data, tmp_path / "model", **asked)
    with pytest.raises(
        OptionError, match=r"has no instances\.json; give annotated images, or give the weights of all$"
    ):
        derive(f"{file}:Detr", data / "images", tmp_path / "model", **asked)


def test_a_folder_of_the_base_says_that_its_rest_has_no_weights(
    file: Path, data: Path, of_backbone: Path, tmp_path: Path
) -> None:
    edgevit.base(f"{file}:getter", checkpoint=of_backbone, output="boxes", out=tmp_path / "base")
    assert re.search(ALONE.removeprefix("the"), (tmp_path / "base" / "README.md").read_text())
    with pytest.raises(OptionError, match=f"{ALONE}, and nothing trains it"):
        derive(tmp_path / "base", data, tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "options", "is_trained"),
    [
        ({"teacher": "none", "lr": 1e-8, "steps": 2}, {}, False),
        ({"teacher": "none"}, {"method": "vulcan", "shape": "free", "options": {"calibration_images": 24}}, True),
        ({"steps": 0}, {"derive_from": "finetuned", "base_steps": 3}, True),
    ],
    ids=["by no better step", "by its own losses", "before it is cut"],
)
def test_a_rest_without_weights_is_trained_or_said_to_be_as_it_was_made(
    file: Path, data: Path, of_backbone: Path, tmp_path: Path, training: dict[str, Any], options: dict[str, Any],
    is_trained: bool,
) -> None:  # fmt: skip
    asked = {"training": Training(**{**TRAINED, **training}), "cache": tmp_path / "cache", **options}
    made = derive(f"{file}:getter", data, tmp_path / "model", checkpoint=of_backbone, **asked)
    assert made.record.assumptions.backbone_alone and made.model.spec.builder.backbone_alone != is_trained
    base: Any = open_network(f"{file}:getter", checkpoint=of_backbone)
    heads = [model.module.detector.roi_heads.state_dict() for model in (base, edgevit.load(made.folder))]
    same = [torch.equal(heads[0][name], heads[1][name]) for name in heads[0] if name.endswith("weight")]
    assert len(same) > 5 and {*same} == {not is_trained}


def test_what_a_detector_cannot_learn_from_is_refused(file: Path, data: Path, tmp_path: Path) -> None:
    alone, few = Training(**TRAINED, teacher="none"), tmp_path / "few"
    with pytest.raises(
        OptionError, match=r"learns from the objects in the images, and .*images has no instances\.json; give annotated"
    ):
        derive(f"{file}:build", data / "images", tmp_path / "model", training=alone)
    with pytest.raises(OptionError, match="--augment views would crop objects away; a detector learns from crop"):
        derive(f"{file}:build", data, tmp_path / "model", training=Training(device="cpu", steps=2, augment="views"))
    with pytest.raises(OptionError, match="takes no unlabelled images; leave --unlabelled out"):
        derive(f"{file}:build", data, tmp_path / "model", training=alone, unlabelled=data / "images")
    shutil.copytree(data, few)
    annotations = few / "annotations" / "instances_train.json"
    content = json.loads(annotations.read_text())
    content["annotations"][0].pop("segmentation")
    annotations.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"learns masks, and an object in .*\.png has none"):
        derive(f"{file}:masks", few, tmp_path / "model", rate=0.3, training=alone)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("build", {"output": "map"}, "--output map: the output of this base is boxes; try --output boxes"),
        ("build", {"classes": "disc,hexagon"}, "no class 'hexagon'"),
        ("build", {"method": "taylor", "options": {}}, "is for detectors, and taylor reads labels of"),
        ("build", {"output": "classes"}, "has boxes of objects, and no class of an image: give --output boxes"),
        ("retina", {}, "has 4 classes with the background, and the data 6 categories"),
    ],
)
def test_other_outputs_and_labels_are_refused(
    file: Path, data: Path, tmp_path: Path, function: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(EdgeVitError, match=message):
        derive(f"{file}:{function}", data, tmp_path / "model", **options)


@pytest.mark.slow
def test_a_sweep_compares_what_detectors_find(
    file: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", f"{file}:build", "--data", str(data), "--output", "boxes", "--rates", "0.2,0.6"]
    command += [text for name, value in OPTIONS.items() for text in ("--set", f"forge.{name}={value}")]
    shown = CliRunner().invoke(app, [*command, "--device", "cpu", "--out", str(tmp_path / "s")])
    assert shown.exit_code == 0, shown.output
    record = read_sweep(tmp_path / "s")
    base, mild, deep = record.points
    assert base.boxes.derived == base.boxes.base == mild.boxes.base and mild.boxes.error < deep.boxes.error
    assert f"{mild.boxes.derived.boxes.ap:.1%}" in shown.output and f"{deep.boxes.error:.2%}" in shown.output
    assert base.macs > mild.macs > deep.macs and mild.latency.ratio > 0
    edgevit.report([tmp_path / "s"], output=tmp_path / "page.md")
    assert "AP of boxes" in (tmp_path / "page.md").read_text()


def test_a_class_without_objects_in_the_part_is_refused(derived: Any, data: Path, tmp_path: Path) -> None:
    scenes.render(tmp_path / "few", train=3, val=1, size=48, seed=3)
    with pytest.raises(DataError, match=r"none of the 1 test images shows an object of '\w+'; leave it out"):
        edgevit.evaluate(derived.folder, tmp_path / "few", classes=list(scenes.CLASSES))
