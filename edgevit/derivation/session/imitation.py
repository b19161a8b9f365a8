"""Derive a model whose features, map or pyramid are to be those of its base, on images that need no labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from edgevit.data.sources.coco import CocoImages
from edgevit.data.task import Split, Task
from edgevit.derivation.cache import Cache
from edgevit.derivation.measure.divergence import network_outputs
from edgevit.derivation.measure.embedding import stable_images
from edgevit.derivation.request import depths_of, puts_out_features, tokens_of_output
from edgevit.errors import DataError, OptionError
from edgevit.network.classifier import with_features
from edgevit.network.detector import Pyramid
from edgevit.network.likeness import Likeness
from edgevit.network.model import Headless, Model, derived_spec, tensors_sha256
from edgevit.network.network import Network
from edgevit.network.output import Features, Levels, Map
from edgevit.progress import Progress
from edgevit.records.derivation import BoxesRecord, MapRecord
from edgevit.records.model import OutputKind, TokenOutput
from edgevit.text import format_count
from edgevit.train.detections import find_objects
from edgevit.train.passes import Passes

_KINDS: Mapping[str, OutputKind] = {"map:foreground": "foreground", "map:classes": "classes"}  # map: the base's own
_ONE_TOKEN = (None, "class")  # outputs of tokens that have one vector for each image
_MAP_IMAGES = 100  # most images for maps and for features of tokens, which have many values
_UNIT_IMAGES = 1000  # most training images whose features give the unit of each channel
# A ViT of 2 blocks with 64 features, trained on scikit-learn's digits, at 0.6 and at 0.8 in closed form: 1 - cosine on
# other digits is, with 3 images, 37 and 400 times what it is with 512; with 5 23 and 8 times, with 10 5 and 3.5 times,
# with 64 1.4 and 1.3. The deviation of 10 values is off by a quarter, that of 3 by a half.
_FEWEST_IMAGES = 10  # fewest training images that a base is imitated on


def unlabelled_model(base: Model | Headless, output: str, progress: Progress) -> Model:
    """A base that puts out `features`, by the identity in place of its classifier, or what a head of the user's gives.

    It ends after the last block whose features are asked for, which is told.

    Raises:
        OptionError: it has no such head, or it has one, or its map has not as many channels as the kind of map.
    """
    model = base.described() if isinstance(base, Headless) else base
    requested = "features" if puts_out_features(output) else output.partition(":")[0]
    puts_out = model.spec.own_output if model.spec.builder else "features"
    if requested != puts_out:
        has = model.spec.output_text if model.spec.builder else f"no {requested}: there is no head of your own"
        raise OptionError(f"--output {output}: the output of this base is {has}; try --output {puts_out}")
    if not puts_out_features(output):
        if output in _KINDS:
            _check_channels(model, output)
        return Model(model, replace(model.spec, output=_KINDS.get(output, model.spec.output)), model.release)
    tokens, depths = tokens_of_output(output), depths_of(output)
    blocks, macs = len(model.spec.blocks), model.spec.macs
    if tokens is None and depths == (blocks,):
        depths = ()  # as without them
    if model.spec.output == "features":
        if (model.spec.tokens, model.spec.depths) != (tokens, depths):
            own_output = "features" if model.spec.tokens is None else f"features:{model.spec.tokens}"
            own_output += f"@{','.join(map(str, model.spec.depths))}" if model.spec.depths else ""
            raise OptionError(f"--output {output}: the output of this base is {own_output}; try --output {own_output}")
        return model
    if model.spec.tokens is not None:
        raise OptionError(
            f"--output {output}: the classifier of this base reads {model.spec.tokens}, and its features would be two "
            "in one; give the base that it was made of"
        )
    network = with_features(model, tokens, depths)
    spec = derived_spec(model.spec, network, "full", ())
    if (last := len(spec.blocks)) < blocks:
        progress.note(
            f"the base ends after block {last} of {blocks}, as no later features are asked for: budgets are of its "
            f"{format_count(spec.macs)} MACs of {format_count(macs)}"
        )
    facts = replace(spec.base, blocks=spec.blocks, macs=spec.macs, params=spec.params, outputs=spec.outputs)
    return Model(network, replace(spec, base=facts, output="features", tokens=tokens), model.release)


def _check_channels(model: Model, output: str) -> None:
    """Refuse a map whose channels cannot be logits of foreground, or of classes: the softmax of one is constant.

    Raises:
        OptionError: it is such a map.
    """
    with torch.no_grad():
        shape = model(next(model.parameters()).new_zeros(1, *model.input_size)).shape
    if (shape[1] == 1) != (output == "map:foreground"):
        channels, other = ("1 channel", "map:foreground") if shape[1] == 1 else (f"{shape[1]} channels", "map:classes")
        expected = "one channel of logits" if shape[1] > 1 else "a channel of logits for each class"
        raise OptionError(
            f"--output {output}: the map of this base has {channels}, expected {expected}; try --output {other}, or "
            "--output map for values"
        )


def check_enough_images(model: Model, task: Task, progress: Progress) -> None:
    """Refuse too few training images to imitate a base on, and warn of few ones, by the number that would do.

    With that the moments of the base's tokens are stable, and the covariance of features of an image has full rank.
    Unlabelled images count for moments, and not for units.

    Raises:
        DataError: there are fewer than 10.
    """
    noun, images, held_out = model.output.noun, len(task.train), len(task.validation) + len(task.test)
    if images < _FEWEST_IMAGES:
        raise DataError(
            f"{images} training image{'s' * (images != 1)} cannot show what the base's {noun} are like, "
            f"{_FEWEST_IMAGES} or more can ({held_out} other{'s' * (held_out != 1)} are held out): give more"
        )
    features = model.spec.outputs if model.output.kind == "features" and model.spec.tokens in _ONE_TOKEN else 0
    enough = max(stable_images(model), features)
    if (read := len(task.calibration(enough))) < enough:
        progress.warn(
            f"{read} training images do not determine the moments that a model is solved from, {enough} would: it "
            "loses more on other images; add some"
        )


def with_units(model: Model, task: Task, passes: Passes, cache: Cache, identity: Mapping[str, Any]) -> Network:
    """The network of a model that puts out features, each in units of its standard deviation over training images.

    Of tokens, a class token has units of its own. The values of a map have the unit of their channel, those of a
    pyramid that of their level, and logits none.

    Raises:
        DataError: the outputs are not finite, or all images have the same.
    """
    kind, noun = model.output.kind, model.output.noun
    tokens, depths = model.spec.tokens, model.spec.depths
    images = task.train.subset(_UNIT_IMAGES if kind == "features" and tokens in _ONE_TOKEN else _MAP_IMAGES)
    key = {**identity, "images": images.content_sha256()}

    def measure() -> dict[str, Tensor]:
        if isinstance(model.module, Pyramid):
            scale = level_units(model, images, passes)
        else:
            scale = _deviations(network_outputs(model, images, passes).double(), kind, tokens, depths)
        if not bool(torch.isfinite(scale).all()):
            raise DataError(f"the base's {noun} are no finite numbers; check its weights, --mean and --std")
        return {"scale": scale}

    scale = cache.tensors("units", key, measure)["scale"]
    if not float(scale.max()) > 0:
        raise DataError(f"the base's {noun} are the same for all images; check its weights, and the images")
    unit = scale.clamp_min(1e-3 * float(scale.max())).float()
    if isinstance(model.module, Pyramid):
        blank = next(model.parameters()).new_zeros(1, *model.input_size)
        with torch.no_grad():
            sizes = tuple(level.shape[1:] for level in model.module.levels(blank).values())
        return Network(model.module, model.family, Levels(unit, sizes))
    if isinstance(model.output, Map):
        of_values = unit[:, None, None] if kind == "values" else None
        return Network(model.module, model.family, replace(model.output, scale=of_values))
    return Network(model.module, model.family, Features(unit))


def _deviations(outputs: Tensor, kind: OutputKind, tokens: TokenOutput | None, depths: Sequence[int] = ()) -> Tensor:
    """The unit of each channel of features, or of a map, by the outputs of some images."""
    if depths:  # each of which has units of its own
        of_depths = [_deviations(of_depth, kind, tokens) for of_depth in outputs.unbind(1)]
        return torch.stack([of_depth.expand(1, -1) if tokens == "patches" else of_depth for of_depth in of_depths])
    channels = outputs if kind == "features" else outputs.movedim(1, -1)
    if tokens != "class,patches":
        return channels.flatten(0, -2).std(0)
    # The class token counts as much as all patches: of N tokens it has half of the N shares.
    patches = channels.shape[1] - 1
    of_class, of_patch = (part.flatten(0, -2).std(0) for part in (channels[:, :1], channels[:, 1:]))
    shares = [(patches + 1) / 2, (patches + 1) / (2 * patches)]
    of_class, of_patch = of_class / shares[0] ** 0.5, of_patch / shares[1] ** 0.5
    return torch.stack([of_class, *[of_patch] * patches])


def units_sha256(network: Network) -> str | None:
    """A hash of the units of features or of a map, for keys; None: its outputs have none."""
    scale = network.output.scale if isinstance(network.output, (Features, Map)) else None
    return None if scale is None else tensors_sha256({"scale": scale})


def measure_likeness(
    base: Network,
    derived: Network,
    task: Task,
    passes: Passes,
    finetuned: Network | None = None,
    imitated: Network | None = None,
) -> dict[str, Any]:
    """Compare the outputs of a derived network with its base's on held-out images, by the field of the record.

    Args:
        finetuned: a detector that the base became by training, to be judged, too.
        imitated: the detector that was cut; None: the base.
    """
    images = task.test
    if isinstance(base.output, Levels):
        return {"boxes": _measure_boxes(base.output, base, derived, task, passes, finetuned, imitated or base)}
    if isinstance(base.output, Map):
        return {"map": _measure_map(base.output, base, derived, images, passes)}
    derived, likeness = derived.to(passes.compute.device).eval(), Likeness()
    replace(passes, shared=False).show(
        base, images, lambda batch, _: likeness.add(base(batch), derived(batch)), stage="compare features"
    )
    return {"similarity": likeness.record()}


def _measure_map(output: Map, base: Network, derived: Network, images: Split, passes: Passes) -> MapRecord:
    """Compare maps of held-out images batch by batch, as those of all may not fit into memory."""
    base, derived = (network.to(passes.compute.device).eval() for network in (base, derived))
    sums = torch.zeros(3, dtype=torch.float64, device=passes.compute.device)

    def compare(batch: Tensor, _: Tensor) -> None:
        reference, outputs = base(batch).float(), derived(batch).float()
        sums[0] += output.divergence(reference.double(), outputs.double()).sum()
        sums[1] += output.score(outputs, output.answers(reference)).sum()
        sums[2] += (output.shown(outputs) - output.shown(reference)).abs().flatten(1).mean(1).sum()

    passes.show(base, images, compare, stage="compare maps")
    divergence, score, error = (passes.compute.sum(sums) / len(images)).tolist()
    return MapRecord(len(images), max(divergence, 0.0), score, error)


def level_units(network: Network, images: Split, passes: Passes) -> Tensor:
    """The unit of each value of a pyramid: [values].

    That is the standard deviation of its level where images are no padding, times a factor by which a mean over all
    values is the mean over the levels: the finest has most of the values, and must not count most. Padding has zeros
    for values in that mean, which the factor makes up for.
    """
    assert isinstance(network.module, Pyramid)
    pyramid, sizes = network.module, list[int]()
    sums = torch.zeros(0)

    def add(batch: Tensor, _: Tensor) -> None:
        nonlocal sums
        levels, areas = pyramid.levels(batch), pyramid.areas(batch)
        values = [level.flatten(1).double() for level in levels.values()]
        sizes[:] = [x.shape[1] for x in values]
        shares = [torch.ones_like(x) for x in values]
        if areas is not None:
            shares = [real.double() for real in areas.values([x.shape[1:] for x in levels.values()])]
        moments = [[(s * y).mean(1).sum() for y in (s, x, x.square())] for s, x in zip(shares, values, strict=True)]
        of_batch = torch.stack([torch.stack(of_level) for of_level in moments])
        sums = of_batch if not len(sums) else sums + of_batch

    passes.show(network, images, add)
    share, mean, square = (passes.compute.sum(sums) / len(images)).cpu().unbind(1)
    mean, square = mean / share, square / share
    deviations = (square - mean.square()).clamp_min(0).sqrt()
    shares = share * torch.tensor(sizes, dtype=torch.float64) * len(sizes) / sum(sizes)
    return (deviations * shares.sqrt()).repeat_interleave(torch.tensor(sizes))


def _measure_boxes(
    output: Levels,
    base: Network,
    derived: Network,
    task: Task,
    passes: Passes,
    finetuned: Network | None,
    imitated: Network,
) -> BoxesRecord:
    """Compare held-out images batch by batch; those with annotations tell what both detectors find, too."""
    images = task.test
    base, derived, imitated = (network.to(passes.compute.device).eval() for network in (base, derived, imitated))
    total = torch.zeros((), dtype=torch.float64, device=passes.compute.device)

    def compare(batch: Tensor, _: Tensor) -> None:
        total.add_(2 * output.divergence(imitated(batch).double(), derived(batch).double()).sum())

    passes.show(imitated, images, compare, stage="compare pyramids")
    error = float(passes.compute.sum(total)) / len(images)
    if not isinstance(images.source, CocoImages):
        return BoxesRecord(len(images), error)
    categories = images.source.chosen(task.arguments.get("showing"))
    judged = [
        network and find_objects(network, images, categories, progress=passes.progress).record()
        for network in (base, derived, finetuned)
    ]
    return BoxesRecord(len(images), error, *judged)
