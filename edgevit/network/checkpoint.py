"""Open a base by its timm name, and read and write model folders.

A model folder that exists is complete: it is written under a temporary name and renamed. Weights are safetensors, never
pickle.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from http.client import HTTPException
from itertools import islice
from math import prod
from os import PathLike
from pathlib import Path
from ssl import SSLError
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import timm
import torch
from safetensors.torch import load_file, save_file
from timm.data import resolve_data_config
from torch import Tensor, nn

from edgevit.errors import CheckpointError, DataError, OptionError, UnknownNameError, UnsupportedModelError
from edgevit.network.arguments import check_arguments
from edgevit.network.builder import Builder, builder_parts, built, is_builder, refuse_unknown
from edgevit.network.chains import narrowed_as
from edgevit.network.classifier import depths_in, read_tokens, tokens_of, with_features
from edgevit.network.copies import shape_copy, without_values
from edgevit.network.dense import DenseFamily, within
from edgevit.network.detector import Pyramid, letterbox, rest_macs, takes_several_sizes
from edgevit.network.families import Interchange, family_like, family_names, load_family
from edgevit.network.network import Network
from edgevit.network.output import output_of
from edgevit.network.prediction import Picture, Prediction, predictions_of, rgb_images
from edgevit.network.request import check_model_folder, check_openable, plain_base
from edgevit.network.weights import FOREIGN, TimmArguments, Weights, fill_network, first_line, read_weights, reading
from edgevit.numbers import COUNT, check_number
from edgevit.progress import Progress, Silent
from edgevit.records.belonging import file_fault
from edgevit.records.model import (
    BaseFacts,
    BuilderFacts,
    DetectorRest,
    Head,
    ModelSpec,
    PreprocessingFields,
    TargetClass,
)
from edgevit.records.model_folder import ModelFolder
from edgevit.records.names import TOKENIZER
from edgevit.records.preparing import image_transform
from edgevit.records.reading import Reading, reading_settings
from edgevit.records.release import (
    CONFIG,
    PREPROCESSING_KEYS,
    PROCESSOR,
    ReleaseFacts,
    is_release,
    read_release,
    weights_of,
)
from edgevit.records.tokenizer import VOCABULARY, store_tokenizer, stored_tokenizer, text_encoder, tokenizer_text
from edgevit.records.writing import new_folder

_TORCHVISION_NAMES = {
    "vit_b_16": "vit_base_patch16_224", "vit_b_32": "vit_base_patch32_224", "vit_l_16": "vit_large_patch16_224",
    "vit_l_32": "vit_large_patch32_224", "vit_h_14": "vit_huge_patch14_224",
    "swin_t": "swin_tiny_patch4_window7_224", "swin_s": "swin_small_patch4_window7_224",
    "swin_b": "swin_base_patch4_window7_224",
}  # fmt: skip
# Most pixels of an image, and most parameters, of a network that runs fast.
_QUICK_PIXELS, _QUICK_PARAMS = 256**2, 30_000_000
_HUB_S = 5  # timeout of the hub


class Model(Network):
    """A network and its description.

    `release` describes the files beside the weights of a base.
    """

    def __init__(self, network: Network, spec: ModelSpec, release: ReleaseFacts | None = None) -> None:
        output = network.output
        if spec.classes or spec.output is not None:
            output = output_of(spec.output_kind, spec.class_columns)
        super().__init__(network.module, network.family, output)
        self.spec, self.release = spec, release or ReleaseFacts()

    def names(self, logits: Tensor) -> list[str]:
        """The predicted class of each image by its logits [B, outputs]: a target class, or `other`.

        Raises:
            UnsupportedModelError: the model is a base without names of classes.
            ModelError: a logit is not finite.
        """
        return [prediction.name for prediction in predictions_of(logits, self.spec)]

    def predict(self, pictures: Picture | Iterable[Picture], *, batch_size: int = 32) -> list[Prediction]:
        """Classify image files by their paths, or PIL images of any mode, on the network's device; in their order.

        A network of texts classifies texts.

        Raises:
            DataError: there is none, or one cannot be read.
            UnsupportedModelError: the model is a base without names of classes.
            ModelError: a logit is not finite.
        """
        check_number("batch_size", batch_size, COUNT, "try 32")
        if self.spec.output_kind != "logits":
            raise UnsupportedModelError(
                f"this model puts out {self.output.noun}: call it on images that `transform` prepared"
            )
        if not self.classes:
            raise UnsupportedModelError(
                "this base has no class names; write it with `edgevit base ... --base-classes FILE`"
            )
        like = next(self.parameters())
        images: Iterator[Any]
        if self.spec.reads_texts:
            images = iter([pictures] if isinstance(pictures, str) else pictures)  # type: ignore[arg-type]
        else:
            images = rgb_images(pictures, Reading.of(self.preprocessing))
        predictions: list[Prediction] = []
        while batch := [self.transform(image) for image in islice(images, batch_size)]:
            with torch.inference_mode():
                logits = self(torch.stack(batch).to(like))
            predictions += predictions_of(logits, self.spec)
        if not predictions:
            raise DataError("no images to predict; give paths of image files, or PIL images")
        return predictions

    @cached_property
    def transform(self) -> Callable[[Any], Tensor]:
        """The evaluation transform, from a PIL image in RGB to an input [C, H, W] of the network.

        Of a network of texts from a text to its ids [N].
        """
        if self.spec.reads_texts:
            encode = text_encoder(self.preprocessing)
            return lambda text: torch.tensor(encode(text))
        return image_transform(self.preprocessing)

    @property
    def classes(self) -> list[str]:
        return self.spec.class_names

    @property
    def preprocessing(self) -> PreprocessingFields:
        return self.spec.preprocessing


def tensors_sha256(state: Mapping[str, Tensor]) -> str:
    """Hash names, shapes and values, independent of the file."""
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data if value.numel() else b"")
    return digest.hexdigest()


def _check_name(name: str) -> None:
    for family in family_names():
        load_family(family)  # which may add networks to timm's
    if not timm.is_model(name):
        of_torchvision = _TORCHVISION_NAMES.get(name)
        names = [of_torchvision] if of_torchvision else timm.list_models()
        raise UnknownNameError("timm model or model folder", name, names)


def _create(name: str, args: Mapping[str, Any], *, pretrained: bool = False, prefix: str = "--model-arg ") -> nn.Module:
    """Create a timm model, converted by its family; `prefix` precedes its arguments in messages.

    Raises:
        UnknownNameError: timm has no such model.
        UnsupportedModelError: no family matches.
        OptionError: an argument is unknown, or timm refuses it.
        CheckpointError: pretrained weights are not available.
    """
    _check_name(name)
    check_arguments(args, prefix)
    try:
        with _quick_hub() if pretrained else nullcontext() as silent:
            network: nn.Module = timm.create_model(name, pretrained=pretrained, **args)
    except FOREIGN as error:
        # huggingface_hub raises OSError and ValueError, timm RuntimeError where it has no weights.
        if pretrained and isinstance(error, (OSError, RuntimeError, ValueError)):
            raise _no_pretrained(name, silent or first_line(error, 100)) from error
        shown = ", ".join(f"{k}={v}" for k, v in args.items()) or "no arguments"
        raise OptionError(
            f"timm cannot make {name} with {shown}: {first_line(error, 120)}; check --model-arg"
        ) from error
    return family_like(network).interchange.adopted(network)


@contextmanager
def _quick_hub() -> Iterator[str | None]:
    """Use only the cache if the hub does not answer, as its client would try for a minute.

    Yields the problem; None: the hub answers, or is disabled.
    """
    from huggingface_hub import constants

    offline, silent = constants.HF_HUB_OFFLINE, None
    if not offline:
        try:
            urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=_HUB_S).close()
        except (OSError, HTTPException) as error:
            refused = isinstance(error, HTTPError) or isinstance(getattr(error, "reason", None), SSLError)
            if not refused:  # a token or other certificates may help
                silent = f"{constants.ENDPOINT} does not answer, and no copy is in the cache"
    constants.HF_HUB_OFFLINE = offline or silent is not None
    try:
        yield silent
    finally:
        constants.HF_HUB_OFFLINE = offline


def _no_pretrained(name: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"no pretrained weights for {name}: {reason}; is there a network? "
        f"Otherwise download the file elsewhere and give it with --checkpoint"
    )


def _preprocessing(network: Network, overrides: Mapping[str, Any]) -> PreprocessingFields:
    """The preprocessing of the base, as resolved by timm, with overrides."""
    if len(network.input_size) == 1:
        return _text_preprocessing(network, overrides)
    settings_in = {**overrides, "input_size": network.input_size}
    family, module = network.family, network.module
    if isinstance(module, Pyramid):
        settings_in = {**settings_in, **module.preprocessing}
    described = family.inside(module) if isinstance(family, DenseFamily) else module
    config = resolve_data_config(settings_in, model=described, use_test_size=True)
    settings = {key: list(v) if isinstance(v := config[key], tuple) else v for key in PREPROCESSING_KEYS}
    return {**settings, **reading_settings(overrides)}


def _text_preprocessing(network: Network, overrides: Mapping[str, Any]) -> PreprocessingFields:
    if of_images := overrides.keys() - {"tokenizer", "input_size"}:
        raise OptionError(f"a network of texts prepares no images; leave --{min(of_images).replace('_', '-')} out")
    if "tokenizer" not in overrides:
        raise CheckpointError(f"there is no {TOKENIZER} or {VOCABULARY} beside the weights; copy it to them")
    return {"input_size": list(network.input_size), "tokenizer": overrides["tokenizer"]}


def _refuse_too_large(network: nn.Module, name: str) -> None:
    """Raise OptionError if a network, here without values, exceeds the memory of this machine."""
    size, memory = sum(p.nbytes for p in network.parameters()), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        raise OptionError(
            f"{name} with its arguments takes {size / 1e9:.0f} GB, and this machine has {memory / 1e9:.0f} GB; "
            "check --model-arg"
        )


def _try_once(network: Network, name: str) -> None:
    """Check that a network runs: on one image, or by shapes only if that is slow.

    Raises:
        OptionError: it does not.
    """
    try:
        size = network.input_size
        quick = prod(size[-2:]) <= _QUICK_PIXELS and sum(p.numel() for p in network.parameters()) <= _QUICK_PARAMS
        with torch.inference_mode():
            if quick:
                network(torch.zeros(1, *size))
            else:  # slower for small networks, as kernels of the meta device are Python code
                shape_copy(network)(torch.empty(1, *size, device="meta"))
    except FOREIGN as error:
        raise OptionError(
            f"{name} cannot run with its arguments: {first_line(error, 120)}; check --model-arg"
        ) from error


_SOME_CLASSES = 1000  # number of classes of a random classifier


@dataclass(frozen=True)
class Headless:
    """A base whose classifier is missing or does not count: images [B, C, H, W] to pooled features [B, d]."""

    network: Network
    timm_name: str
    timm_args: Mapping[str, Any]
    preprocessing: Mapping[str, Any]
    release: ReleaseFacts = field(default_factory=ReleaseFacts)

    def described(self) -> Model:
        """The base as a model."""
        model = describe(self.network, self.timm_name, self.timm_args, self.preprocessing)
        return Model(model, model.spec, replace(self.release, labels=()))  # labels of no classifier

    def with_head(self, weight: Tensor, bias: Tensor) -> Model:
        """Add a classifier to the base, in place. Shapes: weight [classes, d]; bias [classes].

        One of weight [classes, 2 d] reads the class token and the mean of the patches.

        The two heads of a distilled DeiT, whose logits are averaged, are equal.
        """
        if weight.shape[1] == 2 * self.network.geometry.embed and tokens_of(self.network) is None:
            read_tokens(self.network, "class,mean")
        self.network.make_classifiers(len(weight))
        with torch.no_grad():
            for head in self.network.classifiers:
                head.weight.copy_(weight)
                head.bias.copy_(bias)
        return self.described()


def open_base(
    base: str | Path,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
    model_args: Mapping[str, Any] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Model:
    """Open a base: a timm name with a checkpoint (or timm's own weights), or a model folder.

    Raises:
        UnknownNameError, OptionError, CheckpointError, UnsupportedModelError: the base cannot be opened.
    """
    opened = open_network(
        base,
        checkpoint=checkpoint,
        pretrained=pretrained,
        model_args=model_args,
        preprocessing=preprocessing,
        progress=progress,
    )
    if isinstance(opened, Headless):
        raise UnsupportedModelError(
            f"{base} has no classifier; edgevit base and edgevit derive fit one to the images of --data"
        )
    return opened


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
    """Open a base like `open_base`, or one without a classifier, or whose classifier does not count (`new_head`).

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
    base, progress = plain_base(base), progress or Silent()
    if is_builder(base):
        base, checkpoint = _built_folder(base, checkpoint), None
    overrides = {part: value for part, value in (preprocessing or {}).items() if value is not None}
    if is_release(Path(base)):
        return _open_weights(None, model_args or {}, Path(base), overrides, progress)
    if Path(base).is_dir():
        model = load(base)
        spec = model.spec
        if spec.output_kind == "features" and not spec.outputs and not spec.depths:
            return Headless(model, spec.timm_name, spec.timm_args, {**spec.preprocessing, **overrides})
        # It is its own base now.
        sha256 = tensors_sha256(model.state_dict())
        embed = model.geometry.embed
        if isinstance(model.module, Pyramid) and (given := overrides.keys() & {*PREPROCESSING_KEYS}):
            raise OptionError(
                f"a detector prepares images by its own transform; leave --{min(given).replace('_', '-')} out"
            )
        facts = BaseFacts(sha256, spec.blocks, spec.macs, spec.params, spec.outputs, embed)
        if spec.narrowed_rest is not None:
            spec = replace(spec, narrowed_rest=replace(spec.narrowed_rest, base_macs=spec.narrowed_rest.macs))
        spec = replace(spec, preprocessing={**spec.preprocessing, **overrides}, base=facts)
        origin = dict.fromkeys(PREPROCESSING_KEYS, "detector") if isinstance(model.module, Pyramid) else {}
        return Model(model, spec, ReleaseFacts(origin=origin))
    name, args = str(base), dict(model_args or {})
    _check_name(name)
    if checkpoint is not None:
        return _open_weights(name, args, Path(checkpoint), overrides, progress)
    if pretrained:
        progress.note(f"timm's weights of {name}, from the Hugging Face hub")
    return _opened(_create(name, args, pretrained=pretrained), name, args, overrides)


def _built_folder(base: str | Path, checkpoint: str | Path | None) -> Path:
    """The folder of the network that a function in a Python file builds."""
    from edgevit.network.from_module import path_of

    module = built(base, None if checkpoint is None else weights_of(Path(checkpoint)))
    folder: Path = path_of(module, str(base), builder_parts(base))
    return folder


def _opened(
    module: nn.Module, name: str, args: Mapping[str, Any], preprocessing: Mapping[str, Any]
) -> Model | Headless:
    network = Network(module.eval())  # raises for unsupported networks before a classifier is fitted
    _try_once(network, name)
    if network.ends.classifiers:
        return describe(network, name, args, preprocessing)
    return Headless(network, name, args, _preprocessing(network, preprocessing))


def network_without_weights(
    base: str | Path, model_args: Mapping[str, Any] | None = None, *, checkpoint: str | Path | None = None
) -> Network:
    """The network of a base, of which only the shape matters: of a model folder, or a random timm model.

    A network without a classifier gets one. Files of weights, if they are the base, determine its arguments.

    Raises:
        UnknownNameError, OptionError, CheckpointError, UnsupportedModelError: as for `open_network`.
    """
    base, args = plain_base(base), dict(model_args or {})
    if is_builder(base):
        base, checkpoint = _built_folder(base, checkpoint), None
    if checkpoint is not None or is_release(Path(base)):
        opened = open_network(base, checkpoint=checkpoint, model_args=args)
        spec = opened.spec if isinstance(opened, Model) else opened
        base, args = spec.timm_name, {key: spec.timm_args[key] for key in spec.timm_args if key != "num_classes"} | args
    if Path(base).is_dir():
        network: Network = load(base)
    else:
        with without_values():
            _refuse_too_large(_create(str(base), args), str(base))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # deterministic
            network = Network(_create(str(base), args))
            if not network.ends.classifiers:
                network.make_classifiers(_SOME_CLASSES)
        _try_once(network.eval(), str(base))
    return network.eval()


def _open_weights(
    name: str | None, args: Mapping[str, Any], path: Path, overrides: Mapping[str, Any], progress: Progress
) -> Model | Headless:
    """Open a network with the weights of a file or a folder, and with the configuration files in the folder.

    Args:
        name: of the network; None: by those files, or by the shapes of the weights.
        overrides: preprocessing by options, which take precedence.

    Raises:
        as `open_network`.
    """
    file = weights_of(path)
    release = read_release(file.parent)
    if lacking := [part for part in release.unequalled if part not in overrides]:
        raise OptionError(
            f"{release.folder / PROCESSOR} prepares images in a way that edgevit has no equal of; give "
            f"{' and '.join('--' + part.replace('_', '-') for part in lacking)}"
        )
    state = read_weights(file, progress.note)
    if name is not None and release.architecture not in (None, name.partition(".")[0]):
        progress.note(f"{CONFIG} beside the weights says {release.architecture}; {name} is used")
    if name is None:
        name = _name_of(state, file, release, progress)
    network, arguments, weights = _filled(name, args, file, state, release, progress)
    origin = {**dict.fromkeys(weights.preprocessing, weights.origin), **release.origin}
    release = replace(release, preprocessing={**weights.preprocessing, **release.preprocessing}, origin=origin)
    stated = {part: value for part, value in release.preprocessing.items() if part != "input_size"}
    for part in overrides.keys() & release.origin.keys():
        if (now := _shown(overrides[part])) != (earlier := _shown(stated[part])):
            option = f"--{part.replace('_', '-')} {now}"
            progress.note(f"{release.origin[part]} beside the weights says {part} {earlier}; {option} is used")
    opened = _opened(network, name, arguments, {**stated, **overrides})
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
    if release.architecture is not None and timm.is_model(release.architecture):
        progress.note(f"{file} is of {release.architecture}, as {CONFIG} beside it says")
        return release.architecture
    for family in map(load_family, family_names()):
        interchange = family.interchange
        if (name := interchange.guessed_name(interchange.named(state).state)) is not None:
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
) -> tuple[Any, TimmArguments, Weights]:
    """Create a timm model with these weights; return it with its arguments and the weights.

    Arguments are, in order of precedence: of options, of the configuration files, and by the shapes.
    """
    stated = {**_stated_arguments(release, args), **args}
    if texts := [f"{key}={value}" for key, value in stated.items() if key not in args]:
        progress.note(f"{name} as the files beside the weights say: {', '.join(texts)}")
    for key in args.keys() & release.arguments.keys():
        if _shown(args[key]) != _shown(release.arguments[key]):
            earlier = f"{key}={release.arguments[key]}"
            progress.note(f"{CONFIG} beside the weights says {earlier}; --model-arg {key}={args[key]} is used")
    with without_values():
        network = _create(name, stated)
    interchange = family_like(network).interchange
    weights = interchange.named(state)
    guessed, assumption = interchange.guessed_arguments(weights.state, network, network.state_dict(), stated)
    if guessed:
        texts = [f"{key}={value}" for key, value in guessed.items()]
        progress.note(f"{name} by the shapes of {file.name}: {', '.join(texts)}; --model-arg gives others")
    if assumption is not None:
        progress.note(assumption)
    arguments = {"num_classes": weights.classes, **guessed, **stated}  # may differ from ImageNet's
    with without_values():  # they would be initialised and replaced
        network = _create(name, arguments)
    weights = interchange.fitted(
        weights, network, name, resample="img_size" in stated, trained=release.arguments.get("img_size")
    )
    try:
        fill_network(network, weights.state, file, name)
    except CheckpointError as error:
        raise CheckpointError(
            "; ".join([str(error), *_hints(interchange, weights, network), *weights.notes])
        ) from error
    for note in weights.notes:
        progress.note(note)
    return network, arguments, weights


def _stated_arguments(release: ReleaseFacts, args: Mapping[str, Any]) -> TimmArguments:
    """timm's arguments by the configuration files, with the image size of an image processor."""
    stated = {key: value for key, value in release.arguments.items() if key not in args}
    size = release.preprocessing.get("input_size")
    if size is not None and release.origin["input_size"] == PROCESSOR and "img_size" not in args:
        stated.setdefault("img_size", size[1] if size[1] == size[2] else tuple(size[1:]))
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


def describe(
    module: nn.Module, timm_name: str, timm_args: Mapping[str, Any], preprocessing: Mapping[str, Any] | None = None
) -> Model:
    """Describe a timm network that is its own base; `timm.create_model` must create it with these arguments.

    Raises:
        UnsupportedModelError: it cannot be factorised, or no family matches.
    """
    network = Network(module)
    heads = network.ends.classifiers
    outputs = heads[0].out_features if heads else 0
    blocks = network.dims
    geometry, params = network.geometry, sum(p.numel() for p in network.parameters())
    state, family = tensors_sha256(network.state_dict()), network.family
    builder = None
    if isinstance(family, DenseFamily) and family.builder is not None:
        builder = BuilderFacts(family.builder.function, family.path, family.builder.sha256, family.read)
    base = BaseFacts(state, blocks, geometry.macs(blocks), params, outputs, geometry.embed)
    spec = ModelSpec(
        timm_name=timm_name,
        timm_args={**timm_args, "num_classes": outputs},
        family=network.family_name,
        blocks=blocks,
        head="full",
        classes=(),
        preprocessing=_preprocessing(network, preprocessing or {}),
        macs=base.macs,
        params=params,
        base=base,
        output=network.output.kind if builder else None,
        builder=builder,
        tokens=tokens_of(network),
    )
    network.eval()
    pyramid = network.module
    if isinstance(pyramid, Pyramid) and (rest := rest_macs(pyramid, network.input_size)) is not None:
        spec = replace(spec, rest=DetectorRest(*rest))
    return Model(network, spec)


def load(folder: str | Path, *, run_code: bool = False) -> Model:
    """Read a model folder.

    Args:
        run_code: run the file by which a network with a head of the user's is made, although it has not been a base on
            this machine; it may do whatever a program may.

    Raises:
        CheckpointError: a file is missing, altered (wrong hash) or of another schema.
        TypeError: `folder` is not a path.
    """
    if not isinstance(folder, (str, PathLike)):
        raise TypeError(f"edgevit.load takes the path of a model folder, not {type(folder).__name__}")
    check_model_folder(folder)
    files = ModelFolder(Path(folder))
    document = files.document()
    spec = document.spec
    if fault := file_fault(files.weights_file, document.weights_sha256, files.spec_file):
        raise CheckpointError(f"{fault}; copy the folder again, or derive it again")
    with reading(files.weights_file):
        state = load_file(files.weights_file)
    # The width that blocks restore for a head: that of the first base, as the base of this one may be narrower, too.
    prefix = "" if spec.builder is None else f"{spec.builder.network}."
    restores = [w for name, w in state.items() if name.startswith(prefix) and name.endswith(".restore.weight")]
    whole = max(map(len, restores), default=0)
    try:
        if spec.builder is not None:
            network = _made_again(files, spec, spec.builder, run_code)
        else:
            with without_values():
                arguments = dict(spec.timm_args)
                if spec.depths and whole:
                    arguments["embed_dim"] = whole
                network = Network(_create(spec.timm_name, arguments, prefix="timm_args."))
            if spec.depths:
                network = with_features(network, spec.tokens, spec.depths)
            elif spec.tokens is not None:
                read_tokens(network, spec.tokens)
    except (OptionError, UnknownNameError, UnsupportedModelError) as error:
        raise CheckpointError(f"{files.spec_file} contradicts the model: {error}") from error
    if spec.reads_texts and store_tokenizer(tokenizer_text(files.path) or "") != spec.preprocessing["tokenizer"]:
        raise CheckpointError(f"{files.tokenizer_file} is missing or was altered; copy the folder again")
    depth = len(network.read())
    if network.family_name != spec.family or len(spec.blocks) != depth:
        raise CheckpointError(
            f"{files.spec_file} describes {len(spec.blocks)} blocks of family {spec.family}, and {spec.timm_name} has "
            f"{depth} of {network.family_name}; copy the folder again, or derive it again"
        )
    if isinstance(network.family, DenseFamily) and whole and spec.embed:
        device = next(network.parameters()).device
        geometry = network.geometry
        pairs = zip(geometry.bases_at(spec.embed), geometry.bases, strict=True)
        network = network.with_embedding([torch.zeros(pair, dtype=torch.float64, device=device) for pair in pairs])
    network.resize(spec.blocks, state)
    fill_network(network, state, files.weights_file, str(folder))
    _check_described(network, spec, files.spec_file)
    try:
        _try_once(network.eval(), spec.timm_name)
    except OptionError as error:
        raise CheckpointError(f"{files.spec_file} contradicts the model: {error}") from error
    return Model(network.eval(), spec)


def _made_again(files: ModelFolder, spec: ModelSpec, facts: BuilderFacts, run_code: bool) -> Network:
    """The network that the file in a folder makes, with undefined weights, and layers behind it of the right widths.

    Raises:
        CheckpointError: it is missing, was altered, or may not be run.
        UnsupportedModelError: it makes another network.
    """
    file = files.builder_file
    if fault := file_fault(file, facts.sha256, files.spec_file):
        raise CheckpointError(f"{fault}; copy the folder again, or derive it again")
    if not run_code:
        refuse_unknown(file, facts.sha256, facts.function)
    builder = Builder.at(file, facts.function)
    made = built(f"{file}:{facts.function}", None).eval()
    boxes = spec.output == "boxes"
    module = Pyramid(made).eval() if boxes else made
    if spec.narrowed_rest is not None:
        try:
            narrowed_as(module, spec.narrowed_rest.layers)
        except FOREIGN as error:
            reason = f"{facts.function} makes other layers behind its backbone ({first_line(error, 80)})"
            raise UnsupportedModelError(reason) from error
    network = Network(module, within(module, facts.network, builder, read=facts.read))
    if boxes and takes_several_sizes(made):
        letterbox(made, network.input_size)
    return network


def _check_described(network: Network, spec: ModelSpec, file: Path) -> None:
    """Check that a network has the costs and the input size in model.json.

    Raises:
        CheckpointError: it has others.
    """
    geometry = network.geometry
    of_base = geometry.with_classes(spec.base.outputs).of_base(spec.base.embed)
    if spec.narrowed_rest is not None and spec.rest is None:
        of_base = replace(of_base, head_macs=spec.narrowed_rest.base_macs)
    for name, stated, actual in (
        ("MACs", spec.macs, geometry.macs(spec.blocks)),
        ("parameters", spec.params, sum(p.numel() for p in network.parameters())),
        ("MACs of the base", spec.base.macs, of_base.macs(spec.base.blocks)),
        ("input size", list(spec.preprocessing["input_size"]), list(network.input_size)),
    ):
        if stated != actual:
            raise CheckpointError(
                f"{file} was altered: it states {stated} {name}, and the model has {actual}; "
                f"copy the folder again, or derive it again"
            )


def save(model: Model, folder: Path, *, overwrite: bool = False, **records: Any) -> None:
    """Write a model folder; `records` are the card and the records of `ModelFolder.write`.

    Raises:
        OutputError: the folder exists and may not be overwritten, or cannot be written.
    """
    with new_folder(folder, overwrite=overwrite) as temporary:
        files = ModelFolder(temporary)
        state = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
        save_file(state, files.weights_file, metadata={"format": "pt"})
        files.weights_file.chmod(0o644)  # safetensors makes it private
        if isinstance(family := model.family, DenseFamily) and family.builder is not None:
            files.builder_file.write_bytes(family.builder.code)
        if model.spec.reads_texts:
            files.tokenizer_file.write_text(stored_tokenizer(model.preprocessing), encoding="utf-8")
        files.write(model.spec, **records)


def derived_spec(base: ModelSpec, network: Network, head: Head, classes: tuple[TargetClass, ...]) -> ModelSpec:
    """Describe a network that was derived from `base`."""
    blocks = network.dims
    outputs = 0 if isinstance(network.family, DenseFamily) else network.classifiers[0].out_features
    geometry = network.geometry
    changed = network.timm_arguments(len(base.blocks), base.base.embed or geometry.embed)
    spec = ModelSpec(
        timm_name=base.timm_name,
        timm_args={**base.timm_args, "num_classes": outputs, **changed},
        family=base.family,
        blocks=blocks,
        head=head,
        classes=classes,
        preprocessing=dict(base.preprocessing),
        macs=geometry.macs(blocks),
        params=sum(p.numel() for p in network.parameters()),
        base=BaseFacts(base.base.weights_sha256, base.blocks, base.macs, base.params, base.outputs, base.base.embed),
        output=base.output,
        builder=base.builder,
        tokens=tokens_of(network),
        depths=depths_in(network),
        rest=base.rest,
        narrowed_rest=base.narrowed_rest,
    )
    return spec
