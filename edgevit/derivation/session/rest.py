"""With `rest_rate`: cut the head of a dense network, or what reads the pyramid of a detector, behind a cut backbone.

Chains of layers (`network.chains`) lose the channels that matter least. With h the values that the readers of a chain
read and W their weights, the channels S remain and the readers get W' = argmin E|W h - W' h_S - b|^2 over calibration
images, with the ridge of least error on other images than those it is solved for. The constant b goes into the
bias, except where zeros pad the input.

A training of the cut backbone that includes these layers follows their cut: its state before the first step has them
cut. What reads a pyramid is cut behind a training that compares the levels alone, for the levels after it.

How many channels each chain loses: the order of removal gives the error at each width (`removal_order`), scaled to what
a half and three quarters of the chain cost by themselves on validation images: as the divergence of the maps, or as the
error of the layers that give scores, boxes and masks, in units of their deviations. Then the step of least error for
its MACs is taken until enough are gone. The chains are solved one after the other, each behind those that are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.estimate import image_seconds
from edgevit.derivation.measure.thinning import GROUPS
from edgevit.derivation.problem import Derived, Problem
from edgevit.derivation.solve.least_squares import Regression, Removal, removal_order
from edgevit.errors import OptionError
from edgevit.network.chains import (
    Chains,
    as_rows,
    backbone_of,
    channels_last,
    find_chains,
    macs_of,
    set_rows,
    shrink,
    takes_constants,
    whole_run,
)
from edgevit.network.copies import bare_copy
from edgevit.network.dense import DenseFamily, count_head_macs
from edgevit.network.detector import Pyramid, rest_macs, rest_runs
from edgevit.network.network import Network
from edgevit.records.model import ModelSpec, NarrowedLayer, NarrowedRest
from edgevit.records.plan import in_ranges
from edgevit.text import format_count
from edgevit.train.passes import Passes, observed

_SEARCHED = 2  # images by which chains are found
_CALIBRATION, _JUDGED = 256, 48  # most images to which weights are fitted, and on which widths are judged
_BATCH = 4  # images at once; batches alternate between the groups of a regression
_POSITIONS = 2048  # most positions of one call of a layer in a regression
_PROBES = (0.5, 0.25)  # shares of the channels of each chain at which the loss is measured
_RIDGE_OF_ORDER = 1e-6  # in units of the mean square: a stronger one removes channels of their own before copies
_RIDGES = (inf, 1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)  # weak ones, too: positions are many

Widths = Mapping[str, int]  # channels that remain, by the layer that begins the chain


@dataclass(frozen=True)
class RestCosts:
    """MACs of one image behind the backbone."""

    macs: int
    of_layer: Mapping[str, int]  # of each layer in a chain
    chains: Sequence[NarrowedLayer]

    def at(self, widths: Widths) -> int:
        """The MACs at some widths: those of a layer follow the channels that it reads and that it puts out."""
        saved = 0.0
        for name, macs in self.of_layer.items():
            share = 1.0
            for chain in self.chains:
                if name in (chain.layer, *chain.between, *chain.readers):
                    share *= widths[chain.layer] / chain.channels
            saved += macs * (1 - share)
        return self.macs - round(saved)


def _costs(network: Network, chains: Sequence[NarrowedLayer]) -> RestCosts:
    module, blank = network.module, next(network.parameters()).new_zeros(1, *network.input_size)
    names = list(dict.fromkeys(n for chain in chains for n in (chain.layer, *chain.between, *chain.readers)))
    names = [n for n in names if isinstance(module.get_submodule(n), (nn.Linear, nn.Conv2d, nn.ConvTranspose2d))]
    counted = dict.fromkeys(names, 0)
    macs = network.geometry.head_macs
    runs: list[tuple[int, Callable[[], object]]] = [(1, lambda: whole_run(network, blank))]
    if isinstance(module, Pyramid):
        of_rest = rest_macs(module, network.input_size)
        assert of_rest is not None, "they are counted before anything is cut"
        (macs, _), runs = of_rest, rest_runs(module, network.input_size)
    layers = [module.get_submodule(name) for name in names]
    with torch.no_grad():
        for times, run in runs:

            def count(i: int, inputs: Any, output: Tensor, times: int = times) -> None:
                counted[names[i]] += times * macs_of(layers[i], inputs[0], output)

            with observed(layers, count):
                run()
    return RestCosts(macs, counted, chains)


def _narrower(width: int, step: int) -> int:
    """The next smaller multiple of a step; the width itself if there is none."""
    return max((width - 1) // step * step, min(step, width))


def check_rest(spec: ModelSpec, network: Network, images: Split, rate: float, policy: Policy) -> Chains:
    """Find the chains behind the backbone of a base, and refuse a share of their MACs that they cannot lose.

    Raises:
        OptionError: there is no chain, or too little in them.
    """
    option = f"--rest-rate {rate:g}"
    if isinstance(network.module, Pyramid) and spec.rest is None:
        raise OptionError(f"{option}: the parts of this detector are not torchvision's; leave it out")
    (batch, _), *_ = images.subset(_SEARCHED).batches(_SEARCHED)
    chains = find_chains(network.eval(), batch.to(next(network.parameters())))
    narrow = {c.layer: f"has {c.channels} channels" for c in chains.found if c.channels <= policy.ffn_step}
    chains = Chains(tuple(chain for chain in chains.found if chain.layer not in narrow), {**chains.reasons, **narrow})
    if not chains.found:
        reasons = chains.reasons_text() or "there is none"
        raise OptionError(f"{option}: no layer behind the backbone can lose channels: {reasons}; leave it out")
    costs = _costs(network, chains.found)
    least = costs.at({chain.layer: policy.ffn_step for chain in chains.found})
    if least > (1 - rate) * costs.macs:
        most = int(1000 * (1 - least / costs.macs)) / 1000
        raise OptionError(
            f"{option}: the layers that can lose channels ({', '.join(c.layer for c in chains.found)}) reach {most:g} "
            f"of the {format_count(costs.macs)} MACs behind the backbone; give less"
        )
    return chains


@dataclass(frozen=True)
class CutRest:
    """A copy of a network that is cut behind its backbone, which is shared, and what was removed."""

    network: Network
    narrowed: NarrowedRest
    channels: Mapping[str, str]  # that remain, as ranges, by the layer that begins the chain


class RestCutter:
    """Cuts the network of one derivation behind its backbone, once."""

    def __init__(self, problem: Problem, chains: Chains, rate: float) -> None:
        self.problem, self.chains, self.rate = problem, chains, rate
        self.done: CutRest | None = None

    def seconds(self) -> float:
        """Estimate the time of the cut: a few images are timed, with and without what is behind the backbone."""
        problem, chains = self.problem, len(self.chains.found)
        network, task, compute = problem.network, problem.task, problem.compute
        _, backbone = image_seconds(network, task.train, compute, timed=_BATCH)
        read, whole = image_seconds(network, task.train, compute, whole_run, _BATCH)
        cut = whole - problem.budget.rate * min(backbone, whole)
        fitted, judged = len(problem.calibration(_CALIBRATION)), len(problem.judging_images(_JUDGED))
        of_order = fitted * (read + cut) + judged * (read + (1 + len(_PROBES) * chains) * cut)
        return of_order + chains * fitted * (read + 2 * cut)

    def before_training(self, network: Network) -> None:
        """Cut a network in place before its training, if that trains what is behind the backbone."""
        task, training = self.problem.task, self.problem.training
        compares_alone = task.objects is None or (training.has_teacher and training.teacher_weight == 1)
        if self.done is None and not (isinstance(network.module, Pyramid) and compares_alone):
            self._cut(network)

    def _cut(self, network: Network) -> CutRest:
        cut = self.done = cut_rest(network, self.problem, self.chains, self.rate)
        network.module, network.family = cut.network.module, cut.network.family
        return cut

    def finish(self, derived: Derived) -> tuple[Derived, NarrowedRest]:
        """Cut the network that a method made, unless it was cut before its training."""
        cut = self.done or self._cut(derived.network)
        return replace(derived, facts={**derived.facts, "rest_channels": cut.channels}), cut.narrowed


def cut_rest(network: Network, problem: Problem, chains: Chains, rate: float) -> CutRest:
    """Cut the chains behind the backbone of a network until this share of the MACs there is gone."""
    work = _Work(network.to(problem.compute.device).eval(), chains, replace(problem.passes, shared=False))
    costs = _costs(work.network, chains.found)
    with problem.stopwatch.stage("rest"), torch.no_grad():
        images = problem.calibration(_CALIBRATION)
        moments = work.moments(images)
        orders = {chain.layer: work.order(chain, moments[chain.layer]) for chain in chains.found}
        losses = work.losses(moments, orders, problem.judging_images(_JUDGED))
        widths = rest_widths(costs, losses, (1 - rate) * costs.macs, problem.policy.ffn_step)
        cut = work.solved(orders, widths, images)
    macs = costs.at(widths)
    if isinstance(family := cut.family, DenseFamily) and not isinstance(cut.module, Pyramid):
        before, after = (count_head_macs(family, each.module) for each in (network, cut))
        macs = costs.macs - (before - after)  # fewer than predicted where attention reads a chain
        cut = Network(cut.module, replace(family, head_macs=macs), cut.output)
    remaining = {name: in_ranges(orders[name].remaining(width).tolist()) for name, width in widths.items()}
    narrowed = [replace(chain, channels=widths[chain.layer]) for chain in chains.found]
    narrowed = [now for now, chain in zip(narrowed, chains.found, strict=True) if now != chain]
    return CutRest(cut, NarrowedRest(tuple(narrowed), macs, costs.macs), remaining)


def spec_with_rest(spec: ModelSpec, narrowed: NarrowedRest) -> ModelSpec:
    """The description of a model whose rest was cut; layers that its base had cut before are described, too."""
    earlier = () if spec.narrowed_rest is None else spec.narrowed_rest.layers
    layers = {layer.layer: layer for layer in (*earlier, *narrowed.layers)}
    of_detector = spec.rest and replace(spec.rest, macs=narrowed.macs)
    return replace(spec, narrowed_rest=replace(narrowed, layers=tuple(layers.values())), rest=of_detector)


def rest_widths(costs: RestCosts, losses: Mapping[str, Tensor], limit: float, step: int) -> dict[str, int]:
    """Choose widths of at most so many MACs, by the step of least loss for its MACs first.

    Args:
        losses: by chain, the loss at each width: [channels + 1].
    """
    widths = {chain.layer: chain.channels for chain in costs.chains}
    while (macs := costs.at(widths)) > limit:
        prices = {}
        for name, width in widths.items():
            narrower = _narrower(width, step)
            if (saved := macs - costs.at({**widths, name: narrower})) > 0:
                prices[name] = float(losses[name][narrower] - losses[name][width]) / saved
        if not prices:
            break
        name = min(prices, key=lambda name: prices[name])
        widths[name] = _narrower(widths[name], step)
    return widths


@dataclass(frozen=True)
class _Work:
    """A network whose rest is whole, and passes over images by which it is cut."""

    network: Network
    chains: Chains
    passes: Passes

    @property
    def ends(self) -> tuple[str, ...]:
        """The layers that are held to the whole network's outputs, so that a cut detector reads the same boxes."""
        return self.chains.ends if isinstance(self.network.module, Pyramid) else ()

    def readers(self, chain: NarrowedLayer) -> list[nn.Module]:
        """The layers that read a chain; all of them read the same."""
        return [self.network.module.get_submodule(name) for name in chain.readers]

    def takes_constants(self, chain: NarrowedLayer) -> bool:
        return all(map(takes_constants, self.readers(chain)))

    def copy(self) -> Network:
        """A copy of all but the backbone, which is shared."""
        module = self.network.module
        copied = bare_copy(module, [module.get_submodule(backbone_of(self.network))])
        return Network(copied, self.network.family, self.network.output)

    # -- order and widths

    def moments(self, images: Split) -> dict[str, Regression]:
        """For each chain, the sums of what its readers read."""
        device, found = self.passes.compute.device, self.chains.found
        sums = {c.layer: Regression(c.channels, c.channels, device) for c in found}
        batches = 0

        def add(i: int, inputs: Any, _: Tensor) -> None:
            x = _thinned(channels_last(self.readers(found[i])[0], inputs[0]))
            if len(x):
                sums[found[i].layer].add(x, x, groups=_group(batches, x))

        def see(batch: Tensor, _: Tensor) -> None:
            nonlocal batches
            with observed([self.readers(chain)[0] for chain in found], add):
                whole_run(self.network, batch)
            batches += 1

        self.passes.show(self.network, images, see, stage="statistics of the rest", most=_BATCH)
        return sums

    def order(self, chain: NarrowedLayer, sums: Regression) -> Removal:
        """The order in which to remove channels. All readers count alike, in units of what they put out."""
        second, mean = sums.moments()
        parts = [as_rows(reader).to(second) for reader in self.readers(chain)]
        scales = [((rows @ second) * rows).sum().clamp_min(torch.finfo(second.dtype).tiny).sqrt() for rows in parts]
        rows = torch.cat([rows / scale for rows, scale in zip(parts, scales, strict=True)])
        centre = mean if self.takes_constants(chain) else torch.zeros_like(mean)
        return removal_order(rows, second, centre, ridge=_RIDGE_OF_ORDER)

    def losses(
        self, moments: Mapping[str, Regression], orders: Mapping[str, Removal], images: Split
    ) -> dict[str, Tensor]:
        """For each chain, the loss at each width [channels + 1]: measured at a few, and between them as predicted."""
        found, probed = self.chains.found, list[Network]()
        probes = {c.layer: [max(round(share * c.channels), 1) for share in _PROBES] for c in found}
        for chain in found:
            for width in probes[chain.layer]:
                probe = self.copy()
                self.narrow(probe, chain, orders[chain.layer].remaining(width), moments[chain.layer])
                probed.append(probe)
        measured = iter(self.divergences(probed, images))
        return {
            name: _through(orders[name].cost, [(width, next(measured)) for width in widths])
            for name, widths in probes.items()
        }

    def divergences(self, networks: Sequence[Network], images: Split) -> list[float]:
        """How far the outputs of each network are from the whole one's, over some images."""
        sums = [0.0] * len(networks)
        of_ends: list[dict[str, Tensor]] = [{} for _ in networks]

        def see(batch: Tensor, _: Tensor) -> None:
            whole = self.watched(batch)
            for i, network in enumerate(networks):

                def add(name: str, before: _Values, after: _Values, errors: dict[str, Tensor] = of_ends[i]) -> None:
                    errors[name] = errors.get(name, 0) + _error_sums(before.output, after.output)

                outputs = self.compare(network, batch, whole, add)
                if not self.ends:
                    pair = (o.double() for o in (whole.outputs, outputs))
                    sums[i] += float(self.network.output.divergence(*pair).sum())

        for network in networks:
            network.to(self.passes.compute.device).eval()
        self.passes.show(self.network, images, see, stage="what each layer loses", most=_BATCH)
        return [
            sum(map(_relative_error, errors.values())) / max(len(errors), 1) if self.ends else total / len(images)
            for errors, total in zip(of_ends, sums, strict=True)
        ]

    # -- both networks at once

    def watched(self, batch: Tensor, names: Sequence[str] = ()) -> _Watched:
        """Run the whole network on a batch; return what these layers and the ends read and give, and the outputs."""
        names, calls = tuple(dict.fromkeys([*names, *self.ends])), list[_Values]()

        def record(_: int, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            calls.append(_Values(inputs[0].clone(), output.clone()))

        with observed([self.network.module.get_submodule(name) for name in names], record):
            return _Watched(names, calls, whole_run(self.network, batch))

    def compare(
        self, cut: Network, batch: Tensor, whole: _Watched, see: Callable[[str, _Values, _Values], None]
    ) -> Any:
        """Run a cut network on the same batch; show what each watched layer reads and gives, before and after."""
        calls = iter(whole.calls)

        def hook(name: str, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            before = next(calls)
            see(name, before, _Values(inputs[0], output))
            return before.output.clone() if name in self.ends else None

        with ExitStack() as stack:
            for name in whole.names:
                stack.callback(cut.module.get_submodule(name).register_forward_hook(partial(hook, name)).remove)
            return whole_run(cut, batch)

    # -- the weights

    def narrow(self, network: Network, chain: NarrowedLayer, keep: Tensor, sums: Regression) -> None:
        """Remove all channels of a chain but some, in place, and solve the weights of its readers."""
        rows = torch.cat(list(map(as_rows, self.readers(chain)))).to(sums.sums)
        keep, constants = keep.to(rows.device), self.takes_constants(chain)
        weight, bias = sums.restricted(keep, rows).solve(prior=rows[:, keep], bias=constants, ridges=_RIDGES)
        shrink(network.module, chain, keep)
        start = 0
        for name in chain.readers:
            reader = network.module.get_submodule(name)
            count = len(as_rows(reader))
            of_reader = slice(start, start := start + count)
            set_rows(reader, weight[of_reader], None if bias is None else bias[of_reader])

    def solved(self, orders: Mapping[str, Removal], widths: Widths, images: Split) -> Network:
        """A copy of the network at these widths, each chain solved behind those before it."""
        cut = self.copy().to(self.passes.compute.device).eval()
        for chain in self.chains.found:
            if widths[chain.layer] < chain.channels:
                keep = orders[chain.layer].remaining(widths[chain.layer])
                self.narrow(cut, chain, keep, self.sums_behind(cut, chain, images))
        return cut

    def sums_behind(self, cut: Network, chain: NarrowedLayer, images: Split) -> Regression:
        """The sums from which what the whole network's readers read is predicted by what a cut network's do."""
        sums = Regression(chain.channels, chain.channels, self.passes.compute.device)
        layer, batches = self.readers(chain)[0], 0

        def add(name: str, whole: _Values, now: _Values) -> None:
            if name == chain.readers[0] and whole.inputs.numel():
                x, y = (_thinned(channels_last(layer, values.inputs)) for values in (now, whole))
                sums.add(x, y, groups=_group(batches, x))

        def see(batch: Tensor, _: Tensor) -> None:
            nonlocal batches
            self.compare(cut, batch, self.watched(batch, chain.readers[:1]), add)
            batches += 1

        self.passes.show(self.network, images, see, stage=f"solve {chain.layer}", most=_BATCH)
        return sums


def _through(cost: Tensor, measured: Sequence[tuple[int, float]]) -> Tensor:
    """The loss at each width [channels + 1]: as measured at falling widths, and between them and beyond as predicted.

    Args:
        cost: predicted growth of the loss with each channel that is removed, in their order.
    """
    predicted = torch.cat([cost.new_zeros(1), cost.cumsum(0)]).flip(0)
    losses, scale, above = torch.zeros_like(predicted), 1.0, len(cost)
    for width, loss in measured:
        growth = float(predicted[width] - predicted[above])
        scale = max(loss - float(losses[above]), 0.0) / growth if growth > 0 else scale
        losses[:above] = losses[above] + scale * (predicted[:above] - predicted[above])
        above = width
    return losses


@dataclass(frozen=True)
class _Values:
    """What a layer reads, and what it gives."""

    inputs: Tensor
    output: Tensor


@dataclass(frozen=True)
class _Watched:
    """What some layers of the whole network read and gave for a batch, in the order of their calls."""

    names: tuple[str, ...]
    calls: list[_Values]
    outputs: Any


def _thinned(rows: Tensor) -> Tensor:
    """At most `_POSITIONS` rows [T, C] in fp64, the same of equally many: channels may be nearly alike."""
    if len(rows) > _POSITIONS:
        chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:_POSITIONS]
        rows = rows[chosen.to(rows.device)]
    return rows.double()


def _group(batch: int, rows: Tensor) -> Tensor:
    return torch.full((len(rows),), batch % GROUPS, device=rows.device)


def _error_sums(before: Tensor, after: Tensor) -> Tensor:
    """Sums of 1, y, y^2 and squared errors."""
    y, error = before.double(), (after - before).double()
    sums = [y.new_tensor(y.numel()), y.sum(), y.square().sum(), error.square().sum()]
    return torch.stack(sums).cpu()


def _relative_error(sums: Tensor) -> float:
    """Half the mean squared error in units of the variance, by `_error_sums`."""
    _, first, second, error = (sums / sums[0].clamp_min(1)).tolist()
    variance = second - first**2
    return 0.5 * error / variance if variance > 0 else 0.0
