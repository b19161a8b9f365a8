"""How images are prepared for an ONNX file: as options say, else its metadata, else the JSON files that lie beside it.

timm's releases have `config.json` with `pretrained_cfg`, transformers' have `preprocessor_config.json`. Nothing is
guessed: what none of them says is asked for by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgevit.errors import CheckpointError, OptionError
from edgevit.records.model import Preprocessing
from edgevit.records.reading import READING
from edgevit.records.release import PARTS as NEEDED
from edgevit.records.release import READER, ReleaseFacts

PARTS = (*NEEDED, *READING)
OPTIONS = {part: f"--{part.replace('_', '-')}" for part in PARTS}
EXAMPLES = {"input_size": "3x224x224", "interpolation": "bicubic", "mean": "0.5", "std": "0.5", "crop_pct": "0.9"}

Said = Mapping[str, Any]


def _of_metadata(metadata: Mapping[str, str]) -> Said:
    try:
        return READER.parse(metadata.get("preprocessing", "{}"), dict[str, Any], "metadata")
    except CheckpointError:
        return {}  # somebody else's key of that name


def stated_preprocessing(
    file: Path, metadata: Mapping[str, str], given: Said, release: ReleaseFacts
) -> tuple[dict[str, Any], dict[str, str]]:
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
    for name in dict.fromkeys(release.origin.values()):
        beside = {part: value for part, value in release.preprocessing.items() if release.origin[part] == name}
        sources.append((f"as {name} beside it says", beside))
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
