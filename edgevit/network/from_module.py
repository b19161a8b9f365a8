"""A torch module in place of a base's name or path: its weights become a folder that `open_network` reads."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from safetensors.torch import save_file
from timm.data import resolve_data_config
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.checkpoint import PREPROCESSING_KEYS, Model, open_network, tensors_sha256
from edgevit.network.families import Family, family_names, load_family
from edgevit.network.network import Network
from edgevit.records.release import CONFIG, NAMES
from edgevit.records.writing import cache_folder, new_folder

TOLERANCE = 1e-3  # of outputs, relative to the largest: the kernels of two devices differ by less


def path_of(base: Any, function: str) -> Any:
    """The folder of a module's weights, written to the user's cache; anything but a module is returned unchanged.

    A module of edgevit, of timm, or one whose outputs are those of the single such network in it.

    Raises:
        UnsupportedModelError: it has no network of a supported family, or several, or its outputs are not those of the
            network; or timm cannot make the network.
        TypeError: it is a class, not a module.
    """
    if isinstance(base, type) and issubclass(base, nn.Module):
        raise TypeError(f"{function} takes a module, and was given the class {base.__name__}; give {base.__name__}()")
    if not isinstance(base, nn.Module):
        return base
    inner, family = _network_in(base)
    adopted = Network(family.interchange.adopted(copy.deepcopy(inner)))
    with _evaluating(base), torch.inference_mode():
        images = torch.rand(2, *adopted.input_size, generator=torch.Generator().manual_seed(0))
        images = images.to(next(base.parameters()))
        expected = base(images)
        if not isinstance(expected, Tensor) or (base is not inner and not torch.equal(expected, inner(images))):
            raise UnsupportedModelError(
                f"the outputs of this {type(base).__name__} are not those of the {type(inner).__name__} in it; give "
                f"the {type(inner).__name__} alone"
            )
    state = {name: value.detach().cpu().contiguous() for name, value in inner.state_dict().items()}
    config = _config(inner, adopted, state)
    described = hashlib.sha256(f"{tensors_sha256(state)} {json.dumps(config)}".encode()).hexdigest()
    folder = cache_folder("modules") / described[:16]
    if not (folder / CONFIG).is_file():
        with new_folder(folder) as temporary:
            save_file(state, temporary / NAMES[0], metadata={"format": "pt"})
            (temporary / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")
    opened = open_network(folder)
    network = opened if isinstance(opened, Model) else opened.network
    with torch.inference_mode():
        actual = network.eval()(images.cpu())
    scale = float(expected.abs().max())
    if actual.shape != expected.shape or not float((actual - expected.cpu()).abs().max()) <= TOLERANCE * scale:
        raise UnsupportedModelError(
            f"this {type(inner).__name__} is not what timm makes as {config['architecture']} with "
            f"{config['model_args']}: its outputs differ; give timm's name, and its weights with checkpoint=FILE"
        )
    return folder


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Set a module to evaluation within this context."""
    was_training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in was_training.items():
            part.training = training


def _network_in(module: nn.Module) -> tuple[nn.Module, Family]:
    """The network of a supported family in a module, at any depth.

    Raises:
        UnsupportedModelError: there is none, or several.
    """
    if isinstance(module, Network):
        return module.module, module.family
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
            f"SwinTransformer, VisionTransformer, DeiT or DINOv3), and has {listed}; give the network itself"
        )
    return next(iter(networks.values()))


def _config(module: Any, network: Network, state: dict[str, Tensor]) -> dict[str, Any]:
    """The content of config.json, as timm writes it: name, arguments that shapes do not say, and preprocessing."""
    architecture = (getattr(module, "default_cfg", None) or {}).get("architecture")
    architecture = architecture or network.family.interchange.guessed_name(state)
    if architecture is None:
        raise UnsupportedModelError(
            f"timm's name of this {type(module).__name__} is not known; give it, and the weights with checkpoint=FILE"
        )
    ends = network.ends
    settings = resolve_data_config({"input_size": ends.input_size}, model=module)
    return {
        "architecture": architecture,
        "num_classes": ends.classifiers[0].out_features if ends.classifiers else 0,
        "model_args": network.family.interchange.stated_arguments(module),
        "pretrained_cfg": {key: settings[key] for key in PREPROCESSING_KEYS},
    }
