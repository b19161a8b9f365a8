"""From a picture to an input of a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from edgevit.records.reading import transform_settings

if TYPE_CHECKING:
    from torch import Tensor

CORNER = "corner"  # a crop mode: scaled to fit, and padded on the right and below, as detectors do


def image_transform(preprocessing: Mapping[str, Any]) -> Callable[[Image], Tensor]:
    """The evaluation transform, from a PIL image in RGB to an input [C, H, W]: timm's, or that of a detector."""
    from timm.data import create_transform

    settings = transform_settings(preprocessing)
    if settings.get("crop_mode") == CORNER:
        return _Corner(preprocessing)
    transform: Callable[[Image], Tensor] = create_transform(**settings, is_training=False)
    return transform


def fitted_size(height: int, width: int, room: tuple[int, int]) -> tuple[int, int]:
    """The height and width of a picture that is scaled to fit into those of `room`."""
    scale = min(room[0] / height, room[1] / width)
    return max(round(height * scale), 1), max(round(width * scale), 1)


class _Corner:
    """What `Letterbox` does: torchvision's detectors resize without antialiasing, and pad after they normalise."""

    def __init__(self, preprocessing: Mapping[str, Any]) -> None:
        height, width = preprocessing["input_size"][1:]
        self.room: tuple[int, int] = (height, width)
        self.mean, self.std = (list(preprocessing[name]) for name in ("mean", "std"))

    def __call__(self, picture: Image) -> Tensor:
        from torchvision.transforms.functional import normalize, pad, resize, to_tensor

        height, width = fitted_size(picture.height, picture.width, self.room)
        image = resize(to_tensor(picture), [height, width], antialias=False)
        padded: Tensor = pad(normalize(image, self.mean, self.std), [0, 0, self.room[1] - width, self.room[0] - height])
        return padded
