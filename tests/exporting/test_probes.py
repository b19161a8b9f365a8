"""What features are worth: classifiers that are fitted to them, by hand and of real files."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dense_networks import write_depth

import edgevit
from edgevit.derivation.session.imitation import unlabelled_model
from edgevit.errors import ModelError, OptionError
from edgevit.exporting.probes import Labelled, knn, linear, probe_features, probe_parts, read_features
from edgevit.network.folder import save
from edgevit.network.model import Headless
from edgevit.network.opening import open_network
from edgevit.progress import Silent
from edgevit.train.ridge import Moments, RidgeRegression, choose_ridge, cross_validate

PREPROCESSING: dict[str, Any] = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"}


def clouds(seed: int, spread: float, count: int = 40) -> Labelled:
    """Features around three directions of very different length."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    noise = spread * torch.randn(count, 8, generator=random, dtype=torch.float64)
    length = torch.logspace(-2, 2, count, dtype=torch.float64)[torch.randperm(count, generator=random)]
    return Labelled(length[:, None] * (torch.eye(8, dtype=torch.float64)[labels] + noise), labels)


def test_neighbours_are_found_by_direction_and_not_by_length() -> None:
    train, tested = clouds(0, 0.1), clouds(1, 0.1)
    assert torch.equal(knn(train, tested), tested.labels)


def test_nearer_neighbours_have_more_votes() -> None:
    train = Labelled(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64), torch.tensor([1, 0, 0]))
    tested = Labelled(torch.tensor([[1.0, 0.1]], dtype=torch.float64), torch.tensor([1]))
    assert knn(train, tested).tolist() == [1]


def test_a_linear_probe_separates_what_is_separable_wherever_it_lies() -> None:
    random = torch.Generator().manual_seed(0)

    def part() -> Labelled:
        labels = torch.arange(60) % 3
        noise = 0.2 * torch.randn(60, 8, generator=random, dtype=torch.float64)
        return Labelled(torch.eye(8, dtype=torch.float64)[labels] + noise + 5, labels)

    train, validation, tested = part(), part(), part()
    assert (linear(train, validation, tested) == tested.labels).double().mean() > 0.95


def noisy(seed: int, each: int) -> Labelled:
    """Images of each of three classes, with 60 features of which three tell the classes apart, and not always."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(3 * each) % 3
    noise = torch.randn(3 * each, 60, generator=random, dtype=torch.float64)
    return Labelled(3 * torch.eye(60, dtype=torch.float64)[labels] + noise, labels)


@pytest.mark.parametrize("each", [20, 3])
def test_the_ridge_of_a_linear_probe_is_that_of_cross_validation_unless_a_class_has_too_few_images(each: int) -> None:
    train, validation, tested = noisy(0, each), noisy(2, 1), noisy(1, 200)
    both = Labelled(*(torch.cat([getattr(p, n) for p in (train, validation)]) for n in ("features", "labels")))
    few = RidgeRegression.of(moments_of(train))
    chosen = cross_validate(both.features, both.labels) if each == 20 else choose_ridge(few, *astuple(validation))
    weight, bias = RidgeRegression.of(moments_of(both)).solved(chosen.ridge)
    answers = linear(train, validation, tested)
    assert torch.equal(answers, (tested.features @ weight.mT + bias).argmax(1))
    assert (answers == tested.labels).double().mean() > (0.7 if each == 20 else 0.4)


@pytest.mark.parametrize("each", [20, 4])
def test_a_linear_probe_is_never_fitted_to_the_images_that_it_is_judged_on(each: int) -> None:
    random = torch.Generator().manual_seed(0)

    def noise() -> Labelled:
        labels = torch.arange(3 * each) % 3
        return Labelled(torch.randn(len(labels), 100, generator=random, dtype=torch.float64), labels)

    parts = {"train": noise(), "validation": noise(), "test": noise()}
    task: Any = SimpleNamespace(class_names=["a", "b", "c"], part=lambda part: part, **{part: part for part in parts})
    for right in probe_parts(("linear",), task, lambda part: parts[str(part)])["linear"].values():
        assert right.right < 0.6 * right.images, "there is nothing to learn"
    for part in ("validation", "test"):
        assert probe_features(("linear",), task, task.part(part), lambda part: parts[str(part)])["linear"] < 0.6


def moments_of(part: Labelled) -> Moments:
    moments = Moments(part.labels.tolist(), part.features.shape[1])
    moments.add(part.features, part.labels)
    return moments


def test_features_that_are_no_numbers_are_one_line() -> None:
    class Two:
        def batches(self, *_: Any) -> Any:
            yield torch.zeros(2, 3, 4, 4), torch.tensor([0, 1])

    images: Any = Two()
    with pytest.raises(ModelError, match="not finite"):
        read_features(lambda batch: batch.mean((2, 3)) / 0, images, 2, 0, lambda _: None)
    tokens = read_features(lambda batch: torch.arange(12.0).reshape(2, 3, 2), images, 2, 0, lambda _: None)
    assert tokens.features.tolist() == [[2, 3], [8, 9]]


@pytest.fixture(scope="module")
def backbone(digits_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a base that knows most digits, with its features as outputs."""
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 10}
    base = open_network(
        "vit_tiny_patch16_224", checkpoint=digits_checkpoint, model_args=arguments, preprocessing=PREPROCESSING
    )
    assert not isinstance(base, Headless)
    folder = tmp_path_factory.mktemp("backbone") / "base"
    save(unlabelled_model(base, "features", Silent()), folder)
    return folder


def test_probes_tell_what_a_backbone_knows_in_torch_and_in_its_file(backbone: Path) -> None:
    result = edgevit.evaluate(backbone, data="digits", probe="knn, linear", device="cpu")
    assert result.probes is not None and min(result.probes.values()) > 0.6 and result.top1 is None
    files = edgevit.export(backbone, data="digits", fp16=False, max_images=20)
    of_file = edgevit.evaluate(files.folder / "model.fp32.onnx", data="digits", probe=("knn",), device="cpu")
    assert of_file.form == "onnx" and of_file.probes == {"knn": pytest.approx(result.probes["knn"], abs=0.01)}


def test_probes_of_logits_and_without_labels_are_refused(backbone: Path, digits_checkpoint: Path) -> None:
    with pytest.raises(OptionError, match="give them with --data"):
        edgevit.evaluate(backbone, probe=("knn",))
    with pytest.raises(OptionError, match="gives features: --probe knn,linear tells"):
        edgevit.evaluate(backbone, data="digits")
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 10}
    with pytest.raises(OptionError, match="classifies images itself"):
        edgevit.evaluate(
            "vit_tiny_patch16_224", checkpoint=digits_checkpoint, model_args=arguments, data="digits", probe=("knn",)
        )


def test_probes_of_maps_are_refused(tmp_path: Path, own_cache: None) -> None:
    edgevit.base(f"{write_depth(tmp_path)}:build", output="map", out=tmp_path / "model")
    with pytest.raises(OptionError, match=r"--probe is for features, and .*model gives maps; leave it out"):
        edgevit.evaluate(tmp_path / "model", data="digits", probe=("knn",))
