"""Recognise layer normalisations, attentions and blocks in the ONNX graph of a transformer by its operators.

Names of nodes are ignored, as other programs name them differently. Every transformer has these properties:

- The values on all paths from the images to the output form a chain, the residual stream. Between two of its links is
  one branch: an attention, or an FFN. Where a head reads tokens of several depths, the chain ends with the blocks.
- A branch with a softmax between two products of computed values is an attention. A block begins with an attention and
  ends before the next; the last block ends at its last residual addition.
- A layer normalisation is one operator, or, in older operator sets, the nodes around a root of a mean of squared
  differences from a mean.

Paths are of floating-point values, as shapes are computed once and used everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from edgevit.records.imported import ImportedBlock
from edgevit.records.model import BlockDims

_NORMS = ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")
_PASSING = ("Cast", "Identity", "Dropout", "QuantizeLinear", "DequantizeLinear")
# Operators that may be between a product and its softmax.
_MASKING = ("Add", "Sub", "Mul", "Div", "Where", "Reshape", *_PASSING)
STEM, HEAD, WHOLE = "patch_embed", "head", "model"


@dataclass(frozen=True)
class Structure:
    """The module of each node, named as in edgevit's files: `blocks.3.norm1`, `blocks.3.attn`, `blocks.3`."""

    module_of: dict[ir.Node, str]
    norms: tuple[str, ...]
    blocks: tuple[ImportedBlock, ...]


def _producers(node: ir.Node) -> Iterator[ir.Node]:
    return (maker for value in node.inputs if value is not None and (maker := value.producer()) is not None)


def _consumers(node: ir.Node) -> Iterator[ir.Node]:
    return (use.node for value in node.outputs for use in value.uses())


def _flow(graph: ir.Graph) -> list[ir.Node]:
    """The nodes on a path of values from the images to the output, in order."""
    reached: set[ir.Value | None] = {graph.inputs[0]}
    forward = []
    for node in graph:
        if node.op_type not in ("Shape", "Size") and reached.intersection(node.inputs):
            reached.update(node.outputs)
            forward.append(node)
    return _leading_to(graph.outputs[0].producer(), forward)


def _leading_to(end: ir.Node | None, nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """The nodes of which a value reaches `end`, and this itself, in order."""
    needed, backward = {end}, []
    for node in reversed(nodes):
        if node in needed:
            needed.update(_producers(node))
            backward.append(node)
    return backward[::-1]


def _chain(flow: Sequence[ir.Node]) -> list[int]:
    """Indices in the flow of the nodes on all paths, which no edge bypasses."""
    place = {node: i for i, node in enumerate(flow)}
    chain, furthest = [], -1  # the last index that an edge from an earlier node leads to
    for i, node in enumerate(flow):
        if furthest <= i:
            chain.append(i)
        furthest = max([furthest, *(place[user] for user in _consumers(node) if user in place)])
    return chain


def _behind(value: ir.Value | None) -> tuple[ir.Node | None, list[ir.Node]]:
    """The node that computed a value, and the nodes that only passed it on."""
    passed: list[ir.Node] = []
    node = value.producer() if value is not None else None
    while node is not None and node.op_type in _PASSING:
        passed.append(node)
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    return node, passed


def _is_constant(value: ir.Value | None) -> bool:
    return value is not None and value.producer() is None and not value.is_graph_input()


def _decomposed_norm(root: ir.Node) -> set[ir.Node] | None:
    """The nodes of a normalisation whose standard deviation is the output of this root; None: it is not one."""
    nodes = {root}

    def back(value: ir.Value | None, *operators: str) -> ir.Node | None:
        node, passed = _behind(value)
        if node is None or node.op_type not in operators:
            return None
        nodes.update([node, *passed])
        return node

    added = back(root.inputs[0], "Add")
    variance = added and next((v for value in added.inputs if (v := back(value, "ReduceMean"))), None)
    square = variance and back(variance.inputs[0], "Pow", "Mul")
    difference = square and back(square.inputs[0], "Sub")
    mean = difference and back(difference.inputs[1], "ReduceMean")
    if not mean or not difference or _behind(mean.inputs[0])[0] is not _behind(difference.inputs[0])[0]:
        return None
    for node in [*nodes]:  # some exporters compute the difference twice
        nodes.update(user for user in _consumers(node) if node is mean and user.op_type == "Sub")
    return nodes | _scaling(nodes)


def _scaling(norm: set[ir.Node]) -> set[ir.Node]:
    """The division, weight and bias after a root: each at most once, of values of the normalisation or constants."""
    inside = set(norm)
    for operators, constant in ((("Reciprocal",), False), (("Div", "Mul"), False), (("Mul",), True), (("Add",), True)):
        nodes = [
            user for node in inside for user in _consumers(node) if user not in inside and user.op_type in operators
        ]
        for node in nodes:
            sources = [_behind(value) for value in node.inputs if not _is_constant(value)]
            if constant == any(map(_is_constant, node.inputs)) and all(maker in inside for maker, _ in sources):
                inside.update([node, *(link for _, passed in sources for link in passed)])
                break
    return inside - norm


def _find_norms(flow: Sequence[ir.Node]) -> list[set[ir.Node]]:
    """The nodes of each normalisation, in order."""
    norms = []
    for node in flow:
        if node.op_type in _NORMS:
            norms.append({node})
        elif node.op_type in ("Sqrt", "Pow") and (nodes := _decomposed_norm(node)):
            norms.append(nodes)
    return norms


def _products(softmax: ir.Node, flow: set[ir.Node]) -> tuple[ir.Node, ir.Node] | None:
    """The products before and after the softmax of an attention; None: it is another softmax."""

    def two_sided(node: ir.Node) -> bool:
        is_product = node.op_type in ("MatMul", "Einsum") and all(maker in flow for maker in _producers(node))
        return is_product and not any(map(_is_constant, node.inputs))

    before, front = None, [softmax]
    while front and before is None:
        makers = [maker for node in front for maker in _producers(node) if maker in flow]
        before = next((maker for maker in makers if two_sided(maker)), None)
        front = [maker for maker in makers if maker.op_type in _MASKING]
    after, front = None, [softmax]
    while front and after is None:
        users = [user for node in front for user in _consumers(node) if user in flow]
        after = next((user for user in users if two_sided(user)), None)
        front = [user for user in users if user.op_type in ("Reshape", *_PASSING)]
    return (before, after) if before is not None and after is not None else None


def _last_size(value: ir.Value | None, axis: int) -> int:
    """One size of a value; 0: unknown."""
    shape = value.shape if value is not None else None
    return size if shape is not None and len(shape) >= -axis and isinstance(size := shape[axis], int) else 0


def _is_fusable(softmax: ir.Node, products: tuple[ir.Node, ir.Node]) -> bool:
    before, after = products
    sizes = _last_size(softmax.inputs[0], -3), _last_size(before.inputs[0], -1), _last_size(after.outputs[0], -1)
    return BlockDims(*sizes, ffn=0).fusable


@dataclass(frozen=True)
class _Branch:
    """The nodes between two links of the chain, and the second link."""

    nodes: tuple[ir.Node, ...]
    residual: bool  # whether its link adds the branch to the stream
    softmax: ir.Node | None  # softmax of the attention; None: the branch is no attention
    fusable: bool = False

    @property
    def is_attention(self) -> bool:
        return self.residual and self.softmax is not None


def _branches(flow: Sequence[ir.Node]) -> list[_Branch]:
    inside, branches, start = set(flow), [], 0
    for place in _chain(flow):
        nodes, stream = tuple(flow[start : place + 1]), flow[start - 1] if start else None
        link = nodes[-1]
        residual = link.op_type == "Add" and len(nodes) > 1 and stream in {_behind(value)[0] for value in link.inputs}
        attentions = [(n, p) for n in nodes if n.op_type == "Softmax" and (p := _products(n, inside))]
        softmax, products = attentions[0] if attentions else (None, None)
        fusable = bool(softmax and products) and all(_is_fusable(n, p) for n, p in attentions)
        branches.append(_Branch(nodes, residual, softmax, fusable))
        start = place + 1
    return branches


def _count_attentions(nodes: Sequence[ir.Node]) -> int:
    return sum(branch.is_attention for branch in _branches(nodes))


def _trunk(flow: Sequence[ir.Node]) -> Sequence[ir.Node]:
    """The part of a flow up to the sum behind the most attentions: the whole, unless a head reads several depths."""
    inside, most, trunk = set(flow), _count_attentions(flow), flow
    softmaxes = [node for node in flow if node.op_type == "Softmax" and _products(node, inside)]
    if most == len(softmaxes):
        return flow
    behind = {softmaxes[-1]}
    for node in flow:
        if behind.isdisjoint(_producers(node)):
            continue
        behind.add(node)
        if node.op_type == "Add" and (count := _count_attentions(before := _leading_to(node, flow))) >= most:
            most, trunk = count, before
    return trunk


def _blocks(branches: Sequence[_Branch]) -> list[list[_Branch]]:
    """The branches of each block, without those before the first and after the last block."""
    starts = [i for i, branch in enumerate(branches) if branch.is_attention]
    if not starts:
        return []
    period = starts[-1] - starts[-2] if len(starts) > 1 else len(branches)
    limit = min(starts[-1] + period, len(branches))
    last = max(i for i in range(starts[-1], limit) if branches[i].residual)
    return [list(branches[a:b]) for a, b in zip(starts, [*starts[1:], last + 1], strict=True)]


def find_structure(graph: ir.Graph) -> Structure:
    """Find the modules in the graph of a model of images, which must be in topological order."""
    flow = _flow(graph)
    branches = _branches(_trunk(flow))
    blocks = _blocks(branches)
    module_of = dict.fromkeys(graph, WHOLE)
    module_of.update(dict.fromkeys(flow if blocks else (), HEAD))
    first = branches.index(blocks[0][0]) if blocks else 0
    for branch in branches[:first]:
        module_of.update(dict.fromkeys(branch.nodes, STEM))
    for i, block in enumerate(blocks):
        for branch in block:
            part = "attn" if branch.softmax is not None else "mlp"
            module_of.update(dict.fromkeys(branch.nodes, f"blocks.{i}.{part}" if branch.residual else f"blocks.{i}"))
            module_of[branch.nodes[-1]] = f"blocks.{i}"
    names, counts = [], Counter[str]()
    for nodes in _find_norms(flow):
        within = module_of[min(nodes, key=flow.index)]
        place = ".".join(within.split(".")[:2]) if within.startswith("blocks.") else within
        counts[place] += 1
        names.append(name := f"{place}.norm{counts[place]}")
        module_of.update(dict.fromkeys(nodes, name))
    recognised = tuple(ImportedBlock(f"blocks.{i}", block[0].fusable) for i, block in enumerate(blocks))
    return Structure(module_of, tuple(names), recognised)


def name_nodes(graph: ir.Graph, structure: Structure) -> None:
    """Name each node by its module and operator, numbered if there are several."""
    counts = Counter[str]()
    for node in graph:
        name = f"{structure.module_of[node]}/{node.op_type}"
        node.name = f"{name}_{counts[name]}" if counts[name] else name
        counts[name] += 1
