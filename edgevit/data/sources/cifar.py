"""CIFAR-10 and CIFAR-100 in torchvision's layout: pickled batches, read by an unpickler that allows only arrays.

torchvision's own reader needs torch, and refuses all but the published files, by MD5, without naming the wrong one.
"""

from __future__ import annotations

import io
import pickle
import struct
import warnings
from pathlib import Path
from typing import Any

from PIL import Image

from edgevit.data.sources import Part, Reference
from edgevit.errors import DataError
from edgevit.records.reading import AS_STORED, Reading

# folder: (files of the training part, files of the test part, key of the labels, meta file, key of the names)
_LAYOUTS = {
    "cifar-10-batches-py": (
        [f"data_batch_{i}" for i in range(1, 6)],
        ["test_batch"],
        "labels",
        "batches.meta",
        "label_names",
    ),
    "cifar-100-python": (["train"], ["test"], "fine_labels", "meta", "fine_label_names"),
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer"):
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it wants {module}.{name}, which no CIFAR batch needs")


# What the unpickler and NumPy raise for a truncated or damaged pickle.
_UNREADABLE = (
    pickle.UnpicklingError, OSError, EOFError, ValueError, LookupError, AttributeError, TypeError, OverflowError,
    MemoryError, ImportError, struct.error,
)  # fmt: skip


def _load(path: Path, *keys: str) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns of old forms of data types
            # latin1: the published files were pickled by Python 2.
            loaded = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except FileNotFoundError:
        raise DataError(f"{path} is missing; unpack the CIFAR archive again") from None
    except _UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"cannot read {path}: {reason}; unpack the CIFAR archive again") from error
    if not isinstance(loaded, dict):
        raise DataError(f"{path} holds a {type(loaded).__name__}, expected a dict; unpack the CIFAR archive again")
    if missing := [key for key in keys if key not in loaded]:
        raise DataError(f"{path} has no {missing[0]!r}; unpack the CIFAR archive again")
    return loaded


def _load_batch(path: Path, labels: str) -> tuple[list[int], Any]:
    batch = _load(path, labels, "data")
    shape = getattr(batch["data"], "shape", None)
    if shape != (len(batch[labels]), 3 * 32 * 32):
        raise DataError(
            f"{path} holds {len(batch[labels])} labels and images of shape {shape}, expected one row of 3072 for each; "
            f"unpack the CIFAR archive again"
        )
    return batch[labels], batch["data"]


def _folder(data: str) -> Path | None:
    for folder in (Path(data), *(Path(data) / name for name in _LAYOUTS)):
        if folder.name in _LAYOUTS and folder.is_dir():
            return folder
    return None


def _names(folder: Path) -> tuple[str, ...]:
    _, _, _, meta, names = _LAYOUTS[folder.name]
    return tuple(_load(folder / meta, names)[names])


class Cifar:
    parts: tuple[Part, ...] = ("train", "test")
    files = False

    def __init__(self, folder: Path) -> None:
        import numpy as np

        train, test, labels, _, _ = _LAYOUTS[folder.name]
        self.class_names = _names(folder)
        batches = [[_load_batch(folder / name, labels) for name in part] for part in (train, test)]
        self.first_test = sum(len(of_batch) for of_batch, _ in batches[0])
        everything = batches[0] + batches[1]
        self.labels = np.concatenate([np.asarray(of_batch) for of_batch, _ in everything])
        self.images = np.concatenate([images for _, images in everything]).reshape(-1, 3, 32, 32)

    def references(self, part: Part, class_name: str) -> list[Reference]:
        import numpy as np

        indices = np.flatnonzero(self.labels == self.class_names.index(class_name))
        return [int(i) for i in indices if (i >= self.first_test) == (part == "test")]

    def read(self, reference: Reference, reading: Reading = AS_STORED) -> Image.Image:
        import numpy as np

        return Image.fromarray(np.ascontiguousarray(self.images[int(reference)].transpose(1, 2, 0)))


def matches(data: str) -> bool:
    return _folder(data) is not None


def class_names(data: str) -> tuple[str, ...]:
    folder = _folder(data)
    assert folder is not None
    return _names(folder)


def open_source(data: str) -> Cifar:
    folder = _folder(data)
    assert folder is not None
    return Cifar(folder)
