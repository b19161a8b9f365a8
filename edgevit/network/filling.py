"""Weights for a module of the user's: of all of it by its own names, or of the one known network in it alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from edgevit.errors import CheckpointError, UnsupportedModelError
from edgevit.network.families import Family, family_names, load_family
from edgevit.network.network import Network
from edgevit.network.weights import State, common_prefix, fill_network, first_names, misfit, read_weights

_BACKBONE = "backbone."  # before the names of a whole detector's backbone, as in mmdetection's files


def network_in(module: nn.Module) -> tuple[str, nn.Module, Family]:
    """The network of a supported family in a module, at any depth, after its name there.

    Raises:
        UnsupportedModelError: there is none, or several.
    """
    if isinstance(module, Network):
        return "module", module.module, module.family
    families = [load_family(name) for name in family_names()]
    networks: dict[str, tuple[nn.Module, Family]] = {}
    for name, part in module.named_modules():
        if any(name.startswith(f"{outer}.") or not outer for outer in networks):
            continue
        for family in families:
            if family.matches(part):
                networks[name] = part, family
    if len(networks) != 1:
        listed = ", ".join(networks) if networks else "none"
        raise UnsupportedModelError(
            f"a {type(module).__name__} must contain one network of {', '.join(family_names())} (timm's "
            "SwinTransformer, VisionTransformer, DeiT or DINOv3, transformers' Swin, ViT, DINOv2, DINOv3, CLIP, "
            "CLIPSeg, SigLIP, OWL-ViT, ViTPose, DPT without convolutions or RF-DETR, with their usual FFNs of two "
            "layers, or "
            f"DINOv2's release), and has {listed}; give the network itself"
        )
    ((name, (network, family)),) = networks.items()
    return name, network, family


def fill_module(
    module: nn.Module, path: Path, base: str, say: Callable[[str], None] = lambda text: None
) -> tuple[nn.Module, bool]:
    """Fill a module with the weights of a file, or the network in it, whose names may be those of other programs.

    Weights of the network alone are those of a file with none that fit the rest. `say` is called with notes on how they
    were read.

    Returns:
        The module, in which the network may have been replaced by one of the same function; and whether that alone was
        filled, so that the rest is as it was made.

    Raises:
        CheckpointError: the weights fit neither, or a part of the rest, too.
        UnsupportedModelError: there is no such network, or several.
    """
    expected, given = module.state_dict(), read_weights(path, say)
    prefix = common_prefix(expected)  # which reading removes
    state = {f"{prefix}{name}": value for name, value in given.items()}
    if state.keys() == expected.keys():
        fill_network(module, state, path, base)
        return module, False
    if (outer := _prefix_of_all(expected, given, path)) is not None:
        fill_network(module, {name: given[f"{outer}{name}"] for name in expected}, path, base)
        others = sorted(given.keys() - {f"{outer}{name}" for name in expected})
        say(f"left out of the weights, as {base} does not use them: {first_names(others)}")
        return module, False
    place, network, family = network_in(module)
    network = family.interchange.adopted(network)
    family.check(network, alone=False)
    noun = place or f"the {type(network).__name__}"
    of_backbone = {name.removeprefix(_BACKBONE): v for name, v in given.items() if name.startswith(_BACKBONE)}
    weights = family.interchange.fitted(family.interchange.named(of_backbone or given), network, noun, resample=True)
    rest = {name: value for name, value in expected.items() if place and not name.startswith(f"{place}.")}
    of_rest = {name: state[name] for name in rest if name in state and state[name].shape == rest[name].shape}
    fault = misfit(network, weights.state, limit=1)
    if fault is None and of_rest and of_rest.keys() != rest.keys():
        fault = "it has weights of other parts, too"
    if fault is not None:
        raise CheckpointError(
            f"{path} does not fit {base}: {misfit(module, state, limit=1)}; nor does it fit {noun} alone: {fault}; "
            "give the weights of all, or of that"
        )
    if of_backbone and (others := sorted(given.keys() - of_rest.keys() - {_BACKBONE + name for name in of_backbone})):
        say(f"the weights are those of {_BACKBONE[:-1]}, without {first_names(others)}")
    for note in weights.notes:
        say(note)
    if not place:
        fill_network(network, weights.state, path, base)
        return network, False
    module.set_submodule(place, network)
    of_network = {f"{place}.{name}": value for name, value in weights.state.items()}
    fill_network(module, {**rest, **of_rest, **of_network}, path, base)
    return module, bool(rest) and not of_rest


def _prefix_of_all(expected: State, weights: State, path: Path) -> str | None:
    """What stands before each expected name in weights with others, such as those of a loss; None: not all are there.

    Raises:
        CheckpointError: all are there several times.
    """
    last = min(expected, default="")
    prefixes = {name.removesuffix(last) for name in weights if name.endswith(last)}

    def has_all(prefix: str) -> bool:
        places = ((weights.get(f"{prefix}{name}"), value) for name, value in expected.items())
        return prefix[-1:] in ("", ".") and all(at is not None and at.shape == value.shape for at, value in places)

    found = sorted(filter(has_all, prefixes))
    if len(found) > 1:
        listed = first_names([*map(repr, found)])
        raise CheckpointError(f"{path} has such weights {len(found)} times, behind {listed}; save one set alone")
    return found[0] if found else None
