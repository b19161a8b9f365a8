"""Open a base: a timm name with a checkpoint, files of weights, a model folder, or a function that builds it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torchvision.models import WeightsEnum

from edgevit.errors import CheckpointError, OptionError
from edgevit.network.agreement import check_architecture, check_name, check_sizes
from edgevit.network.arguments import check_arguments
from edgevit.network.builder import builder_parts, built, is_builder
from edgevit.network.copies import without_values
from edgevit.network.creation import check_timm_name, create_timm_network, norm_eps, try_once
from edgevit.network.dense import DenseFamily, own_normalisation
from edgevit.network.detector import Pyramid
from edgevit.network.families import Interchange, family_like, family_names, load_family
from edgevit.network.families.vit.tokens import is_projection
from edgevit.network.filling import fill_module
from edgevit.network.folder import load
from edgevit.network.model import Headless, Model, describe, resolved_preprocessing, tensors_sha256
from edgevit.network.network import Network
from edgevit.network.request import check_openable, hub_repository, plain_base
from edgevit.network.torchvision_weights import downloaded, torchvision_network, weights_in, weights_preprocessing
from edgevit.network.weights import TimmArguments, Weights, fill_network, first_line, read_weights
from edgevit.progress import Progress, Silent
from edgevit.records.model import BaseFacts
from edgevit.records.names import TOKENIZER
from edgevit.records.release import CONFIG, CONFIGS, NAMES, ReleaseFacts, is_release, read_release, weights_of
from edgevit.records.tokenizer import VOCABULARY
from edgevit.records.writing import cache_folder

_SOME_CLASSES = 1000  # number of classes of a random classifier
# Files of a repository of the Hugging Face hub that are downloaded: configuration, and weights in one of two forms.
_BESIDE = (*CONFIGS, TOKENIZER, VOCABULARY)
_SAFETENSORS, _PICKLED = ("model*.safetensors", NAMES[1]), ("pytorch_model*.bin", NAMES[3])


def open_network(
    base: str | Path,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
    model_args: Mapping[str, Any] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    new_head: bool = False,
    progress: Progress | None = None,
) -> Model | Headless:
    """Open a base: a timm name with a checkpoint (or timm's own weights), or a model folder.

    It is headless without a classifier, or where that does not count (`new_head`).

    Raises:
        UnknownNameError, OptionError, CheckpointError, UnsupportedModelError: the base cannot be opened.
    """
    opened = _open(base, checkpoint, pretrained, model_args, preprocessing, progress)
    if isinstance(opened, Headless) or not new_head:
        return opened
    spec, network = opened.spec, Network(opened.module, opened.family)
    return Headless(network, spec.timm_name, spec.timm_args, spec.preprocessing, opened.release)


def _open(
    base: str | Path,
    checkpoint: str | Path | None,
    pretrained: bool,
    model_args: Mapping[str, Any] | None,
    preprocessing: Mapping[str, Any] | None,
    progress: Progress | None,
) -> Model | Headless:
    check_openable(base, checkpoint=checkpoint, pretrained=pretrained, model_args=model_args)
    progress = progress or Silent()
    if pretrained and (repository := hub_repository(base)) is not None:
        progress.note(f"the files of {repository} are downloaded from the Hugging Face hub, unless its cache has them")
        base, pretrained = downloaded_repository(repository), False
    base = plain_base(base)
    if is_builder(base):
        base, checkpoint = _built_folder(base, checkpoint, progress), None
    overrides = {part: value for part, value in (preprocessing or {}).items() if value is not None}
    if is_release(Path(base)):
        return _open_weights(None, model_args or {}, Path(base), overrides, progress)
    if Path(base).is_dir():
        model = load(base)
        spec = model.spec
        if spec.builder is not None and spec.builder.backbone_alone:
            progress.warn(spec.builder.alone_text)
        if spec.output_kind == "features" and not spec.outputs and not spec.depths:
            return Headless(model, spec.timm_name, spec.timm_args, {**spec.preprocessing, **overrides})
        # It is its own base now.
        sha256 = tensors_sha256(model.state_dict())
        embed = model.geometry.embed
        own = model.module.own_preprocessing if isinstance(model.module, Pyramid) else ()
        if given := overrides.keys() & {*own}:
            how = "prepares images by its own transform" if len(own) > 1 else "is given whole pictures"
            raise OptionError(f"a detector {how}; leave --{min(given).replace('_', '-')} out")
        if Path(base).parent == cache_folder("modules") and not {"mean", "std"} & {*overrides, *own}:
            _refuse_second_normalisation(model)
        facts = BaseFacts(sha256, spec.blocks, spec.macs, spec.params, spec.outputs, embed)
        if spec.narrowed_rest is not None:
            spec = replace(spec, narrowed_rest=replace(spec.narrowed_rest, base_macs=spec.narrowed_rest.macs))
        spec = replace(spec, preprocessing={**spec.preprocessing, **overrides}, base=facts)
        return Model(model, spec, ReleaseFacts(origin=dict.fromkeys(own, "detector")))
    name, args, entry = str(base), dict(model_args or {}), None
    if (of_torchvision := torchvision_network(name)) is not None:
        progress.note(f"{name}, of torchvision, is timm's {of_torchvision[0]}")
        name, weights, entry = of_torchvision
        if pretrained:
            entry = entry or weights.DEFAULT
            progress.note(f"torchvision's weights {entry}, from torch's cache or {entry.url}")
            checkpoint = downloaded(entry)
    check_timm_name(name)
    if checkpoint is not None:
        return _open_weights(name, args, Path(checkpoint), overrides, progress, entry)
    if pretrained:
        progress.note(f"timm's weights of {name}, from the Hugging Face hub")
    return _opened(create_timm_network(name, args, pretrained=pretrained), name, args, overrides, progress)


def downloaded_repository(name: str) -> Path:
    """Return the folder of a repository's files in the cache of huggingface_hub, which downloads what is missing.

    Raises:
        CheckpointError: there is no such repository, it is not open to this user, has no weights of these names, or
            the hub cannot be reached.
    """
    from huggingface_hub import snapshot_download

    for weights in (_SAFETENSORS, _PICKLED):
        try:
            folder = Path(snapshot_download(name, allow_patterns=[*_BESIDE, *weights]))
        except Exception as error:  # of the hub, of HTTP, of the disk
            raise CheckpointError(
                f"cannot download {name} from the Hugging Face hub ({first_line(error, 120)}); check the name, and `hf "
                f"auth login` for one that is not public, or give a folder of `hf download {shlex.quote(name)} "
                "--local-dir DIR`"
            ) from error
        if any((folder / file).is_file() for file in NAMES):
            return folder
    raise CheckpointError(
        f"{name} on the Hugging Face hub, or in its cache if the hub cannot be reached, has none of "
        f"{', '.join(NAMES)}; try again later, or give a file of weights"
    )


def _refuse_second_normalisation(model: Model) -> None:
    """Refuse a module of the user's that normalises images itself, where nobody says how they are prepared.

    Raises:
        OptionError: it does.
    """
    builder, prepared = model.spec.builder, model.spec.preprocessing
    assert builder is not None and isinstance(model.family, DenseFamily), "of a module with a head"
    if {*prepared["mean"]} == {0} and {*prepared["std"]} == {1}:
        return
    if (normalisation := own_normalisation(model.family, model.module)) is not None:
        mean, deviation = (",".join(f"{value:.3g}" for value in part) for part in normalisation)
        raise OptionError(
            f"what {builder.function} makes normalises images itself, by mean {mean} and std {deviation}, and edgevit "
            "would do so before; give --mean 0 --std 1, or what its images are normalised by before"
        )


def _built_folder(base: str | Path, checkpoint: str | Path | None, progress: Progress) -> Path:
    """The folder of the network that a function in a Python file builds."""
    from edgevit.network.from_module import path_of

    module, alone = built(base), False
    if checkpoint is not None:
        module, alone = fill_module(module, weights_of(Path(checkpoint)), str(base), progress.note)
    folder: Path = path_of(module, str(base), builder_parts(base), backbone_alone=alone, progress=progress)
    return folder


def _opened(
    module: nn.Module, name: str, args: Mapping[str, Any], preprocessing: Mapping[str, Any], progress: Progress,
    *, named: bool = False,
) -> Model | Headless:  # fmt: skip
    if not named and is_projection(module):
        progress.note(
            f"the {module.num_classes} outputs of {name} are what CLIP compares with texts, and no classes: features "
            "are those before this linear map"
        )
        load_family("vit").make_classifiers(module, 0)
        args = {**args, "num_classes": 0}
    network = Network(module.eval())  # raises for unsupported networks before a classifier is fitted
    try_once(network, name)
    if network.ends.classifiers:
        return describe(network, name, args, preprocessing)
    return Headless(network, name, args, resolved_preprocessing(network, preprocessing))


def network_without_weights(
    base: str | Path,
    model_args: Mapping[str, Any] | None = None,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
) -> Network:
    """The network of a base, of which only the shape matters: of a model folder, or a random timm model.

    A network without a classifier gets one. Files of weights, if they are the base, determine its arguments; those of a
    repository of a hub are downloaded if it is `pretrained`.

    Raises:
        UnknownNameError, OptionError, CheckpointError, UnsupportedModelError: as for `open_network`.
    """
    if pretrained and (repository := hub_repository(base)) is not None:
        base = downloaded_repository(repository)
    base, args = plain_base(base), dict(model_args or {})
    if is_builder(base):
        base, checkpoint = _built_folder(base, checkpoint, Silent()), None
    if checkpoint is not None or is_release(Path(base)):
        opened = open_network(base, checkpoint=checkpoint, model_args=args)
        spec = opened.spec if isinstance(opened, Model) else opened
        base, args = spec.timm_name, {key: spec.timm_args[key] for key in spec.timm_args if key != "num_classes"} | args
    if Path(base).is_dir():
        network: Network = load(base)
    else:
        if (of_torchvision := torchvision_network(str(base))) is not None:
            base = of_torchvision[0]
        with without_values():
            _refuse_too_large(create_timm_network(str(base), args), str(base))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # deterministic
            network = Network(create_timm_network(str(base), args))
            if not network.ends.classifiers:
                network.make_classifiers(_SOME_CLASSES)
        try_once(network.eval(), str(base))
    return network.eval()


def _refuse_too_large(network: nn.Module, name: str) -> None:
    """Raise OptionError if a network, here without values, exceeds the memory of this machine."""
    size, memory = sum(p.nbytes for p in network.parameters()), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        raise OptionError(
            f"{name} with its arguments takes {size / 1e9:.0f} GB, and this machine has {memory / 1e9:.0f} GB; "
            "check --model-arg"
        )


def _open_weights(
    name: str | None,
    args: Mapping[str, Any],
    path: Path,
    overrides: Mapping[str, Any],
    progress: Progress,
    entry: WeightsEnum | None = None,
) -> Model | Headless:
    """Open a network with the weights of a file or a folder, and with the configuration files in the folder.

    Args:
        name: of the network; None: by those files, or by the shapes of the weights.
        overrides: preprocessing by options, which take precedence.
        entry: torchvision's weights that these are; None: the name of the file says it, or they are others.

    Raises:
        as `open_network`.
    """
    file = weights_of(path)
    release = read_release(file.parent)
    if lacking := [part for part in release.unequalled if part not in overrides]:
        raise OptionError(
            f"{release.folder / release.processor} prepares images in a way that edgevit has no equal of; give "
            f"{' and '.join('--' + part.replace('_', '-') for part in lacking)}"
        )
    state = read_weights(file, progress.note)
    typed = name is not None
    if name is not None and release.architecture not in (None, name.partition(".")[0]):
        progress.note(f"{CONFIG} beside the weights says {release.architecture}; {name} is used")
    if name is None:
        name = _name_of(state, file, release, progress)
    network, arguments, weights = _filled(name, args, file, state, release, progress, typed=typed)
    if weights.origin == "torchvision" and (entry := entry or weights_in(file)) is not None:
        weights = replace(weights, preprocessing=weights_preprocessing(entry))
    origin = {**dict.fromkeys(weights.preprocessing, weights.origin), **release.origin}
    release = replace(release, preprocessing={**weights.preprocessing, **release.preprocessing}, origin=origin)
    stated = {part: value for part, value in release.preprocessing.items() if part != "input_size"}
    for part in overrides.keys() & release.origin.keys():
        if (now := _shown(overrides[part])) != (earlier := _shown(stated[part])):
            option = f"--{part.replace('_', '-')} {now}"
            progress.note(f"{release.origin[part]} beside the weights says {part} {earlier}; {option} is used")
    opened = _opened(network, name, arguments, {**stated, **overrides}, progress, named=bool(release.labels))
    if isinstance(opened, Headless):
        return replace(opened, release=release)
    return Model(opened, opened.spec, release)


def _shown(setting: Any) -> str:
    """A setting as typed in an option, of a list or a tuple."""
    return ",".join(f"{value:g}" for value in setting) if isinstance(setting, (list, tuple)) else str(setting)


def _name_of(state: Mapping[str, Tensor], file: Path, release: ReleaseFacts, progress: Progress) -> str:
    """timm's name of the network of these weights.

    Raises:
        CheckpointError: they are of no supported network.
    """
    families = [load_family(name) for name in family_names()]  # which may add networks to timm's
    if release.architecture is not None:
        if not timm.is_model(release.architecture):
            raise CheckpointError(
                f"{release.folder / CONFIG} says architecture {release.architecture}, which timm {timm.__version__} "
                "does not have: shapes do not tell its activation, norms and pooling; give timm's name of a network "
                f"that computes the same, and --checkpoint {file}"
            )
        progress.note(f"{file} is of {release.architecture}, as {CONFIG} beside it says")
        return release.architecture
    for family in families:
        interchange = family.interchange
        weights = interchange.named(state)
        if (name := interchange.guessed_name(weights.state)) is not None:
            if weights.is_tower and release.model_type is None:
                raise CheckpointError(
                    f"{file} has the image tower of a CLIP or SigLIP, whose activation and heads no shape tells, and "
                    f"{CONFIG} beside it is not of one; give timm's name of a network that computes the same, and "
                    f"--checkpoint {file}"
                )
            progress.note(f"{file} is taken to be of {name}, by its shapes; BASE and --checkpoint give another name")
            return name
    raise CheckpointError(
        f"{file} is of no network that edgevit supports; give timm's name of it, and --checkpoint {file}"
    )


def _filled(
    name: str,
    args: Mapping[str, Any],
    file: Path,
    state: Mapping[str, Tensor],
    release: ReleaseFacts,
    progress: Progress,
    *,
    typed: bool,
) -> tuple[Any, TimmArguments, Weights]:
    """Create a timm model with these weights; return it with its arguments and the weights.

    Arguments are, in order of precedence: of options, of the configuration files, and by the shapes. Only a name that
    was `typed` may contradict these files.
    """
    with without_values():
        usual = create_timm_network(name, {})
    family = family_like(usual)
    interchange = family.interchange
    weights = interchange.named(state)
    shapes = interchange.shape_arguments(weights.state)
    if typed:
        check_name(release, name, usual, family, weights, file, args)
    check_sizes(release, name, family, weights, shapes, args)
    by_files = _stated_arguments(release, args, shapes)
    try:
        check_arguments(by_files, f"{release.folder / CONFIG}: ")
    except OptionError as error:
        raise CheckpointError(str(error)) from error
    stated = {**by_files, **args}
    if "norm_eps" not in args and norm_eps(usual) == {stated.get("norm_eps")}:
        del stated["norm_eps"]
    if texts := [f"{key}={value}" for key, value in stated.items() if key not in args]:
        progress.note(f"{name} as the files beside the weights say: {', '.join(texts)}")
    for key in args.keys() & release.arguments.keys():
        if _shown(args[key]) != _shown(release.arguments[key]):
            earlier = f"{key}={release.arguments[key]}"
            progress.note(f"{CONFIG} beside the weights says {earlier}; --model-arg {key}={args[key]} is used")
    try:
        with without_values():
            network = create_timm_network(name, stated)
    except OptionError as error:
        if not texts:
            raise
        raise CheckpointError(f"{error} and {release.folder / CONFIG}") from error
    guessed, assumption = interchange.guessed_arguments(weights.state, network, network.state_dict(), stated)
    if (trained := release.trained_size) is not None and trained[0] != trained[1]:
        guessed.pop("no_embed_class", None)  # with which as many positions would be of a square
    check_architecture(release, name, guessed)
    if guessed:
        texts = [f"{key}={value}" for key, value in guessed.items()]
        progress.note(f"{name} by the shapes of {file.name}: {', '.join(texts)}; --model-arg gives others")
    if assumption is not None:
        progress.note(assumption)
    arguments = {"num_classes": weights.classes, **guessed, **stated}  # may differ from ImageNet's
    with without_values():  # they would be initialised and replaced
        network = create_timm_network(name, arguments)
    weights = interchange.fitted(weights, network, name, resample="img_size" in stated, trained=release.trained_size)
    try:
        fill_network(network, weights.state, file, name)
    except CheckpointError as error:
        raise CheckpointError(
            "; ".join([str(error), *_hints(interchange, weights, network), *weights.notes])
        ) from error
    for note in weights.notes:
        progress.note(note)
    return network, arguments, weights


def _stated_arguments(release: ReleaseFacts, args: Mapping[str, Any], shapes: TimmArguments) -> TimmArguments:
    """timm's arguments by the configuration files, with the image size of an image processor.

    That of the training is stated, too, where shapes say none, or a square one of as many patches.
    """
    stated = {key: value for key, value in release.arguments.items() if key not in args}
    size, trained = release.preprocessing.get("input_size"), release.trained_size
    if size is not None and release.origin["input_size"] == release.processor:
        height, width = size[1:]
    elif trained is not None and ("img_size" not in shapes or trained[0] != trained[1]):
        height, width = trained
    else:
        return stated
    if "img_size" not in args:
        stated.setdefault("img_size", height if height == width else (height, width))
    return stated


def _hints(interchange: Interchange, weights: Weights, network: Any) -> list[str]:
    """Hints about arguments or a name with which the weights would fit, by their shapes."""
    arguments: TimmArguments = {}
    with suppress(CheckpointError):  # the number of heads does not follow from shapes
        arguments, _ = interchange.guessed_arguments(weights.state, network, network.state_dict(), ())
    if arguments:
        return ["its shapes say " + " ".join(f"--model-arg {shlex.quote(f'{k}={v}')}" for k, v in arguments.items())]
    name = interchange.guessed_name(weights.state)
    return [] if name is None else [f"its shapes are of the kind of {name}"]
