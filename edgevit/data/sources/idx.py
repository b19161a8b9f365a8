"""A folder of IDX files, the format of MNIST, Fashion-MNIST and EMNIST: grey images and their labels in pairs of files.

A pair is `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, also with a dot before idx and with .gz behind; the
test part says `t10k` or `test` in place of `train`. The format has no names of classes; a class is named by its label.

torchvision's readers need torch, fixed names of folder and files, and both parts, and fail on damage by an assertion.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from pathlib import Path

from PIL import Image

from edgevit.data.sources import Part, Reference
from edgevit.errors import DataError
from edgevit.records.reading import AS_STORED, Reading

_NAME = re.compile(r"(?P<before>.*?)(?P<kind>images|labels)[-.]idx[13]-ubyte(\.gz)?")
_PARTS: dict[str, Part] = {"train": "train", "t10k": "test", "test": "test"}
_DIMENSIONS = {"images": 3, "labels": 1}
_UNSIGNED_BYTE = 0x08  # the type code of images and labels
_AGAIN = "copy or unpack it again"

_Pair = dict[str, Path]  # the file of "images" and that of "labels"


def _part(before: str) -> Part | None:
    return next((part for word, part in _PARTS.items() if word in before.lower()), None)


def _find_pairs(folder: Path) -> dict[tuple[str, Part], _Pair]:
    """List the pairs of files in a folder, complete or not; a plain file is preferred to the same as .gz."""
    pairs: dict[tuple[str, Part], _Pair] = {}
    for file in sorted(folder.iterdir(), reverse=True):  # .gz first, so that a plain file replaces it
        match = _NAME.fullmatch(file.name)
        if match and file.is_file() and (part := _part(match["before"])):
            pairs.setdefault((match["before"], part), {})[match["kind"]] = file
    return pairs


def _folder(data: str) -> Path | None:
    folders = (Path(data), Path(data) / "raw")  # where torchvision puts them
    return next((folder for folder in folders if folder.is_dir() and _find_pairs(folder)), None)


def _pairs(folder: Path) -> dict[Part, _Pair]:
    """Find the pair of each part.

    Raises:
        DataError: a pair lacks a file, there is no training part, or a part has several pairs.
    """
    pairs: dict[Part, _Pair] = {}
    for (before, part), pair in sorted(_find_pairs(folder).items()):
        for kind, partner in (("images", "labels"), ("labels", "images")):
            if kind not in pair:
                expected = f"{before}{kind}-idx{_DIMENSIONS[kind]}-ubyte"
                raise DataError(f"{pair[partner]} has no {expected} beside it; add it, plain or as .gz")
        if part in pairs:
            names = f"{pairs[part]['images'].name} and {pair['images'].name}"
            raise DataError(f"{folder} holds two data sets, {names}; give a folder with the files of one")
        pairs[part] = pair
    if "train" not in pairs:
        raise DataError(f"{folder} has a test part and no train-images-idx3-ubyte; add it and its labels")
    return pairs


def _load(file: Path, kind: str) -> tuple[tuple[int, ...], bytes]:
    """Read the shape and the values of one file, in C order."""
    try:
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {file}: {error}; {_AGAIN}") from error
    dimensions = _DIMENSIONS[kind]
    expected = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    start = 4 + 4 * dimensions  # offset of the values
    if content[:4] != expected or len(content) < start:
        header = content[:4].hex(" ") or "nothing"
        raise DataError(f"{file} begins with {header}, expected {expected.hex(' ')} for {kind} of bytes; {_AGAIN}")
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if len(content) - start != math.prod(shape) or not all(shape):
        size = " x ".join(map(str, shape))
        raise DataError(f"{file} says it holds {size} bytes and holds {len(content) - start}; {_AGAIN}")
    return shape, content[start:]


def _labels(pair: _Pair) -> bytes:
    return _load(pair["labels"], "labels")[1]


class Idx:
    files = False

    def __init__(self, folder: Path) -> None:
        import numpy as np

        pairs = _pairs(folder)
        self.parts: tuple[Part, ...] = tuple(pairs)
        self.labels = {part: np.frombuffer(_labels(pair), np.uint8) for part, pair in pairs.items()}
        self.class_names = _names(pairs)
        self.images = {}
        for part, pair in pairs.items():
            shape, values = _load(pair["images"], "images")
            if shape[0] != len(self.labels[part]):
                counts = f"{shape[0]} images, and {pair['labels'].name} {len(self.labels[part])} labels"
                raise DataError(f"{pair['images']} holds {counts}; put the two that belong together in one folder")
            self.images[part] = np.frombuffer(values, np.uint8).reshape(shape)
        self.first_test = len(self.labels["train"])  # references of test images begin here

    def references(self, part: Part, class_name: str) -> list[Reference]:
        import numpy as np

        first = self.first_test if part == "test" else 0
        return [first + int(i) for i in np.flatnonzero(self.labels[part] == int(class_name))]

    def read(self, reference: Reference, reading: Reading = AS_STORED) -> Image.Image:
        at = int(reference)
        test = at >= self.first_test
        images = self.images["test" if test else "train"]
        return Image.fromarray(images[at - self.first_test if test else at]).convert("RGB")


def _names(pairs: dict[Part, _Pair]) -> tuple[str, ...]:
    return tuple(str(label) for label in sorted(set(_labels(pairs["train"]))))


def matches(data: str) -> bool:
    return _folder(data) is not None


def class_names(data: str) -> tuple[str, ...]:
    folder = _folder(data)
    assert folder is not None
    return _names(_pairs(folder))


def open_source(data: str) -> Idx:
    folder = _folder(data)
    assert folder is not None
    return Idx(folder)
