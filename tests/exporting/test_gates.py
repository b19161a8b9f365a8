from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from timm.models import VisionTransformer

from edgevit.data.task import open_task
from edgevit.errors import ExportError, OptionError
from edgevit.exporting.gates import Tolerances, check_accuracy, check_graph, check_parity
from edgevit.exporting.graph import write_onnx
from edgevit.exporting.images import Judging
from edgevit.exporting.session import OnnxModel
from edgevit.network.network import Network
from edgevit.network.output import Features, Logits, Map, Output
from edgevit.progress import Silent

PREPROCESSING = {"input_size": (3, 8, 8), "interpolation": "bilinear", "mean": (0.5,) * 3, "std": (0.5,) * 3,
                 "crop_pct": 1.0, "crop_mode": "center"}  # fmt: skip


LOGITS = Logits((3, 5, 8))


@pytest.fixture(scope="module")
def judging() -> Judging:
    task = open_task("digits", ["3", "5", "8"], preprocessing=PREPROCESSING, base_outputs=10)
    return Judging(task.test, ("3", "5", "8"), LOGITS, "digits", "test", task)


def linear(images: torch.Tensor) -> torch.Tensor:
    weight = torch.randn(192, 10, generator=torch.Generator().manual_seed(0))
    return images.flatten(1) @ weight


def check(judging: Judging, **files: object) -> object:
    options = {"batch_size": 16, "workers": 0, "progress": Silent()}
    return check_accuracy(linear, files, judging, Tolerances(), **options)


def test_files_that_classify_as_torch_does_pass_and_one_odd_image_may_differ(judging: Judging) -> None:
    swapped = []

    def one_differs(images: torch.Tensor) -> torch.Tensor:
        logits = linear(images)
        if not swapped:
            swapped.append(True)
            logits[0] = -logits[0]
        return logits

    checked = check(judging, fp32=linear, fp16=one_differs)
    assert checked.images == len(judging.split)
    assert checked.files["fp32"].agreement == 1 and checked.files["fp32"].top1 == checked.torch
    assert checked.files["fp16"].agreement == pytest.approx(1 - 1 / len(judging.split))


def test_a_file_that_classifies_otherwise_fails(judging: Judging) -> None:
    with pytest.raises(ExportError, match=r"fp16 agrees with the model on \d+ of \d+ images, 99\.0% is required"):
        check(judging, fp32=linear, fp16=lambda images: -linear(images))


def test_a_file_that_agrees_on_just_the_share_that_is_required_passes(judging: Judging) -> None:
    few = replace(judging, split=judging.split.subset(50))
    seen: list[int] = []

    def five_differ(images: torch.Tensor) -> torch.Tensor:
        logits = linear(images)
        for i in range(len(logits)):
            seen.append(i)
            if len(seen) <= 5:
                logits[i] = -logits[i]
        return logits

    options = {"batch_size": 16, "workers": 0, "progress": Silent()}
    checked = check_accuracy(linear, {"fp16": five_differ}, few, Tolerances(fp16_agreement=0.9), **options)
    assert (checked.images, checked.files["fp16"].agreement) == (50, 0.9)


def dense(images: torch.Tensor) -> torch.Tensor:
    """A map of three values at each pixel."""
    weight = torch.randn(3, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.conv2d(images, weight, padding=1)


@pytest.mark.parametrize(
    ("output", "model"),
    [(Features(), linear), (Map("classes"), dense), (Map("foreground"), lambda images: dense(images)[:, :1]),
     (Map("values"), lambda images: dense(images).sigmoid())],
    ids=["features", "classes", "foreground", "values"],
)  # fmt: skip
def test_outputs_without_classes_are_judged_by_how_far_they_agree(
    judging: Judging, output: Output, model: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    options = {"batch_size": 16, "workers": 0, "progress": Silent()}
    unclassed = replace(judging, output=output)
    noise = torch.Generator().manual_seed(0)

    def nearly(images: torch.Tensor) -> torch.Tensor:
        outputs = model(images)
        return outputs + 5e-3 * outputs.std() * torch.randn(outputs.shape, generator=noise)

    checked = check_accuracy(model, {"fp32": model, "fp16": nearly}, unclassed, Tolerances(), **options)
    assert checked.torch is None and checked.images == len(judging.split)
    assert checked.files["fp32"].agreement == pytest.approx(1) and checked.files["fp32"].top1 is None
    assert 0.99 < checked.files["fp16"].agreement < 1 and checked.files["fp16"].per_class == {}
    with pytest.raises(
        ExportError, match=r"fp16 agrees with the model to [\d.]+% on \d+ images, 99\.0% is required; allow"
    ):
        check_accuracy(model, {"fp16": lambda images: -model(images)}, unclassed, Tolerances(), **options)
    images = next(iter(judging.split.batches(4)))[0]
    parity = check_parity(output, "fp16", model(images), nearly, images, "digits", 0.02)
    assert 0.001 < parity.error < 0.006 and parity.images == 4
    with pytest.raises(ExportError, match=f"{output.noun} in fp16 are off by 2 of the model's own, at most 0.02"):
        check_parity(output, "fp16", model(images), lambda images: -model(images), images, "digits", 0.02)


class Dense(VisionTransformer):
    """Maps images to logits of three classes for each patch."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.forward_features(images)[:, self.num_prefix_tokens :, :3]
        return tokens.mT.unflatten(2, self.patch_embed.grid_size)


def test_files_of_a_dense_network_are_judged_by_its_map(tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = {"img_size": 32, "patch_size": 8, "depth": 1, "embed_dim": 64, "num_heads": 2, "num_classes": 0}
    network = Network(Dense(**small).eval(), output=Map("classes"))
    task = open_task("digits", ["3", "5"], preprocessing={**PREPROCESSING, "input_size": (3, 32, 32)}, base_outputs=10)
    judging = Judging(task.test.subset(20), ("3", "5"), network.output, "digits", "test", task)
    files = {}
    for precision in ("fp32", "fp16"):
        path = tmp_path / f"{precision}.onnx"
        form = {"batch": "dynamic", "opset": 20, "precision": precision}
        write_onnx(network, path, input_size=(3, 32, 32), metadata={"output": '"classes"'}, **form)
        files[precision] = OnnxModel(path)
        assert (files[precision].output.name, files[precision].output.shape[1:]) == ("maps", [3, 4, 4])
    images = next(iter(judging.split.batches(4)))[0]
    with torch.inference_mode():
        parity = check_parity(
            network.output, "fp16", network(images), files["fp16"].predict, images, "digits", Tolerances().fp16_error
        )
    assert 1e-6 < parity.error < 1e-2
    predict = {precision: file.predict for precision, file in files.items()}
    options = {"batch_size": 16, "workers": 0, "progress": Silent()}
    checked = check_accuracy(network, predict, judging, Tolerances(), **options)
    assert checked.files["fp32"].agreement == 1 and 0.99 <= checked.files["fp16"].agreement <= 1


def test_logits_that_are_no_numbers_fail() -> None:
    reference = torch.ones(2, 4)
    with pytest.raises(ExportError, match="1 of 8 logits in fp16 are NaN or infinite"):
        broken = reference.clone()
        broken[0, 0] = torch.inf
        check_parity(LOGITS, "fp16", reference, lambda images: broken, torch.zeros(2, 1), "random", 0.1)


def test_logits_of_one_image_that_are_no_numbers_fail_whatever_their_top_1(judging: Judging) -> None:
    seen = []

    def one_is_nan(images: torch.Tensor) -> torch.Tensor:
        logits = linear(images)
        if not seen:
            seen.append(True)
            logits[0] = torch.nan
        return logits

    with pytest.raises(ExportError, match=r"10 of 160 logits in fp16 are NaN or infinite; try --no-fp16"):
        check(judging, fp32=linear, fp16=one_is_nan)


def test_a_tolerance_that_is_no_number_never_switches_a_gate_off() -> None:
    reference = torch.ones(2, 4)
    with pytest.raises(ExportError, match="logits in fp16 are off by"):
        check_parity(LOGITS, "fp16", reference, lambda images: 2 * reference, torch.zeros(2, 1), "random", math.nan)
    for bad, name in (
        ({"fp16_error": math.nan}, "--fp16-tolerance nan is not a finite number of at least 0"),
        ({"fp16_error": math.inf}, "--fp16-tolerance inf"),
        ({"fp32_error": -1.0}, "fp32_error -1"),
        ({"fp16_agreement": 2.0}, r"--min-agreement 2 is not in \[0, 1\]; 0.99 is usual"),
        ({"fp32_agreement": math.nan}, "fp32_agreement nan"),
    ):
        with pytest.raises(OptionError, match=name):
            Tolerances(**bad)


def save_graph(path: Path, operator: str, version: int = 20, **attributes: object) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], **attributes)], "g", [value], [out])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10), path)


def test_graphs_with_unknown_operators_other_opsets_or_nonsense_fail(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    save_graph(path, "Relu")
    assert check_graph(path, 20) == {"Relu": 1}
    with pytest.raises(ExportError, match="opset 20, expected 18"):
        check_graph(path, 18)
    save_graph(path, "Cast", to=TensorProto.FLOAT)
    with pytest.raises(ExportError, match="has Cast"):
        check_graph(path, 20)
    save_graph(path, "NoSuchOperator")
    with pytest.raises(ExportError, match="is not valid ONNX") as error:
        check_graph(path, 20)
    assert "\n" not in str(error.value)
