"""`Model`, a network with its description as users hold it, and how a network is described."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from timm.data import resolve_data_config
from torch import Tensor, nn

from edgevit.errors import CheckpointError, DataError, OptionError, UnsupportedModelError
from edgevit.network.classifier import depths_in, read_tokens, tokens_of, with_last_blocks
from edgevit.network.dense import DenseFamily
from edgevit.network.detector import Pyramid, rest_macs
from edgevit.network.network import Network
from edgevit.network.output import output_of
from edgevit.network.prediction import Picture, Prediction, predictions_of, rgb_images
from edgevit.numbers import COUNT, check_number
from edgevit.records.model import (
    BaseFacts,
    BuilderFacts,
    DetectorRest,
    Head,
    ModelSpec,
    PreprocessingFields,
    TargetClass,
)
from edgevit.records.names import TOKENIZER
from edgevit.records.preparing import image_transform
from edgevit.records.reading import Reading, reading_settings
from edgevit.records.release import PREPROCESSING_KEYS, ReleaseFacts
from edgevit.records.tokenizer import VOCABULARY, text_encoder


class Model(Network):
    """A network and its description.

    `release` describes the files beside the weights of a base.
    """

    def __init__(self, network: Network, spec: ModelSpec, release: ReleaseFacts | None = None) -> None:
        output = network.output
        if spec.classes or spec.output is not None:
            output = output_of(spec.output_kind, spec.class_columns)
        super().__init__(network.module, network.family, output)
        if isinstance(self.module, Pyramid):
            self.module.prepare_as(spec.preprocessing)
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

        One of weight [classes, 2 d] reads the class token and the mean of the patches, one of [classes, K 2 d] those
        of each of the last K blocks.

        The two heads of a distilled DeiT, whose logits are averaged, are equal.
        """
        network, blocks = self.network, weight.shape[1] // (2 * self.network.geometry.embed)
        if tokens_of(network) is not None or not blocks:
            network.make_classifiers(len(weight))
        elif blocks == 1:
            read_tokens(network, "class,mean")
            network.make_classifiers(len(weight))
        else:
            network = with_last_blocks(network, blocks, len(weight))
        with torch.no_grad():
            for head in network.classifiers:
                head.weight.copy_(weight)
                head.bias.copy_(bias)
        return replace(self, network=network).described()


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
        preprocessing=resolved_preprocessing(network, preprocessing or {}),
        macs=base.macs,
        params=params,
        base=base,
        output=network.output.kind if builder else None,
        builder=builder,
        tokens=tokens_of(network),
        depths=depths_in(network),
    )
    network.eval()
    pyramid = network.module
    if isinstance(pyramid, Pyramid) and (rest := rest_macs(pyramid, network.input_size)) is not None:
        spec = replace(spec, rest=DetectorRest(*rest))
    return Model(network, spec)


def derived_spec(base: ModelSpec, network: Network, head: Head, classes: tuple[TargetClass, ...]) -> ModelSpec:
    """Describe a network that was derived from `base`."""
    blocks = network.dims
    heads = network.ends.classifiers
    outputs = heads[0].out_features if heads else 0
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
        narrow_readers=base.narrow_readers,
    )
    return spec


def resolved_preprocessing(network: Network, overrides: Mapping[str, Any]) -> PreprocessingFields:
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


def tensors_sha256(state: Mapping[str, Tensor]) -> str:
    """Hash names, shapes and values, independent of the file."""
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data if value.numel() else b"")
    return digest.hexdigest()
