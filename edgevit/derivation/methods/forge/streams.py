"""Pass the base's tokens through its layers, one layer at a time, while slim networks are solved beside it.

The tokens depend on the task and not on the budget. So the cache stores the output of each site, and for a further
budget of the task the base computes nothing: its stored outputs are added up. They are stored in fp16, and a computed
output is rounded to fp16 before it is added, so that the weights are the same to the last bit with and without the
cache.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgevit.data.task import Split
from edgevit.derivation.cache import STREAMS, Tensors
from edgevit.derivation.problem import Problem
from edgevit.network.layers import BlockLayers, SiteLayer
from edgevit.network.network import Network
from edgevit.network.padding import PictureAreas
from edgevit.records.writing import writing
from edgevit.train.passes import Observer, Passes, observed

IN_MEMORY_BYTES = 2 * 10**9  # memory for tokens and inputs of sites; the others are stored in files
_SITES = ("attention", "ffn")

Keep = Callable[[int, Callable[[], Tensors]], Tensors]  # keep(layer, compute): the stored tensors, or compute and store


def keeping(problem: Problem, images: Split, *, quick: bool = False) -> Keep | None:
    """Return a function that stores the outputs of the sites for other budgets; None: they are not stored.

    Args:
        quick: as for `Passes.rounded`.
    """
    geometry = problem.network.geometry
    values = sum(stage.tokens * stage.embed for stage in (geometry.stages[d.stage] for d in problem.network.dims))
    nbytes = 2 * 2 * len(images) * values
    # A GPU computes outputs faster than they are read. Entries beyond their share of the cache would evict each other.
    if problem.compute.device.type != "cpu" or problem.cache.folder is None or nbytes > problem.cache.streams_bytes:
        return None
    key = {**problem.identity, "images": images.content_sha256(), "quick": quick}
    return lambda layer, compute: problem.cache.tensors(STREAMS, {**key, "layer": layer}, compute)


class TensorStore:
    """Stores tensors of all batches on the CPU: in memory, and beyond `IN_MEMORY_BYTES` in files."""

    def __init__(self) -> None:
        self.bytes = 0

    def copy(self, values: Tensor) -> Tensor:
        """Store a copy in fp32, until nothing refers to it."""
        self._count(values.nbytes)
        stored = torch.empty(values.shape) if self.bytes <= IN_MEMORY_BYTES else _in_a_file(values.shape)
        weakref.finalize(stored, self._count, -values.nbytes)
        return stored.copy_(values)

    def _count(self, nbytes: int) -> None:
        self.bytes += nbytes


def _in_a_file(shape: torch.Size) -> Tensor:
    """Allocate an fp32 tensor in a temporary file, which is removed with the tensor.

    Raises:
        OutputError: the disk is full.
    """
    with tempfile.NamedTemporaryFile(prefix="edgevit-tokens-") as file:
        with writing(Path(file.name)):  # detects a full disk now instead of in the middle of a sum
            os.posix_fallocate(file.fileno(), 0, 4 * shape.numel())
        return torch.from_file(file.name, shared=True, size=shape.numel()).view(shape)


@dataclass(frozen=True)
class Passed:
    """A batch at one layer of the base: [B, N, d] each, fp32 on the device."""

    before: Tensor  # the tokens before the layer
    attention: Tensor | None  # the output of the attention's last linear layer
    middle: Tensor  # the tokens between attention and FFN
    ffn: Tensor | None  # the output of the FFN's last linear layer
    after: Tensor  # the tokens after the layer


class BaseStream:
    """The base's tokens between two layers, batch by batch; with `quick` its sites multiply as in `Passes.rounded`."""

    def __init__(
        self,
        base: Network,
        images: Split,
        passes: Passes,
        keep: Keep | None = None,
        *,
        quick: bool = False,
        others: Sequence[Network] = (),
    ) -> None:
        """Begin before the first layer, with the first tokens of other networks, too, in `of_others`."""
        self.passes, self.compute, self.keep, self.store = passes, passes.compute, keep, TensorStore()
        self.quick = quick
        self.device = self.compute.device
        self.base, self.blocks, self.branches = base, base.blocks, base.layers
        self.tokens: list[Tensor] = []
        self.of_others: list[list[Tensor]] = [[] for _ in others]
        self._areas: list[PictureAreas | None] = []

        def add(batch: Tensor, _: Tensor) -> None:
            self.tokens.append(self.store.copy(base.first_tokens(batch)))
            for network, tokens in zip(others, self.of_others, strict=True):
                tokens.append(self.store.copy(network.first_tokens(batch).float()))
            self._areas.append(base.areas)

        passes.show(base, images, add)

    def batches(self) -> Iterator[int]:
        """Yield the number of each batch, whose images are then the base's last ones."""
        for i, areas in enumerate(self._areas):
            self.base.areas = areas
            yield i

    def of(self, tensors: Sequence[Tensor], batch: int) -> Tensor:
        return tensors[batch].to(self.device)

    def enter(self, layer: int) -> None:
        """Merge the tokens where a stage begins with this layer."""
        enter_all(self, self.tokens, self.blocks[layer])

    def past(self, layer: int, *, recompute: bool = False) -> Iterator[Passed]:
        """Move past a layer that was entered; a batch has moved when the next one is requested.

        Args:
            recompute: compute the outputs even if they are stored.
        """
        stored = None
        if self.keep is not None:
            computed = self._all_outputs(layer) if recompute else None
            stored = self.keep(layer, lambda: self._all_outputs(layer) if computed is None else computed)
        attention, ffn = self.branches[layer]
        for i in self.batches():
            x = self.of(self.tokens, i)
            outputs = self._outputs(layer, x) if stored is None else [stored.get(f"{i}.{site}") for site in _SITES]
            of_attention, of_ffn = (None if y is None else y.to(x) for y in outputs)
            middle = _past(attention, x, of_attention)
            after = _past(ffn, middle, of_ffn)
            yield Passed(x, of_attention, middle, of_ffn, after)
            self.tokens[i].copy_(after)

    def _all_outputs(self, layer: int) -> Tensors:
        """Compute the outputs of a layer's sites, by batch and site."""
        tensors: Tensors = {}
        for i in self.batches():
            outputs = self._outputs(layer, self.of(self.tokens, i))
            tensors |= {f"{i}.{site}": y for site, y in zip(_SITES, outputs, strict=True) if y is not None}
        return tensors

    def _outputs(self, layer: int, tokens: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Compute the outputs of both sites, rounded."""
        attention, ffn = self.branches[layer]
        with self.passes.rounded(self.quick):
            of_attention = None if attention is None else _rounded(attention.module(attention.before(tokens)))
            middle = _past(attention, tokens, of_attention)
            return of_attention, None if ffn is None else _rounded(ffn.module(ffn.before(middle)))


def enter_all(stream: BaseStream, tokens: list[Tensor], block: BlockLayers) -> None:
    """Replace the stored tokens of all batches by those that a block gets."""
    if block.entry:
        for i in range(len(tokens)):
            with stream.passes.rounded(stream.quick):
                entered = block.enter(stream.of(tokens, i))
            tokens[i] = stream.store.copy(entered.float())


@torch.no_grad()
def show_stream(
    base: Network,
    images: Split,
    passes: Passes,
    observers: Sequence[Observer],
    keep: Keep | None,
    *,
    quick: bool = False,
) -> None:
    """Classify every image layer by layer, with observers attached, and store the outputs of the sites."""
    base.to(passes.compute.device).eval()
    with (
        ExitStack() as stack,
        passes.progress.stage("statistics of activations", len(base.blocks), "block") as stage,
        passes.products(base),
    ):
        for modules, observe in observers:
            stack.enter_context(observed(modules, observe))
        stream = BaseStream(base, images, passes, keep, quick=quick)  # which may observe norms of the patches
        for layer in range(len(stream.branches)):
            stream.enter(layer)
            for passed in stream.past(layer, recompute=True):
                base.show_last(layer, passed.after)
            stage.update(layer + 1)


def _rounded(values: Tensor) -> Tensor:
    """Convert to fp16, unless a value is out of its range."""
    half = values.half()
    return half if half.isfinite().all() else values


def _past(branch: SiteLayer[Any] | None, tokens: Tensor, output: Tensor | None) -> Tensor:
    """Return the tokens after a site."""
    return tokens if branch is None or output is None else branch.past(tokens, output.to(tokens))
