"""Compare the pyramid of a derived detector with that of its base, and what both find."""

from __future__ import annotations

import torch
from torch import Tensor

from edgevit.data.sources.coco import CocoImages
from edgevit.data.task import Split, Task
from edgevit.network.detector import Pyramid
from edgevit.network.network import Network
from edgevit.network.output import Levels
from edgevit.records.derivation import BoxesRecord
from edgevit.train.detections import find_objects
from edgevit.train.passes import Passes


def level_units(network: Network, images: Split, passes: Passes) -> Tensor:
    """The unit of each value of a pyramid: [values].

    That is the standard deviation of its level, times a factor by which a mean over all values is the mean over the
    levels: the finest has most of the values, and must not count most.
    """
    assert isinstance(network.module, Pyramid)
    pyramid, sizes = network.module, list[int]()
    sums = torch.zeros(0)

    def add(batch: Tensor, _: Tensor) -> None:
        nonlocal sums
        levels = [level.flatten(1).double() for level in pyramid.levels(batch).values()]
        sizes[:] = [level.shape[1] for level in levels]
        moments = torch.stack([torch.stack([x.mean(1).sum(), x.square().mean(1).sum()]) for x in levels])
        sums = moments if not len(sums) else sums + moments

    passes.show(network, images, add)
    mean, square = (passes.compute.sum(sums) / len(images)).cpu().unbind(1)
    deviations = (square - mean.square()).clamp_min(0).sqrt()
    shares = torch.tensor(sizes, dtype=torch.float64) * len(sizes) / sum(sizes)
    return (deviations * shares.sqrt()).repeat_interleave(torch.tensor(sizes))


def measure_boxes(
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
