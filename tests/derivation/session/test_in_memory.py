"""A derivation from a module and arrays is that from their files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from dense_networks import write_depth
from PIL import Image
from recorded_progress import RecordedProgress
from safetensors.torch import save_file
from small_models import ARGS, random_base
from torch.utils.data import DataLoader, TensorDataset

import edgevit
from edgevit.errors import DataError, OptionError, OutputError

OPTIONS = {"rate": 0.5, "steps": 0, "device": "cpu", "accept_weak_base": True, "cache": False, "workers": 0}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return random_base().module


def test_a_module_gives_the_weights_of_its_checkpoint(module: torch.nn.Module, tmp_path: Path) -> None:
    save_file(module.state_dict(), tmp_path / "base.safetensors")
    options = {**OPTIONS, "data": "digits", "classes": ["3", "5", "8"], "method": "magnitude"}
    name = "vit_tiny_patch16_224"
    args = {key: value for key, value in ARGS.items() if key != "num_classes"}
    by_path = edgevit.derive(
        name, checkpoint=tmp_path / "base.safetensors", model_args=args, out=tmp_path / "a", **options
    )
    by_module = edgevit.derive(module, out=tmp_path / "b", **options)
    first, second = by_path.model.state_dict(), by_module.model.state_dict()
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_arrays_and_a_loader_of_them_are_judged_alike(module: torch.nn.Module, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(60) % 10
    tensors = (torch.tensor(pixels).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    loader = DataLoader(TensorDataset(tensors, torch.tensor(labels)), batch_size=7)
    crop = {"crop_pct": 1.0}  # what a loader gives is not resized
    of_arrays = edgevit.evaluate(module, data=(pixels, labels), device="cpu", **crop)
    of_loader = edgevit.evaluate(module, data=loader, device="cpu")
    assert of_arrays.top1 == of_loader.top1 and of_arrays.images == of_loader.images > 0


def test_maps_are_judged_by_the_targets_of_a_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_depth(tmp_path).rename(tmp_path / "depth_of_a_loader.py")
    monkeypatch.syspath_prepend(tmp_path)
    module = import_module("depth_of_a_loader").build().eval()
    images = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0)).mul(255).round() / 255
    prepared = (images - 0.5) / 0.5  # as timm's configuration of the ViT in it says
    with torch.inference_mode():
        targets = module(prepared)[:, 0]
    loader = DataLoader(TensorDataset(prepared, targets), batch_size=4)
    judged = edgevit.evaluate(module, data=loader, device="cpu").targets
    assert judged is not None and judged.score == pytest.approx(1, abs=1e-3) and judged.error < 1e-3
    labelled = DataLoader(TensorDataset(prepared, torch.zeros(6, dtype=torch.long)), batch_size=4)
    with pytest.raises(
        DataError, match=r"edgevit\.evaluate judges maps by their targets: give a DataLoader of batches"
    ):
        edgevit.evaluate(module, data=labelled, device="cpu")


def test_a_module_is_exported_to_a_new_model_folder(module: torch.nn.Module, tmp_path: Path) -> None:
    edgevit.export(module, out=tmp_path / "made")
    assert (tmp_path / "made/export/model.fp32.onnx").is_file() and (tmp_path / "made/model.json").is_file()
    with pytest.raises(OptionError, match="give out=FOLDER"):
        edgevit.export(module)
    with pytest.raises(OptionError, match="no option 'opsett'"):
        edgevit.export(module, out=tmp_path / "other", opsett=17)
    assert not (tmp_path / "other").exists()


def test_a_missing_folder_is_named_before_anything_is_written(module: torch.nn.Module, tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(8, 3, 32, 32)), batch_size=4)
    with pytest.raises(OptionError, match=r"edgevit.supernet needs 'out', .* give out=FOLDER: Model folder to write"):
        edgevit.supernet(module, data=loader)
    assert not (tmp_path / "cache").exists()


def test_the_folder_of_a_derivation_is_named_after_network_and_rate_and_not_overwritten(
    module: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    progress = RecordedProgress()
    options = {**OPTIONS, "data": "digits", "classes": ["3", "5", "8"], "method": "magnitude"}
    derived = edgevit.derive(module, progress=progress, **options)
    assert derived.folder == Path("runs/vit_tiny_patch16_224-rate0.5") and (derived.folder / "model.json").is_file()
    assert f"out is {derived.folder}, as none is given" in progress.notes
    with pytest.raises(OutputError, match=rf"^{derived.folder} exists and is not overwritten"):
        edgevit.derive(module, **options)
    Path("runs/other-macs1M").mkdir()
    with pytest.raises(OutputError, match=r"^runs/other-macs1M exists"):
        edgevit.derive("nets/other.pth", macs="1M", data="digits")


def test_what_is_no_base_is_refused_by_its_type(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="takes a path, a timm name or a module, not dict"):
        edgevit.derive({"a": 1}, data=tmp_path, out=tmp_path / "x", rate=0.5)
    with pytest.raises(TypeError, match=r"takes as data a folder, .* it was given a Image"):
        edgevit.derive(random_base(), data=Image.new("RGB", (4, 4)), out=tmp_path / "x", rate=0.5)
