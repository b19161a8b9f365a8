"""How images are prepared for an ONNX file: as options say, else its metadata, else the JSON files that lie beside it.

timm's releases have `config.json` with `pretrained_cfg`, transformers' have `preprocessor_config.json`. Nothing is
guessed: what none of them says is asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import floor, nextafter
from pathlib import Path
from typing import Any

from edgevit.errors import CheckpointError, OptionError
from edgevit.folder.documents import Reader
from edgevit.folder.model import Preprocessing
from edgevit.folder.reading import READING

READER = Reader(CheckpointError, mend="mend the file, or move it away and give the options")
NEEDED = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
PARTS = (*NEEDED, *READING)
OPTIONS = {part: f"--{part.replace('_', '-')}" for part in PARTS}
EXAMPLES = {"input_size": "3x224x224", "interpolation": "bicubic", "mean": "0.5", "std": "0.5", "crop_pct": "0.9"}
RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # Pillow's numbers, as transformers has them
USUAL_RESCALE = 1 / 255
SQUASHING = ("ViT", "DeiT", "Beit")  # image processors that take a single number for both sides

Said = Mapping[str, Any]


def _of_timm(config: Said) -> Said:
    found = config.get("pretrained_cfg")
    return {part: found[part] for part in PARTS if part in found} if isinstance(found, dict) else {}


def _sides(size: Any) -> tuple[int, int] | None:
    """Height and width of a size that has both."""
    sides = (size.get("height"), size.get("width")) if isinstance(size, dict) else (size, size)
    height, width = (side if type(side) is int and side > 0 else None for side in sides)
    return None if height is None or width is None else (height, width)


def _geometry(config: Said) -> Said:
    """Resizing and cropping, where they are of a kind that timm has, too."""
    size, kind = (
        config.get("size"),
        str(config.get("image_processor_type") or config.get("feature_extractor_type") or ""),
    )
    if not config.get("do_resize", True) or (isinstance(size, int) and not kind.startswith(SQUASHING)):
        return {}
    short = size.get("shortest_edge") if isinstance(size, dict) else None
    resized = _sides(size if short is None else short)
    final = _sides(config.get("crop_size")) if config.get("do_center_crop", "crop_size" in config) else resized
    if resized is None or final is None:
        return {}
    share = final[0] / resized[0]
    if floor(final[0] / share) < resized[0]:  # as timm resizes by it: 224 / (224 / 400) is less than 400
        share = nextafter(share, 0)
    if not 0 < share <= 1 or [floor(side / share) for side in final] != list(resized):
        return {}
    return {"input_size": [3, *final], "crop_pct": share, "crop_mode": "squash" if short is None else "center"}


def _of_transformers(config: Said) -> Said:
    said = dict(_geometry(config))
    number = config.get("resample")
    if type(number) is int and 0 <= number < len(RESAMPLE):
        said["interpolation"] = RESAMPLE[number]
    scale = config.get("rescale_factor", USUAL_RESCALE) if config.get("do_rescale", True) else 1.0
    if isinstance(scale, float) and abs(scale / USUAL_RESCALE - 1) < 1e-3:
        normalised = config.get("do_normalize", True)
        for part, own, without in (("mean", "image_mean", 0.0), ("std", "image_std", 1.0)):
            value = config.get(own) if normalised else without
            if value is not None:
                said[part] = value if isinstance(value, list) else [value] * 3
    return said


BESIDE: tuple[tuple[str, Callable[[Said], Said]], ...] = (
    ("config.json", _of_timm),
    ("preprocessor_config.json", _of_transformers),
)


def _of_metadata(metadata: Mapping[str, str]) -> Said:
    try:
        return READER.parse(metadata.get("preprocessing", "{}"), dict[str, Any], "metadata")
    except CheckpointError:
        return {}  # somebody else's key of that name


def stated_preprocessing(file: Path, metadata: Mapping[str, str], given: Said) -> tuple[dict[str, Any], dict[str, str]]:
    """Gather the preprocessing, and for each part of it where it comes from.

    Images are cropped at the centre where only how much of them is said.

    Raises:
        OptionError: something is said by nobody; all of that is named.
        CheckpointError: a file beside the model is damaged, or says what cannot be.
    """
    said: dict[str, Any] = {}
    origin: dict[str, str] = {}
    sources: list[tuple[str, Said]] = [
        ("given", given),
        (f"as the metadata of {file.name} says", _of_metadata(metadata)),
    ]
    for name, read in BESIDE:
        if (beside := file.parent / name).is_file():
            sources.append((f"as {name} beside it says", read(READER.json(beside, dict[str, Any]))))
    for where, parts in sources:
        for part in PARTS:
            if part not in said and parts.get(part) is not None:
                said[part], origin[part] = parts[part], where
    if "crop_pct" in said and "crop_mode" not in said:
        said["crop_mode"], origin["crop_mode"] = "center", "the usual"
    missing = [part for part in NEEDED if part not in said]
    if missing:
        asked = [f"{OPTIONS[part]} {EXAMPLES[part]}" for part in missing if part in EXAMPLES]
        raise OptionError(
            f"nothing says how images are prepared for {file.name}: {', '.join(missing)} missing; give what it was "
            f"trained with, such as {' '.join(asked)}"
        )
    plain = {part: list(v) if isinstance(v, tuple) else v for part, v in said.items()}
    plain = READER.checked(plain, Preprocessing, f"the preprocessing of {file.name}").plain()
    return {part: list(v) if isinstance(v, tuple) else v for part, v in plain.items()}, origin
