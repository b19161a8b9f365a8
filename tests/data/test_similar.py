"""Frames of one recording on both sides of a split are noticed; a set whose pictures are all alike is not blamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from recorded_progress import RecordedProgress

from edgevit.data.similar import difference_hash, neighbours_across, warn_of_recordings
from edgevit.data.sources import open_source
from edgevit.data.splitting import Splitting


def write(root: Path, recordings: int) -> Path:
    """Two classes of 48 pictures, of so many scenes in a row; every picture has noise of its own."""
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for i in range(48):
            if i % (48 // recordings) == 0:
                scene = np.asarray(Image.fromarray(random.integers(0, 255, (8, 9), np.uint8)).resize((48, 48)), float)
            noisy = np.clip(scene + random.normal(0, 2, scene.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(root / name / f"frame{i}.png")
    return root


def warned(data: Path, **split: Any) -> list[str]:
    progress, splitting = RecordedProgress(), Splitting(open_source(data), 0.1, 42, **split)
    warn_of_recordings([splitting.parts(name) for name in ("cat", "dog")], ["validation", "test"], progress)
    return progress.warnings


@pytest.mark.parametrize(("recordings", "warns"), [(8, True), (48, False), (1, False)], ids=["8", "each", "one"])
def test_frames_of_recordings_are_noticed(tmp_path: Path, recordings: int, warns: bool) -> None:
    said = warned(write(tmp_path, recordings))
    assert len(said) == warns
    if warns:
        assert "held-out images look like a training image beside them in name, and unlike others" in said[0]
        assert said[0].endswith("keep recordings together with --group-by")


def test_neighbours_are_by_number_and_of_the_same_folder() -> None:
    train = [f"a/{i}.png" for i in range(2, 30) if i != 10]
    (found,) = neighbours_across([{"train": train, "test": ["a/10.png"]}], ["test"])
    assert found[:2] == ("a/10.png", "a/9.png") and found[2] not in ("a/9.png", "a/11.png")
    assert not list(neighbours_across([{"train": train, "test": ["b/10.png"]}], ["test"]))


def test_a_file_that_cannot_be_read_has_no_hash(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no image")
    assert difference_hash(str(tmp_path / "a.png")) is None
