"""A torch module in place of a base's name or path: its weights become a folder that `open_network` reads."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from timm.data import resolve_data_config
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from edgevit.errors import UnsupportedModelError
from edgevit.network.builder import Builder
from edgevit.network.copies import without_values
from edgevit.network.creation import create_timm_network
from edgevit.network.dense import running_users_code, within, without_gradient
from edgevit.network.detector import Pyramid, check_detector, letterbox, takes_several_sizes
from edgevit.network.families import architecture
from edgevit.network.filling import network_in
from edgevit.network.folder import load, save
from edgevit.network.model import Model, describe, tensors_sha256
from edgevit.network.network import Network
from edgevit.network.opening import open_network
from edgevit.network.plain_detector import adapted, has_transform, is_detections, refuse_relative_boxes, run_on
from edgevit.network.torchvision_modules import as_timm
from edgevit.network.weights import first_names
from edgevit.progress import Progress, rounded_duration
from edgevit.records.release import CONFIG, NAMES, PREPROCESSING_KEYS
from edgevit.records.writing import cache_folder, new_folder

_TRIALS, _LONG_S = 45, 10.0  # runs of two images that the checks of a module with a head take, with gradients
_TOLERANCE = 1e-3  # accepted difference of outputs, relative to the largest: kernels of two devices differ by less
# Modules of torch whose hooks compute weights, and what replaces these by their values, within torch.nn.utils.
_REMOVERS = {
    "torch.nn.utils.weight_norm": "remove_weight_norm",
    "torch.nn.utils.spectral_norm": "remove_spectral_norm",
    "torch.nn.utils.prune": "prune.remove",
}


def path_of(
    base: Any,
    function: str,
    builder: tuple[Path, str] | None = None,
    *,
    backbone_alone: bool = False,
    progress: Progress | None = None,
) -> Any:
    """The folder of a module's weights, written to the user's cache; anything but a module is returned unchanged.

    A module of edgevit, of timm, a classifier of torchvision's (ViT or Swin), one whose outputs are those of the single
    such network in it, or a head behind such a network, which puts out a map or boxes; for that one, the folder keeps
    the file that makes the module.

    Args:
        builder: the file and the function of it that made the module; None: its class made it.
        backbone_alone: whether weights were given of the network in it alone.
        progress: gets a line if the checks take long.

    Raises:
        UnsupportedModelError: it has no network of a supported family, or several, or its outputs are not those of the
            network; or timm cannot make the network; or weights are computed by a parametrisation or a hook.
        TypeError: it is a class, not a module.
    """
    if isinstance(base, type) and issubclass(base, nn.Module):
        raise TypeError(f"{function} takes a module, and was given the class {base.__name__}; give {base.__name__}()")
    if not isinstance(base, nn.Module):
        return base
    if isinstance(base, Model) and base.spec.builder is not None:
        return _cached(base)
    _refuse_wrapped(base)
    _refuse_computed(base)
    base = as_timm(base)
    path, inner, family = network_in(base)
    copied = family.interchange.adopted(copy.deepcopy(inner))
    family.check(copied, alone=False)
    adopted = Network(copied, family)
    if takes_several_sizes(base):
        base = copy.deepcopy(base)
        letterbox(base, adopted.input_size)
        inner = base.get_submodule(path)
    with _evaluating(base), torch.inference_mode():
        images = torch.rand(2, *adopted.input_size, generator=torch.Generator().manual_seed(0))
        images = images.to(next(base.parameters()))
        if has_transform(base):  # it may fail on other sizes
            check_detector(base, adopted.input_size)
        expected = _first_outputs(base, images, progress)
        if isinstance(expected, Tensor) and expected.ndim == 4:
            return _dense_folder(base, path, images, builder, backbone_alone=backbone_alone)
        if is_detections(expected):
            if not has_transform(base):
                refuse_relative_boxes(expected, base, images)
            return _dense_folder(base, path, images, builder, boxes=True, backbone_alone=backbone_alone)
        own = expected if base is inner else inner(images)
    if not isinstance(expected, Tensor) or not isinstance(own, Tensor) or not torch.equal(expected, own):
        raise UnsupportedModelError(_fault_of_outputs(base, inner, expected))
    family.check(copied)
    return _plain_folder(inner, adopted, images, expected)


def _first_outputs(module: nn.Module, images: Tensor, progress: Progress | None) -> Any:
    """What a module gives for images; say how long its checks will take, if that is long.

    Raises:
        UnsupportedModelError: it raises.
    """
    noun, began = f"this {type(module).__name__}", time.monotonic()
    with running_users_code(noun, f"for images {[*images.shape]}, and is to take these alone; correct its forward"):
        outputs, _ = run_on(module, images)
    if (seconds := _TRIALS * (time.monotonic() - began)) > _LONG_S and progress is not None:
        progress.note(f"{noun} is tried on two images first: {rounded_duration(seconds)}")
    return outputs


def _fault_of_outputs(module: nn.Module, network: nn.Module, outputs: Any) -> str:
    """Why a module with these outputs for images is no base, where they are neither a map, boxes nor its network's."""
    noun, fault, alone, values = type(network).__name__, _kind_of(outputs), "", ""
    if isinstance(outputs, Tensor):
        fault = f"{fault}, and not those of the {noun} in it"
    if hasattr(network, "save_pretrained"):
        alone = "give the folder that save_pretrained writes of the network of transformers, or "
    elif module is not network:
        alone = f"give the {noun} alone, or "
    if not isinstance(outputs, Tensor):
        values = " (of several maps, beside each other as its channels)"
    elif outputs.ndim == 2:
        values = f" (of {outputs.shape[1]} values, [images, {outputs.shape[1]}, 1, 1])"
    elif outputs.ndim == 3:
        values = " (of one channel, outputs[:, None])"
    return (
        f"the outputs of this {type(module).__name__} are {fault}; {alone}return one map [images, channels, "
        f"height, width]{values}, or for each image a dict of boxes, labels and scores"
    )


def _plain_folder(module: nn.Module, adopted: Network, images: Tensor, expected: Tensor) -> Path:
    """Write the weights of a network of timm to the cache, as timm does, unless they are there.

    Raises:
        UnsupportedModelError: opened again, it has other outputs for the images than those that are `expected`.
    """
    state = {name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}
    config = _config(module, adopted, state)
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
    if actual.shape != expected.shape or not float((actual - expected.cpu()).abs().max()) <= _TOLERANCE * scale:
        raise UnsupportedModelError(
            f"this {type(module).__name__} is not what timm makes as {config['architecture']} with "
            f"{config['model_args']}: its outputs differ; give timm's name, and its weights with checkpoint=FILE"
        )
    return folder


def _kind_of(outputs: Any) -> str:
    """What the outputs of a module are, for a message."""
    if isinstance(outputs, Tensor):
        return f"a tensor {[*outputs.shape]}"
    if isinstance(outputs, Mapping):
        return f"a dict of {first_names([*map(str, outputs)])}"
    noun = type(outputs).__name__
    return f"a {noun} of {len(outputs)}" if isinstance(outputs, (list, tuple)) else f"of type {noun}"


def _refuse_wrapped(module: nn.Module) -> None:
    """Refuse parts that run a module in their own way, which copies and exported files do not.

    Raises:
        UnsupportedModelError: there are some.
    """
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            wrapper = "torch.jit"
        elif isinstance(part, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            wrapper = type(part).__name__
        elif "_orig_mod" in part._modules or hasattr(part.forward, "_torchdynamo_inline"):
            wrapper = "torch.compile"
        else:
            continue
        raise UnsupportedModelError(
            f"{name or 'the module'} is wrapped by {wrapper}, in which nothing can be cut, copied and exported; leave "
            f"{wrapper} out"
        )


def _refuse_computed(module: nn.Module) -> None:
    """Refuse weights that are computed from others when their layer runs, by which the others would stay as they were.

    Raises:
        UnsupportedModelError: there are some.
    """
    for name, part in module.named_modules():
        of_hooks = [_REMOVERS.get(type(hook).__module__) for hook in part._forward_pre_hooks.values()]
        how = "a parametrisation" if is_parametrized(part) else "a hook" if any(of_hooks) else None
        if how is not None:
            remover = next(filter(None, of_hooks), "parametrize.remove_parametrizations")
            raise UnsupportedModelError(
                f"the weights of {name} are computed by {how}, which no file keeps; call torch.nn.utils.{remover} on "
                f"{name} and on any other such layer first"
            )


def _dense_folder(
    module: nn.Module,
    path: str,
    images: Tensor,
    place: tuple[Path, str] | None,
    *,
    boxes: bool = False,
    backbone_alone: bool = False,
) -> Path:
    """Write the model folder of a module with a head of the user's to the cache.

    Raises:
        UnsupportedModelError: it cannot be made again, or not be cut.
    """
    if not path:
        noun = type(module).__name__
        raise UnsupportedModelError(
            f"this {noun} is a {noun} itself; make that an attribute of the module with the head"
        )
    kinds = {name: values.dtype for name, values in module.named_parameters() if values.is_floating_point()}
    if other := next((name for name, kind in kinds.items() if kind != torch.float32), None):
        raise UnsupportedModelError(
            f"{other} of this {type(module).__name__} is {str(kinds[other]).removeprefix('torch.')}, expected float32: "
            "a model is derived in fp32, and its engines are fp16; call float() on the module"
        )
    builder = Builder.at(*(place or _file_of_class(module)))
    module = copy.deepcopy(module).eval()
    if boxes:
        if not has_transform(module):
            module, path = adapted(module, path, images.shape[1:]), f"module.{path}"
        module, path = Pyramid(module).eval(), f"detector.{path}"
    family = within(module, path, builder, images)
    name = architecture(family.inside(module))
    model = describe(Network(module, family), name, {})
    assert model.spec.builder is not None, "of a network with a head"
    facts = replace(model.spec.builder, backbone_alone=backbone_alone)
    model = Model(model, replace(model.spec, builder=facts))
    folder = _cached(model)
    with torch.inference_mode(False):  # whose tensors have gradients
        reopened = load(folder)
    with torch.inference_mode():
        expected, actual = (network(images.cpu()) for network in (model.cpu(), reopened))
    if not torch.allclose(actual, expected, rtol=_TOLERANCE, atol=_TOLERANCE * float(expected.abs().max())):
        shutil.rmtree(folder)
        raise UnsupportedModelError(
            f"{builder.function} makes a module that has another output with the same weights; it is to make the same "
            "module each time, and to keep what it needs among its weights"
        )
    if (block := without_gradient(family, reopened.module, images.cpu())) is not None:
        shutil.rmtree(folder)
        raise UnsupportedModelError(
            f"the output of this {type(module).__name__} has no gradient by what block {block} of its {path} returns, "
            "and by that it is cut and trained; leave detach, argmax, thresholds and NumPy out of what reads it"
        )
    return folder


def _cached(model: Model) -> Path:
    """The folder in the cache of a model with a head of the user's."""
    described = hashlib.sha256(f"{tensors_sha256(model.state_dict())} {model.spec}".encode()).hexdigest()
    folder = cache_folder("modules") / described[:16]
    if not folder.is_dir():
        save(model, folder)
    return folder


def _file_of_class(module: nn.Module) -> tuple[Path, str]:
    """The file of a module's class.

    Raises:
        UnsupportedModelError: it is not in a file, or needs arguments.
    """
    kind, hint = type(module), "give FILE.py:FUNCTION, and its weights with checkpoint=FILE"
    try:
        file = Path(inspect.getfile(kind))
        inspect.signature(kind).bind()
    except (TypeError, OSError) as error:
        raise UnsupportedModelError(
            f"{kind.__name__} cannot be made again from its file alone ({error}); {hint}"
        ) from error
    if "." in kind.__qualname__ or not file.is_file():
        raise UnsupportedModelError(f"{kind.__name__} is not defined at the top of a file; {hint}")
    return file, kind.__name__


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


def _config(module: Any, network: Network, state: dict[str, Tensor]) -> dict[str, Any]:
    """The content of config.json, as timm writes it: name, arguments, and preprocessing."""
    name = (getattr(module, "default_cfg", None) or {}).get("architecture")
    name = name or network.family.interchange.guessed_name(state)
    if name is None:
        raise UnsupportedModelError(
            f"timm's name of this {type(module).__name__} is not known; give it, and the weights with checkpoint=FILE"
        )
    interchange = network.family.interchange
    stated = interchange.stated_arguments(module)
    with without_values():
        usual = create_timm_network(name, stated)
    weights = interchange.named(state).state
    # The shapes of a ViT do not tell its heads, which a guess would take to be 64 wide; those of a Swin do.
    no_guess = stated if "num_heads" in interchange.shape_arguments(weights) else {*stated, "num_heads"}
    sizes, _ = interchange.guessed_arguments(weights, usual, usual.state_dict(), no_guess)
    ends = network.ends
    settings = resolve_data_config({"input_size": ends.input_size}, model=module)
    return {
        "architecture": name,
        "num_classes": ends.classifiers[0].out_features if ends.classifiers else 0,
        "model_args": {**sizes, **stated},
        "pretrained_cfg": {key: settings[key] for key in PREPROCESSING_KEYS},
    }
