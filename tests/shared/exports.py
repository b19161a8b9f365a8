"""What makes exports quick in tests: a network is traced once, and torch's lists of operators are made once.

torch's exporter takes a second or two for the smallest network, and most tests need a file rather than its making. So
the graph that it made for one test is kept for the next that needs it, of whichever worker. What decides on a graph is
in its key: every weight and setting of the network, and every option. Tests of the exporter itself use `traced_anew`.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import io
import os
import pickle
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest


def keep_operators() -> None:
    """Have torch's exporter copy one list of operators for each file: making it is a quarter of a small export's time.

    Looking up all operators that are made of others, twice for each file, is a tenth: tests define none meanwhile. Both
    are private to torch: where they have another form, exports of tests are only slower.
    """
    utilities = sys.modules.get("torch._export.utils")
    if hasattr(utilities, "_materialize_cpp_cia_ops"):
        utilities._materialize_cpp_cia_ops = cache(utilities._materialize_cpp_cia_ops)
    registration = None
    if "edgevit.exporting.graph" in sys.modules:  # torch imports it with the first export
        with suppress(ImportError):
            registration = importlib.import_module("torch.onnx._internal.exporter._registration")
    registry = getattr(registration, "ONNXRegistry", None)
    make = getattr(registry, "from_torchlib", None)
    if make is None or not hasattr(registry(), "functions"):
        return
    made: dict[tuple[Any, ...], Any] = {}

    def from_torchlib(*options: Any, **more: Any) -> Any:
        key = (*options, *sorted(more.items()))
        if key not in made:
            made[key] = make(*options, **more)
        own = copy.copy(made[key])
        own.functions = {name: list(known) for name, known in made[key].functions.items()}
        return own

    registry.from_torchlib = staticmethod(from_torchlib)


def _key(network: Any, options: dict[str, Any]) -> str:
    import torch

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                content = value.detach().contiguous().numpy().tobytes()
                return str(value.dtype), tuple(value.shape), hashlib.sha256(content).hexdigest()
            if isinstance(value, FunctionType) and "<locals>" in value.__qualname__:  # a hook, which has no name
                return value.__code__.co_code, [cell.cell_contents for cell in value.__closure__ or ()]
            if isinstance(value, OrderedDict) and value and all(type(number) is int for number in value):
                return list(value.values())  # hooks, which are numbered throughout the process
            return None

    stream = io.BytesIO()
    pickler = Pickler(stream)
    pickler.fast = True  # equal networks are equal bytes, whichever of their parts are one object
    pickler.dump((network, sorted(options.items())))
    return hashlib.sha256(stream.getvalue()).hexdigest()


LARGE = 10_000_000  # parameters; making such a network's key and keeping its file would take longer than it saves


def _users(trace: Any) -> list[Any]:
    modules = [module for name, module in sys.modules.items() if name.startswith("edgevit.")]
    return [module for module in modules if getattr(module, "trace", None) is trace]


@pytest.fixture(scope="session", autouse=True)
def traced_once(of_all_workers: Path) -> Iterator[Any]:
    """Trace each different network once for all tests of all workers; give what traces anew."""
    if (graph := sys.modules.get("edgevit.exporting.graph")) is None:
        yield None
        return
    import onnx_ir as ir

    store = of_all_workers / "traces"
    store.mkdir(exist_ok=True)
    trace = graph.trace

    def trace_once(network: Any, **options: Any) -> Any:
        # Pickle does not find again what is of a file.
        of_a_file = any(type(part).__module__ == "<run_path>" for part in network.module.modules())
        if of_a_file or sum(parameter.numel() for parameter in network.parameters()) > LARGE:
            return trace(network, **options)
        kept = store / f"{_key(network, options)}.onnx"
        if kept.exists():
            return ir.load(kept)
        model = trace(network, **options)
        making = kept.with_suffix(f".{os.getpid()}")
        ir.save(model, making)
        making.rename(kept)
        return model

    with pytest.MonkeyPatch.context() as patch:
        for module in _users(trace):
            patch.setattr(module, "trace", trace_once)
        yield trace


@pytest.fixture
def traced_anew(traced_once: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have torch's exporter make every graph, for tests of what it makes."""
    for module in _users(sys.modules["edgevit.exporting.graph"].trace):
        monkeypatch.setattr(module, "trace", traced_once)
