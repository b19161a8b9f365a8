"""Score every unit of a network by its weights: the sum over all weights that are removed with the unit.

Each weight is replaced by a value, such as its square or its product with the gradient of the loss. The score of a unit
is the sum of the values in its group. The groups are: for a QK dimension, its rows of W_Q and W_K and their biases; for
a VO dimension, its row of W_V and its column of W_O; for a head, all of its dimensions; for a neuron, its rows of W_1
(and W_g) and its column of W_2; for a channel of the embedding, its column of every layer that reads tokens and its row
of every layer that writes them, in the blocks and in the classifier. The patch embedding and the positions also write
tokens, and are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.errors import DataError
from edgevit.network.anatomy import Block, BlockDims, SizeAxis
from edgevit.network.copies import bare_copy
from edgevit.network.network import Network
from edgevit.records.model import HEAD_WIDTHS
from edgevit.train.passes import IMAGES, Passes

GROUP = 8  # images whose gradients are summed before they are squared
_AXES: tuple[SizeAxis, ...] = (*HEAD_WIDTHS, "heads", "ffn")


# The scores of the units of one block by axis, in fp64 on the CPU; units of low score are removed first. Their shapes
# are those of `unit_shapes`.
UnitScores = Mapping[SizeAxis, Tensor]


def unit_scores(dimensions: Sequence[Tensor], neurons: Tensor, by_head: Tensor | None = None) -> UnitScores:
    """Make the scores of one block, empty ones for a missing site.

    Args:
        dimensions: of each head, for each of `HEAD_WIDTHS`; empty without attention.
        by_head: None: each head has the sum over its values.
    """
    of_widths = dimensions or [torch.empty(0, 0, dtype=torch.float64)] * len(HEAD_WIDTHS)
    by_head = of_widths[-1].sum(1) if by_head is None else by_head
    return {axis: scores.cpu() for axis, scores in zip(_AXES, (*of_widths, by_head, neurons), strict=True)}


def unit_shapes(dims: BlockDims) -> dict[SizeAxis, tuple[int, ...]]:
    """The shapes of the scores of a block's units: [H, w] of dimensions of heads, [H] of heads, [e] of neurons."""
    return {axis: (dims.heads, dims[axis]) if axis in HEAD_WIDTHS else (dims[axis],) for axis in _AXES}


@dataclass(frozen=True)
class Scores:
    """Scores of all units of a network."""

    blocks: Sequence[UnitScores]
    embed: Tensor  # [d] score of each channel of the embedding in the last stage

    def map(self, change: Callable[[Tensor], Tensor]) -> Scores:
        blocks = [{axis: change(scores) for axis, scores in block.items()} for block in self.blocks]
        return Scores(blocks, change(self.embed))


@torch.no_grad()
def group_sums(values: Network) -> Scores:
    """Sum the values of each group; `values` is a network with a value in place of each weight."""
    blocks = values.read()
    last = [block for block in blocks if block.stage == blocks[-1].stage]
    width = values.geometry.embed  # width of each vector that a head reads side by side
    read = [layer.weight.double().sum(0).reshape(-1, width).sum(0) for layer in values.ends.classifiers]
    embed = torch.stack([*map(_channels, last), *read])
    return Scores([_of_block(block) for block in blocks], embed.sum(0).cpu())


def _of_block(block: Block) -> UnitScores:
    def rows(weight: Tensor, bias: Tensor | None) -> Tensor:
        total: Tensor = weight.double().sum(-1)
        return total if bias is None else total + bias.double()

    a, f = block.attention, block.ffn
    dimensions, by_head = list[Tensor](), None
    neurons = torch.empty(0, dtype=torch.float64)
    if a is not None:
        dimensions = [rows(a.wq, a.bq) + rows(a.wk, a.bk), rows(a.wv, a.bv) + a.wo.double().sum(1)]
        by_head = dimensions[0].sum(1) + dimensions[1].sum(1)
    if f is not None:
        neurons = rows(f.w1, f.b1) + f.w2.double().sum(0)
        if f.wg is not None:
            neurons = neurons + rows(f.wg, f.bg)
    return unit_scores(dimensions, neurons, by_head)


def _channels(block: Block) -> Tensor:
    """Sum over all weights of a block that read or write tokens, per channel: [d]."""
    read, written, biases = list[Tensor | None](), list[Tensor](), list[Tensor | None]()
    if (a := block.attention) is not None:
        read, written, biases = [a.wq, a.wk, a.wv], [a.wo.double().sum((0, 2))], [a.bo]
    if (f := block.ffn) is not None:
        read, written, biases = [*read, f.w1, f.wg], [*written, f.w2.double().sum(1)], [*biases, f.b2]
    summed = [w.double().flatten(0, -2).sum(0) for w in read if w is not None]
    return torch.stack([*summed, *written, *(b.double() for b in biases if b is not None)]).sum(0)


def valued(network: Network, values: Callable[[str, nn.Parameter], Tensor]) -> Network:
    """Copy a network and replace every weight by `values(name, parameter)`."""
    return _fill(bare_copy(network), values)


@torch.no_grad()
def _fill(network: Network, values: Callable[[str, nn.Parameter], Tensor]) -> Network:
    for name, parameter in network.named_parameters():
        parameter.copy_(values(name, parameter))
    return network


def weights_times_gradients(network: Network, images: Split, passes: Passes) -> Network:
    """Copy a network and replace each weight w by w dL/dw, with L the mean cross-entropy over the images.


    Raises:
        DataError: a gradient is not finite.
    """
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in network.named_parameters()}

    def add(products: Mapping[str, Tensor], _: int) -> None:
        for name, product in products.items():
            sums[name] += product

    _by_batch(network, images, passes, add)
    means = {name: _finite(name, passes.compute.sum(total) / len(images)) for name, total in sums.items()}
    return valued(network, lambda name, p: means[name].to(p))


def squared_changes(network: Network, images: Split, passes: Passes) -> Scores:
    """Square the first-order change of the loss that removing each unit causes, and average over groups of images.

    The score of a unit is the mean of (sum of w dL/dw)^2. A group is GROUP consecutive images, whatever the memory
    allows, and every process sees all of them: a square of sums depends on which images are summed.


    Raises:
        DataError: a gradient is not finite.
    """
    fit = min(passes.batch_size(network, gradients=True), GROUP)
    most = next(count for count in range(fit, 0, -1) if GROUP % count == 0)  # a batch ends where a group ends
    products_of_batch = bare_copy(network)  # with the products in place of the weights
    images_done = 0
    group: Scores | None = None  # sums over the images of the current group
    total: Scores | None = None  # sum over the groups before

    def add(products: Mapping[str, Tensor], count: int) -> None:
        nonlocal images_done, group, total
        images_done += count
        group = _added(group, group_sums(_fill(products_of_batch, lambda name, p: products[name].to(p))))
        if images_done % GROUP == 0 or images_done == len(images):
            of_group = (images_done - 1) % GROUP + 1
            squares = group.map(lambda change: change.square() / of_group)  # the square of the mean, times the images
            total, group = _added(total, squares), None

    _by_batch(network, images, replace(passes, shared=False), add, most=most)
    assert total is not None
    mean = total.map(lambda squares: squares / len(images))
    for i, block in enumerate(mean.blocks):
        for scores in block.values():
            _finite(f"block {i}", scores)
    return mean


def squared_products(network: Network, images: Split, passes: Passes, *, seed: int) -> Network:
    """Copy a network and replace each weight w by the mean of (w dL/dw)^2 over the images. No label is used.

    L is a random probe of the output whose squared gradient is the curvature of its divergence (`Output.probe`).

    Raises:
        DataError: a gradient is not finite.
    """
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in network.named_parameters()}
    done = 0

    def probe(outputs: Tensor, _: Tensor) -> Tensor:
        return network.output.probe(outputs, network.output.draws(outputs, 1, seed + done))

    def add(products: Mapping[str, Tensor], count: int) -> None:
        nonlocal done
        done += count
        for name, product in products.items():
            sums[name] += product.square()

    _by_batch(network, images, replace(passes, shared=False), add, loss=probe, most=1)
    means = {name: _finite(name, total / len(images)) for name, total in sums.items()}
    return valued(network, lambda name, p: means[name].to(p))


def _by_batch(
    network: Network,
    images: Split,
    passes: Passes,
    see: Callable[[Mapping[str, Tensor], int], None],
    *,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    most: int = IMAGES,
) -> None:
    """Call `see` for each batch with w dL/dw of every weight, by name in fp64, and the number of images.

    Args:
        loss: L of the outputs and labels of a batch; None: the sum of the cross-entropy over its images.
    """
    named = dict(network.named_parameters())

    def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
        target = torch.as_tensor(network.columns, device=passes.compute.device)
        return F.cross_entropy(logits.float(), target[labels], reduction="sum")

    def see_answers(logits: Tensor, labels: Tensor) -> None:
        total = (loss or cross_entropy)(logits, labels)
        gradients = torch.autograd.grad(total, list(named.values()), allow_unused=True)
        pairs = zip(named.items(), gradients, strict=True)
        products = {
            name: p.detach().double() * (torch.zeros_like(p) if g is None else g).double() for (name, p), g in pairs
        }
        see(products, len(labels))

    passes.run(network, images, see_answers, gradients=True, stage="gradients of the weights", most=most)


def _added(total: Scores | None, scores: Scores) -> Scores:
    if total is None:
        return scores
    pairs = zip(total.blocks, scores.blocks, strict=True)
    blocks = [{axis: before[axis] + added[axis] for axis in before} for before, added in pairs]
    return Scores(blocks, total.embed + scores.embed)


def _finite(name: str, values: Tensor) -> Tensor:
    if not torch.isfinite(values).all():
        raise DataError(f"the gradient of {name} is not finite; check the base's weights, --mean and --std")
    return values
