"""The time of each block and module: the layers of a profile, mapped to modules by names of nodes.

The exporter names every node by its module, `blocks.3.attn.qkv/MatMul`; names of other exporters differ.
A kernel that computes nodes of several modules counts for the module of the largest operation: a matrix product that
also adds a residual counts for the product. Layers without a known name are listed by themselves.
"""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from typing import Literal

from edgevit.agent.layers import OPAQUE, Layer
from edgevit.board.layers import LayerProfile

_Part = Literal["embedding", "attention", "FFN", "norms", "residuals", "head", "not shown", "no known name"]
PARTS: tuple[_Part, ...] = (
    "embedding",  # patches, class token, positions
    "attention",
    "FFN",
    "norms",  # norms of the blocks, and the last norm
    "residuals",  # what else there is in a block: sums, LayerScale
    "head",
    "not shown",  # layers that the runtime shows as one, over several modules
    "no known name",
)

_SLOWEST = 5  # layers that are listed by themselves
_BLOCK = re.compile(r"(?:^|[./])(?:blocks|layers?|resblocks)\.(\d+)(?=[./])")
_WITHIN: tuple[tuple[_Part, re.Pattern[str]], ...] = (
    ("attention", re.compile(r"attn|attention")),
    ("norms", re.compile(r"norm|(?:^|[./])ln_?\d")),
    ("FFN", re.compile(r"mlp|ffn|fc\d|feed_forward|intermediate|output")),
    ("residuals", re.compile("")),
)
_OUTSIDE: tuple[tuple[_Part, re.Pattern[str]], ...] = (
    ("embedding", re.compile(r"embed|patch|cls_token|pos_|^model/")),
    ("norms", re.compile(r"norm|(?:^|[./])ln_")),
    ("head", re.compile(r"head|classifier|pool|(?:^|[./])fc")),
)
# Operators by how much they compute; all others come last.
_LARGE = (("MatMul", "Gemm", "Conv", "Attention", "Einsum"), ("Softmax", "LayerNormalization", "Gelu", "ReduceMean"))


@dataclass(frozen=True)
class LayerPlace:
    """The block and module of a layer."""

    block: int | None  # number of the block; None: the layer belongs to no block
    part: _Part


@dataclass(frozen=True)
class Spent:
    """The time of all layers of one place."""

    place: LayerPlace
    ms: float  # sum of the layers' median times
    layers: int


@dataclass(frozen=True)
class Breakdown:
    """The parts of an inference, each by its median, so that interruptions of single inferences do not count.

    `inference_ms` is the sum of `spent` and `between_ms`. `interrupted_ms` is the difference to the median of whole
    inferences, near 0 if no other program ran.
    """

    label: str
    precision: str | None
    batch: int
    inference_ms: float  # duration of an inference with the profiler, by its parts
    profiled_ms: float  # median duration of whole inferences with the profiler
    plain_ms: float  # median duration of whole inferences without the profiler
    spent: tuple[Spent, ...]
    between_ms: float  # time in no layer; negative: layers ran at the same time
    between: str  # what the time in no layer is, in words
    unknown: tuple[str, ...]  # layers whose names belong to no block or module
    fused: int  # number of attentions that run as one kernel
    slowest: tuple[tuple[str, float], ...]  # the slowest layers, with their times in ms

    @property
    def interrupted_ms(self) -> float:
        return self.profiled_ms - self.inference_ms

    @property
    def blocks(self) -> list[int]:
        return sorted({spent.place.block for spent in self.spent if spent.place.block is not None})

    def share(self, ms: float) -> float:
        """The share of the inference that takes this time; 0 if all layers ran at the same time."""
        return ms / self.inference_ms if self.inference_ms > 0 else 0.0

    def ms(self, *parts: _Part, block: int | None = None, anywhere: bool = False) -> float:
        """The time of these parts, or of all: in one block, outside of all blocks, or anywhere."""
        return sum(
            spent.ms
            for spent in self.spent
            if (not parts or spent.place.part in parts) and (anywhere or spent.place.block == block)
        )


def place_of(node: str) -> LayerPlace | None:
    """The place of a node of the ONNX file by its name; None: the name is not of a known form."""
    if matches := list(_BLOCK.finditer(node)):
        within = node[matches[-1].end() :].lower()
        return LayerPlace(int(matches[-1][1]), next(part for part, words in _WITHIN if words.search(within)))
    return next((LayerPlace(None, part) for part, words in _OUTSIDE if words.search(node.lower())), None)


def place_of_layer(layer: Layer) -> LayerPlace:
    """The place of a layer: that of the largest operation that it computes."""
    candidates = [(_size(node), place) for node in layer.nodes if (place := place_of(node)) is not None]
    if not candidates:
        return LayerPlace(None, "no known name")
    if OPAQUE in layer.name and len({place for _, place in candidates}) > 1:  # only the ends of such a layer are known
        return LayerPlace(None, "not shown")
    return min(candidates, key=lambda candidate: (candidate[0], PARTS.index(candidate[1].part)))[1]


def _size(node: str) -> int:
    """The place of a node's operator in LARGE."""
    operator = re.sub(r"_\d+$", "", node.rpartition("/")[2])
    return next((i for i, names in enumerate(_LARGE) if operator in names), len(_LARGE))


def break_down(profile: LayerProfile) -> Breakdown:
    times = [(layer, place_of_layer(layer), statistics.median(layer.times_ns) / 1e6) for layer in profile.layers]
    within = [sum(times) for times in zip(*(layer.times_ns for layer in profile.layers), strict=True)]
    between = statistics.median(a - b for a, b in zip(profile.inferences_ns, within, strict=True)) / 1e6
    whole = sum(ms for _, _, ms in times) + between
    places = sorted({place for _, place, _ in times}, key=lambda p: (p.block is None, p.block, PARTS.index(p.part)))
    spent = []
    for place in places:
        figures_ms = [ms for _, layer_place, ms in times if layer_place == place]
        spent.append(Spent(place, sum(figures_ms), len(figures_ms)))
    return Breakdown(
        label=profile.label,
        precision=profile.precision,
        batch=profile.batch,
        inference_ms=whole,
        profiled_ms=statistics.median(profile.inferences_ns) / 1e6,
        plain_ms=statistics.median(profile.plain_ns) / 1e6,
        spent=tuple(spent),
        between_ms=between,
        between="between layers, on the GPU" if profile.clock == "gpu" else "between layers: the runtime's own",
        unknown=tuple(layer.name for layer, place, _ in times if place.part == "no known name"),
        fused=sum(layer.fused for layer in profile.layers),
        slowest=tuple((layer.name, ms) for layer, _, ms in sorted(times, key=lambda timed: -timed[2])[:_SLOWEST]),
    )
