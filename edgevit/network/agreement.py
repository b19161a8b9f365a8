"""Refuse weights that `config.json` beside them contradicts, or the name that is given with them, by their sizes."""

from __future__ import annotations

import shlex
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import timm
from torch import nn

from edgevit.errors import CheckpointError
from edgevit.network.families import Family, name_of
from edgevit.network.weights import TimmArguments, Weights
from edgevit.records.release import CONFIG, READER, ReleaseFacts

# Sizes that timm's name of a network says; others depend on the images and the classes of the training.
_OF_NAME = ("patch_size", "embed_dim", "depth", "mlp_ratio", "depths", "num_heads", "window_size")
# transformers' kinds of networks whose blocks have a LayerScale.
_WITH_LAYER_SCALE = ("dinov2", "dinov2_with_registers", "dinov3_vit")


def check_name(
    release: ReleaseFacts,
    name: str,
    usual: nn.Module,
    family: Family,
    weights: Weights,
    file: Path,
    args: Container[str],
) -> None:
    """Check that a name that was given is of the network that config.json and the weights beside it are of.

    Weights whose network no config.json names may have any sizes: the name then says what computes the same.

    Args:
        name: timm's, of a network of the family; or transformers' name of a kind, which says no sizes.
        usual: the network of that name.
        weights: under the family's names, of this file.
        args: arguments that options set, which take precedence.

    Raises:
        CheckpointError: the weights are of another family, or have other sizes than the name says.
    """
    interchange = family.interchange
    is_known = release.model_type is not None or timm.is_model(release.architecture or "")
    if not is_known or _is_stated(name, release):
        return
    begin, alone = f"{name} is not the network in {release.folder}", f"give {file} alone as BASE"
    if interchange.guessed_name(weights.state) is None:
        raise CheckpointError(f"{begin}: its weights are not of the family {name_of(family)}; {alone}")
    own = {**interchange.stated_arguments(usual), **interchange.shape_arguments(usual.state_dict())}
    found = {**release.arguments, **interchange.shape_arguments(weights.state)}
    says = () if name in interchange.model_types else _OF_NAME
    compared = [key for key in says if key in own and key in found and key not in args]
    if others := {key: found[key] for key in compared if found[key] != own[key]}:
        faults = "; ".join(f"{key} is {own[key]}, there {value}" for key, value in others.items())
        raise CheckpointError(f"{begin}: {faults}; {alone}, or {_options(others)} for the weights as they are")


def check_sizes(
    release: ReleaseFacts, name: str, family: Family, weights: Weights, shapes: TimmArguments, args: Container[str]
) -> None:
    """Check the kind of network and the sizes that config.json states.

    Args:
        name: timm's, of a network of the family.
        weights: under the family's names.
        shapes: timm's arguments that the shapes of the weights say.
        args: arguments that options set, which take precedence.

    Raises:
        CheckpointError: the weights have others.
    """
    file, kind = release.folder / CONFIG, release.model_type
    if kind is not None and kind not in family.interchange.model_types:
        raise CheckpointError(
            f"{file} contradicts the weights: model_type is {kind}, and they are of the family {name_of(family)}, of "
            f"which edgevit reads {', '.join(family.interchange.model_types)}; {READER.hint}"
        )
    has_scale = shapes.get("init_values") is not None
    if kind is not None and (kind in _WITH_LAYER_SCALE) != has_scale:
        raise CheckpointError(
            f"{file} contradicts the weights: model_type is {kind}, and they have {'a' if has_scale else 'no'} "
            f"LayerScale; {READER.hint}"
        )
    if _is_stated(name, release) and family.interchange.guessed_name(weights.state) is None:
        raise CheckpointError(
            f"{file} contradicts the weights: architecture is {name}, and they are not of the family "
            f"{name_of(family)}; {READER.hint}"
        )
    actual = {**shapes, "num_classes": weights.classes}
    faults, hints = [], dict[str, Any]()
    for key, (argument, stated) in release.sizes.items():
        if argument not in actual or argument in args:
            continue
        found = actual[argument]
        if key == "intermediate_size":
            found = round(found * shapes["embed_dim"])
        if not _agree(key, stated, found, shapes):
            faults.append(f"{key} is {stated}, in the weights {found}")
            hints[argument] = actual[argument]
    if faults:
        raise CheckpointError(f"{file} contradicts the weights: {'; '.join(faults)}; {_as_they_are(hints)}")


def check_architecture(release: ReleaseFacts, name: str, guessed: TimmArguments) -> None:
    """Check that timm's network in config.json, unless an option gives another, has the sizes of the weights.

    Args:
        name: timm's, of the network that is used.
        guessed: timm's arguments by the shapes of the weights, where they differ from that network's.

    Raises:
        CheckpointError: they are of another network.
    """
    differing = {key: value for key, value in guessed.items() if key in _OF_NAME}
    # A single number of heads is assumed; those of stages follow from shapes.
    differences = [
        f"{key} {value}" for key, value in differing.items() if key != "num_heads" or isinstance(value, list)
    ]
    if differences and _is_stated(name, release):
        raise CheckpointError(
            f"{release.folder / CONFIG} contradicts the weights: architecture is {release.architecture}, and they have "
            f"{', '.join(differences)}; {_as_they_are(differing)}"
        )


def _is_stated(name: str, release: ReleaseFacts) -> bool:
    return name.partition(".")[0] == release.architecture


def _as_they_are(arguments: Mapping[str, Any]) -> str:
    return f"correct the one that is wrong, or give {_options(arguments)} for the weights as they are"


def _options(arguments: Mapping[str, Any]) -> str:
    return " ".join(f"--model-arg {shlex.quote(f'{key}={value}')}" for key, value in arguments.items())


def _agree(key: str, stated: Any, found: Any, shapes: TimmArguments) -> bool:
    if key.endswith(("image_size", "img_size", "input_size")):
        # Positions of 4 x 6 patches and a class token may have been read as those of 5 x 5 patches.
        prefix = shapes["class_token"] + shapes["reg_tokens"]
        return abs(_patches(stated, shapes) - _patches(found, shapes)) in (0, prefix)
    if key == "patch_size":
        return _sides(stated) == _sides(found)
    if key == "mlp_ratio":  # widths are rounded down
        return not isinstance(stated, list) and bool(abs(stated - found) * shapes["embed_dim"] < 1)
    return bool(stated == found)


def _patches(size: Any, shapes: TimmArguments) -> int:
    rows, columns = (side // step for side, step in zip(_sides(size), _sides(shapes["patch_size"]), strict=True))
    return int(rows * columns)


def _sides(size: Any) -> tuple[Any, Any]:
    """Height and width of a size [height, width], with channels before them, or for both."""
    return (size[-2:][0], size[-1]) if isinstance(size, (list, tuple)) else (size, size)
