"""Keep decoded images in memory, up to a limit, for passes that read the same images again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgevit.data.sources import ImageSource, Reference
from edgevit.data.task import Split

_Name = tuple[Reference, int | None]  # of an image, as `Split.name` gives it
SHARE = 4  # decoded images may take one SHARE-th of the available memory


def available_bytes(root: Path = Path("/")) -> int:
    """Read how much memory is available to this process, on the machine or in its container; 0 if unknown."""
    limits = [kib * 1024 for kib in _numbers(root / "proc/meminfo", "MemAvailable:")]
    limit = root / "sys/fs/cgroup/memory.max"
    # A container counts cached pages of files as used, but they can be dropped: only anonymous memory cannot.
    for held in _numbers(root / "sys/fs/cgroup/memory.stat", "anon"):
        with suppress(OSError, ValueError):  # no such file, or the word "max"
            limits.append(max(int(limit.read_text()) - held, 0))
    return min(limits, default=0)


def _numbers(file: Path, name: str) -> list[int]:
    """Read the number after a name at the beginning of a line, if there is one."""
    with suppress(OSError):
        return [int(line.split()[1]) for line in file.read_text().splitlines() if line.split()[:1] == [name]]
    return []


class Decoded:
    """Decoded and transformed evaluation images, kept until the limit is reached.

    Images are never dropped. Most passes read the same images in the same order, so that dropping the least recently
    used ones would drop those that are needed next.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes, self.bytes = limit_bytes, 0
        # By source and preprocessing; the source is held, so that no other can get its id.
        self._shelves: dict[tuple[int, str], tuple[ImageSource, dict[_Name, Tensor]]] = {}

    def batches(self, split: Split, batch_size: int, workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every image once, like `Split.batches`: (images float32 [B, C, H, W], labels int64 [B])."""
        shelf = self._shelf(split.source, split.preprocessing)
        parts = [range(i, min(i + batch_size, len(split))) for i in range(0, len(split), batch_size)]
        missing = [[i for i in part if split.name(i) not in shelf] for part in parts]
        read = split.read([few for few in missing if few], workers)
        for part, few in zip(parts, missing, strict=True):
            images = next(read)[0] if few else torch.empty(0)
            new = dict(zip(few, images, strict=True))
            if len(few) < len(part):
                images = torch.stack([new[i] if i in new else shelf[split.name(i)] for i in part])
            for i, image in new.items():
                self._keep(shelf, split.name(i), image)
            yield images, torch.tensor(split.labels[part.start : part.stop])

    def _shelf(self, source: ImageSource, preprocessing: Mapping[str, Any]) -> dict[_Name, Tensor]:
        name = (id(source), repr(sorted(preprocessing.items())))
        return self._shelves.setdefault(name, (source, {}))[1]

    def _keep(self, shelf: dict[_Name, Tensor], name: _Name, image: Tensor) -> None:
        if name not in shelf and self.bytes + image.nbytes <= self.limit_bytes:
            shelf[name] = image.clone()  # a batch of a worker lies in shared memory, of which there is little
            self.bytes += image.nbytes
