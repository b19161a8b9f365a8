"""Choose by seed which images of a class are held out, one by one or in groups, if the data does not say.

Frames of one video are nearly alike. If some are held out and others are trained on, accuracy is far too high. So
`--group-by` defines groups of images, and a group is in one part as a whole, even if it has images of several classes.
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
_TEST_FRACTION = 0.2  # split off if the data has no test part
_FOLDER = "folder"  # the rule by which the folders below a class folder are groups


@dataclass(frozen=True)
class Splitting:
    """How the images of a source are split.

    The split of a class depends on the seed and the source, not on which other classes are chosen.
    """

    source: ImageSource
    validation_fraction: float
    seed: int
    # _FOLDER, or a regular expression that is searched in names below the class folder; None: no groups.
    group_by: str | None = None

    def __post_init__(self) -> None:
        """Raise OptionError if the rule is not a regular expression, or images have no names."""
        if self.group_by is None:
            return
        if not isinstance(self.source, Images):
            raise OptionError("--group-by is for folders of images; these images have no names")
        if self.group_by != _FOLDER:
            try:
                re.compile(self.group_by)
            except re.error as error:
                raise OptionError(
                    f"--group-by {self.group_by} is no regular expression ({error}); try '^[^_]+', or {_FOLDER}"
                ) from error

    @property
    def missing(self) -> list[Part]:
        """The parts that the data does not have, in the order in which they are split off."""
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
            counts = ", ".join(
                f"{len(images)} {'training' if part == 'train' else part} image{'s' * (len(images) != 1)}"
                for part, images in brought.items()
            )
            others = ", and 1 or more of each other part" if len(brought) > 1 else ""
            raise DataError(f"{self._owner(name)} has {counts}; it needs {need} or more to train on{others}: add some")
        if self.group_by is not None and self.missing:
            chosen = self._by_group(name, brought["train"])
        else:
            chosen = self._one_by_one(name, brought["train"])
        return {**brought, **{part: sorted(images, key=str) for part, images in chosen.items()}}

    def _owner(self, name: str) -> str:
        """Name a class for a message, or the folder of images that have none."""
        source = self.source
        return str(source.root) if isinstance(source, Images) and not source.is_sorted else f"class {name!r}"

    def _one_by_one(self, name: str, images: Sequence[Reference]) -> dict[Part, list[Reference]]:
        mixed = list(images)
        random.Random(f"{self.seed}/{name}").shuffle(mixed)
        chosen: dict[Part, list[Reference]] = {}
        for part, count in self._counts(len(mixed)).items():
            chosen[part], mixed = mixed[:count], mixed[count:]
        return {**chosen, "train": mixed}

    def _counts(self, total: int) -> dict[Part, int]:
        """Count the images of a class for each missing part."""
        counts: dict[Part, int] = {}
        for position, part in enumerate(self.missing, 1):
            fraction = _TEST_FRACTION if part == "test" else self.validation_fraction
            spare = len(self.missing) - position  # an image for each part that is still to come
            counts[part] = min(max(1, round((total - spare) * fraction)), total - spare - 1)
            total -= counts[part]
        return counts

    def _by_group(self, name: str, images: Sequence[Reference]) -> dict[Part, list[Reference]]:
        chosen: dict[Part, list[Reference]] = {part: [] for part in ("train", *self.missing)}
        groups = self._groups(name, images)
        for key, members in groups.items():
            chosen[self._part_of[key]] += members
        if empty := [part for part, members in chosen.items() if not members]:
            raise DataError(
                f"{self._owner(name)} has {len(groups)} group{'s' * (len(groups) != 1)} by --group-by {self.group_by}, "
                f"and none for {empty[0]}; each of {', '.join(chosen)} needs one: try another --seed, or smaller groups"
            )
        return chosen

    def groups_in(self, part: Part, names: Sequence[str]) -> set[str]:
        """The groups that a part of the data has of these classes; the rule splits no part that the data brings.

        Raises:
            DataError: the rule does not fit a name.
        """
        return {group for name in names for group in self._groups(name, self.source.references(part, name), part)}

    def _groups(self, name: str, images: Sequence[Reference], part: Part = "train") -> dict[str, list[Reference]]:
        """Sort the images that a part has of a class into groups."""
        assert isinstance(self.source, Images) and self.group_by is not None
        root, groups = str(self.source.parts[part][name]), dict[str, list[Reference]]()
        for image in images:
            below = os.path.relpath(str(image), root)
            if self.group_by == _FOLDER:
                key = f"{name}/{os.path.dirname(below)}"
            elif (match := re.search(self.group_by, below)) is not None:
                key = match[1] if match.re.groups and match[1] is not None else match[0]
            else:
                raise DataError(f"--group-by {self.group_by} does not match {below} of {self._owner(name)}")
            groups.setdefault(key, []).append(image)
        return groups

    @cached_property
    def _part_of(self) -> Mapping[str, Part]:
        """The part of every group, chosen class by class; a group of an earlier class keeps its part."""
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
        """Rank a group at random, equally in every class."""
        return hashlib.sha256(f"{self.seed}/{key}".encode("utf-8", "surrogateescape")).digest()


def _about(count: int, keys: Sequence[str], sizes: Mapping[str, int]) -> list[str]:
    """Choose groups of about `count` images in total, in order; at least one if `count` is above 0."""
    chosen: list[str] = []
    for key in keys:
        if count > 0 and sizes[key] <= 2 * count:  # nearer to the count than without it
            chosen.append(key)
            count -= sizes[key]
    if count > 0 and keys and not chosen:
        chosen = [min(keys, key=lambda key: sizes[key])]
    return chosen
