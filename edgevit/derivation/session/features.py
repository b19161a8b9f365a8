"""Derive a smaller backbone: its features are to be those of the base, on images that need no labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgevit.data.task import Split, Task
from edgevit.derivation.cache import Cache
from edgevit.derivation.measure.divergence import network_outputs
from edgevit.errors import DataError
from edgevit.network.checkpoint import Headless, Model, derived_spec, tensors_sha256
from edgevit.network.classifier import with_features
from edgevit.network.network import Network
from edgevit.network.output import Features
from edgevit.records.derivation import SimilarityRecord
from edgevit.train.passes import Passes

UNIT_IMAGES = 1000  # of the training part at most, whose features give the unit of each channel
NEIGHBOURS = 10  # nearest images, of which a derived model should have the same ones


def features_model(base: Model | Headless) -> Model:
    """A base with the identity in place of its classifier: its outputs are its features."""
    model = base.described() if isinstance(base, Headless) else base
    if model.spec.output == "features":
        return model
    network = with_features(model)
    spec = derived_spec(model.spec, network, "full", ())
    facts = replace(spec.base, blocks=spec.blocks, macs=spec.macs, params=spec.params, outputs=spec.outputs)
    return Model(network, replace(spec, base=facts, output="features"), model.release)


def with_units(model: Model, task: Task, passes: Passes, cache: Cache, identity: Mapping[str, Any]) -> Network:
    """The network of a model that puts out features, each in units of its standard deviation over training images.

    Raises:
        DataError: the features are not finite, or all images have the same.
    """
    images = task.train.subset(UNIT_IMAGES)
    key = {**identity, "images": images.content_sha256()}

    def measure() -> dict[str, Tensor]:
        outputs = network_outputs(model, images, passes).double()
        if not bool(torch.isfinite(outputs).all()):
            raise DataError("the base's features are no finite numbers; check its weights, --mean and --std")
        return {"scale": outputs.flatten(0, -2).std(0)}

    scale = cache.tensors("units", key, measure)["scale"]
    if not float(scale.max()) > 0:
        raise DataError("the base's features are the same for all images; check its weights, and the images")
    return Network(model.module, model.family, Features(scale.clamp_min(1e-3 * float(scale.max())).float()))


def units_sha256(network: Network) -> str | None:
    """A hash of the units of features, for keys; None: its outputs are none, or have no units."""
    output = network.output
    return (
        tensors_sha256({"scale": output.scale}) if isinstance(output, Features) and output.scale is not None else None
    )


def measure_similarity(base: Network, derived: Network, images: Split, passes: Passes) -> SimilarityRecord:
    """Compare the features of a derived network with those of its base on held-out images."""
    outputs = [network_outputs(network.to(passes.compute.device).eval(), images, passes) for network in (base, derived)]
    of_base, of_derived = (each.flatten(1).double() for each in outputs)
    cosines = F.cosine_similarity(of_base, of_derived, dim=1)
    return SimilarityRecord(len(images), float(cosines.mean().clamp(0, 1)), same_neighbours(*outputs))


def same_neighbours(reference: Tensor, features: Tensor) -> float | None:
    """Share of the nearest images by cosine of the reference that are among the nearest by the features.

    None: there are not twice as many images as neighbours. Shapes: both [N, ...].
    """
    if len(reference) < 2 * NEIGHBOURS:
        return None
    nearest = []
    for each in (reference, features):
        directions = F.normalize(each.flatten(1).double(), dim=1)
        cosines = directions @ directions.mT
        cosines.fill_diagonal_(-2)
        nearest.append(torch.zeros_like(cosines).scatter_(1, cosines.topk(NEIGHBOURS).indices, 1))
    return float((nearest[0] * nearest[1]).sum() / nearest[0].sum())
