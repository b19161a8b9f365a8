"""Files of weights, whoever wrote them: read without running what is in them, and put into a network that they fit.

Whose names they have is a family's business (`Family.named`).
"""

from __future__ import annotations

import argparse
import pickle
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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

State = dict[str, Tensor]

# -- files -------------------------------------------------------------------------------------------------------------

# What torch's and safetensors' readers, and timm's model code, raise where a file or an argument is not as they expect.
FOREIGN = (
    SafetensorError, OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError, AttributeError,
    AssertionError, ArithmeticError, MemoryError, struct.error,
)  # fmt: skip

# Where training programs put the weights of a model. Of several the first counts: an average over the training before
# what was trained last, as timm itself takes them.
AVERAGED = ("state_dict_ema", "model_ema")
WRAPPINGS = (*AVERAGED, "state_dict", "model", "model_state_dict", "teacher")


def first_line(error: BaseException, length: int) -> str:
    """What a foreign error says, in at most `length` characters."""
    lines = str(error).strip().splitlines()
    return lines[0][:length].rstrip() if lines else type(error).__name__


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong inside a weights file into one line.

    Raises:
        CheckpointError: it does.
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
    """Read plain weights from safetensors or from a checkpoint that holds nothing but data, under their own names.

    What stands before every name, such as `model.`, is taken off. Which weights were taken where there are two is told
    to `say`.

    Raises:
        CheckpointError: missing, truncated, or a pickle that is not plain weights.
    """
    if not path.is_file():
        raise CheckpointError(f"no weights at {path}; check the path")
    held = _read_shards(path) if suffix_of(path) == ".json" else _unwrapped(_read(path), path, say)
    if not isinstance(held, dict) or not held or not all(_is_weight(*item) for item in held.items()):
        raise CheckpointError(f"{path} does not hold plain weights; save `model.state_dict()`, best as safetensors")
    for name, value in held.items():
        if (strange := _strange_values(name, value)) is not None:
            raise CheckpointError(
                f"{path}: {name} is {strange}, and weights are floating-point numbers, each of which is stored; save "
                "the `state_dict()` of the model that it was made of"
            )
    return _without_prefix(clean_state_dict(held))


def _read(path: Path) -> Any:
    with reading(path):
        is_safetensors = _is_safetensors(path)
    with reading(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's about old formats: the file is opened, or the error says why not
        return load_file(path) if is_safetensors else _load_data(path)


def _read_shards(index: Path) -> State:
    """The weights of all shards that an index lists.

    Raises:
        CheckpointError: a shard is missing, or has other weights than the index says.
    """
    state: State = {}
    for shard, names in shards_of(index).items():
        part = _read(shard)
        if not isinstance(part, dict) or part.keys() != {*names}:
            raise CheckpointError(f"{shard} has other weights than {index.name} lists; copy the folder again")
        state |= part
    return state


def _load_data(path: Path) -> Any:
    """Read what torch wrote: data alone, among it what training programs keep beside weights.

    That is the options of a training, as timm's train.py has them, and NumPy's numbers and arrays, such as the best
    accuracy so far.
    """
    # Open: by its name torch takes a file for safetensors.
    with path.open("rb") as file, torch.serialization.safe_globals([argparse.Namespace, *_of_numpy()]):
        return torch.load(file, "cpu", weights_only=True)


def _of_numpy() -> list[Any]:
    """What a pickle of NumPy's numbers and arrays calls, under the names of NumPy 1 and 2."""
    calls: list[Any] = [np.float64(0).__reduce__()[0], np.zeros(0).__reduce__()[0]]
    kinds = {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?SU"}
    modules = ("numpy.core.multiarray", "numpy._core.multiarray")
    named = [(call, f"{module}.{call.__name__}") for call in calls for module in modules]
    return [np.ndarray, np.dtype, *kinds, *named]


def _unwrapped(held: Any, path: Path, say: Callable[[str], None]) -> Any:
    """The weights among what a training program wrote."""
    for _ in WRAPPINGS:  # they may lie in one another, and a pickle in itself
        found = [name for name in WRAPPINGS if held.get(name) is not None] if isinstance(held, dict) else []
        if not found:
            break
        if found[0] in AVERAGED and len(found) > 1:
            say(
                f"{path} holds weights twice: {found[0]}, averaged over the training, is read, as by timm, and not "
                f"{found[1]}; to have those, save them alone"
            )
        held = held[found[0]]
    return held


def _without_prefix(state: State) -> State:
    """Take off what stands before every name: what a training program calls the module that the network is in."""
    while all("." in name for name in state) and len({name.partition(".")[0] for name in state}) == 1:
        state = {name.partition(".")[2]: value for name, value in state.items()}
    return state


def _is_safetensors(path: Path) -> bool:
    """Tell files by how they begin, whatever they are called; torch would take a text for a dangerous pickle.

    Raises:
        CheckpointError: it is none that holds plain weights.
    """
    with path.open("rb") as file:
        begins = file.read(9)
    # Safetensors begin with the length of their header, which may look like a pickle; no file is as long as one says.
    if begins[8:] == b"{" and int.from_bytes(begins[:8], "little") < path.stat().st_size:
        return True
    refuse_lfs_pointer(path)
    if begins.startswith(b"PK"):
        _refuse_other_zip(path)
    if begins.startswith((b"PK", b"\x80")):  # a zip, or a pickle
        return False
    named = path.suffix == ".safetensors"
    if begins and not named and begins[8:] != b"{":  # behind the length of its header
        raise CheckpointError(f"{path} is no file of weights; give safetensors, or what `torch.save` wrote")
    return named or bool(begins)


def _refuse_other_zip(path: Path) -> None:
    """Raise CheckpointError for a zip that is whole, and not what `torch.save` writes."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
            damaged = _damaged(archive) if "data.pkl" in names and "constants.pkl" not in names else None
    except (zipfile.BadZipFile, RuntimeError, ValueError, LookupError):
        return  # torch says what is wrong with it
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
            f"{path} is a zip of other things than weights of torch's"
            + (f"{reads} `state_dict()` can be saved" if path.suffix == ".npz" else "; give what `torch.save` wrote")
        )


def _damaged(archive: zipfile.ZipFile) -> str | None:
    """The first record of a zip whose checksum does not fit; None: all fit, or torch wrote none, but zeros."""
    if not any(record.CRC for record in archive.infolist()):
        return None
    try:
        return archive.testzip()
    except (zipfile.BadZipFile, zlib.error):
        return "its records"


def _is_weight(name: object, value: object) -> bool:
    return isinstance(name, str) and isinstance(value, Tensor)


def _strange_values(name: str, value: Tensor) -> str | None:
    """What a tensor is whose values are no weights by themselves, such as a quantised one; None: they may be."""
    if value.is_quantized:
        return "quantised"
    if value.is_meta:
        return "of shape and type alone"
    if value.layout != torch.strided:
        return f"of layout {str(value.layout).removeprefix('torch.')}"
    if value.is_complex() or (not value.is_floating_point() and name.endswith((".weight", ".bias"))):
        return f"of {str(value.dtype).removeprefix('torch.')}"  # others, such as counts of batches, are let pass
    return None


@dataclass(frozen=True)
class Weights:
    """What a file has, in fp32 and under timm's names; registers of DINOv2 under its own."""

    state: State
    notes: tuple[str, ...] = ()  # what a person should know of the reading
    classes: int = 0  # rows of the classifier; 0 where there is none
    origin: str = "timm"  # whose names the file has: "timm", "transformers", "torchvision" or "DINOv2"
    preprocessing: Mapping[str, Any] = field(default_factory=dict)  # what that origin always does


# -- a network --------------------------------------------------------------------------------------------------------


def first_names(names: Sequence[str], limit: int = 3) -> str:
    """Some of many names, and how many more there are."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def fill_network(network: nn.Module, state: Mapping[str, Tensor], path: Path, name: str) -> None:
    """Put weights into a network, which may live on the meta device.

    Raises:
        CheckpointError: names or shapes differ: the weights are of another architecture. Or some are no finite numbers.
    """
    own = network.state_dict()
    missing, unexpected = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or unexpected:
        lacks = [f"lacks {first_names(missing)}"] * bool(missing)
        parts = [*lacks, *[f"has unknown {first_names(unexpected)}"] * bool(unexpected)]
        raise CheckpointError(
            f"{path} does not fit {name}: it {' and '.join(parts)}; check the name of the base and --model-arg"
        )
    for key, value in own.items():
        if value.shape != state[key].shape:
            raise CheckpointError(
                f"{path} does not fit {name}: {key} is {list(state[key].shape)}, expected {list(value.shape)}; "
                f"check the name of the base and --model-arg (img_size, patch_size, num_classes)"
            )
    for key, value in state.items():
        if value.is_floating_point() and value.numel() and not bool(torch.isfinite(torch.stack(value.aminmax())).all()):
            count = int((~torch.isfinite(value)).sum())
            raise CheckpointError(
                f"{path}: {key} holds {count} values of {value.numel()} that are NaN or infinite; take weights from "
                "before the training went wrong, or derive the model again"
            )
    network.load_state_dict({k: v.to(torch.float32) for k, v in state.items()}, assign=True)
