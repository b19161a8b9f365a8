"""A derivation lets the head read a narrower embedding itself, and counts its budget so."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_networks import derive_map, write_frames
from detectors import write_detectors
from narrow_heads import write_heads
from recorded_progress import RecordedProgress
from small_base import assert_same_weights, press_ctrl_c_in_step

import edgevit
from benchmarks import scenes
from edgevit.derivation.session import derive as session
from edgevit.derivation.session import head
from edgevit.errors import Interrupted
from edgevit.network.dense import channels_read
from edgevit.train.settings import Training

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_heads(tmp_path_factory.mktemp("mine"))


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_frames(tmp_path_factory.mktemp("data") / "images")


derive = partial(derive_map, rate=0.92)


def test_the_budget_counts_what_the_head_reads(file: Path, frames: Path, tmp_path: Path) -> None:
    progress = RecordedProgress()
    made = derive(f"{file}:Transposed", frames, tmp_path / "model", progress=progress)
    spec = made.model.spec
    (layer,) = spec.narrow_readers
    assert layer.readers == ("first",) and layer.channels == channels_read(spec.embed) < 64
    (note,) = (note for note in progress.notes if note.startswith("the head reads"))
    assert "in first: " in note and "MACs less" in note
    assert 0.07 * spec.base.macs < spec.macs <= 0.08 * spec.base.macs
    loaded = edgevit.load(made.folder)
    images = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(loaded(images), made.model(images))


@pytest.mark.slow
def test_a_head_that_is_cut_reads_the_embedding_too(file: Path, frames: Path, tmp_path: Path) -> None:
    training = Training(device="cpu", steps=2, batch_size=8, evaluations=1)
    made = derive(f"{file}:Transposed", frames, tmp_path / "model", rest_rate=0.3, training=training)
    spec = made.model.spec
    assert spec.narrow_readers and spec.narrowed_rest.macs == made.model.geometry.head_macs
    again = derive(made.folder, frames, tmp_path / "again", rate=0.1)
    assert again.model.spec.narrow_readers == spec.narrow_readers
    assert edgevit.load(again.folder).spec == again.model.spec
    assert edgevit.export(again.folder, fp16=False).parity["fp32"].error < 1e-4


@pytest.mark.slow
def test_it_is_resumed_after_an_interruption(
    file: Path, frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(device="cpu", steps=4, batch_size=8, evaluations=1)
    whole = derive(f"{file}:Transposed", frames, tmp_path / "whole", training=training)
    press_ctrl_c_in_step(2, monkeypatch)
    with pytest.raises(Interrupted):
        derive(f"{file}:Transposed", frames, tmp_path / "resumed", training=training)
    resumed = derive(f"{file}:Transposed", frames, tmp_path / "resumed", training=training, resume=True)
    assert whole.model.spec.narrow_readers and resumed.model.spec == whole.model.spec
    assert_same_weights(resumed.model.state_dict(), whole.model.state_dict())


def test_outputs_that_would_change_are_kept_and_told(
    file: Path, frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "read_narrower", lambda *_: None)
    progress = RecordedProgress()
    made = derive(f"{file}:Transposed", frames, tmp_path / "model", progress=progress)
    assert not made.model.spec.narrow_readers
    (warning,) = (w for w in progress.warnings if "reads tokens of the whole width" in w)
    assert "MACs, which may be more than its budget allows" in warning
    assert edgevit.load(made.folder).spec == made.model.spec


@pytest.mark.slow
def test_a_map_is_that_of_the_whole_width(
    file: Path, frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = derive(f"{file}:Levels", frames, tmp_path / "model")
    monkeypatch.setattr(session, "with_narrow_readers", lambda derived, _: (derived, None))
    other = derive(f"{file}:Levels", frames, tmp_path / "other")
    assert len(made.model.spec.narrow_readers) == 2 and other.model.spec.macs > made.model.spec.macs
    assert made.record.map.divergence == pytest.approx(other.record.map.divergence, rel=1e-3)


@pytest.mark.slow
def test_a_pyramid_is_made_of_a_narrower_embedding(tmp_path: Path) -> None:
    data = tmp_path / "coco"
    scenes.render(data, train=24, val=6, size=48)
    options = {"calibration_images": 24, "sensitivity_images": 12, "measured_images": 6}
    file = write_detectors(tmp_path)
    file.write_text(file.read_text().replace("kind(backbone, 4,", "kind(backbone, 7,"))
    made = derive(f"{file}:build", data, tmp_path / "model", output="boxes", rate=0.7, options=options)
    assert made.model.spec.narrow_readers
    loaded: Any = edgevit.load(made.folder)
    pictures = [torch.rand(3, 48, 48, generator=torch.Generator().manual_seed(0))]
    with torch.inference_mode():
        (before,), (after,) = (m.module.detector(pictures) for m in (made.model, loaded))
    assert all(torch.equal(before[name], after[name]) for name in before)
