"""What ONNX Runtime's own profiler writes: a JSON list of events, among them each node that ran and each run of all.

ONNX Runtime runs a graph that it has optimised, and gives nodes that it fused or inserted names of its own, such as
`BiasGelu_token_12`. Which nodes of the file they come from, its optimised graph tells, by the names of tensors.
"""

from __future__ import annotations

import json
from typing import Any, Sequence

from .layers import Layer
from .protobuf import Node
from .runners import RunnerError

_TIMED = "_kernel_time"  # ends the name of an event that is a node's computation
_RUN = "model_run"
_PRECISIONS = {"float": "fp32", "float16": "fp16", "double": "fp64"}


def read_trace(path: str, count: int, origins: dict[str, tuple[str, ...]]) -> list[Layer]:
    """Return the nodes that ran, in order, with the times of the last `count` runs.

    Raises:
        RunnerError: it is no such trace, or its runs are not alike.
    """
    try:
        with open(path, encoding="utf-8") as file:
            events = json.load(file)
        runs = sorted(((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("name") == _RUN))[-count:]
        timed = sorted((e for e in events if e.get("name", "").endswith(_TIMED)), key=lambda e: e["ts"])
        inferences = [[e for e in timed if began <= e["ts"] <= ended] for began, ended in runs]
        names = [[e["name"] for e in nodes] for nodes in inferences]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunnerError(f"ONNX Runtime's profile cannot be read ({error}); run again, or without --layers") from None
    if len(runs) != count or not names[0] or any(later != names[0] for later in names):
        raise RunnerError("ONNX Runtime's profile does not hold the same nodes in each run; run again")
    return [_layer(nodes, origins) for nodes in zip(*inferences)]


def _layer(events: Sequence[dict[str, Any]], origins: dict[str, tuple[str, ...]]) -> Layer:
    """One node from its events, one per run."""
    name, args = events[0]["name"][: -len(_TIMED)], events[0].get("args", {})
    types = [kind for output in args.get("output_type_shape") or () for kind in output]
    return Layer(
        name=name,
        kind=args.get("op_name"),
        precision=_PRECISIONS.get(types[0], types[0]) if types else None,
        tactic=None,
        nodes=origins.get(name, ()),
        times_ns=tuple(1000 * event["dur"] for event in events),
    )


def find_origins(file: Sequence[Node], optimised: Sequence[Node]) -> dict[str, tuple[str, ...]]:
    """For each optimised node, the node of the file that it comes from; one that comes from none is left out.

    It is the one of the same name; or that whose name it begins with; or that which made the same tensor; or, of a node
    that was inserted, the one that it serves: where its output goes, or else where its input comes from.
    """
    names = {node.name for node in file}
    makers = {tensor: node.name for node in file for tensor in node.outputs}
    origins: dict[str, str] = {}
    for node in optimised:
        begun = [name for name in names if node.name == name or node.name.startswith(name + "/")]
        unchanged = [makers[tensor] for tensor in node.outputs if tensor in makers]
        if begun or unchanged:
            origins[node.name] = max(begun, key=len) if begun else unchanged[0]
    readers = {tensor: node.name for node in reversed(optimised) for tensor in node.inputs}
    for node in reversed(optimised):
        served = [origins[readers[t]] for t in node.outputs if readers.get(t) in origins]
        if node.name not in origins and served:
            origins[node.name] = served[0]
    producers = {tensor: node.name for node in optimised for tensor in node.outputs}
    for node in optimised:
        served = [origins[producers[t]] for t in node.inputs if producers.get(t) in origins]
        if node.name not in origins and served:
            origins[node.name] = served[0]
    return {name: (origin,) for name, origin in origins.items()}
