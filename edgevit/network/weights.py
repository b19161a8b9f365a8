"""Read files of weights without executing code in them, and load them into a network.

Names of other programs are converted by a family (`Family.named`).
"""

from __future__ import annotations

import argparse
import pickle
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, nextafter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models import clean_state_dict
from torch import Tensor, nn

from edgevit.errors import CheckpointError
from edgevit.records.names import suffix_of
from edgevit.records.release import refuse_lfs_pointer, shards_of
from edgevit.text import shortened

State = dict[str, Tensor]
TimmArguments = dict[str, Any]  # keyword arguments for timm's `create_model`: each network has its own

# -- files -------------------------------------------------------------------------------------------------------------

# Errors of torch's and safetensors' readers, and of timm's models, for invalid files or arguments.
FOREIGN = (
    SafetensorError, OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError, AttributeError,
    AssertionError, ArithmeticError, MemoryError, struct.error,
)  # fmt: skip

# Keys under which training programs store weights, in order of preference: averages over the training come first, as
# in timm.
_AVERAGED = ("state_dict_ema", "model_ema")
_WRAPPINGS = (*_AVERAGED, "state_dict", "model", "model_state_dict", "teacher")


def first_line(error: BaseException, length: int) -> str:
    """The first line of an error, in at most `length` characters."""
    lines = str(error).strip().splitlines()
    return lines[0][:length].rstrip() if lines else type(error).__name__


def mlp_ratio(neurons: int, width: int) -> float:
    """The argument by which timm, which rounds down, makes an FFN of so many neurons at an embedding of this width."""
    ratio = neurons / width if int(width * (neurons / width)) == neurons else nextafter(neurons / width, inf)
    return int(ratio) if ratio == int(ratio) else ratio


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors of reading a file of weights to CheckpointError.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        yield
    except FileNotFoundError:
        raise CheckpointError(f"no weights at {path}; check the path") from None
    except pickle.UnpicklingError as error:
        name = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
        file, plain = repr(str(path)), repr(str(path.with_name(f"{path.stem}.weights.pth")))
        raise CheckpointError(
            f"{path} is a pickle with more than plain weights{f' ({name[1]})' if name else ''} and was not opened; "
            f"where the model was saved whole, and only if you trust the file, run this in Python and give what it "
            f"writes: import torch; torch.save(torch.load({file}, 'cpu', weights_only=False).state_dict(), {plain})"
        ) from error
    except FOREIGN as error:
        raise CheckpointError(
            f"cannot read {path}: {first_line(error, 120)}; it may be truncated: copy or download it again"
        ) from error


def read_weights(path: Path, say: Callable[[str], None] = lambda text: None) -> State:
    """Read plain weights from safetensors or from a checkpoint of data only, without renaming them.

    A common prefix of all names, such as `model.`, is removed. If a file has two sets of weights, `say` is called with
    the selected one.

    Raises:
        CheckpointError: missing, truncated, or a pickle that is not plain weights.
    """
    if not path.is_file():
        raise CheckpointError(f"no weights at {path}; check the path")
    state = _read_shards(path) if suffix_of(path) == ".json" else _unwrapped(_read(path), path, say)
    are_tensors = isinstance(state, dict) and all(
        isinstance(n, str) and isinstance(v, Tensor) for n, v in state.items()
    )
    if not are_tensors or not state:
        keys = f" of {shortened(first_names([*map(repr, state)]), 100)}" if state and isinstance(state, dict) else ""
        raise CheckpointError(
            f"{path} does not contain plain weights, but a {type(state).__name__}{keys}; save `model.state_dict()`, "
            "best as safetensors"
        )
    for name, value in state.items():
        if (strange := _strange_values(name, value)) is not None:
            raise CheckpointError(
                f"{path}: {name} is {strange}, and weights are floating-point numbers, each of which is stored; save "
                "the `state_dict()` of the model that it was made of"
            )
    state = clean_state_dict(state)
    prefix = common_prefix(state)
    return {name.removeprefix(prefix): value for name, value in state.items()}


def _read(path: Path) -> Any:
    with reading(path):
        is_safetensors = _is_safetensors(path)
    with reading(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warnings about old formats
        return load_file(path) if is_safetensors else _load_data(path)


def _read_shards(index: Path) -> State:
    """The weights of all shards of an index.

    Raises:
        CheckpointError: a shard is missing, or has other weights than the index lists.
    """
    state: State = {}
    for shard, names in shards_of(index).items():
        if not shard.is_file():
            raise CheckpointError(f"{shard}, which {index.name} lists, is missing; copy the folder again")
        part = _read(shard)
        if not isinstance(part, dict) or part.keys() != {*names}:
            raise CheckpointError(f"{shard} has other weights than {index.name} lists; copy the folder again")
        state |= part
    return state


def _load_data(path: Path) -> Any:
    """Read a file of torch that contains only data, with other data of training programs.

    These are the options of a training, as in timm's train.py, and NumPy's numbers and arrays, such as the best
    accuracy.
    """
    # Opened here, as torch would treat a file named so as safetensors.
    with path.open("rb") as file, torch.serialization.safe_globals([argparse.Namespace, *_of_numpy()]):
        return torch.load(file, "cpu", weights_only=True)


def _of_numpy() -> list[Any]:
    """Functions in pickles of NumPy's numbers and arrays, under the names of NumPy 1 and 2."""
    calls: list[Any] = [np.float64(0).__reduce__()[0], np.zeros(0).__reduce__()[0]]
    kinds = {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?SU"}
    modules = ("numpy.core.multiarray", "numpy._core.multiarray")
    named = [(call, f"{module}.{call.__name__}") for call in calls for module in modules]
    return [np.ndarray, np.dtype, *kinds, *named]


def _unwrapped(content: Any, path: Path, say: Callable[[str], None]) -> Any:
    """The weights in the file of a training program."""
    for _ in _WRAPPINGS:  # they may be nested
        keys = [key for key in _WRAPPINGS if content.get(key) is not None] if isinstance(content, dict) else []
        if not keys:
            break
        key, weights = keys[0], content[keys[0]]
        others = [str(k) for k in content if k != key and 2 * _tensors_in(content[k]) > _tensors_in(weights)]
        if others:
            usage = ", averaged over the training, is used, as by timm," if key in _AVERAGED else " is used,"
            say(
                f"{path} has {len(others) + 1} sets of weights: {key}{usage} and not {first_names(others)}; to use "
                "those, save them alone"
            )
        content = weights
    return content


def _tensors_in(content: Any) -> int:
    """How many tensors a dict holds, or a dict in it, such as an average beside its decay; not those of optimisers."""
    values = [*content.values()] if isinstance(content, dict) else []
    inner = [value for part in values if isinstance(part, dict) for value in part.values()]
    return sum(isinstance(value, Tensor) for value in [*values, *inner])


def common_prefix(names: Iterable[str]) -> str:
    """The modules that all names begin with, and a dot, such as training programs add by wrapping a module."""
    prefix, names = "", [*names]
    while names and all("." in name for name in names) and len({name.partition(".")[0] for name in names}) == 1:
        prefix += names[0].partition(".")[0] + "."
        names = [name.partition(".")[2] for name in names]
    return prefix


def _is_safetensors(path: Path) -> bool:
    """Recognise the format by the first bytes, not by the name; torch would treat a text as a dangerous pickle.

    Raises:
        CheckpointError: it is not a file of weights.
    """
    with path.open("rb") as file:
        begins = file.read(9)
    # Safetensors begin with the length of their header, which may look like a pickle, but is less than the file size.
    if begins[8:] == b"{" and int.from_bytes(begins[:8], "little") < path.stat().st_size:
        return True
    refuse_lfs_pointer(path)
    if begins.startswith(b"PK"):
        _refuse_other_zip(path)
    if begins.startswith((b"PK", b"\x80")):  # a zip, or a pickle
        return False
    named = path.suffix == ".safetensors"
    if begins and not named and begins[8:] != b"{":  # after the length of its header
        raise CheckpointError(f"{path} is not a file of weights; give safetensors, or a file of `torch.save`")
    return named or bool(begins)


def _refuse_other_zip(path: Path) -> None:
    """Raise CheckpointError for a valid zip that `torch.save` did not write."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
            damaged = _damaged(archive) if "data.pkl" in names and "constants.pkl" not in names else None
    except (zipfile.BadZipFile, RuntimeError, ValueError, LookupError):
        return  # torch reports the fault
    if damaged is not None:
        raise CheckpointError(f"{path} was altered: the checksum of {damaged} does not fit; copy or download it again")
    if "constants.pkl" in names:
        raise CheckpointError(
            f"{path} is TorchScript, a program with its weights; save those alone: "
            "`torch.save(torch.jit.load(FILE).state_dict(), ...)`"
        )
    if "data.pkl" not in names:
        reads = "; timm's `create_model(NAME, checkpoint_path=FILE)` reads those of Google's ViT, and its"
        raise CheckpointError(
            f"{path} is a zip without weights of torch"
            + (f"{reads} `state_dict()` can be saved" if path.suffix == ".npz" else "; give a file of `torch.save`")
        )


def _damaged(archive: zipfile.ZipFile) -> str | None:
    """The first record of a zip with a wrong checksum; None: all are right, or torch wrote zeros as checksums."""
    if not any(record.CRC for record in archive.infolist()):
        return None
    try:
        return archive.testzip()
    except (zipfile.BadZipFile, zlib.error):
        return "its records"


def _strange_values(name: str, value: Tensor) -> str | None:
    """Describe a tensor whose values are not weights, such as a quantised one; None: they may be."""
    if value.is_quantized:
        return "quantised"
    if value.is_meta:
        return "of shape and type alone"
    if value.layout != torch.strided:
        return f"of layout {str(value.layout).removeprefix('torch.')}"
    if value.is_complex() or (not value.is_floating_point() and name.endswith((".weight", ".bias"))):
        return f"of {str(value.dtype).removeprefix('torch.')}"  # others, such as counts of batches, are accepted
    return None


@dataclass(frozen=True)
class Weights:
    """The weights of a file, in fp32 and with timm's names, except the registers of DINOv2."""

    state: State
    notes: tuple[str, ...] = ()  # messages about the conversion
    classes: int = 0  # rows of the classifier; 0: there is none
    origin: str = "timm"  # program whose names the file has: timm, transformers, torchvision, mmdetection or DINOv2
    # Preprocessing settings that all weights of this origin share.
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    is_tower: bool = False  # whether of a CLIP or SigLIP of transformers: no shape and no name tells its activation


# -- a network --------------------------------------------------------------------------------------------------------


def first_names(names: Sequence[str], limit: int = 3) -> str:
    """The first names, and the number of the others."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def misfit(network: nn.Module, state: Mapping[str, Tensor], limit: int = 3) -> str | None:
    """How weights differ from a network's in at most `limit` names or a shape, as the end of a sentence; None: not."""
    expected = network.state_dict()
    missing, unexpected = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if missing or unexpected:
        lacks = [f"lacks {first_names(missing, limit)}"] * bool(missing)
        return "it " + " and ".join([*lacks, *[f"has unknown {first_names(unexpected, limit)}"] * bool(unexpected)])
    for key, value in expected.items():
        if value.shape != state[key].shape:
            return f"{key} is {list(state[key].shape)}, expected {list(value.shape)}"
    return None


def fill_network(network: nn.Module, state: Mapping[str, Tensor], path: Path, name: str) -> None:
    """Load weights into a network, which may be on the meta device.

    Raises:
        CheckpointError: names or shapes differ, so the weights are of another architecture; or some are not finite.
    """
    if (fault := misfit(network, state)) is not None:
        raise CheckpointError(
            f"{path} does not fit {name}: {fault}; check the name of the base and --model-arg (img_size, patch_size, "
            "num_classes)"
        )
    for key, value in state.items():
        if value.is_floating_point() and value.numel() and not bool(torch.isfinite(torch.stack(value.aminmax())).all()):
            count = int((~torch.isfinite(value)).sum())
            raise CheckpointError(
                f"{path}: {key} has {count} values of {value.numel()} that are NaN or infinite; take weights from "
                "before the training went wrong, or derive the model again"
            )
    network.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in state.items()}, assign=True)
