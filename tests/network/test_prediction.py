"""A model takes images, as files or as PIL images, and says what they are."""

import dataclasses
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from edgevit.data.sources.folder import open_images
from edgevit.data.transforms import evaluation_transform
from edgevit.errors import DataError, ModelError, OptionError, UnsupportedModelError
from edgevit.network.model import Model, describe
from edgevit.network.prediction import Rejection, predictions_of, scores
from edgevit.records.model import TargetClass
from edgevit.records.pictures import to_rgb

ARGS = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 10}
LABELS = (TargetClass("crane", 7), TargetClass("house", 2), TargetClass("boat", 5))


@pytest.fixture
def base(small_vit):
    network = small_vit()
    with torch.no_grad():
        network.module.head.weight *= 50  # far enough apart that images differ
    return describe(network, "vit_tiny_patch16_224", ARGS)


@pytest.fixture
def model(base):
    """The base with its head left whole, and three of its outputs as the classes."""
    return Model(base, replace(base.spec, classes=LABELS))


@pytest.fixture
def files(image_folder, tmp_path):
    root = image_folder(tmp_path / "images", {"all": 5})
    gray = Image.open(root / "all" / "0.png").convert("L")
    gray.save(root / "all" / "gray.png")
    gray.convert("P").save(root / "all" / "palette.gif")
    Image.fromarray(np.asarray(gray, np.uint16) * 257).save(root / "all" / "deep.png")
    return sorted((root / "all").iterdir())


def opened(file):
    with Image.open(file) as image:
        return image.copy()


def by_hand(model, images):
    with torch.inference_mode():
        logits = model(torch.stack([evaluation_transform(model.preprocessing)(image) for image in images]))
    return logits[:, [7, 2, 5]].softmax(1)


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_images_are_seen_as_the_data_that_models_are_derived_from(model, files, batch_size):
    source = open_images(str(files[0].parent))
    odds = by_hand(model, [source.read(str(file)) for file in files])
    seen = model.predict(files, batch_size=batch_size)
    names = ["crane", "house", "boat"]
    assert [p.name for p in seen] == [names[i] for i in odds.argmax(1).tolist()]
    for prediction, row in zip(seen, odds.tolist(), strict=True):
        assert prediction.probabilities == pytest.approx(dict(zip(names, row, strict=True)), abs=1e-5)
        values = list(prediction.probabilities.values())
        assert values == sorted(values, reverse=True)
        assert next(iter(prediction.probabilities)) == prediction.name and not prediction.rejected


def test_paths_texts_and_images_of_any_mode_are_the_same(model, files):
    expected = model.predict(files)
    assert model.predict(map(str, files)) == expected
    assert model.predict([opened(file) for file in files]) == expected
    assert [model.predict(one) for one in (files[0], str(files[0]), opened(files[0]))] == [model.predict(files[:1])] * 3


def test_a_deep_image_is_seen_as_its_8_bit_self(model, files):
    shallow, deep = ({file.name: file for file in files}[name] for name in ("gray.png", "deep.png"))
    assert opened(deep).mode == "I;16"
    assert model.predict(deep) == model.predict(shallow)


def test_a_prediction_cannot_be_changed(model, files):
    (prediction,) = model.predict(files[0])
    with pytest.raises(dataclasses.FrozenInstanceError):
        prediction.name = "boat"


def test_an_image_below_the_threshold_is_other_and_keeps_its_probabilities(model, files):
    with torch.inference_mode():
        logits = model(torch.stack([model.transform(to_rgb(opened(file))) for file in files]))
    fits = scores(logits[:, [7, 2, 5]])
    middle = fits.median().item()
    strict = Model(model, replace(model.spec, rejection=Rejection("logsumexp", middle - 1e-4, 0.5)))
    assert [p.rejected for p in strict.predict(files)] == (fits < middle - 1e-4).tolist()
    for own, without in zip(strict.predict(files), model.predict(files), strict=True):
        assert own.probabilities == pytest.approx(without.probabilities)
        assert own.name == ("other" if own.rejected else without.name)
    assert strict.names(logits) == [p.name for p in strict.predict(files)]


def test_the_network_gets_images_in_its_own_precision(model, files):
    expected = model.predict(files)
    double = Model(model.double(), model.spec)
    assert [p.name for p in double.predict(files)] == [p.name for p in expected]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_network_gets_images_on_its_own_device(model, files):
    expected = model.predict(files)
    on_gpu = Model(model.cuda(), model.spec)
    assert [p.name for p in on_gpu.predict(files)] == [p.name for p in expected]


def test_what_is_no_image_is_named(model, files, tmp_path):
    (tmp_path / "notes.txt").write_text("text")
    missing = tmp_path / "none.png"
    for given, said in [
        ([files[0], Image.open(io.BytesIO(files[0].read_bytes()[:2000]))], "cannot read image 1: "),
        (Image.new("F", (4, 4), 200.0), "cannot read image 0: mode F with values from 200 to 200, expected floats"),
        ([files[0], missing], f"cannot read {missing}: No such file or directory; give the path of an image file"),
        (tmp_path, f"cannot read {tmp_path}: Is a directory; give the path of an image file"),
        (tmp_path / "notes.txt", f"cannot read {tmp_path / 'notes.txt'}: not an image; give the path of an image file"),
        ([np.zeros((4, 4, 3), np.uint8)], "image 0 is a ndarray; give paths of image files, or PIL images (PIL.Image"),
        (7, "cannot predict a int; give paths of image files, or PIL images"),
        (Path(tmp_path).glob("*.jpg"), "no images to predict; give paths of image files, or PIL images"),
    ]:
        with pytest.raises(DataError) as error:
            model.predict(given)
        assert str(error.value).startswith(said) and "\n" not in str(error.value)
    with pytest.raises(OptionError, match=r"batch_size 0 is .* try 32"):
        model.predict(files, batch_size=0)


def test_a_base_has_no_names_to_give(base, files):
    with pytest.raises(UnsupportedModelError, match="this base has no class names; write it with"):
        base.predict(files)


def test_answers_that_are_no_numbers_are_not_probabilities(model):
    logits = torch.zeros(2, 10)
    logits[1, 2] = torch.nan
    with pytest.raises(ModelError, match="the model's logits are not finite"):
        predictions_of(logits, model.spec)
    logits[1, 2], logits[1, 3] = 0, torch.nan  # 3 is no class of this model
    assert len(predictions_of(logits, model.spec)) == 2


def test_a_model_is_a_torch_module(model: Model) -> None:
    images = torch.rand(2, 3, 32, 32)
    logits = model.eval()(images)
    assert not model.training and next(model.parameters()).dtype == torch.float32
    assert model.forward_features(images).shape == (2, 17, 64), "16 patches and the class token"
    torch.testing.assert_close(model.to(torch.float64)(images.double()).float(), logits, atol=1e-4, rtol=1e-4)
