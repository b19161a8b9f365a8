"""What is kept of images is what would be read, to the last bit, and no more of it than may be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from edgevit.data.decoded import Decoded, available_bytes
from edgevit.data.task import Split, open_task
from edgevit.records.reading import AS_STORED, Reading

PREPROCESSING: dict[str, Any] = {
    "input_size": (3, 32, 32), "interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "center",
    "mean": (0.5,) * 3, "std": (0.5,) * 3,
}  # fmt: skip
IMAGE_BYTES = 4 * 3 * 32 * 32


class Counted:
    """A source that counts how often each image was read."""

    def __init__(self, source: Any) -> None:
        self.source, self.reads = source, []
        self.files = source.files

    def read(self, reference: Any, reading: Reading = AS_STORED) -> Image.Image:
        self.reads.append(reference)
        return self.source.read(reference, reading)


@pytest.fixture
def split(image_folder: Any, tmp_path: Path) -> Split:
    data = image_folder(tmp_path / "data", {"cat": 9, "dog": 7})
    train = open_task(data, None, preprocessing=PREPROCESSING, base_outputs=2).train
    return replace(train, source=Counted(train.source))


def whole(batches: Any) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


def assert_same(found: Any, split: Split) -> None:
    for one, other in zip(whole(found), whole(split.batches(3)), strict=True):
        assert torch.equal(one, other)


def test_a_varied_copy_is_not_taken_for_its_image(split: Split) -> None:
    decoded = Decoded(1000 * IMAGE_BYTES)
    for _ in range(2):
        assert_same(decoded.batches(split, 4), split)
        assert_same(decoded.batches(split.with_variants(40), 4), split.with_variants(40))


@pytest.mark.quick("1-*")
@pytest.mark.parametrize("limit", [0, 3 * IMAGE_BYTES, 1000 * IMAGE_BYTES])
@pytest.mark.parametrize("workers", [0, 1])
def test_every_pass_sees_what_is_on_disk(split: Split, limit: int, workers: int) -> None:
    decoded = Decoded(limit)
    for batch_size in (4, 4, 3, 100):
        assert_same(decoded.batches(split, batch_size, workers), split)
    assert decoded.bytes <= limit


def test_an_image_is_read_once_by_all_passes_and_as_part_of_other_sets(split: Split) -> None:
    decoded, reads = Decoded(1000 * IMAGE_BYTES), split.source.reads
    few = split.subset(len(split) // 2)
    whole(decoded.batches(few, 2))
    assert sorted(reads) == sorted(few.references)
    for _ in range(3):
        whole(decoded.batches(split, 4))
    assert sorted(reads) == sorted(split.references)


def test_what_does_not_fit_is_read_again_and_again(split: Split) -> None:
    decoded, reads = Decoded(3 * IMAGE_BYTES + 1), split.source.reads
    for _ in range(2):
        whole(decoded.batches(split, 4))
    assert len(reads) == 2 * len(split) - 3 and decoded.bytes == 3 * IMAGE_BYTES


def test_other_preprocessing_is_another_image(split: Split) -> None:
    decoded = Decoded(1000 * IMAGE_BYTES)
    whole(decoded.batches(split, 4))
    darker = replace(split, preprocessing={**PREPROCESSING, "mean": (0.25,) * 3})
    assert_same(decoded.batches(darker, 4), darker)


def test_what_a_pass_does_to_its_batch_does_not_reach_the_next(split: Split) -> None:
    decoded = Decoded(1000 * IMAGE_BYTES)
    for _ in range(2):
        for images, _labels in decoded.batches(split, 4):
            images.zero_()
    assert_same(decoded.batches(split, 4), split)


def test_a_set_of_no_images_has_no_batches(split: Split) -> None:
    assert list(Decoded(1).batches(split.subset(0), 4)) == []


def test_reading_draws_nothing_from_the_generator_that_methods_draw_from(split: Split) -> None:
    before = torch.get_rng_state()
    whole(Decoded(0).batches(split, 4))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 0),
        ({"proc/meminfo": "MemTotal: 900 kB\nMemAvailable: 500 kB\n"}, 500 * 1024),
        (
            {
                "proc/meminfo": "MemAvailable: 500 kB\n",
                "sys/fs/cgroup/memory.max": "300000\n",
                "sys/fs/cgroup/memory.stat": "anon 100000\nfile 150000\n",
            },
            200_000,
        ),
        (
            {
                "proc/meminfo": "MemAvailable: 500 kB\n",
                "sys/fs/cgroup/memory.max": "max\n",
                "sys/fs/cgroup/memory.stat": "anon 100000\n",
            },
            500 * 1024,
        ),
    ],
)
def test_available_memory_is_that_of_the_container_where_it_has_less(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path) == expected
