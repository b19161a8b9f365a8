"""Which images are held out: groups stay together, in every class."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from edgevit.data.sources import open_source
from edgevit.data.splitting import Splitting
from edgevit.errors import DataError, OptionError


def make(root: Path, names: Iterable[str]) -> Path:
    """Files that nobody reads."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Two classes with 12 videos of 5 frames, of which 8 show both classes."""
    videos = [*(f"cat/v{video:02d}" for video in range(12)), *(f"dog/v{video:02d}" for video in range(4, 16))]
    return make(tmp_path / "videos", [f"{video}_{frame}.png" for video in videos for frame in range(5)])


def parts_by_video(splitting: Splitting, names: Iterable[str] = ("cat", "dog")) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name in names:
        for part, images in splitting.parts(name).items():
            for image in images:
                found.setdefault(Path(str(image)).name.partition("_")[0], set()).add(part)
    return found


@pytest.mark.parametrize("rule", [r"v\d+", r"(v\d+)_\d", "^[^_]+"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_video_is_in_one_part_whatever_class_its_frames_are_of(videos: Path, rule: str, seed: int) -> None:
    splitting = Splitting(open_source(videos), 0.1, seed, rule)
    by_video = parts_by_video(splitting)
    assert all(len(parts) == 1 for parts in by_video.values())
    for name in ("cat", "dog"):
        counts = {part: len(images) for part, images in splitting.parts(name).items()}
        assert sum(counts.values()) == 60 and 5 <= counts["test"] <= 20 and 5 <= counts["validation"] <= 15
    assert parts_by_video(Splitting(open_source(videos), 0.1, seed, rule), ["cat"]).items() <= by_video.items()
    one_by_one = parts_by_video(Splitting(open_source(videos), 0.1, seed))
    assert sum(len(parts) > 1 for parts in one_by_one.values()) > 6


def test_folders_below_a_class_are_groups_of_that_class(tmp_path: Path) -> None:
    names = [f"{name}/day{day}/{i}.png" for name in ("cat", "dog") for day in range(5) for i in range(4)]
    source = open_source(make(tmp_path, names))
    for name in ("cat", "dog"):
        parts = Splitting(source, 0.2, 42, "folder").parts(name)
        days = {part: {Path(str(image)).parent.name for image in images} for part, images in parts.items()}
        assert sorted(map(len, days.values())) == [1, 1, 3] and len(set.union(*days.values())) == 5


def test_only_missing_parts_are_split_off(tmp_path: Path) -> None:
    names = [f"{part}/{name}/{i}_a.png" for part in ("train", "val") for name in ("cat", "dog") for i in range(4)]
    parts = Splitting(open_source(make(tmp_path, names)), 0.1, 42, r"^\d").parts("cat")
    assert {part: len(images) for part, images in parts.items()} == {"train": 3, "test": 4, "validation": 1}


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("folder", r"class 'cat' has 1 group by --group-by folder, and none for test; each of train, test, validation"),
        (r"w\d+", r"--group-by w.d\+ does not match v00_0.png of class 'cat'"),
    ],
)
def test_a_rule_that_does_not_fit_is_one_line(videos: Path, rule: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Splitting(open_source(videos), 0.1, 42, rule).parts("cat")


@pytest.mark.parametrize(
    ("data", "rule", "said"), [("digits", "folder", "have no names"), (None, "(", "no regular exp")]
)
def test_a_rule_that_cannot_be_is_refused(videos: Path, data: Any, rule: str, said: str) -> None:
    with pytest.raises(OptionError, match=f"--group-by .*{said}"):
        Splitting(open_source(data or videos), 0.1, 42, rule)
