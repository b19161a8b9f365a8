from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from places import ROOT

from edgevit.data.transforms import evaluation_transform
from edgevit.errors import ExportError
from edgevit.network.folder import load
from edgevit.serving.model import find_served
from edgevit.serving.programs import write_cpp, write_python


def test_the_packaged_python_program_gives_the_models_class(served_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    write_python(find_served(served_folder, "fp16"), tmp_path / "o")
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8))
    image.save(tmp_path / "i.png")
    command = [sys.executable, "classify.py", "export", "../i.png"]
    done = subprocess.run(command, cwd=tmp_path / "o", text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    model = load(served_folder)
    with torch.inference_mode():
        logits = model(evaluation_transform(model.spec.preprocessing)(image)[None])[0, [3, 5, 8]]
    rejected = "\tother" if logits.logsumexp(0) < 7.0 else ""
    name, share = done.stdout.split("\t")[-1].split()
    assert done.stdout.startswith(f"../i.png{rejected}\t") and name == "358"[int(logits.argmax())]
    assert float(share) == pytest.approx(float(logits.softmax(0).max()), abs=0.02)


def test_the_cpp_program_has_its_numbers_and_the_file(served_folder: Path, tmp_path: Path) -> None:
    served = find_served(served_folder, "fp32")
    lines = write_cpp(served, tmp_path)
    assert (tmp_path / "model.txt").read_text().splitlines() == [
        "size 32", "resize 32", "interpolation bicubic", "mean 0.485 0.456 0.406", "std 0.229 0.224 0.225", "other 7",
        "class 3 3", "class 5 5", "class 8 8",
    ]  # fmt: skip
    for name in ("classify.cpp", "CMakeLists.txt"):
        assert (tmp_path / name).read_bytes() == (ROOT / "deploy" / "examples" / "cpp" / name).read_bytes()
    assert (tmp_path / "model.onnx").read_bytes() == served.file.read_bytes()
    assert lines[0].split("    #")[0] == "    trtexec --onnx=model.onnx --saveEngine=model.engine"


@pytest.mark.parametrize(("precision", "judged"), [("fp16", "--trt`"), ("int8", "--trt --precision int8`")])
def test_an_engine_of_the_packaged_file_has_the_types_of_the_file(
    served_folder: Path, tmp_path: Path, precision: str, judged: str
) -> None:
    lines = write_cpp(replace(find_served(served_folder, "fp16"), precision=precision), tmp_path)
    assert "--saveEngine=model.engine --stronglyTyped " in lines[0] and f"`edgevit export MODEL {judged}" in lines[-1]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"crop_mode": "squash"}, "crop mode center only"),
        ({"interpolation": "lanczos"}, "does not know lanczos interpolation"),
    ],
)
def test_a_preprocessing_that_the_cpp_program_does_not_know_is_refused(
    served_folder: Path, tmp_path: Path, changed: dict[str, str], told: str
) -> None:
    served = find_served(served_folder, "fp32")
    preprocessing = {**served.export.preprocessing, **changed}
    with pytest.raises(ExportError, match=f"{told}; try --python"):
        write_cpp(replace(served, export=replace(served.export, preprocessing=preprocessing)), tmp_path)
