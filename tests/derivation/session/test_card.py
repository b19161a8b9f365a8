"""The README of a model folder: its three ways to classify an image, run as they stand, say the same."""

import ast
import re
from pathlib import Path

import pytest
import sklearn.datasets
from PIL import Image
from small_base import ARGS, PREPROCESSING, QUICK, write_checkpoint

import edgevit
from edgevit.train.settings import Training

SQUASHED = {"crop_mode": "squash", "interpolation": "bilinear", "exif": "apply"}
PHOTO = Path(sklearn.datasets.__file__).parent / "images" / "china.jpg"  # 640 x 427 pixels


def derived_and_exported(checkpoint, out, **options):
    given = {"classes": "3,5,8", "rate": 0.3, "data": "digits", "model_args": ARGS, "preprocessing": PREPROCESSING}
    given |= {"method": "nuwa", "options": {"purification": "none"}, "cache": False, "accept_weak_base": True}
    training = Training(**{**QUICK, "steps": 0})
    edgevit.derive("vit_tiny_patch16_224", checkpoint=checkpoint, out=out, training=training, **{**given, **options})
    edgevit.export(out, fp16=False, accuracy=False)
    exif = Image.Exif()
    exif[274] = 6  # stored turned by 90 degrees
    Image.open(PHOTO).save(out / "photo.jpg", exif=exif)
    return out


def blocks(folder):
    return [part.partition("```")[0] for part in (folder / "README.md").read_text().split("```python\n")[1:]]


def needed_by(code):
    packages = {"edgevit", "timm", "torch", "onnxruntime"}
    return packages & {word for line in code.splitlines() if "import " in line for word in re.findall(r"\w+", line)}


def run(code, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    capsys.readouterr()
    exec(code, {})
    name, brace, probabilities = capsys.readouterr().out.partition(" {")
    return name, ast.literal_eval(brace + probabilities)


@pytest.mark.quick("squash")
@pytest.mark.parametrize(
    ("options", "called"),
    [
        ({"preprocessing": {**PREPROCESSING, "crop_pct": 0.9}}, {"3", "5", "8"}),
        ({"preprocessing": {**PREPROCESSING, "crop_mode": "border"}, "head": "full", "reject": 0.95}, {"other"}),
        pytest.param({"preprocessing": {**PREPROCESSING, **SQUASHED}}, {"3", "5", "8"}, marks=pytest.mark.slow),
        ({"model_args": {**ARGS, "img_size": [24, 40]}}, {"3", "5", "8"}),
    ],
    ids=["center", "full head, border, rejection", "squash", "oblong"],
)
def test_the_three_ways_of_the_readme_say_the_same(options, called, digits_checkpoint, tmp_path, monkeypatch, capsys):
    oblong = "model_args" in options
    checkpoint = write_checkpoint(tmp_path, **options["model_args"]) if oblong else digits_checkpoint
    folder = derived_and_exported(checkpoint, tmp_path / "m", **options)
    ways = blocks(folder)
    assert [needed_by(way) for way in ways] == [{"edgevit"}, {"timm", "torch"}, {"onnxruntime"}]
    upright = options.get("preprocessing", {}).get("exif") == "apply"
    assert ["exif_transpose" in way for way in ways] == [False, upright, upright]
    seen = [run(way, folder, monkeypatch, capsys) for way in ways]
    (name,) = {name for name, _ in seen}
    assert name in called
    for _, probabilities in seen:
        assert set(probabilities) == {"3", "5", "8"} and sum(probabilities.values()) == pytest.approx(1)
        assert probabilities == pytest.approx(seen[0][1], abs=1e-3)
