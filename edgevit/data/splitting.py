"""Which images of a class are held out where the data does not say it: by seed, one by one or in groups.

Frames of one video are nearly alike. If some are held out and others are trained on, accuracy is far too high. So a
group of images, given by a rule (`--group-by`), is in one part as a whole, also where it has images of several classes.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from edgevit.data.sources import ImageSource, Part, Reference
from edgevit.data.sources.folder import Images
from edgevit.errors import DataError, OptionError

PARTS: tuple[Part, ...] = ("train", "validation", "test")
TEST_FRACTION = 0.2  # split off where the data brings no test part
FOLDER = "folder"  # the rule by which the folders below a class folder are groups


@dataclass(frozen=True)
class Splitting:
    """How the images of a source are split.

    A class's split depends on the seed and the source alone, and not on which other classes are chosen.
    """

    source: ImageSource
    validation_fraction: float
    seed: int
    group_by: str | None = None  # FOLDER, or a regular expression that is searched in names below the class folder

    def __post_init__(self) -> None:
        """Raise OptionError for a rule that is no regular expression, or for images without names."""
        if self.group_by is None:
            return
        if not isinstance(self.source, Images):
            raise OptionError("--group-by is for folders of images; these images have no names")
        if self.group_by != FOLDER:
            try:
                re.compile(self.group_by)
            except re.error as error:
                raise OptionError(
                    f"--group-by {self.group_by} is no regular expression ({error}); try '^[^_]+', or {FOLDER}"
                ) from error

    @property
    def missing(self) -> list[Part]:
        """The parts that the data does not bring, in the order in which they are split off."""
        return [part for part in ("test", "validation") if part not in self.source.parts]

    def parts(self, name: str) -> dict[Part, list[Reference]]:
        """Split one class; a part that the data does not bring is taken from train.

        Raises:
            DataError: too few images or groups for that, or the rule does not fit a name.
        """
        brought: dict[Part, list[Reference]] = {
            part: self.source.references(part, name) for part in PARTS if part in self.source.parts
        }
        need = 1 + len(self.missing)
        if len(brought["train"]) < need or not all(brought.values()):
            seen = ", ".join(
                f"{len(images)} {'training' if part == 'train' else part} images" for part, images in brought.items()
            )
            others = ", and 1 or more of each other part" if len(brought) > 1 else ""
            raise DataError(f"class {name!r} has {seen}; it needs {need} or more to train on{others}: add some")
        if self.group_by is not None and self.missing:
            taken = self._by_group(name, brought["train"])
        else:
            taken = self._one_by_one(name, brought["train"])
        return {**brought, **{part: sorted(images, key=str) for part, images in taken.items()}}

    def _one_by_one(self, name: str, images: Sequence[Reference]) -> dict[Part, list[Reference]]:
        mixed = list(images)
        random.Random(f"{self.seed}/{name}").shuffle(mixed)
        taken: dict[Part, list[Reference]] = {}
        for part, count in self._counts(len(mixed)).items():
            taken[part], mixed = mixed[:count], mixed[count:]
        return {**taken, "train": mixed}

    def _counts(self, total: int) -> dict[Part, int]:
        """How many of a class's images go to each part that is missing."""
        counts: dict[Part, int] = {}
        for position, part in enumerate(self.missing, 1):
            fraction = TEST_FRACTION if part == "test" else self.validation_fraction
            spare = len(self.missing) - position  # an image for each part that is still to come
            counts[part] = min(max(1, round((total - spare) * fraction)), total - spare - 1)
            total -= counts[part]
        return counts

    def _by_group(self, name: str, images: Sequence[Reference]) -> dict[Part, list[Reference]]:
        taken: dict[Part, list[Reference]] = {part: [] for part in ("train", *self.missing)}
        groups = self._groups(name, images)
        for key, members in groups.items():
            taken[self._part_of[key]] += members
        if empty := [part for part, members in taken.items() if not members]:
            raise DataError(
                f"class {name!r} has {len(groups)} group{'s' * (len(groups) != 1)} by --group-by {self.group_by}, and "
                f"none for {empty[0]}; each of {', '.join(taken)} needs one: try another --seed, or smaller groups"
            )
        return taken

    def _groups(self, name: str, images: Sequence[Reference]) -> dict[str, list[Reference]]:
        """A class's images by group."""
        assert isinstance(self.source, Images) and self.group_by is not None
        root, groups = str(self.source.parts["train"][name]), dict[str, list[Reference]]()
        for image in images:
            below = os.path.relpath(str(image), root)
            if self.group_by == FOLDER:
                key = f"{name}/{os.path.dirname(below)}"
            elif (match := re.search(self.group_by, below)) is not None:
                key = match[1] if match.re.groups and match[1] is not None else match[0]
            else:
                raise DataError(f"--group-by {self.group_by} does not match {below} of the class {name!r}")
            groups.setdefault(key, []).append(image)
        return groups

    @cached_property
    def _part_of(self) -> Mapping[str, Part]:
        """The part of every group, class by class; one that an earlier class has, too, stays where it is."""
        part_of: dict[str, Part] = {}
        for name in self.source.class_names:
            images = self.source.references("train", name)
            sizes = {key: len(members) for key, members in self._groups(name, images).items()}
            free = sorted((key for key in sizes if key not in part_of), key=self._rank)
            for position, (part, count) in enumerate(self._counts(len(images)).items(), 1):
                count -= sum(size for key, size in sizes.items() if part_of.get(key) == part)
                spare = 1 + len(self.missing) - position  # groups that must be left for other parts
                for key in _about(count, free[: max(0, len(free) - spare)], sizes):
                    part_of[key] = part
                    free.remove(key)
            part_of.update(dict.fromkeys(free, "train"))
        return part_of

    def _rank(self, key: str) -> bytes:
        """A place by chance, the same in every class."""
        return hashlib.sha256(f"{self.seed}/{key}".encode("utf-8", "surrogateescape")).digest()


def _about(count: int, keys: Sequence[str], sizes: Mapping[str, int]) -> list[str]:
    """Groups of about `count` images in all, in the order given; one at least, if any are asked for."""
    chosen: list[str] = []
    for key in keys:
        if count > 0 and sizes[key] <= 2 * count:  # nearer to what is asked for than without it
            chosen.append(key)
            count -= sizes[key]
    if count > 0 and keys and not chosen:
        chosen = [min(keys, key=lambda key: sizes[key])]
    return chosen
