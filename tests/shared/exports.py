"""What makes exports quick in tests: a file is written once, and torch's lists of operators are made once.

The fixture `exports_once`: a file that torch's exporter wrote for one test is copied for the next that needs it.

The exporter takes a second or two for the smallest network, and most tests need a file rather than its making. What
decides on a file is in its key: every weight and setting of the network, and every option. The tests of the exporter
itself, those of tests/export, go without.
"""

from __future__ import annotations

import copy
import hashlib
import io
import pickle
import shutil
import sys
import tempfile
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
    registration = sys.modules.get("torch.onnx._internal.exporter._registration")
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


@pytest.fixture(scope="module")
def exports_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write each different ONNX file once for all tests of all workers that ask for this."""
    from edgevit.export import graph, onnx  # which brings whatever writes a file

    own = tmp_path_factory.getbasetemp()
    store = (own.parent if own.name.startswith("popen-") else own) / "exports"  # xdist's workers lie in one folder
    store.mkdir(exist_ok=True)

    write = graph.write_onnx
    users = [module for name, module in sys.modules.items() if name.startswith("edgevit.")]
    users = [module for module in users if getattr(module, "write_onnx", None) is write]
    assert len(users) > 1, f"{onnx.__name__} writes its files with something else"

    def write_once(network: Any, path: Path, **options: Any) -> None:
        key = _key(network, {**options, "limit": graph.PROTOBUF_LIMIT_BYTES, "name": path.name})
        if not (kept := store / key).exists():
            write(network, path, **options)
            making = Path(tempfile.mkdtemp(dir=own))
            for file in path.parent.glob(f"{path.name}*"):
                shutil.copy(file, making)
            with suppress(OSError):  # another worker has written it meanwhile
                making.rename(kept)
        shutil.copytree(kept, path.parent, dirs_exist_ok=True)

    with pytest.MonkeyPatch.context() as patch:
        for module in users:
            patch.setattr(module, "write_onnx", write_once)
        yield
