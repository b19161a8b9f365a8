"""Derive a model whose features, or map, are to be those of its base, on images that need no labels."""

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
from edgevit.derivation.session.maps import measure_map
from edgevit.errors import DataError, OptionError
from edgevit.network.checkpoint import Headless, Model, derived_spec, tensors_sha256
from edgevit.network.classifier import with_features
from edgevit.network.network import Network
from edgevit.network.output import Features, Map
from edgevit.records.derivation import SimilarityRecord
from edgevit.records.model import OutputKind
from edgevit.train.passes import Passes

KINDS: Mapping[str, OutputKind] = {"map:foreground": "foreground", "map:classes": "classes"}  # map: the base's own
MAP_IMAGES = 100  # the same for maps, which have many values
UNIT_IMAGES = 1000  # of the training part at most, whose features give the unit of each channel
NEIGHBOURS = 10  # nearest images, of which a derived model should have the same ones


def unlabelled_model(base: Model | Headless, output: str) -> Model:
    """A base that puts out `features`, by the identity in place of its classifier, or the map of a head of the user's.

    Raises:
        OptionError: it has no such head, or it has one.
    """
    model = base.described() if isinstance(base, Headless) else base
    if (output != "features") != (model.spec.builder is not None):
        has, other = ("a map", "map") if model.spec.builder else ("no map: there is no head of your own", "features")
        raise OptionError(f"--output {output}: the output of this base is {has}; try --output {other}")
    if output != "features":
        return Model(model, replace(model.spec, output=KINDS.get(output, model.spec.output)), model.release)
    if model.spec.output == "features":
        return model
    network = with_features(model)
    spec = derived_spec(model.spec, network, "full", ())
    facts = replace(spec.base, blocks=spec.blocks, macs=spec.macs, params=spec.params, outputs=spec.outputs)
    return Model(network, replace(spec, base=facts, output="features"), model.release)


def with_units(model: Model, task: Task, passes: Passes, cache: Cache, identity: Mapping[str, Any]) -> Network:
    """The network of a model that puts out features, each in units of its standard deviation over training images.

    The values of a map have the unit of their channel, and logits none.

    Raises:
        DataError: the outputs are not finite, or all images have the same.
    """
    kind, noun = model.output.kind, "features" if model.output.kind == "features" else "maps"
    images = task.train.subset(UNIT_IMAGES if kind == "features" else MAP_IMAGES)
    key = {**identity, "images": images.content_sha256()}

    def measure() -> dict[str, Tensor]:
        outputs = network_outputs(model, images, passes).double()
        if not bool(torch.isfinite(outputs).all()):
            raise DataError(f"the base's {noun} are no finite numbers; check its weights, --mean and --std")
        channels = outputs if kind == "features" else outputs.movedim(1, -1)
        return {"scale": channels.flatten(0, -2).std(0)}

    scale = cache.tensors("units", key, measure)["scale"]
    if not float(scale.max()) > 0:
        raise DataError(f"the base's {noun} are the same for all images; check its weights, and the images")
    unit = scale.clamp_min(1e-3 * float(scale.max())).float()
    if isinstance(model.output, Map):
        of_values = unit[:, None, None] if kind == "values" else None
        return Network(model.module, model.family, replace(model.output, scale=of_values))
    return Network(model.module, model.family, Features(unit))


def units_sha256(network: Network) -> str | None:
    """A hash of the units of features or of a map, for keys; None: its outputs have none."""
    scale = network.output.scale if isinstance(network.output, (Features, Map)) else None
    return None if scale is None else tensors_sha256({"scale": scale})


def measure_likeness(base: Network, derived: Network, images: Split, passes: Passes) -> dict[str, Any]:
    """Compare the outputs of a derived network with its base's on held-out images, by the field of the record."""
    if isinstance(base.output, Map):
        return {"map": measure_map(base.output, base, derived, images, passes)}
    return {"similarity": _similarity(base, derived, images, passes)}


def _similarity(base: Network, derived: Network, images: Split, passes: Passes) -> SimilarityRecord:
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
