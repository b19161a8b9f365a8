"""nvinfer itself runs on NVIDIA's GPUs alone; here its formula is applied in numpy, and its choice of a class."""

from __future__ import annotations

from configparser import ConfigParser
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import some_engines
import torch
from PIL import Image

from edgevit.data.transforms import evaluation_transform
from edgevit.errors import OptionError
from edgevit.network.folder import load
from edgevit.records.export import OutputClass
from edgevit.serving.deepstream import nvinfer_config, nvinfer_graph, nvinfer_scale, write_deepstream
from edgevit.serving.model import find_served

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), np.uint8)


def read(text: str) -> dict[str, str]:
    parser = ConfigParser()
    parser.read_string(text)
    return dict(parser["property"])


def scaled(properties: dict[str, str]) -> np.ndarray:
    """The images as nvinfer computes them of these properties: [B, C, H, W]."""
    offsets = np.array([float(value) for value in properties["offsets"].split(";")], np.float32)
    return np.float32(properties["net-scale-factor"]) * (PIXELS - offsets).transpose(0, 3, 1, 2).astype(np.float32)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 0.02)])
def test_nvinfers_formula_and_the_packaged_file_give_what_the_model_gives(
    served_folder: Path, tmp_path: Path, precision: str, tolerance: float
) -> None:
    lines = write_deepstream(find_served(served_folder, precision), tmp_path)
    model = load(served_folder)
    transform = evaluation_transform(model.spec.preprocessing)
    with torch.inference_mode():
        logits = model(torch.stack([transform(Image.fromarray(image)) for image in PIXELS]))[:, [3, 5, 8]]
    scores = logits.logsumexp(1)
    expected = (logits.softmax(1) * (scores >= 7.0)[:, None]).numpy()
    assert 3 < (expected.sum(1) == 0).sum() < 21, "some images are `other`, and some are not"
    file = tmp_path / "model.onnx"
    onnx.checker.check_model(onnx.load(file), full_check=True)
    properties = read((tmp_path / "config_infer.txt").read_text())
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (images,), (output,) = session.get_inputs(), session.get_outputs()
    assert images.type == output.type == "tensor(float)", "nvinfer writes and reads fp32"
    (actual,) = session.run(None, {images.name: scaled(properties)})
    np.testing.assert_allclose(actual, expected, atol=tolerance)
    assert (tmp_path / "labels.txt").read_text() == "3;5;8\n"
    assert properties["network-mode"] == {"fp32": "0", "fp16": "2"}[precision]
    assert properties["infer-dims"] == "3;32;32" and properties["network-type"] == "1"
    assert any("`other` gets no class" in line for line in lines)


def test_equal_deviations_need_nothing_in_the_graph_and_all_outputs_no_selection(served_folder: Path) -> None:
    assert nvinfer_scale({"mean": [0.5] * 3, "std": [0.5] * 3}) == (1 / 127.5, [127.5] * 3, [1.0] * 3)
    served = find_served(served_folder, "fp32")
    plain = replace(
        served.export,
        preprocessing={**served.export.preprocessing, "std": [0.5] * 3},
        classes=tuple(OutputClass(str(column), column) for column in range(10)),
        rejection=None,
    )
    added = [node.op_type for node in nvinfer_graph(replace(served, export=plain)).graph if "nvinfer/" in node.name]
    assert added == ["Softmax"]


def test_borders_are_nvinfers_and_the_readme_says_what_differs(served_folder: Path, tmp_path: Path) -> None:
    served = find_served(served_folder, "fp32")
    preprocessing = {**served.export.preprocessing, "crop_mode": "border", "crop_pct": 0.8}
    served = replace(served, export=replace(served.export, preprocessing=preprocessing))
    assert read(nvinfer_config(served))["maintain-aspect-ratio"] == "1"
    text = "\n".join(write_deepstream(served, tmp_path))
    assert "to fit into 40x40" in text and "black borders" in text and "antialiased bicubic" in text


def test_a_file_in_int8_and_an_engine_are_refused(served_folder: Path, tmp_path: Path) -> None:
    served = find_served(served_folder, "fp32")
    with pytest.raises(OptionError, match="in int8; try --precision fp16"):
        write_deepstream(replace(served, precision="int8"), tmp_path)
    with pytest.raises(OptionError, match="give the model folder"):
        write_deepstream(replace(served, engine=some_engines.add(tmp_path / "m")), tmp_path)
