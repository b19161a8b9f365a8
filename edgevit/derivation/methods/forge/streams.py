"""The base's tokens on their way through its layers, beside which slim networks are solved.

They depend on the task and not on the budget. So what each site puts out is kept in the cache, and a further budget of
the task passes nothing through the base: it adds up what was kept. It is kept in fp16, and what was just worked out is
so rounded before the tokens go on with it: with and without the cache the weights are the same to the last bit.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derivation.cache import STREAMS, Tensors
from edgevit.derivation.problem import Problem
from edgevit.network.families import Branch, family_of
from edgevit.records.writing import writing
from edgevit.train.passes import Observer, Passes, observed

IN_MEMORY_BYTES = 2 * 10**9  # of tokens and of what sites are given; what is beyond lies in files
SITES = ("attention", "ffn")

Keep = Callable[[int, Callable[[], Tensors]], Tensors]  # keep(layer, compute): what is stored, or computed and stored


def keeping(problem: Problem, images: Split, *, quick: bool = False) -> Keep | None:
    """How what the sites put out is kept for other budgets; None: it is not. `quick` is as for `Passes.rounded`."""
    geometry, layers = family_of(problem.network).geometry(problem.network), family_of(problem.network).layers
    nbytes = 2 * 2 * len(layers(problem.network)) * len(images) * geometry.tokens * geometry.embed
    # A GPU computes it sooner than it is read; and entries beyond their share of the cache would push each other out.
    if problem.compute.device.type != "cpu" or problem.cache.folder is None or nbytes > problem.cache.streams_bytes:
        return None
    key = {**problem.identity, "images": images.content_sha256(), "quick": quick}
    return lambda layer, make: problem.cache.tensors(STREAMS, {**key, "layer": layer}, make)


class Room:
    """Where values of all batches are kept, on the CPU: in memory, and beyond `IN_MEMORY_BYTES` in files."""

    def __init__(self) -> None:
        self.bytes = 0

    def keep(self, values: Tensor) -> Tensor:
        self._take(values.nbytes)
        room = torch.empty(values.shape) if self.bytes <= IN_MEMORY_BYTES else _in_a_file(values.shape)
        weakref.finalize(room, self._take, -values.nbytes)
        return room.copy_(values)

    def _take(self, nbytes: int) -> None:
        self.bytes += nbytes


def _in_a_file(shape: torch.Size) -> Tensor:
    """Room for fp32 values in a file of the system's folder for such files, gone with the tensor.

    Raises:
        OutputError: the disk is full.
    """
    with tempfile.NamedTemporaryFile(prefix="edgevit-tokens-") as file:
        with writing(Path(file.name)):  # a full disk is to be met here, and not in the middle of a sum
            os.posix_fallocate(file.fileno(), 0, 4 * shape.numel())
        return torch.from_file(file.name, shared=True, size=shape.numel()).view(shape)


@dataclass(frozen=True)
class Passed:
    """A batch at one layer of the base: [B, N, d] each, fp32 on the device."""

    before: Tensor  # the tokens
    attention: Tensor | None  # what its output layer puts out
    middle: Tensor  # the tokens after the attention
    ffn: Tensor | None  # what its output layer puts out
    after: Tensor  # the tokens


class BaseStream:
    """The base's tokens between two layers, batch by batch. `quick`: its sites multiply as `Passes.rounded` does."""

    def __init__(
        self, base: nn.Module, images: Split, passes: Passes, keep: Keep | None = None, *, quick: bool = False
    ) -> None:
        self.passes, self.compute, self.keep, self.room = passes, passes.compute, keep, Room()
        self.quick = quick
        self.device = self.compute.device
        family = family_of(base)
        self.branches = family.branches(base)
        self.tokens: list[Tensor] = []
        passes.show(base, images, lambda batch, _: self.tokens.append(self.room.keep(family.first_tokens(base, batch))))

    def of(self, kept: Sequence[Tensor], batch: int) -> Tensor:
        return kept[batch].to(self.device)

    def past(self, layer: int, *, anew: bool = False) -> Iterator[Passed]:
        """Move past a layer; a batch has moved when the next one is asked for.

        `anew`: what was kept before is not used.
        """
        kept = None
        if self.keep is not None:
            made = self._all_put_out(layer) if anew else None
            kept = self.keep(layer, lambda: self._all_put_out(layer) if made is None else made)
        attention, ffn = self.branches[layer]
        for i in range(len(self.tokens)):
            x = self.of(self.tokens, i)
            of_attention, of_ffn = self._put_out(layer, x) if kept is None else (kept.get(f"{i}.{s}") for s in SITES)
            of_attention, of_ffn = (None if y is None else y.to(x) for y in (of_attention, of_ffn))
            middle = _past(attention, x, of_attention)
            after = _past(ffn, middle, of_ffn)
            yield Passed(x, of_attention, middle, of_ffn, after)
            self.tokens[i].copy_(after)

    def _all_put_out(self, layer: int) -> Tensors:
        """The entry of a layer: by batch and site."""
        found: Tensors = {}
        for i in range(len(self.tokens)):
            outputs = self._put_out(layer, self.of(self.tokens, i))
            found |= {f"{i}.{site}": y for site, y in zip(SITES, outputs, strict=True) if y is not None}
        return found

    def _put_out(self, layer: int, tokens: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """What the output layers of both sites put out, rounded."""
        attention, ffn = self.branches[layer]
        with self.passes.rounded(self.quick):
            of_attention = None if attention is None else _rounded(attention.module(attention.before(tokens)))
            middle = _past(attention, tokens, of_attention)
            return of_attention, None if ffn is None else _rounded(ffn.module(ffn.before(middle)))


@torch.no_grad()
def show_stream(
    base: nn.Module,
    images: Split,
    passes: Passes,
    observers: Sequence[Observer],
    keep: Keep | None,
    *,
    quick: bool = False,
) -> None:
    """Let the base classify every image as its stream goes, before the eyes of observers, and keep what it puts out."""
    base.to(passes.compute.device).eval()
    stream = BaseStream(base, images, passes, keep, quick=quick)
    with (
        ExitStack() as stack,
        passes.progress.stage("statistics of activations", len(stream.branches), "block") as told,
        passes.products(base),
    ):
        for modules, observe in observers:
            stack.enter_context(observed(modules, observe))
        for layer in range(len(stream.branches)):
            for _ in stream.past(layer, anew=True):
                pass
            told.update(layer + 1)
        for tokens in stream.tokens:
            family_of(base).answers(base, tokens.to(stream.device))


def _rounded(values: Tensor) -> Tensor:
    """In fp16, or as they are where that does not reach."""
    half = values.half()
    return half if half.isfinite().all() else values


def _past(branch: Branch | None, tokens: Tensor, put_out: Tensor | None) -> Tensor:
    """The tokens after a site."""
    return tokens if branch is None or put_out is None else tokens + branch.added(put_out.to(tokens))
