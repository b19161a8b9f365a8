"""A head reads a narrower embedding itself, where its layers can, in place of tokens of the whole width."""

from __future__ import annotations

from dataclasses import replace

from edgevit.data.task import Split
from edgevit.derivation.problem import Derived, Problem
from edgevit.network.dense import DenseFamily
from edgevit.network.narrow_readers import read_narrower, reading_costs
from edgevit.network.network import Network
from edgevit.records.model import NarrowedLayer
from edgevit.text import format_count

_IMAGES = 2  # by which it is found what the head reads, and checked that its outputs remain


def plan_narrow_readers(network: Network, images: Split) -> None:
    """Find out whether the head could read a narrower embedding itself, so that a budget counts with that."""
    if isinstance(family := network.family, DenseFamily):
        (batch, _), *_ = images.subset(_IMAGES).batches(_IMAGES)
        costs = reading_costs(network.eval(), batch.to(next(network.parameters())))
        network.family = replace(family, per_channel=costs)


def with_narrow_readers(derived: Derived, problem: Problem) -> tuple[Derived, tuple[NarrowedLayer, ...] | None]:
    """Have the head read a narrower embedding itself, if that was planned; return the layers of fewer channels.

    This follows a training, which is the same with any head. None: it was planned, and the outputs were others.
    """
    network, progress = derived.network, problem.progress
    if not isinstance(family := network.family, DenseFamily) or not family.per_channel:
        return derived, ()
    if network.geometry.embed == problem.network.geometry.embed:
        return derived, ()
    (batch, _), *_ = problem.judging_images(_IMAGES).batches(_IMAGES)
    found = read_narrower(network.cpu(), batch)  # fp32 on the CPU: no product is rounded to TF32
    macs = network.geometry.macs(network.dims)
    if found is None:
        progress.warn(
            "the head was to read the narrower embedding itself, and its outputs were others: it reads tokens of the "
            f"whole width, and the model has {format_count(macs)} MACs, which may be more than its budget allows"
        )
        return derived, None
    saved = macs - found.network.geometry.macs(network.dims)
    progress.note(
        f"the head reads the narrower embedding itself, in {', '.join(found.readers)}: {format_count(saved)} MACs less"
    )
    return replace(derived, network=found.network), found.layers
