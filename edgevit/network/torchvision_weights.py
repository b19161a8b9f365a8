"""Networks by torchvision's names: which of timm's they are, the files of their weights, and how these read images."""

from __future__ import annotations

import re
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import torch
from torchvision.models import WeightsEnum, get_model_weights

from edgevit.errors import CheckpointError, UnknownNameError
from edgevit.network.weights import first_line
from edgevit.records.model import PreprocessingFields

TORCHVISION_NAMES = {
    "vit_b_16": "vit_base_patch16_224", "vit_b_32": "vit_base_patch32_224", "vit_l_16": "vit_large_patch16_224",
    "vit_l_32": "vit_large_patch32_224", "vit_h_14": "vit_huge_patch14_224",
    "swin_t": "swin_tiny_patch4_window7_224", "swin_s": "swin_small_patch4_window7_224",
    "swin_b": "swin_base_patch4_window7_224",
}  # fmt: skip
_SERVER_S = 5  # timeout of torchvision's server


def torchvision_network(name: str) -> tuple[str, type[WeightsEnum], WeightsEnum | None] | None:
    """timm's name of a network that is called as in torchvision, its weights, and those that are named.

    Such names are vit_b_16, ViT_B_16_Weights.DEFAULT and swin_t.IMAGENET1K_V1; of other names it is None.

    Raises:
        UnknownNameError: torchvision has no such weights of the network.
    """
    network, _, entry = name.partition(".")
    network = network.lower().removesuffix("_weights")
    if network not in TORCHVISION_NAMES:
        return None
    weights = get_model_weights(network)
    if entry and entry not in weights.__members__:
        raise UnknownNameError("weights", entry, weights.__members__, owner=f"torchvision's {network}")
    return TORCHVISION_NAMES[network], weights, weights[entry] if entry else None


def weights_in(file: Path) -> WeightsEnum | None:
    """torchvision's weights whose file has this name; None: it has none."""
    every = (weights for network in TORCHVISION_NAMES for weights in get_model_weights(network))
    return next((weights for weights in every if _file_name(weights) == file.name), None)


def weights_preprocessing(weights: WeightsEnum) -> PreprocessingFields:
    """How images are prepared for these weights, as timm names it."""
    images: Any = weights.transforms()
    (crop,), (resized,) = images.crop_size, images.resize_size
    interpolation = images.interpolation.value
    return {"mean": images.mean, "std": images.std, "crop_pct": crop / resized, "interpolation": interpolation}


def downloaded(weights: WeightsEnum) -> Path:
    """The file of these weights in torch's cache; it is downloaded if it is not there.

    Raises:
        CheckpointError: it cannot be downloaded.
    """
    file = Path(torch.hub.get_dir()) / "checkpoints" / _file_name(weights)
    if not file.is_file():
        digest = re.search(r"-([0-9a-f]+)\.", file.name)
        try:
            urlopen(Request(weights.url, method="HEAD"), timeout=_SERVER_S).close()
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(weights.url, str(file), digest and digest[1], progress=False)
        except (OSError, HTTPException, RuntimeError) as error:  # RuntimeError: it has another hash
            raise CheckpointError(
                f"cannot download {weights.url}: {first_line(error, 100)}; is there a network? Otherwise download the "
                "file elsewhere and give it with --checkpoint"
            ) from error
    return file


def _file_name(weights: WeightsEnum) -> str:
    return str(weights.url.rpartition("/")[2])
