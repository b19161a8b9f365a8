"""How images and texts become tensors: transforms, and the data sets that read images and apply them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from timm.data import create_transform
from torch import Tensor
from torch.utils.data import Dataset

from edgevit.data.batches import seeded
from edgevit.data.request import Augment
from edgevit.data.sources import ImageSource, Reference
from edgevit.records.model import reads_texts
from edgevit.records.preparing import image_transform
from edgevit.records.reading import Reading
from edgevit.records.tokenizer import text_encoder

# DeiT's, but for draws above a magnitude of 9: at 10 timm posterises to 0 bits, which Pillow refuses.
_RANDAUGMENT = "rand-m9-mstd0.5-mmax9-inc1"


def evaluation_transform(preprocessing: Mapping[str, Any]) -> Any:
    """Create the transform without chance: of a picture to float32 [C, H, W], or of a text to int64 [N]."""
    if reads_texts(preprocessing):
        return _Ids(text_encoder(preprocessing))
    return image_transform(preprocessing)


@dataclass(frozen=True)
class _Ids:
    """A text to the ids of its tokens: int64 [N]."""

    encode: Callable[[str], list[int]]

    def __call__(self, text: str) -> Tensor:
        return torch.tensor(self.encode(text))


def training_transform(preprocessing: Mapping[str, Any], augment: Augment) -> Any:
    """Create timm's training transform: a random crop of 70 to 100 % of the area, with "flip" also mirrored at random.

    There is no flip by default: it changes the class of a digit, an arrow or a traffic sign. "deit" is RandAugment
    after a mirrored crop of 8 to 100 %, as DeiT trains, and "views" is `varying_transform`. Texts are not augmented.
    """
    if augment == "none" or reads_texts(preprocessing):
        return evaluation_transform(preprocessing)
    if augment == "views":
        return varying_transform(preprocessing)
    settings = {k: preprocessing[k] for k in ("input_size", "interpolation", "mean", "std")}
    if augment == "deit":
        return create_transform(**settings, is_training=True, color_jitter=None, auto_augment=_RANDAUGMENT)
    return create_transform(
        **settings,
        is_training=True,
        scale=(0.7, 1.0),
        hflip=0.5 if augment == "flip" else 0.0,
        color_jitter=None,
        auto_augment=None,
    )


def varying_transform(preprocessing: Mapping[str, Any]) -> Any:
    """Create a transform to other views of a picture, like those from which DINO and its kind learn.

    A mirrored crop of 30 to 100 % of the area, with other brightness, contrast and colours, sometimes blurred or grey.
    """
    settings = {k: preprocessing[k] for k in ("input_size", "interpolation", "mean", "std")}
    return create_transform(
        **settings,
        is_training=True,
        scale=(0.3, 1.0),
        color_jitter=(0.4, 0.4, 0.2, 0.1),
        color_jitter_prob=0.8,
        grayscale_prob=0.2,
        gaussian_blur_prob=0.3,
        auto_augment=None,
    )


class TransformedImages(Dataset[tuple[Tensor, int]]):
    """Reads and transforms one image; with a seed, its augmentation depends on that seed and nothing else."""

    def __init__(
        self,
        source: ImageSource,
        references: Sequence[Reference],
        labels: Sequence[int],
        transform: Any,
        reading: Reading,
    ) -> None:
        self.source, self.references, self.labels = source, references, labels
        self.transform, self.reading = transform, reading

    def __len__(self) -> int:
        return len(self.references)

    def __getitem__(self, key: int | tuple[int, int]) -> tuple[Tensor, int]:
        position, seed = (key, None) if isinstance(key, int) else key
        image = self.source.read(self.references[position], self.reading)
        if seed is None:
            return self.transform(image), self.labels[position]
        with seeded(seed):
            return self.transform(image), self.labels[position]


class JoinedImages(Dataset[tuple[Tensor, int]]):
    """The images of two sets, the second's positions after the first's."""

    def __init__(self, first: TransformedImages, second: TransformedImages) -> None:
        self.first, self.second = first, second

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        position, seed = key
        beyond = position - len(self.first)
        return self.first[position, seed] if beyond < 0 else self.second[beyond, seed]


class VariedImages(Dataset[tuple[Tensor, int]]):
    """Images as they are, and varied by their seeds where these are not None."""

    def __init__(self, plain: TransformedImages, varied: TransformedImages, seeds: Sequence[int | None]) -> None:
        self.plain, self.varied, self.seeds = plain, varied, seeds

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        seed = self.seeds[position]
        return self.plain[position] if seed is None else self.varied[position, seed]
