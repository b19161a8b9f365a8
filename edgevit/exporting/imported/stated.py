"""Collect the preprocessing of an ONNX file: from options, else from its metadata, else from JSON files in its folder.

Releases of timm have `config.json` with `pretrained_cfg`, those of transformers `preprocessor_config.json` or
`processor_config.json`. For a classifier a missing part is an error that names its option. For features and maps, whose
files are judged by how far they agree with the original, ImageNet's is assumed, and the document says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from edgevit.errors import CheckpointError, OptionError
from edgevit.records.kinds import plain
from edgevit.records.model import PreprocessingFields, TimmPreprocessing
from edgevit.records.reading import READING
from edgevit.records.release import PREPROCESSING_KEYS, READER, ReleaseFacts

_PARTS = (*PREPROCESSING_KEYS, *READING)
_OPTIONS = {part: f"--{part.replace('_', '-')}" for part in _PARTS}
_EXAMPLES = {"input_size": "3x224x224", "interpolation": "bicubic", "mean": "0.5", "std": "0.5", "crop_pct": "0.9"}
ASSUMED = "assumed, as nothing states it"
_USUAL = {
    "interpolation": "bicubic", "mean": list(IMAGENET_DEFAULT_MEAN), "std": list(IMAGENET_DEFAULT_STD), "crop_pct": 1.0,
}  # fmt: skip

_Values = Mapping[str, Any]


def _of_metadata(metadata: Mapping[str, str]) -> _Values:
    try:
        return READER.parse(metadata.get("preprocessing", "{}"), dict[str, Any], "metadata")
    except CheckpointError:
        return {}  # metadata of another program


def stated_preprocessing(
    file: Path,
    metadata: Mapping[str, str],
    options: _Values,
    release: ReleaseFacts,
    of_models: _Values = MappingProxyType({}),
    assumes: bool = False,
) -> tuple[PreprocessingFields, dict[str, str]]:
    """Collect the preprocessing, and the origin of each part of it.

    Images are cropped at the centre if only `crop_pct` is stated. `of_models` has what derived models read, which a
    ready-made model reads too where nothing else is stated. With `assumes`, missing parts are ImageNet's but the size.

    Raises:
        OptionError: parts are missing; the message names all of them.
        CheckpointError: a file in the folder is damaged, or has invalid values.
    """
    preprocessing: PreprocessingFields = {}
    origin: dict[str, str] = {}
    sources: list[tuple[str, _Values]] = [
        ("given", options),
        (f"by the metadata of {file.name}", _of_metadata(metadata)),
    ]
    for name in dict.fromkeys(release.origin.values()):
        parts_of_file = {part: value for part, value in release.preprocessing.items() if release.origin[part] == name}
        sources.append((f"by {name}", parts_of_file))
    sources.append(("as the derived models", of_models))
    if assumes:
        sources.append((ASSUMED, _USUAL))
    for source, parts in sources:
        for part in _PARTS:
            if part not in preprocessing and parts.get(part) is not None:
                preprocessing[part], origin[part] = parts[part], source
    if "crop_pct" in preprocessing and "crop_mode" not in preprocessing:
        preprocessing["crop_mode"], origin["crop_mode"] = "center", "by default"
    missing = [part for part in PREPROCESSING_KEYS if part not in preprocessing]
    if missing:
        examples = [f"{_OPTIONS[part]} {_EXAMPLES[part]}" for part in missing if part in _EXAMPLES]
        raise OptionError(
            f"the preprocessing of {file.name} is not stated: {', '.join(missing)} missing; give that of its "
            f"training, such as {' '.join(examples)}"
        )
    checked = READER.checked(plain(preprocessing), TimmPreprocessing, f"the preprocessing of {file.name}")
    return plain(checked.plain()), origin
