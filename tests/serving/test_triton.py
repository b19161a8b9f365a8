from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import onnxruntime
import pytest
import some_engines

from edgevit.records.engine import EngineTensor
from edgevit.serving.model import ServedModel, find_served
from edgevit.serving.triton import triton_config, write_triton

TYPES = {"tensor(float)": "TYPE_FP32", "tensor(float16)": "TYPE_FP16"}


def stated(config: str) -> list[tuple[str, str, list[int]]]:
    """Name, type and dims of the tensors of a configuration."""
    found = re.findall(r'name: "(\w+)" data_type: (\w+) dims: \[ ([\d, ]+) \]', config)
    return [(name, kind, [int(size) for size in dims.split(",")]) for name, kind, dims in found]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_configuration_states_what_onnx_runtime_reads_in_the_file(
    served_folder: Path, tmp_path: Path, precision: str
) -> None:
    lines = write_triton(find_served(served_folder, precision), tmp_path)
    config = (tmp_path / "m" / "config.pbtxt").read_text()
    session = onnxruntime.InferenceSession(tmp_path / "m" / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    ends = (*session.get_inputs(), *session.get_outputs())
    assert stated(config) == [(end.name, TYPES[end.type], end.shape[1:]) for end in ends]
    assert 'name: "m"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 8\n' in config
    assert config.count('label_filename: "labels.txt"') == config.count("dynamic_batching { }") == 1
    labels = (tmp_path / "m" / "labels.txt").read_text().splitlines()
    assert {i: name for i, name in enumerate(labels) if name} == {3: "3", 5: "5", 8: "8"} and len(labels) == 10
    assert any("extension takes fp32 only" in line for line in lines) == (precision == "fp16")


def of_batch(served: ServedModel, batch: int) -> ServedModel:
    images, *outputs = (replace(end, shape=(batch, *end.shape[1:])) for end in (served.images, *served.outputs))
    return replace(served, images=images, outputs=tuple(outputs))


def test_a_fixed_batch_stands_in_the_dims_and_is_labelled_only_if_it_is_one_image(
    served_folder: Path, tmp_path: Path
) -> None:
    for batch in (1, 4):
        folder = tmp_path / str(batch)
        write_triton(of_batch(find_served(served_folder, "fp32"), batch), folder)
        config = (folder / "m" / "config.pbtxt").read_text()
        assert [dims for _, _, dims in stated(config)] == [[batch, 3, 32, 32], [batch, 10]]
        assert "max_batch_size: 0\n" in config and "dynamic_batching" not in config
        assert ("label_filename" in config) == (folder / "m" / "labels.txt").exists() == (batch == 1)


def test_features_have_no_labels(headless_folder: Path, tmp_path: Path) -> None:
    write_triton(find_served(headless_folder, "fp32"), tmp_path)
    config = (tmp_path / "backbone" / "config.pbtxt").read_text()
    assert stated(config)[1][0] == "features" and "label" not in config
    assert sorted(file.name for file in (tmp_path / "backbone").iterdir()) == ["1", "config.pbtxt"]


def test_every_output_is_stated(served_folder: Path) -> None:
    served = find_served(served_folder, "fp32")
    levels = tuple(EngineTensor(name, "float32", (-1, 64, size, size)) for name, size in (("p3", 4), ("p4", 2)))
    config = triton_config(replace(served, outputs=levels), labels=False)
    assert stated(config)[1:] == [("p3", "TYPE_FP32", [64, 4, 4]), ("p4", "TYPE_FP32", [64, 2, 2])]


def test_an_engine_is_a_plan_of_as_many_images_as_it_takes(served_folder: Path, tmp_path: Path) -> None:
    record = some_engines.add(tmp_path / "m", batches=(1, 2, 5), inputs=(EngineTensor("images", "float16", (-1, 3)),))
    served = replace(find_served(served_folder, None), file=record.path, engine=record)
    write_triton(served, tmp_path / "o")
    assert 'platform: "tensorrt_plan"\nmax_batch_size: 5\n' in (tmp_path / "o" / "m" / "config.pbtxt").read_text()
    assert (tmp_path / "o" / "m" / "1" / "model.plan").read_bytes() == record.path.read_bytes()
